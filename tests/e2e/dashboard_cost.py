#!/usr/bin/env python3
"""Measures what the dashboard costs the node that serves it: its processor time in a cluster of
many members, with nobody and with one or more that follow /v1/events as the page does.

    GOSSIPD_BIN_DIR=build/release/bin tests/e2e/dashboard_cost.py --members 20 --seconds 30

Training is paused, so that what is left is membership, links and the dashboard. Prints JSON.
"""

import argparse
import http.client
import json
import os
import threading
import time

from cluster import with_cluster

# As a node has them that nobody has told anything; tests are quicker.
DEFAULTS = {
    "membership__tick_ms": 1000,
    "membership__ping_ms": 1000,
    "membership__suspect_after_ms": 3000,
    "membership__fail_after_ms": 10000,
    "exchange__heartbeat_ms": 2000,
}


class Follower:
    """Reads the events for ever, as a page does, and counts their bytes."""

    def __init__(self, node):
        host, port = node.rest.rsplit(":", 1)
        self.connection = http.client.HTTPConnection(host, int(port))
        self.connection.request("GET", "/v1/events")
        self.answer = self.connection.getresponse()
        self.bytes = 0
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        while data := self.answer.read1(65536):
            self.bytes += len(data)


def processor_seconds(node):
    with open(f"/proc/{node.process.pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share(node, seconds):
    """Of one core."""
    began, used = time.monotonic(), processor_seconds(node)
    time.sleep(seconds)
    return (processor_seconds(node) - used) / (time.monotonic() - began)


def measure(cluster, options):
    job = cluster.job(budget_samples=10_000_000)
    first = cluster.found(job, shard="1/1", **DEFAULTS)
    first.ctl("pause")
    for number in range(2, options.members + 1):
        node = cluster.joiner(f"box{number}", first, shard="1/1", **DEFAULTS).start()
        node.wait("it is in", lambda s: s["phase"] in ("training", "paused"), 300)
        node.ctl("pause")
    first.wait("all members", lambda s: s["members_alive"] == options.members, 300)
    followers = []
    figures = {"members": options.members, "links": first.status()["links_open"], "share": {}}
    for count in (0, 1, 4):
        while len(followers) < count:
            followers.append(Follower(first))
        before = sum(follower.bytes for follower in followers)
        figures["share"][count] = round(share(first, options.seconds), 4)
        sent = sum(follower.bytes for follower in followers) - before
        figures[f"bytes_per_second_to_{count}"] = round(sent / options.seconds)
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30)
    with_cluster("cost", measure, parser.parse_args())
