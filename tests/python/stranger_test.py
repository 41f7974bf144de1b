"""A stranger's path: two clean environments, two commands in each, and both train.

Needs GOSSIPD_BIN_DIR with gossipd-core (or gossipd) and gossipctl, and NumPy from a package index.
"""

import json
import os
import pty
import re
import subprocess
import sys
import time

import pytest
from processes import die_with_the_test, read_some

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../..")
EXAMPLES = os.path.join(ROOT, "deploy/examples")
PROGRAMS = os.environ.get("GOSSIPD_BIN_DIR", "")
TIMEOUT_S = 300
JOB = 'name = "mine"\nbatch = 32\nbudget_samples = 600_000\n[model]\nkind = "external"\n'

pytest.importorskip("setuptools")
if not os.path.exists(os.path.join(PROGRAMS, "gossipctl")):
    pytest.skip("GOSSIPD_BIN_DIR has no gossipctl", allow_module_level=True)


class Shell:
    """A person's shell with a clean environment, whose output is a terminal."""

    def __init__(self, folder, wheel):
        self.folder = folder
        self.environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("GOSSIP", "PYTHON"))
        }
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        self.environment["PATH"] = f"{folder}/venv/bin:{os.environ['PATH']}"
        self.environment["XDG_STATE_HOME"] = str(folder / "state")
        self.run("pip", "install", "--quiet", wheel)  # the first command

    def run(self, *line):
        subprocess.run(line, env=self.environment, cwd=self.folder, check=True, timeout=TIMEOUT_S)

    def start(self, *line):  # the second command
        ours, terminal = pty.openpty()
        process = subprocess.Popen(
            line,
            env=self.environment,
            cwd=self.folder,
            stdout=terminal,
            stderr=terminal,
            preexec_fn=die_with_the_test,
        )
        os.close(terminal)
        return process, ours


def read_until(screen, pattern):
    seen, deadline = b"", time.monotonic() + TIMEOUT_S
    while not re.search(pattern, seen):
        part = read_some(screen, deadline)
        assert part, seen.decode(errors="replace")[-3000:]
        seen += part
    return re.search(pattern, seen)[1].decode()


def test_two_shells_with_two_commands_each_train_one_model(tmp_path, started):
    build = [sys.executable, os.path.join(ROOT, "tools/python/build_wheel.py"), str(tmp_path)]
    done = subprocess.run([*build, "--bin", PROGRAMS], capture_output=True, text=True, check=True)
    wheel = done.stdout.strip()
    (tmp_path / "mine.toml").write_text(JOB)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    shells = [Shell(folder, wheel) for folder in folders]
    script = ["--", "python", os.path.join(EXAMPLES, "numpy_loop.py")]
    state = ["--state-dir", "state"]
    first, screen = shells[0].start(
        "gossipd", "run", "--job", str(tmp_path / "mine.toml"), *state, *script
    )
    started.append(first)
    invite = read_until(screen, rb"(gossip1[a-z0-9]{40,})")
    second, other = shells[1].start("gossipd", "run", "--join", invite, *state, *script)
    started.append(second)
    results = []
    for screen in (screen, other):
        results.append(json.loads(read_until(screen, rb'(\{"accuracy": [^}]+\})')))
        deadline = time.monotonic() + TIMEOUT_S
        while read_some(screen, deadline):
            pass
        os.close(screen)
    assert [first.wait(TIMEOUT_S), second.wait(TIMEOUT_S)] == [0, 0]
    assert all(result["accuracy"] > 0.7 and result["steps"] > 0 for result in results), results
    assert abs(results[0]["accuracy"] - results[1]["accuracy"]) < 0.05
