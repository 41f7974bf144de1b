"""The wheel: builds without a network, installs into a clean environment, and is whole."""

import os
import subprocess
import sys
import zipfile

import pytest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
BUILD = os.path.join(ROOT, "tools/python/build_wheel.py")
pytest.importorskip("setuptools")
pytest.importorskip("wheel")


def built(*arguments):
    done = subprocess.run(
        [sys.executable, BUILD, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_it_is_pure_typed_and_runs_where_it_is_installed(tmp_path):
    wheel = built(tmp_path)
    assert wheel.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"gossipd/py.typed", "gossipd/integrations/lightning.py"} <= set(names)
    venv = tmp_path / "venv"
    line = [sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", str(venv)]
    subprocess.run(line, check=True)
    site = str(venv / "lib/python")
    line = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*line, "--target", site, wheel], check=True)
    run = [str(venv / "bin/python"), "-m", "gossipd", "run", "--help"]
    environment = {"PYTHONPATH": site, "PATH": os.defpath}
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    assert "founds a cluster" in done.stdout


def test_a_wheel_with_programs_carries_them_executable(tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("gossipd-core", "gossipctl"):
        with open("/bin/true", "rb") as file:
            (programs / name).write_bytes(file.read())
    wheel = built(tmp_path, "--bin", programs)
    assert "-py3-none-linux_" in wheel
    infos = {info.filename: info for info in zipfile.ZipFile(wheel).infolist()}
    for name in ("gossipd/bin/gossipd", "gossipd/bin/gossipctl"):
        assert infos[name].external_attr >> 16 & 0o111 == 0o111


@pytest.mark.parametrize("release,words", [("59.6.0", "has setuptools 59.6.0"), (None, "lacks")])
def test_builders_that_are_old_or_missing_are_named_in_one_line(tmp_path, release, words):
    for name in ("wheel", "pip", *(["setuptools"] if release else [])):
        metadata = tmp_path / f"{name}-{release}.dist-info/METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n")
    done = subprocess.run(
        [sys.executable, "-S", BUILD, str(tmp_path / "out")],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0 and done.stderr.count("\n") == 1, done.stderr
    assert words in done.stderr and "apt-get install" in done.stderr


def test_programs_that_are_missing_are_named(tmp_path):
    done = subprocess.run(
        [sys.executable, BUILD, str(tmp_path), "--bin", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0 and "lacks gossipd-core" in done.stderr
