"""Batch by speed in real daemons: the others take over what a slowed machine leaves."""

import signal
import threading
import unittest

from cluster import ClusterTest, wait_for

BATCH = 64


class Throttle:
    """Stops a process for three quarters of its time, as other programs on its box would."""

    def __init__(self, node):
        self.node, self.over = node, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.over.is_set():
            self.node.signal(signal.SIGSTOP)
            self.over.wait(0.09)
            self.node.signal(signal.SIGCONT)
            self.over.wait(0.03)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


class Balance(ClusterTest):
    def test_the_batch_of_a_throttled_node_follows_its_speed_and_shows_in_rest(self):
        job = self.cluster.job(model='kind = "cnn"\nwidth = 16\nhidden = [64]', batch=BATCH)
        nodes = self.cluster.three(job, balance__enabled="true")
        *others, slow = nodes
        for node in nodes:
            node.wait_step(100)
        before = slow.status()
        with Throttle(slow):
            after = slow.wait("a smaller batch", lambda s: s["batch"] < 0.75 * before["batch"])
            print(
                f"batch {before['batch']} -> {after['batch']} after"
                f" {after['step'] - before['step']} of its steps",
                flush=True,
            )
            # Two balances: the one that is due, and one that has seen only the new speed. The aim
            # is 20 steps.
            self.assertLess(after["step"] - before["step"], 60)
            for node in others:
                wait_for(
                    "the others see it",
                    lambda: node.members()[slow.name]["batch"] < 0.75 * before["batch"],
                )
                node.wait("it takes over", lambda s: s["batch"] > BATCH)
            # Each node balances at its own time, so others take what one gives up at their next
            # balance.
            wait_for(
                "the cluster's batch is the job's",
                lambda: abs(3 * BATCH - sum(n.status()["batch"] for n in nodes)) <= BATCH // 2,
            )
        for node in nodes:
            # An age of 0 is valid: the last delta was made from a model that this node has not
            # stepped past.
            wait_for(
                "every link shows an age and a weight",
                lambda: node.links()
                and all(
                    link["age_steps"] > 0 and link["gain"] > 0 for link in node.links().values()
                ),
            )
        slow.wait("its old batch again", lambda s: s["batch"] > 0.75 * BATCH)


if __name__ == "__main__":
    unittest.main()
