"""Limits of a machine: file descriptors, memory, a wall clock that steps, and a long sleep."""

import os
import resource
import signal
import socket
import struct
import unittest
from datetime import datetime, timedelta, timezone

from cluster import ClusterTest, wait_for
from slow_disk import LIBRARY, Disk

CLOCK_STEP = os.environ.get("GOSSIPD_CLOCK_STEP", "")
DAY_S = 86_400
SPARE_DESCRIPTORS = 4
FLOOD = 100
MEMORY_FOR_A_HANDSHAKE = 8 << 20  # far below the 47 MB of a link


class Descriptors(ClusterTest):
    @staticmethod
    def open_files(node):
        return len(os.listdir(f"/proc/{node.process.pid}/fd"))

    def test_a_node_out_of_file_descriptors_trains_on_and_recovers(self):
        job = self.cluster.job()
        poor = self.cluster.found(job, shard="1/3", trainer__min_step_ms=20, checkpoint__every_s=1)
        other = self.cluster.joiner("box2", poor, shard="2/3", trainer__min_step_ms=20).start()
        for node in (poor, other):
            node.wait_linked(1)
        incarnation = poor.status()["incarnation"]
        usual = resource.prlimit(poor.process.pid, resource.RLIMIT_NOFILE)
        held = self.open_files(poor)
        limit = (held + SPARE_DESCRIPTORS, usual[1])
        resource.prlimit(poor.process.pid, resource.RLIMIT_NOFILE, limit)
        flood = []
        try:
            for i in range(FLOOD):
                host, port = (poor.address, poor.rest)[i % 2].rsplit(":", 1)
                flood.append(socket.create_connection((host, int(port)), timeout=20))
            wait_for("it has none left", lambda: self.open_files(poor) >= held + SPARE_DESCRIPTORS)
            poor.wait_log("no file descriptor is left")
            before = other.members()[poor.name]["step"]
            applied = other.links()[poor.name]["deltas_applied"]
            wait_for("it trains on", lambda: other.members()[poor.name]["step"] > before + 150)
            wait_for("it exchanges", lambda: other.links()[poor.name]["deltas_applied"] > applied)
        finally:
            for peer in flood:
                peer.close()
        resource.prlimit(poor.process.pid, resource.RLIMIT_NOFILE, usual)
        wait_for("its REST answers", poor.status)
        wait_for("checkpoints are written again", lambda: poor.ctl("checkpoint").returncode == 0)
        third = self.cluster.joiner("box3", poor, shard="3/3", trainer__min_step_ms=20).start()
        third.wait("it is in", lambda s: s["phase"] == "training" and s["members_alive"] == 3)
        for event in ("member-suspect", "member-failed"):
            self.assertNotIn("event=" + event, other.log())
        self.assertEqual(incarnation, poor.status()["incarnation"], "it was suspected")


class Memory(ClusterTest):
    def test_a_node_out_of_memory_ends_with_a_line_that_says_so(self):
        # Of 5.9 million parameters, so that a link needs blocks of memory that are not there yet.
        job = self.cluster.job(model='kind = "mlp"\nhidden = [2048, 2048]', learning_rate=0.01)
        poor = self.cluster.found(job, shard="1/2", trainer__min_step_ms=100)
        poor.wait_step(20)  # training has what it needs
        with open(f"/proc/{poor.process.pid}/statm", encoding="ascii") as file:
            held = int(file.read().split()[0]) * resource.getpagesize()
        limit = held + MEMORY_FOR_A_HANDSHAKE
        resource.prlimit(poor.process.pid, resource.RLIMIT_AS, (limit, limit))
        self.cluster.joiner("box2", poor, shard="2/2", trainer__min_step_ms=100).start()
        # Which thread asks first for memory that is not there: the node's, or the trainer's.
        says_so = {
            -signal.SIGABRT: r'event=failed code=no-memory reason="no memory is left .*limit',
            1: r"event=training-failed code=device-failed reason=.*bad_alloc",
        }
        code = poor.exit_code()
        self.assertIn(code, says_so)
        self.assertRegex(poor.log(), r"(?m)error.* " + says_so[code])


