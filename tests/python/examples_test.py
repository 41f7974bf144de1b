"""Every script of deploy/examples by two real daemons, started as gossipd run starts them.

Needs GOSSIPD_BIN_DIR, and the libraries of each example.
"""

import json
import os
import subprocess
import sys
import time

import pytest
from processes import die_with_the_test

from gossipd.run import free_port

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "../../deploy/examples")
PROGRAMS = os.environ.get("GOSSIPD_BIN_DIR", "")
TIMEOUT_S = 400
JOB = 'name = "mine"\nbatch = 16\nbudget_samples = {}\n[model]\nkind = "external"\n'
EXTRA = {"PYTHONPATH": os.path.join(HERE, "../../tools/python/src"), "HF_HUB_OFFLINE": "1"}

if not os.path.exists(os.path.join(PROGRAMS, "gossipctl")):
    pytest.skip("GOSSIPD_BIN_DIR has no gossipctl", allow_module_level=True)


def launch(folder, options, script, programs=PROGRAMS):
    folder.mkdir()
    line = [sys.executable, "-m", "gossipd", "run", "--state-dir", "state", *options]
    line += ["--daemon-log", "log", "--", sys.executable, os.path.join(EXAMPLES, script[0])]
    environment = {**os.environ, **EXTRA, "OMP_NUM_THREADS": "1", "GOSSIPD_BIN_DIR": programs}
    with open(folder / "errors", "wb") as errors:
        return subprocess.Popen(
            [*line, *script[1:]],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            preexec_fn=die_with_the_test,
        )


def two_nodes(tmp_path, started, budget, *script):
    """Results of the founder and of a joiner."""
    job = tmp_path / "job.toml"
    job.write_text(JOB.format(budget))
    address = f"127.0.0.1:{free_port(21000)}"
    first = launch(tmp_path / "a", ["--job", str(job), "--listen", address], script)
    started.append(first)
    key = tmp_path / "a" / "state" / "cluster.key"
    end = time.monotonic() + TIMEOUT_S
    while not key.exists():
        assert first.poll() is None and time.monotonic() < end, (tmp_path / "a/errors").read_text()
        time.sleep(0.1)
    second = launch(
        tmp_path / "b", ["--join", address, "--key-file", str(key)], [*script, "--seed", "2"]
    )
    started.append(second)
    outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in (first, second)]
    for name, process in (("a", first), ("b", second)):
        assert process.returncode == 0, (tmp_path / name / "errors").read_text()[-3000:]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def test_lightning(tmp_path, started):
    pytest.importorskip("lightning")
    # enough that the joiner, which imports Lightning for seconds, does not come after the end
    results = two_nodes(tmp_path, started, 240_000, "lightning_module.py")
    assert all(r["accuracy"] > 0.75 and r["steps"] > 0 for r in results), results


@pytest.mark.parametrize("arguments", [[], ["--lora"]])
def test_huggingface_on_text(tmp_path, started, arguments):
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    results = two_nodes(tmp_path, started, 8_000, "huggingface.py", *arguments)
    assert all(r["loss"] < r["loss_before"] - 0.5 and r["steps"] > 0 for r in results), results
    assert abs(results[0]["loss"] - results[1]["loss"]) < 0.1, results
    if arguments:
        assert results[0]["shared"] < 20_000


def test_numpy(tmp_path, started):
    results = two_nodes(tmp_path, started, 600_000, "numpy_loop.py")
    assert all(r["accuracy"] > 0.75 and r["steps"] > 0 for r in results), results
