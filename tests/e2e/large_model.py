"""The cost of a large model to two nodes that exchange it: memory, stalls of the protocol thread,
membership.

    large_model.py [--dim 832] [--depth 12] [--exchanges 6] [--momentum 0.9] [--deadline 900]
                   [--set KEY=VALUE]

Two daemons train a `gpt` (100 million parameters by default) on the licence texts of every Debian
system and exchange it. Prints two JSON objects: each node's peak resident memory until the joiner
trains and afterwards, in bytes and in multiples of 4·P (P: parameters); the protocol thread's
processor time for an exchange, TLS included, beside memcpy of as many floats, and the share of
encoding and applying (gossip-bench codec); the longest time that one event kept the thread; and the
number of suspicions. With `--set exchange.memory_dir=DIR` what lies there counts as resident while
the system keeps it, and `anonymous_mb` is what it cannot write out. `--dim 2640 --momentum 0
--exchanges 1 --deadline 3600` with that are two nodes of a billion parameters on 24 GB.
"""

import argparse
import json
import os
import subprocess

from cluster import BIN, SGD, with_cluster

TEXTS = "/usr/share/common-licenses"  # of Debian's base-files
# The default membership settings, not the tests' quicker ones.
MEMBERSHIP = {
    f"membership__{key}": value
    for key, value in (
        ("tick_ms", 1000),
        ("ping_ms", 1000),
        ("suspect_after_ms", 3000),
        ("fail_after_ms", 10000),
    )
}


def memory(node, kind):
    """Bytes, by a name of /proc/PID/status."""
    with open(f"/proc/{node.process.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(kind + ":"))


def resident_peak(node):
    """Bytes since the process began or since forget_peak()."""
    return memory(node, "VmHWM")


def forget_peak(node):
    with open(f"/proc/{node.process.pid}/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def protocol_seconds(node):
    """Processor time of the main thread, which runs the event loop."""
    with open(f"/proc/{node.process.pid}/task/{node.process.pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return sum(int(ticks) for ticks in fields[11:13]) / os.sysconf("SC_CLK_TCK")


def turns(node):
    return sum(link["turns_spoken"] + link["turns_heard"] for link in node.links().values())


def look_at(nodes):
    """Each node's memory and stalls so far."""
    figures = []
    for node in nodes:
        status, peak = node.status(), resident_peak(node)
        figures.append(
            {
                "resident_peak_mb": round(peak / 1e6),
                "in_4P": round(peak / 4 / status["model_floats"], 2),
                "anonymous_mb": round(memory(node, "RssAnon") / 1e6),
                "stall_max_ms": round(status["stall_max_ms"], 1),
                "stalls_beyond_100_ms": status["stalls_beyond_100_ms"],
            }
        )
    return figures


def codec_times(floats):
    """Milliseconds of gossip-bench's operations over that many floats, each on one thread."""
    run = subprocess.run(
        [
            os.path.join(BIN, "gossip-bench"),
            "codec",
            "--floats",
            str(min(max(floats, 12_000_000), 100_000_000)),
            "--repetitions",
            "3",
            "--json",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    operations = json.loads(run.stdout)["operations"]
    return {
        name: round(4 * floats / (figures["gb_per_s"] * 1e6), 1)
        for name, figures in operations.items()
    }


SETTINGS = {"data": TEXTS, "shard": "auto", "checkpoint__every_s": 3600, **MEMBERSHIP}


def job_of(cluster, dim, depth, heads, momentum=0.9):
    return cluster.job(
        batch=1,
        model=f'kind = "gpt"\ndim = {dim}\ndepth = {depth}\nheads = {heads}',
        warmup_samples=100,
        data=(
            'kind = "text"\nlength = 8\ntrain_files = ["GPL-3", "LGPL-2.1", "Apache-2.0"]\n'
            'validation_fraction = 0.05'
        ),
        optimizer=SGD.format(learning_rate=0.02).replace("0.9", str(momentum)),
    )


def wait_for_checkpoint(node, deadline_s=900):
    node.wait("the first checkpoint", lambda s: "current" in s["checkpoints"], deadline_s)


def start(cluster, job, settings, deadline_s):
    """A founder that trains, and a joiner that has its model."""
    first = cluster.founder(job, **settings).start()
    first.wait_phase("training", deadline_s)
    wait_for_checkpoint(first, deadline_s)
    second = cluster.joiner("box2", first, **settings).start()
    for node in (first, second):
        node.wait(
            "linked and training",
            lambda s: s["phase"] == "training" and s["links_open"] == 1,
            deadline_s,
        )
        wait_for_checkpoint(node, deadline_s)
    return [first, second]


def measure(
    cluster, dim=832, depth=12, heads=8, exchanges=6, momentum=0.9, settings=None, deadline_s=900
):
    job = job_of(cluster, dim, depth, heads, momentum)
    settings = SETTINGS | {key.replace(".", "__"): value for key, value in (settings or {}).items()}
    nodes = start(cluster, job, settings, deadline_s)
    floats = nodes[0].status()["model_floats"]
    report = {"floats": floats, "join": look_at(nodes)}

    for node in nodes:
        forget_peak(node)
    before = [(turns(node), protocol_seconds(node), node.status()) for node in nodes]
    for node, (count, _, _) in zip(nodes, before):
        node.wait(
            f"{exchanges} exchanges",
            lambda s, node=node, count=count: turns(node) >= count + 2 * exchanges,
            deadline_s,
        )
    report["steady"] = look_at(nodes)
    for node, (count, spent, status), figures in zip(nodes, before, report["steady"]):
        made = (turns(node) - count) / 2
        figures["stalls_beyond_100_ms"] -= status["stalls_beyond_100_ms"]
        figures.update(
            exchanges=made,
            step_ms=round(node.status()["step_ms"]),
            protocol_thread_ms_per_exchange=round(1e3 * (protocol_seconds(node) - spent) / made, 1),
            consensus_distance=node.status()["consensus_distance"],
        )
    for name, event in (
        ("suspicions", "member-suspect"),
        ("failures", "member-failed"),
        ("stand_stills", "stood-still"),
    ):
        report[name] = sum(node.log().count(f"event={event}") for node in nodes)
    return report


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dim", type=int, default=832)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--exchanges", type=int, default=6)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--deadline", type=float, default=900, help="seconds to wait for anything")
    arguments = parser.parse_args()
    report = with_cluster(
        "large-model",
        measure,
        arguments.dim,
        arguments.depth,
        exchanges=arguments.exchanges,
        momentum=arguments.momentum,
        settings=dict(word.split("=", 1) for word in arguments.set),
        deadline_s=arguments.deadline,
    )
    print(json.dumps(report, indent=2), flush=True)
    print(json.dumps({"codec_ms": codec_times(report["floats"])}, indent=2))


if __name__ == "__main__":
    main()
