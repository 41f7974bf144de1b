"""A hundred kill -9 while a job runs and while it ends."""

import os
import random
import time
import unittest

from cluster import DATA, ClusterTest, Unexpected, settled, wait_for
from tensors import distance, read_tensors

BATCH = 32
BUDGET = 60_000  # 13 s of three nodes without kills, which leave them time for few steps
NEARLY_ALL = BUDGET - 2_000
KILLS_AT_WORK = 60
KILLS_AT_THE_END = 40
LIFE_MAX_S = 0.5  # drawn at random, since the moment is the fault
FINAL_DISTANCE_MAX = 0.012  # three times exchange.consensus_bound, as in gossip-sim


def has_final_model(status):
    return (
        status["phase"] == "finished"
        and not status["waiting_for"]
        and "final" in status["checkpoints"]
    )


class Kills(ClusterTest):
    def kill_one(self, draw):
        time.sleep(draw.uniform(0, LIFE_MAX_S))
        victim = draw.choice(self.nodes)
        if victim.process.poll() is not None:
            raise AssertionError(f"{victim.name} ended by itself: {victim.process.returncode}")
        victim.kill()
        victim.start()

    def most_known_on_disk(self):
        """For each node, the most of its samples that any disk knows of."""
        known = {}
        for node in self.nodes:
            state = node.state_on_disk()
            counts = [(node.name, state["own_samples"])]
            counts += [(m["name"], m["samples"]) for m in state["members"]]
            for name, samples in counts:
                known[name] = max(known.get(name, 0), samples)
        return known

    def one_final_model(self):
        """The tensors of all final models, once they are one."""
        finals = [read_tensors(node.checkpoint_path("final")) for node in self.nodes]
        apart = max(distance(a[1], b[1]) for a in finals for b in finals)
        if apart > FINAL_DISTANCE_MAX:
            raise Unexpected(f"two final models are {apart} of their norm apart")
        return finals

    def test_a_node_killed_while_the_job_ends_comes_back_to_the_same_final_model(self):
        job = self.cluster.job(budget_samples=20_000, warmup_samples=1_000)
        # It returns with its initial model, since no checkpoint is due before the end.
        self.nodes = self.cluster.three(job, trainer__min_step_ms=20, checkpoint__every_s=600)
        victim = self.nodes[1]
        wait_for("the end begins", lambda: any("to=finish" in n.log() for n in self.nodes))
        victim.kill()
        for node in self.nodes:
            if node is not victim:
                wait_for("it is missed", lambda: node.members()[victim.name]["state"] != "alive")
        victim.start()
        for node in self.nodes:
            node.wait("it has the final model of all", has_final_model, 120)
        wait_for("one final model", self.one_final_model)
        settled(self.nodes, "finished")
        self.one_final_model()

    def test_a_hundred_kills_lose_no_count_and_end_in_one_final_model(self):
        draw = random.Random(11)
        job = self.cluster.job(budget_samples=BUDGET, warmup_samples=1_000, learning_rate=0.02)
        self.nodes = self.cluster.three(job, trainer__min_step_ms=20, checkpoint__every_s=1)
        for i, node in enumerate(self.nodes):
            node.wait(
                "a checkpoint", lambda s: s["checkpoints"].get("current", {"step": 0})["step"] >= 20
            )
            # A restart needs only what is on the disk.
            node.arguments = ["--data", DATA, "--shard", f"{i + 1}/3"]
        for _ in range(KILLS_AT_WORK):
            self.kill_one(draw)
        trained = sum(node.state_on_disk()["own_samples"] for node in self.nodes)
        print(f"{trained} samples after the kills at work", flush=True)
        self.assertLess(trained, BUDGET)
        self.assertFalse(any("to=finish" in node.whole_log() for node in self.nodes))
        self.nodes[0].wait("the end is near", lambda s: s["cluster_samples"] >= NEARLY_ALL, 120)
        while_it_ends = 0
        for _ in range(KILLS_AT_THE_END):
            while_it_ends += not all(
                os.path.exists(node.checkpoint_path("final")) for node in self.nodes
            )
            self.kill_one(draw)
        print(f"{while_it_ends} kills before all had their final model", flush=True)
        self.assertGreaterEqual(while_it_ends, KILLS_AT_THE_END // 10)
        for node in self.nodes:
            node.kill()
        known = self.most_known_on_disk()
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait("it has the final model of all", has_final_model, 120)
        statuses = {s["name"]: s for s in settled(self.nodes, "finished")}
        own = {name: s["own_samples"] for name, s in statuses.items()}
        for node in self.nodes:
            counted = {name: m["samples"] for name, m in node.members().items()}
            self.assertEqual(own, counted, node.name)
            self.assertEqual(sum(own.values()), statuses[node.name]["cluster_samples"], node.name)
            step, samples = node.restored()
            more = BATCH * (statuses[node.name]["step"] - step)
            self.assertEqual(max(known[node.name], samples) + more, own[node.name], node.name)
        wait_for("one final model", self.one_final_model)


if __name__ == "__main__":
    unittest.main()
