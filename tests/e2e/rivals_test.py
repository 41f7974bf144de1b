"""The comparison with rivals on narrow lines still runs: three of its rows, a few steps each, one
over paths with a delay, and no frame crosses these sooner than it may.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from cluster import BIN
from switchboard import unavailable

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/bench/rivals")
SHAPED = os.path.join(FOLDER, "shaped.py")
sys.path.append(FOLDER)

import shaped_table  # noqa: E402
from shaped_path import Cables  # noqa: E402

MBIT = 5
NODES = 4
DELAY_MS = 40
ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 5000))
print("ready", flush=True)
peer, _ = server.accept()
while got := peer.recv(1 << 16):
    peer.sendall(got)
"""
ASK = """
import os, socket, sys, time
peer = socket.create_connection((sys.argv[1], 5000))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times = []
for size in [1] * 10 + [100_000]:
    sent, got = os.urandom(size), b""
    began = time.monotonic()
    peer.sendall(sent)
    while len(got) < size:
        got += peer.recv(size)
    times.append(time.monotonic() - began)
    assert got == sent
print(min(times))
"""


def spaces_of(pid):
    """Namespaces that this process has left behind."""
    done = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith(f"gp{pid}n")]


class Rivals(unittest.TestCase):
    def setUp(self):
        if why := unavailable():
            raise RuntimeError(why)

    def shaped(self, folder, *words):
        rows = os.path.join(folder, "rows")
        with subprocess.Popen(
            [sys.executable, SHAPED, *words, "--rows", rows],
            env={**os.environ, "GOSSIPD_BIN_DIR": BIN},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            printed, complaints = process.communicate()
        self.assertEqual(0, process.returncode, complaints)
        self.assertEqual([], spaces_of(process.pid))
        return printed

    def test_both_train_within_the_lines_rate_and_nothing_is_left(self):
        with tempfile.TemporaryDirectory() as folder:
            words = ["--ways", "gossipd,ddp", "--mbit", str(MBIT), "--repeats", "1"]
            printed = self.shaped(folder, "accuracy", *words, "--limit-s", "10")
            table = self.shaped(folder, "table")
        rows = {row["way"]: row for row in map(json.loads, printed.splitlines())}
        self.assertEqual({"gossipd", "ddp"}, set(rows))
        for way, row in rows.items():
            self.assertNotIn("failed", row)
            self.assertGreater(row["samples"], 0)
            self.assertEqual(row["samples"], row["looks"][-1][1])
            self.assertGreater(row["start_cpu_s"], 0)
            self.assertIn(row["of"], table)
            self.assertIn(f"| {way} |", table)
        ddp = rows["ddp"]  # which would send 61 Mbit/s
        sent = ddp["sent_mb"] * 8 / NODES / (ddp["seconds"] + ddp["start_s"])
        self.assertLess(sent, 1.1 * MBIT)

    def test_a_ratio_says_which_of_two_runs_did_not_arrive(self):
        def runs(*reached):
            return [{"seed": i, "reached": r, "seconds": 10} for i, r in enumerate(reached)]

        mine, ours = runs(True, False, True, False, True), runs(True, True, False, False)
        self.assertEqual("1.00, > 1.00, < 1.00, -, -", shaped_table.slower(mine, ours))

    def test_no_round_trip_is_shorter_than_two_delays(self):
        cables = Cables(20, DELAY_MS)
        try:
            host, _ = cables.plug("first"), cables.plug("second")
            cables.connect()
            python = [sys.executable, "-c"]
            line = [*cables.prefix("first"), *python, ECHO, host]
            with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as echo:
                try:
                    self.assertEqual("ready\n", echo.stdout.readline())
                    line = [*cables.prefix("second"), *python, ASK, host]
                    asked = subprocess.run(line, capture_output=True, text=True, check=False)
                finally:
                    echo.kill()
            self.assertEqual("", asked.stderr)
            seen = cables.disconnect()
        finally:
            cables.destroy()
        self.assertGreaterEqual(float(asked.stdout), 2 * DELAY_MS / 1000)
        self.assertGreater(seen["frames"], 20)
        self.assertEqual(0, seen["lost"])
        self.assertGreaterEqual(seen["late_ms"][1], seen["late_ms"][0])
        self.assertEqual([], spaces_of(os.getpid()))

    def test_nodes_train_over_paths_with_a_delay(self):
        with tempfile.TemporaryDirectory() as folder:
            words = ["--ways", "gossipd", "--mbit", "20", "--delay-ms", str(DELAY_MS)]
            words += ["--model", "mlp", "--repeats", "1", "--limit-s", "8"]
            row = json.loads(self.shaped(folder, "accuracy", *words))
            table = self.shaped(folder, "table")
        self.assertNotIn("failed", row)
        self.assertGreater(row["samples"], 0)
        self.assertGreater(row["path"]["frames"], 0)
        self.assertIn(f"mlp, 20 Mbit/s, {DELAY_MS} ms of delay", table)


if __name__ == "__main__":
    unittest.main()
