"""Makes the package importable from the source tree, unless an installed one is under test."""

import os
import pathlib
import sys

import pytest
from processes import end

ROOT = pathlib.Path(__file__).resolve().parents[2]
if not os.environ.get("GOSSIPD_TEST_INSTALLED"):
    sys.path.insert(0, str(ROOT / "tools/python/src"))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("GOSSIPCTL_", "GOSSIPD_")) and name != "GOSSIPD_BIN_DIR":
            monkeypatch.delenv(name)


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    """A daemon made of the protocol's page, which `gossipd.attach` finds."""
    from fake_daemon import FakeDaemon

    made = FakeDaemon(tmp_path / "trainer.sock")
    monkeypatch.setenv("GOSSIPD_SOCKET", made.path)
    yield made
    if not made.stopping:
        made.stop()


@pytest.fixture
def started():
    """A list of processes; those that still run are ended after the test."""
    processes = []
    yield processes
    for process in processes:
        end(process)
