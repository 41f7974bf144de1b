"""The comparison with rivals on narrow lines still runs: two of its rows, a few steps each."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from cluster import BIN
from switchboard import unavailable

SHAPED = os.path.join(os.path.dirname(__file__), "../../tools/bench/rivals/shaped.py")
MBIT = 5
NODES = 4


def spaces():
    done = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in done.stdout.splitlines()}


class Rivals(unittest.TestCase):
    def setUp(self):
        if why := unavailable():
            raise RuntimeError(why)

    def shaped(self, folder, *words):
        rows = os.path.join(folder, "rows")
        done = subprocess.run(
            [sys.executable, SHAPED, *words, "--rows", rows],
            env={**os.environ, "GOSSIPD_BIN_DIR": BIN},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(0, done.returncode, done.stderr)
        return done.stdout

    def test_both_train_within_the_lines_rate_and_nothing_is_left(self):
        before = spaces()
        with tempfile.TemporaryDirectory() as folder:
            words = ["--ways", "gossipd,ddp", "--mbit", str(MBIT), "--repeats", "1"]
            printed = self.shaped(folder, "accuracy", *words, "--limit-s", "10")
            table = self.shaped(folder, "table")
        rows = {row["way"]: row for row in map(json.loads, printed.splitlines())}
        self.assertEqual({"gossipd", "ddp"}, set(rows))
        for way, row in rows.items():
            self.assertNotIn("failed", row)
            self.assertGreater(row["samples"], 0)
            self.assertIn(f"| {way} |", table)
        ddp = rows["ddp"]  # which would send 61 Mbit/s
        sent = ddp["sent_mb"] * 8 / NODES / (ddp["seconds"] + ddp["start_s"])
        self.assertLess(sent, 1.1 * MBIT)
        self.assertLessEqual(spaces(), before)


if __name__ == "__main__":
    unittest.main()
