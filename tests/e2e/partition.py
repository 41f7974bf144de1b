"""The cost of a partition: six nodes, the cable between two halves pulled and put back; nobody else
acts.

    partition.py [--seconds 60]

Prints one JSON object: for how long the halves had given each other up; how long after the repair
all nodes were one cluster again, with links across and every consensus_distance below its bound;
the accuracy of each half before and of every node after; and whether all count the same samples.
"""

import argparse
import json
import sys
import time
from statistics import mean

from cluster import Unexpected, pause_all, wait_for, with_cluster
from switchboard import Switchboard, unavailable

COUNT = 6
STEP_MS = 60
CONSENSUS_BOUND = 0.1
DELTAS_TO_HEAR = 5


def start(cluster, count, evaluate_every_samples=0, **settings):
    """`count` training nodes that all know each other, each on its own machine."""
    job = cluster.job(learning_rate=0.02, evaluate_every_samples=evaluate_every_samples)
    first = cluster.found(job, shard=f"1/{count}", **settings)
    others = [
        cluster.joiner(f"box{i}", first, shard=f"{i}/{count}", **settings).start()
        for i in range(2, count + 1)
    ]
    nodes = [first, *others]
    for node in nodes:
        node.wait(
            "everybody is known", lambda s: s["phase"] == "training" and s["members_alive"] == count
        )
    return nodes


def deltas_applied(nodes):
    """By node and peer, for as long as the node's process lives: its links may open again."""
    return {
        (node.name, peer): link["deltas_applied"]
        for node in nodes
        for peer, link in node.links().items()
    }


def wait_heard(nodes, before):
    """Waits until each of `nodes` has heard every peer since `before`: more than the delta that may
    have been under way then.
    """

    def heard():
        now = deltas_applied(nodes)
        if any(now.get(key, 0) < count + DELTAS_TO_HEAR for key, count in before.items()):
            raise Unexpected({"before": before, "now": now})
        return True

    wait_for("everybody is heard", heard)


def check_counters(nodes):
    """At rest, every node soon shows the count that each member has of itself."""
    own = {s["name"]: s["own_samples"] for s in pause_all(nodes)}
    for node in nodes:

        def shown(node=node):
            counts = {name: m["samples"] for name, m in node.members().items()}
            if counts != own:
                raise Unexpected(counts)
            return True

        wait_for(f"{node.name} shows {own}", shown)
        assert sum(own.values()) == node.status()["cluster_samples"], node.name


def next_accuracy(node, after_step):
    """The accuracy of a model later than `after_step`."""
    status = node.wait(
        "a later evaluation",
        lambda s: s["evaluation"] and s["evaluation"]["step"] > after_step,
        120,
    )
    return status["evaluation"]["accuracy"]


def part_and_heal(cluster, seconds):
    cluster.switchboard = Switchboard()
    nodes = start(cluster, COUNT, evaluate_every_samples=20_000, trainer__min_step_ms=STEP_MS)
    here, there = nodes[: COUNT // 2], nodes[COUNT // 2 :]
    cluster.switchboard.partition([n.name for n in there])
    for side, rest in ((here, there), (there, here)):
        for node in side:
            wait_for(
                "the other half is given up",
                lambda: {node.members()[n.name]["state"] for n in rest} == {"failed"},
            )
            assert node.status()["members_alive"] == COUNT // 2, node.name
    apart_since = time.monotonic()
    goals = [(node, node.status()["step"] + int(seconds * 1000 / STEP_MS)) for node in nodes]
    for node, goal in goals:
        node.wait_step(goal, 60 + 6 * seconds)
    before = [next_accuracy(node, 0) for node in nodes]
    apart = {n.name: n.status()["own_samples"] for n in nodes}
    report = {"step_ms": STEP_MS, "apart_s": round(time.monotonic() - apart_since, 1)}
    cluster.switchboard.heal()
    healed = time.monotonic()
    for node in nodes:
        node.wait("all six again", lambda s: s["members_alive"] == COUNT)
    report["all_alive_after_s"] = round(time.monotonic() - healed, 1)
    across = {n.name for n in there}
    wait_for(
        "a link across",
        lambda: any(
            across & {p for p, l in n.links().items() if l["state"] == "open"} for n in here
        ),
    )
    for node in nodes:
        node.wait("models agree", lambda s: s["consensus_distance"] < CONSENSUS_BOUND)
        for name, samples in apart.items():
            assert node.members()[name]["samples"] >= samples, (node.name, name)
    report["healed_after_s"] = round(time.monotonic() - healed, 1)
    at = [node.status()["step"] for node in nodes]
    after = [next_accuracy(node, step) for node, step in zip(nodes, at)]
    report["accuracy_before"] = {"here": before[: COUNT // 2], "there": before[COUNT // 2 :]}
    report["accuracy_after"] = after
    # Means of the halves: one evaluation of one node is a point or two off while it still learns.
    better = max(map(mean, report["accuracy_before"].values()))
    report["points_below_the_better_side"] = round(100 * (better - mean(after)), 2)
    check_counters(nodes)
    report["counters"] = "exact"
    return report


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=60,
        help="that the halves train apart, at their emulated pace",
    )
    arguments = parser.parse_args()
    if missing := unavailable():
        sys.exit(f"partition: {missing}; run as root on a kernel with network namespaces")
    print(json.dumps(with_cluster("partition", part_and_heal, arguments.seconds), indent=2))


if __name__ == "__main__":
    main()
