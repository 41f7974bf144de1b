#!/usr/bin/env python3
"""Builds the wheel of the Python package.

    tools/python/build_wheel.py OUT                pure Python
    tools/python/build_wheel.py OUT --bin DIR      carries DIR's daemon and gossipctl

From DIR come gossipd-core, the daemon without LibTorch, else gossipd, and gossipctl, stripped. They
need the shared libraries that they were linked with, so such a wheel is for boxes of the same
release. Needs pip, setuptools 61 or later and wheel, and no network. Prints the wheel's path.
"""

import argparse
import glob
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile

SETUPTOOLS_LEAST = 61  # as pyproject.toml has it
HERE = os.path.dirname(os.path.abspath(__file__))


def carry(folder, package):
    """Copies the programs into the package."""
    target = os.path.join(package, "bin")
    os.makedirs(target)
    daemons = [os.path.join(folder, name) for name in ("gossipd-core", "gossipd")]
    found = next(filter(os.path.exists, daemons), None)
    control = os.path.join(folder, "gossipctl")
    if found is None or not os.path.exists(control):
        sys.exit(f"build_wheel.py: {folder} lacks gossipd-core (or gossipd) or gossipctl")
    for source, name in ((found, "gossipd"), (control, "gossipctl")):
        copy = os.path.join(target, name)
        shutil.copy(source, copy)
        os.chmod(copy, 0o755)
        subprocess.run(["strip", copy], check=True)


def check_builders():
    """Exits where this Python lacks what builds wheels, or has an older release of it."""
    try:
        found = importlib.metadata.version("setuptools")
        importlib.metadata.version("wheel")
        importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError as error:
        lack = f"lacks {error.name}"
    else:
        if int(found.split(".")[0]) >= SETUPTOOLS_LEAST:
            return
        lack = f"has setuptools {found}, and {SETUPTOOLS_LEAST} or later is needed"
    sys.exit(
        f"build_wheel.py: {sys.executable} {lack}; on Debian 12 run it with /usr/bin/python3, after"
        " apt-get install python3-pip python3-setuptools python3-wheel"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out")
    parser.add_argument("--bin", metavar="DIR")
    given = parser.parse_args()
    check_builders()
    with tempfile.TemporaryDirectory() as folder:
        tree = os.path.join(folder, "package")
        shutil.copytree(HERE, tree, ignore=shutil.ignore_patterns("build", "*.egg-info", "__py*"))
        if given.bin:
            carry(given.bin, os.path.join(tree, "src/gossipd"))
            with open(os.path.join(tree, "setup.cfg"), "w", encoding="utf-8") as file:
                file.write(f"[bdist_wheel]\nplat_name = linux_{platform.machine()}\n")
        line = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
        line += ["--no-build-isolation", "--wheel-dir", os.path.join(folder, "out"), tree]
        if subprocess.run(line, check=False, stdout=sys.stderr).returncode:
            sys.exit("build_wheel.py: pip has not built the wheel; its words above say why")
        (wheel,) = glob.glob(os.path.join(folder, "out", "*.whl"))
        os.makedirs(given.out, exist_ok=True)
        path = os.path.join(given.out, os.path.basename(wheel))
        shutil.move(wheel, path)
    print(path)


if __name__ == "__main__":
    main()
