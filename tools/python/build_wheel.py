#!/usr/bin/env python3
"""Builds the wheel of the Python package.

    tools/python/build_wheel.py OUT                pure Python
    tools/python/build_wheel.py OUT --bin DIR      carries DIR's daemon and gossipctl

From DIR come gossipd-core, the daemon without LibTorch, else gossipd, and gossipctl, stripped. They
need the shared libraries that they were linked with, so such a wheel is for boxes of the same
release. Needs pip, setuptools and wheel, and no network. Prints the wheel's path.
"""

import argparse
import glob
import os
import platform
import shutil
import subprocess
import sys
import tempfile

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


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out")
    parser.add_argument("--bin", metavar="DIR")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tree = os.path.join(folder, "package")
        shutil.copytree(HERE, tree, ignore=shutil.ignore_patterns("build", "*.egg-info", "__py*"))
        if given.bin:
            carry(given.bin, os.path.join(tree, "src/gossipd"))
            with open(os.path.join(tree, "setup.cfg"), "w", encoding="utf-8") as file:
                file.write(f"[bdist_wheel]\nplat_name = linux_{platform.machine()}\n")
        line = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
        line += ["--no-build-isolation", "--wheel-dir", os.path.join(folder, "out"), tree]
        subprocess.run(line, check=True, stdout=sys.stderr)
        (wheel,) = glob.glob(os.path.join(folder, "out", "*.whl"))
        os.makedirs(given.out, exist_ok=True)
        path = os.path.join(given.out, os.path.basename(wheel))
        shutil.move(wheel, path)
    print(path)


if __name__ == "__main__":
    main()
