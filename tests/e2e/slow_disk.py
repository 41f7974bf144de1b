"""The cost of one node's slow disk to the cluster: pace, suspicions, a join.

    slow_disk.py [--seconds 20] [--fsync-s 2,6] [--join-s 4]

Three nodes with emulated step times; a preloaded library delays every fsync on box2. Prints one
JSON object: for each delay box2's steps relative to the others', compared with a quick disk, and
how often a node was suspected; the same for an fsync that never returns; and how long a joiner with
a slow disk takes.
"""

import argparse
import json
import os
import subprocess
import sys
import time

from cluster import BIN, DEADLINE_S, Node, wait_for, with_cluster
from pace import accusations

STEP_MS = 20
LIBRARY = os.path.join(BIN, "slow_disk_preload.so")


class Disk:
    """The disk of one node, from the node's next start on."""

    def __init__(self, node: Node):
        self.control = os.path.join(node.directory, "disk")
        self.takes(0)
        self.prefix = ["env", f"LD_PRELOAD={LIBRARY}", f"SLOW_DISK_CONTROL={self.control}"]
        node.prefix = self.prefix

    def takes(self, seconds):
        """Sets the seconds of each fsync, or "stuck". Applies at once, even to waiting calls."""
        with open(self.control + ".new", "w", encoding="ascii") as file:
            file.write(str(seconds))
        os.replace(self.control + ".new", self.control)

    def witness_works(self):
        """Whether an fsync by the first thread of a process is counted."""
        before = self.calls_of_the_protocol_thread()
        call = "import os; os.fsync(os.open('.', os.O_RDONLY))"
        subprocess.run([*self.prefix, sys.executable, "-c", call], check=True, timeout=DEADLINE_S)
        return self.calls_of_the_protocol_thread() == before + 1

    def calls_of_the_protocol_thread(self):
        try:
            return os.path.getsize(self.control + ".first-thread")
        except FileNotFoundError:
            return 0


def settings():
    """The default membership settings, not the tests' quicker ones; a checkpoint every 5 s."""
    return {
        "trainer__min_step_ms": STEP_MS,
        "checkpoint__every_s": 5,
        "membership__tick_ms": 1000,
        "membership__ping_ms": 1000,
        "membership__suspect_after_ms": 3000,
        "membership__fail_after_ms": 10000,
    }


def three_with_a_disk(cluster):
    """Three linked nodes and box2's disk."""
    first = cluster.found(cluster.job(learning_rate=0.02), shard="1/3", **settings())
    second = cluster.joiner("box2", first, shard="2/3", **settings())
    disk = Disk(second)
    third = cluster.joiner("box3", first, shard="3/3", **settings())
    nodes = [first, second.start(), third.start()]
    for node in nodes:
        node.wait_linked(2)
    return nodes, disk


def relative_pace(nodes, seconds):
    """The steps of box2 over the mean of the others' steps, and each node's steps per second."""

    def step_of(node):
        return wait_for(f"{node.name} answers", lambda: (node.status()["step"], time.monotonic()))

    def look():
        return [step_of(node) for node in nodes]

    before = look()
    time.sleep(seconds)  # the measurement, not a wait
    steps = [(step - first) / (at - began) for (first, began), (step, at) in zip(before, look())]
    return 2 * steps[1] / (steps[0] + steps[2]), steps


def measure(cluster, seconds, delays):
    nodes, disk = three_with_a_disk(cluster)
    usual, steps = relative_pace(nodes, seconds)
    rounded = lambda steps: [round(s, 1) for s in steps]
    report = {"step_ms": STEP_MS, "seconds": seconds, "quick": {"steps_per_s": rounded(steps)}}
    for delay in delays:
        suspicions, began = len(accusations(nodes, "suspect")), disk.calls_of_the_protocol_thread()
        disk.takes(delay)
        pace, steps = relative_pace(nodes, seconds)
        report[f"fsync {delay}"] = {
            "pace": round(pace / usual, 4),
            "steps_per_s": rounded(steps),
            "suspicions": len(accusations(nodes, "suspect")) - suspicions,
            "fsyncs_of_the_protocol_thread": disk.calls_of_the_protocol_thread() - began,
        }
    return report


def join_s(cluster, delay):
    """Seconds until a joiner with that disk trains, or None after a minute."""
    first = cluster.found(cluster.job(learning_rate=0.02), **settings())
    second = cluster.joiner("box2", first, **settings())
    Disk(second).takes(delay)
    began = time.monotonic()
    second.start()
    try:
        second.wait_linked(1)
    except AssertionError:
        return None
    return round(time.monotonic() - began, 1)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--fsync-s", default="2,6")
    parser.add_argument("--join-s", type=float, default=4)
    arguments = parser.parse_args()
    report = {}
    for delay in [*arguments.fsync_s.split(","), "stuck"]:
        try:
            report.update(with_cluster("slow-disk", measure, arguments.seconds, [delay]))
        except Exception as error:  # the node did not even answer
            report[f"fsync {delay}"] = f"no figures: {error}"
    report[f"join at {arguments.join_s} s"] = with_cluster("slow-disk", join_s, arguments.join_s)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
