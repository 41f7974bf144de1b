"""The cost of a frozen and of a killed neighbour, and false suspicions on a busy machine.

    pace.py [--seconds 30] [--saturated-minutes 10]

Four nodes with emulated step times, so that a stopped node frees no core for the rest. Prints one
JSON object: the survivors' steps while one node is frozen and after one was killed, relative to
before; how long until it was suspected and given up; and how many members were wrongly suspected or
given up while other programs kept every core busy.
"""

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import time

from cluster import _die_with_the_test, with_cluster

STEP_MS = 50
COUNT = 4


def steps_in(nodes, seconds):
    """The steps of each of `nodes` in the next `seconds`, by the node's own clock and count."""

    def look():
        return [(time.monotonic(), node.status()["step"]) for node in nodes]

    before = look()
    time.sleep(seconds)  # the measurement, not a wait
    return [(step - first) / (at - began) for (began, first), (at, step) in zip(before, look())]


def lowest_pace(before, during):
    """Of the node that lost most, its steps relative to before."""
    return min(d / b for d, b in zip(during, before))


def accusations(nodes, what):
    """Times of the log lines in which `nodes` suspect or give up a member."""
    found = []
    for node in nodes:
        for line in node.log().splitlines():
            if f"event=member-{what} " in line and "closed" not in line:
                found.append(datetime.datetime.fromisoformat(line.split(" ", 1)[0]).timestamp())
    return found


def detection(nodes, what, since):
    times = [at - since for at in accusations(nodes, what) if at >= since - 1]
    return round(min(times), 2) if times else None


def measure(cluster, seconds):
    job = cluster.job(learning_rate=0.02)
    # The default membership settings, not the tests' quicker ones.
    defaults = {
        f"membership__{key}": value
        for key, value in (
            ("tick_ms", 1000),
            ("ping_ms", 1000),
            ("suspect_after_ms", 3000),
            ("fail_after_ms", 10000),
        )
    }
    settings = {"trainer__min_step_ms": STEP_MS, **defaults}
    first = cluster.found(job, shard=f"1/{COUNT}", **settings)
    nodes = [first] + [
        cluster.joiner(f"box{i}", first, shard=f"{i}/{COUNT}", **settings).start()
        for i in range(2, COUNT + 1)
    ]
    for node in nodes:
        node.wait_linked(COUNT - 1)
    *survivors, victim = nodes
    report = {"step_ms": STEP_MS, "seconds": seconds}

    before = steps_in(survivors, seconds)
    frozen_at = time.time()
    victim.signal(signal.SIGSTOP)
    during = steps_in(survivors, seconds)
    report["frozen"] = {
        "pace": [round(d / b, 4) for d, b in zip(during, before)],
        "suspected_after_s": detection(survivors, "suspect", frozen_at),
        "failed_after_s": detection(survivors, "failed", frozen_at),
    }
    victim.signal(signal.SIGCONT)
    for node in nodes:
        node.wait_linked(COUNT - 1)

    before = steps_in(survivors, seconds)
    killed_at = time.time()
    victim.kill()
    during = steps_in(survivors, seconds)
    report["killed"] = {
        "pace": [round(d / b, 4) for d, b in zip(during, before)],
        "steps_lost": [round((b - d) * seconds, 1) for d, b in zip(during, before)],
        "failed_after_s": detection(survivors, "failed", killed_at),
    }
    return report


def saturated(cluster, minutes):
    """Runs two busy programs for each core beside three nodes that train as fast as they can."""
    nodes = cluster.three(
        cluster.job(learning_rate=0.02),
        membership__suspect_after_ms=3000,
        membership__fail_after_ms=10000,
    )
    began = time.time()
    busy = [
        subprocess.Popen(
            [sys.executable, "-c", "while True: pass"], preexec_fn=_die_with_the_test
        )
        for _ in range(2 * os.cpu_count())
    ]
    try:
        paces = steps_in(nodes, minutes * 60)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    since = lambda what: len([at for at in accusations(nodes, what) if at >= began])
    return {
        "minutes": minutes,
        "busy_programs": len(busy),
        "steps_per_s": [round(p, 1) for p in paces],
        "false_suspicions": since("suspect"),
        "false_failures": since("failed"),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--saturated-minutes", type=float, default=10)
    arguments = parser.parse_args()
    report = with_cluster("pace", measure, arguments.seconds)
    if arguments.saturated_minutes > 0:
        report["saturated"] = with_cluster("pace", saturated, arguments.saturated_minutes)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
