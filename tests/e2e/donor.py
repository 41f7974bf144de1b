"""The cost of a joiner to its donor: the donor's pace while another node fetches its model.

    donor.py [--joins 5] [--hidden 1500,1500] [--mbit 4]

Two machines; the donor sends through a line so narrow that a download takes seconds. Joiners come
one after another and leave. Step times are emulated, since the joiner, a separate machine in
reality, must not take a core from the donor. Prints one JSON object.
"""

import argparse
import json
import re
import sys
import time

from cluster import with_cluster
from switchboard import Switchboard, unavailable

STEP_MS = 60


def pace(node, seconds):
    """Steps per second over the next `seconds`, to the precision of whole steps."""
    first, began = node.status()["step"], time.monotonic()
    time.sleep(seconds)  # the measurement, not a wait
    return (node.status()["step"] - first) / (time.monotonic() - began)


def joins(cluster, count, hidden, mbit):
    cluster.switchboard = Switchboard()
    job = cluster.job(model=f'kind = "mlp"\nhidden = [{hidden}]', batch=8, learning_rate=0.01)
    donor = cluster.found(job, shard="1/2", trainer__min_step_ms=STEP_MS)
    floats = int(re.search(r" floats=(\d+)", donor.log()).group(1))
    donor.wait_step(50)
    ratios, downloads = [], []
    cluster.switchboard.rate(donor.name, mbit)
    for i in range(count):
        before = pace(donor, 5)
        joiner = cluster.joiner(
            f"box{i + 2}", donor, shard="2/2", trainer__min_step_ms=STEP_MS
        ).start()
        joiner.wait_phase("syncing")
        first, began = donor.status()["step"], time.monotonic()
        joiner.wait_phase("training", 300)
        seconds = time.monotonic() - began
        ratios.append((donor.status()["step"] - first) / seconds / before)
        downloads.append(seconds)
        joiner.ctl("leave")
        donor.wait("it has left", lambda s: s["members_alive"] == 1)
        joiner.destroy()
    return {
        "parameters": floats,
        "step_ms": STEP_MS,
        "mbit": mbit,
        "joins": count,
        "download_s": [round(s, 1) for s in downloads],
        "donor_pace": [round(r, 4) for r in ratios],
        "median": round(sorted(ratios)[count // 2], 4),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--joins", type=int, default=5)
    parser.add_argument("--hidden", default="1500,1500")
    parser.add_argument("--mbit", type=float, default=4)
    arguments = parser.parse_args()
    if missing := unavailable():
        sys.exit(f"donor: {missing}; run as root on a kernel with network namespaces")
    print(
        json.dumps(
            with_cluster("donor", joins, arguments.joins, arguments.hidden, arguments.mbit),
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