@unittest.skipUnless(
    CLOCK_STEP, "GOSSIPD_CLOCK_STEP, a library that steps the clock; ctest sets it"
)
class WallClock(ClusterTest):
    def set_clock(self, offset_s):
        with open(self.file, "wb") as out:
            out.write(struct.pack("=q", offset_s))

    def pair(self):
        """A founder, and a joiner whose clocks the file steps."""
        self.file = os.path.join(self.cluster.directory, "clock")
        self.set_clock(0)
        steady = self.cluster.found(self.cluster.job(), shard="1/2", trainer__min_step_ms=20)
        stepped = self.cluster.joiner("box2", steady, shard="2/2", trainer__min_step_ms=20)
        stepped.prefix = ["env", f"LD_PRELOAD={CLOCK_STEP}", f"CLOCK_STEP_FILE={self.file}"]
        return steady, stepped.start()

    def test_a_stepping_wall_clock_changes_nothing(self):
        steady, stepped = nodes = self.pair()
        for node in nodes:
            node.wait_linked(1)
        incarnations = [node.status()["incarnation"] for node in nodes]
        for offset_s in (3600, 30 * DAY_S, -DAY_S, -10 * 365 * DAY_S, 0):
            self.step_clock_in_place(offset_s)
            goals = [(node, node.status()["step"] + 60) for node in nodes]
            for node, goal in goals:
                node.wait_step(goal)
            self.assertEqual(0, stepped.ctl("checkpoint").returncode)
            written_at = stepped.status()["checkpoints"]["current"]["written_at"]
            written = datetime.fromisoformat(written_at.replace("Z", "+00:00"))
            away = written - datetime.now(timezone.utc) - timedelta(seconds=offset_s)
            self.assertLess(abs(away.total_seconds()), 60, "its clock has not been stepped")
        for node, incarnation in zip(nodes, incarnations):
            self.assertEqual((2, 1), (node.status()["members_alive"], node.status()["links_open"]))
            self.assertEqual(incarnation, node.status()["incarnation"], "somebody was suspected")
            for event in ("member-suspect", "member-failed", "link-down", "stood-still"):
                self.assertNotIn("event=" + event, node.log())

    def test_a_machine_that_sleeps_while_the_node_stops_does_not_count_as_a_stop_too_long(self):
        self.file = os.path.join(self.cluster.directory, "clock")
        self.set_clock(0)
        node = self.cluster.founder(self.cluster.job(), trainer__min_step_ms=20)
        disk = Disk(node)
        preloaded = f"LD_PRELOAD={LIBRARY}:{CLOCK_STEP}"
        node.prefix = ["env", preloaded, f"CLOCK_STEP_FILE={self.file}", *node.prefix[2:]]
        node.start().wait_step(20)
        disk.takes("stuck")
        node.process.terminate()
        node.wait_log("event=stopping")
        node.signal(signal.SIGSTOP)
        self.step_clock_in_place(0, 40)
        node.signal(signal.SIGCONT)
        node.wait_log(r"warning.* event=stood-still seconds=(39|4\d) why=\"the process was stopped")
        disk.takes(0)
        self.assertEqual(0, node.exit_code())

    def test_a_node_whose_machine_slept_says_that_it_stood_still_and_links_again(self):
        _, slept = self.pair()
        slept.wait_linked(1)
        self.step_clock_in_place(0, 0, 60)
        slept.wait_log(r"event=stood-still seconds=(60|6[01]\.\d+)")
        self.assertNotIn("event=member-failed", slept.log())
        goal = slept.status()["step"] + 60
        slept.wait_step(goal)
        slept.wait_linked(1)

    def step_clock_in_place(self, offset_s, steady_s=0, slept_s=0):
        """Overwrites the file in place, since the daemon has it mapped."""
        with open(self.file, "r+b") as out:
            out.write(struct.pack("=qqq", offset_s, steady_s, slept_s))


if __name__ == "__main__":
    unittest.main()
