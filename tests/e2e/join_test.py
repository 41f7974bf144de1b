"""Joining: midway, after the end, before the seed is there, without data."""

import os
import shutil
import unittest

from cluster import DATA, ClusterTest, gossipctl, settled, wait_for
from tensors import distance, read_tensors


class Join(ClusterTest):
    def test_a_node_that_joins_midway_gets_job_and_model_and_ends_as_good_as_the_others(self):
        job = self.cluster.job(budget_samples=288_000, evaluate_every_samples=72_000)
        first = self.cluster.found(job, trainer__min_step_ms=8)
        second = self.cluster.joiner("box2", first, shard="2/3", trainer__min_step_ms=8).start()
        second.wait_linked(1)
        first.wait_step(300)

        late = self.cluster.joiner(
            "box3", second, shard="3/3", trainer__min_step_ms=8
        ).start()  # through any member
        late.wait_linked(2)
        self.assertRegex(late.log(), r"event=model-ready .*restored=no")
        self.assertRegex(late.log(), r"event=model-adopted from=peer=")
        self.assertEqual(late.get("/v1/job")["document"], first.get("/v1/job")["document"])

        nodes = (first, second, late)
        for node in nodes:
            node.wait("finished and evaluated", finished_and_evaluated, 150)
        statuses = settled(nodes, "finished")
        self.assertGreater(late.status()["step"], 300)
        self.assertEqual(1, len({s["job_hash"] for s in statuses}))
        self.assertEqual(statuses[0]["cluster_samples"], sum(s["own_samples"] for s in statuses))
        accuracies = [s["accuracy"] for s in statuses]
        self.assertGreater(min(accuracies), 0.80, accuracies)
        self.assertLess(max(accuracies) - min(accuracies), 0.02, accuracies)
        for s in statuses:
            self.assertLess(s["consensus_distance"], 0.01, s["name"])
        finals = [read_tensors(n.checkpoint_path("final"))[1] for n in nodes]
        self.assertLess(distance(finals[1], finals[0]), 0.01)
        self.assertLess(distance(finals[2], finals[0]), 0.01)

    def test_a_node_that_joins_after_the_end_gets_the_final_model(self):
        job = self.cluster.job(budget_samples=20_000)
        first = self.cluster.founder(job, shard="1/1").start()
        trained = first.wait("finished and evaluated", finished_and_evaluated)

        late = self.cluster.joiner("box2", first).start()
        status = late.wait("finished and evaluated", finished_and_evaluated)
        self.assertEqual(0, status["own_samples"])
        self.assertEqual(trained["cluster_samples"], status["cluster_samples"])
        self.assertGreater(trained["accuracy"], 0.6)
        self.assertAlmostEqual(trained["accuracy"], status["accuracy"], delta=0.005)
        ours, theirs = (read_tensors(n.checkpoint_path("final"))[1] for n in (late, first))
        self.assertLess(distance(ours, theirs), 0.005)

    def test_a_node_waits_for_its_seed_says_so_and_joins_when_it_appears(self):
        made = gossipctl("key", "generate", self.cluster.key)
        self.assertEqual(0, made.returncode, made.stderr)
        seed = self.cluster.founder(self.cluster.job(), shard="1/1", trainer__min_step_ms=20)
        node = self.cluster.joiner("box2", seed, trainer__min_step_ms=20).start()
        node.wait_log(f"event=dial-failed endpoint={seed.address} .*refused")
        status = node.status()
        self.assertEqual("joining", status["phase"])
        self.assertIn("seed", status["waiting_for"])
        self.assertIsNone(status["cluster_id"])
        code, problem = node.request("GET", "/readyz")
        self.assertEqual(503, code)
        self.assertIn("joining", problem)
        self.assertEqual(200, node.request("GET", "/livez")[0])
        self.assertEqual(7, node.ctl("wait", "--for", "ready", timeout_s=1).returncode)

        seed.start()
        node.wait_linked(1)
        self.assertEqual(200, node.request("GET", "/readyz")[0])
        # Both are gone, and the one that comes back has no model: nothing that it waits for would
        # ever come.
        self.assertEqual((0, 0), (seed.terminate(), node.terminate()))
        shutil.rmtree(os.path.join(node.state_dir, "checkpoints"))
        node.start()
        alone = node.wait("the way out is said", lambda s: "no living member" in str(s["warnings"]))
        self.assertIn(alone["phase"], ("joining", "syncing"))
        words = str(alone["warnings"])
        self.assertIn(f"waits for box1 at {seed.address}. Start it again", words)
        self.assertIn("with a new --state-dir", words)
        self.assertIn("no living member has a model", node.log())
        seed.start()
        node.wait_linked(1)
        self.assertEqual(seed.status()["cluster_id"], node.status()["cluster_id"])
        self.assertEqual({"box1", "box2"}, set(node.members()))

    def test_a_job_that_the_disk_did_not_take_is_written_later(self):
        seed = self.cluster.found(self.cluster.job(), trainer__min_step_ms=20)
        node = self.cluster.joiner("box2", seed)
        obstacle = os.path.join(node.state_dir, "job.new.toml")  # the file that becomes job.toml
        os.makedirs(obstacle)
        node.start().wait_linked(1)
        node.wait_log("event=warning .*job.new.toml: cannot create it")
        os.rmdir(obstacle)
        job = os.path.join(node.state_dir, "job.toml")
        wait_for("the job is written", lambda: os.path.exists(job))

    def test_a_node_without_data_stays_a_member_and_reports_what_it_needs(self):
        seed = self.cluster.found(
            self.cluster.job(name="clothes"), shard="1/1", trainer__min_step_ms=20
        )
        node = self.cluster.joiner("box2", seed, data=None).start()
        status = node.wait_phase("waiting-for-data")
        for word in ("clothes", "--data", "train-images-idx3-ubyte"):
            self.assertIn(word, status["waiting_for"])
        code, problem = node.request("GET", "/readyz")
        self.assertEqual(503, code)
        self.assertIn("--data", problem)
        seed.wait("the member is shown", lambda s: s["members_alive"] == 2)
        wait_for(
            "its phase is shown", lambda: seed.members()["box2"]["phase"] == "waiting-for-data"
        )

    def test_a_node_whose_data_comes_later_goes_on_by_itself(self):
        seed = self.cluster.found(self.cluster.job(), shard="1/1", trainer__min_step_ms=20)
        directory = os.path.join(self.cluster.directory, "data")
        node = self.cluster.joiner("box2", seed, data=directory).start()
        self.assertIn(directory, node.wait_phase("waiting-for-data")["waiting_for"])
        os.symlink(DATA, directory)
        node.wait_linked(1)


def finished_and_evaluated(status):
    """The final model is measured: its evaluation is of the last step, and its file says so."""
    final = status["checkpoints"].get("final")
    return status["phase"] == "finished" and final is not None and final["accuracy"] is not None


if __name__ == "__main__":
    unittest.main()
