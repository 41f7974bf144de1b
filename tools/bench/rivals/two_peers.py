#!/usr/bin/env python3
"""One exchange of a model between two peers on this machine: gossipd beside gloo, in turns.

    two_peers.py [--floats 1024,1048576,11000000] [--rounds 5] [--json]

For each size, `rounds` times in turn: the median of 20 all-reduces (sums) of so many fp32 by two
processes of PyTorch over gloo, and the median of 10 exchanges of gossip-bench (two nodes of the
daemon's core and sockets, TLS on loopback) with fp32, with the default codec, and with the default
codec without TLS. One thread each. An exchange is two turns: the opening takes the model's change
into account that training has made since, encodes it, and waits for the other's answer; an
all-reduce finds a buffer ready. The two passes of a trainer, which copies its model for the
exchange and adds the update, are not in its time; an all-reduce needs neither. Needs Debian's
python3-torch and gossip-bench (GOSSIPD_BIN_DIR).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = Path(os.environ.get("GOSSIPD_BIN_DIR", HERE.parents[2] / "build/release/bin"))
WAYS = {
    "fp32": ("--codec", "fp32"),
    "default codec": (),
    "default codec, no TLS": ("--plain",),
}

PEER = """
import os, sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo", "file://" + sys.argv[3], rank=int(sys.argv[1]), world_size=2)
values = torch.ones(int(sys.argv[2]))
seconds = []
for _ in range(25):
    dist.barrier()
    begin = time.perf_counter()
    dist.all_reduce(values)
    seconds.append(time.perf_counter() - begin)
    assert float(values[0]) > 1
    values.fill_(1.0)
print(sorted(seconds[5:])[10])
"""


def gloo_ms(floats):
    """Of the slower of the two, an all-reduce's median."""
    with tempfile.TemporaryDirectory() as folder:
        peers = [
            subprocess.Popen(
                ["/usr/bin/python3", "-c", PEER, str(rank), str(floats), f"{folder}/meeting"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
                text=True,
            )
            for rank in range(2)
        ]
        said = [peer.communicate(timeout=300) for peer in peers]
    for peer, (_, errors) in zip(peers, said):
        if peer.returncode != 0:
            sys.exit(f"two_peers: gloo failed:\n{errors}")
    return 1e3 * max(float(out) for out, _ in said)


def gossipd_ms(floats, options):
    words = [
        *(BIN / "gossip-bench", "exchange", "--floats", floats, "--exchanges", 10),
        *("--pairs", 0, "--json", *options),
    ]
    run = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=600, check=False
    )
    if run.returncode != 0:
        sys.exit(f"two_peers: gossip-bench failed:\n{run.stderr}")
    return json.loads(run.stdout)["sizes"][0]["exchange_ms"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--floats", default="1024,1048576,11000000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report = []
    for floats in map(int, arguments.floats.split(",")):
        times = {"gloo": [], **{way: [] for way in WAYS}}
        for _ in range(arguments.rounds):
            times["gloo"].append(gloo_ms(floats))
            for way, options in WAYS.items():
                times[way].append(gossipd_ms(floats, options))
        row = {"floats": floats, "load": os.getloadavg()[0]}
        for way, values in times.items():
            ratios = [value / gloo for value, gloo in zip(values, times["gloo"])]
            row[way] = {"ms": statistics.median(values), "of_gloo": statistics.median(ratios)}
        report.append(row)
        if not arguments.json:
            print(f"{4 * floats / 1e6:.3g} MB, load {row['load']:.1f}")
            for way in times:
                print(f"  {way:24} {row[way]['ms']:9.2f} ms  {row[way]['of_gloo']:6.2f} x gloo")
    if arguments.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
