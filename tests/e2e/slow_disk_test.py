"""A slow or stuck disk costs a node only the writes."""

import concurrent.futures
import json
import os
import signal
import unittest

from cluster import ClusterTest, wait_for
from pace import accusations
from slow_disk import Disk, relative_pace, settings, three_with_a_disk


class SlowDisk(ClusterTest):
    def assert_undisturbed(self, nodes, disk, usual, seconds, delay):
        suspicions, calls = len(accusations(nodes, "suspect")), disk.calls_of_the_protocol_thread()
        disk.takes(delay)
        pace, steps = relative_pace(nodes, seconds)
        print(f"fsync {delay}: pace {pace / usual:.4f}, steps/s {steps}", flush=True)
        # A trainer that waited for each fsync would be at about 0.6.
        self.assertGreater(pace / usual, 0.9, steps)
        self.assertEqual(suspicions, len(accusations(nodes, "suspect")))
        self.assertEqual(calls, disk.calls_of_the_protocol_thread(), "the protocol thread waits")

    def test_pace_and_membership_hold_with_a_slow_and_a_stuck_disk_which_is_reported(self):
        nodes, disk = three_with_a_disk(self.cluster)
        slow = nodes[1]
        self.assertTrue(disk.witness_works(), "no fsync of a first thread would be seen")
        usual, _ = relative_pace(nodes, 10)
        self.assert_undisturbed(nodes, disk, usual, 10, 2)
        self.assert_undisturbed(nodes, disk, usual, 15, 6)
        self.assert_undisturbed(nodes, disk, usual, 10, "stuck")

        slow.wait_log(r"event=disk-slow seconds=\d+ writing=\"")
        status = slow.wait("the disk is said to be slow", lambda s: s["disk"]["slow"])
        self.assertTrue(any("is slow" in w["text"] for w in status["warnings"]), status["warnings"])
        self.assertIn("gossipd_disk_slow 1", slow.request("GET", "/metrics")[1])
        checkpoint = slow.ctl("checkpoint")
        self.assertEqual(7, checkpoint.returncode, checkpoint)
        self.assertIn("slow or stuck", checkpoint.stderr)
        self.assertEqual(200, slow.request("GET", "/livez")[0])
        self.assertEqual(1, slow.terminate())
        self.assertIn("stops without waiting any longer", slow.log())

        disk.takes(0)
        slow.start().wait_linked(2)
        self.assertGreater(slow.status()["incarnation"], status["incarnation"])
        self.assertGreaterEqual(slow.status()["own_samples"], status["own_samples"])

    def test_a_joiner_with_a_slow_disk_joins_and_what_it_published_outlives_kill_9(self):
        first = self.cluster.found(self.cluster.job(learning_rate=0.02), **settings())
        joiner = self.cluster.joiner("box2", first, **settings())
        disk = Disk(joiner)
        disk.takes(4)
        joiner.start().wait_linked(1)
        joiner.wait_step(100)
        wait_for("a write under way", lambda: joiner.status()["disk"]["writing"])
        said = first.members()["box2"]
        joiner.kill()
        counted = first.status()["cluster_samples"]
        disk.takes(0)
        joiner.start().wait_linked(1)
        back = wait_for(
            "a later life",
            lambda: next(
                (m for m in [first.members()["box2"]] if m["incarnation"] > said["incarnation"]),
                None,
            ),
        )
        self.assertGreaterEqual(back["samples"], said["samples"])
        self.assertGreaterEqual(first.status()["cluster_samples"], counted)
        joiner.wait("its own count is what it said", lambda s: s["own_samples"] >= said["samples"])

    def test_a_joiners_disk_has_the_key_before_a_state_that_names_the_cluster(self):
        first = self.cluster.found(self.cluster.job(), **settings())
        self.assertEqual(0, first.terminate())
        joiner = self.cluster.joiner("box2", first, **settings())
        disk = Disk(joiner)
        joiner.start().wait_log("event=dial-failed")
        disk.takes(1)
        first.start()
        state = os.path.join(joiner.state_dir, "node.json")

        def cluster_on_disk():
            with open(state, encoding="utf-8") as file:
                return int(json.load(file)["state"]["cluster"], 16)

        wait_for("the key's turn", lambda: joiner.status()["disk"]["writing"] == "cluster.key")
        self.assertEqual(0, cluster_on_disk())
        wait_for("the state of a member", cluster_on_disk)
        self.assertTrue(os.path.exists(os.path.join(joiner.state_dir, "cluster.key")))

    def test_a_better_model_than_the_one_that_is_being_written_is_written_afterwards(self):
        job = self.cluster.job(budget_samples=60_000, evaluate_every_samples=6_400)
        node = self.cluster.founder(job, shard="1/1", **settings())
        disk = Disk(node)
        node.start().wait_step(2)
        disk.takes("stuck")
        first = node.wait("an evaluation", lambda s: s["best_accuracy"])["best_accuracy"]
        status = node.wait("the job's end", lambda s: s["phase"] == "finished", 120)
        self.assertGreater(status["best_accuracy"], first)
        self.assertNotEqual(
            status["best_accuracy"], status["checkpoints"].get("best", {}).get("accuracy")
        )
        disk.takes(0)
        # The last evaluation is of the final model, the best or nearly so.
        node.wait(
            "a better model on disk",
            lambda s: s["checkpoints"].get("best", {}).get("accuracy", 0) > first,
            60,
        )

    def test_a_checkpoint_under_way_when_the_node_is_stopped_is_still_answered(self):
        node = self.cluster.founder(self.cluster.job(), shard="1/1", **settings())
        disk = Disk(node)
        node.start().wait_step(20)
        disk.takes(2)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            asked = pool.submit(node.ctl, "checkpoint")
            node.wait("a write under way", lambda s: s["disk"]["checkpoint_s"] > 0)
            node.signal(signal.SIGTERM)
            answer = asked.result()
        self.assertEqual(0, answer.returncode, answer)
        self.assertIn("current.safetensors", answer.stdout)
        self.assertEqual(0, node.exit_code())

    def test_history_that_waits_for_the_disk_when_the_node_is_stopped_gets_the_last_point_too(self):
        node = self.cluster.founder(self.cluster.job(), shard="1/1", **settings())
        disk = Disk(node)
        node.start().wait_step(20)
        disk.takes("stuck")
        waiting = node.wait(
            "the history's write, stuck or behind a stuck one",
            lambda s: s["disk"]["writing"] == "history.jsonl" or s["disk"]["waiting"] == 2,
        )
        node.wait_step(waiting["step"] + 20)
        node.signal(signal.SIGTERM)
        node.wait_log("event=stopping")
        disk.takes(0)
        self.assertEqual(0, node.exit_code())
        with open(os.path.join(node.state_dir, "history.jsonl"), encoding="utf-8") as file:
            last = json.loads(file.read().splitlines()[-1])
        self.assertGreaterEqual(last["step"], waiting["step"] + 20)

    def test_a_second_signal_ends_a_node_that_waits_for_its_disk(self):
        node = self.cluster.founder(self.cluster.job(), shard="1/1", **settings())
        disk = Disk(node)
        node.start().wait_step(20)
        disk.takes("stuck")
        node.wait("a write under way", lambda s: s["disk"]["writing"])
        node.signal(signal.SIGINT)
        node.wait_log("event=stopping")
        self.assertIsNone(node.process.poll())
        # At once they would be one request.
        wait_for("its end", lambda: node.signal(signal.SIGINT) or node.process.poll() is not None)
        self.assertEqual(128 + signal.SIGINT, node.exit_code())
        self.assertNotIn("stops without waiting any longer", node.log())


if __name__ == "__main__":
    unittest.main()
