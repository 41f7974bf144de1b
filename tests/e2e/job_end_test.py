"""`--until finished`: a daemon that ends with its job, and what its exit code says.

`--bootstrap`: nodes of a fixed set with one command line, of which the first founds the cluster.
"""

import json
import os
import shutil
import signal
import unittest

from cluster import ClusterTest, gossipctl
from data_test import fashion_mnist
from poison_test import DATA, samples_file

EXIT_JOB_FAILED = 3
EXIT_CONFIG = 78
SHORT = {"budget_samples": 6_000, "warmup_samples": 500}


class UntilFinished(ClusterTest):
    def test_three_nodes_end_with_the_job_and_a_restart_ends_at_once(self):
        job = self.cluster.job(**SHORT)
        nodes = [self.cluster.founder(job, "--until", "finished", trainer__min_step_ms=10).start()]
        nodes[0].wait_phase("training")
        for i in (2, 3):
            more = ("--until", "finished")
            nodes.append(self.cluster.joiner(f"box{i}", nodes[0], *more, shard=f"{i}/3").start())
        for node in nodes:
            self.assertEqual(0, node.exit_code(), node.log())
            self.assertIn('event=job-finished why="the job is finished"', node.log())
            self.assertTrue(os.path.exists(node.checkpoint_path("final")))
            # What the end of the job has written is not written once more.
            stop = node.log().split("event=stopping")[1]
            self.assertNotIn("event=checkpoint which=current", stop)
        last = nodes[2]
        self.assertEqual(0, last.start().exit_code())
        self.assertRegex(last.log(), "event=job-finished .*before.*without --until finished")
        self.assertNotIn("event=start", last.log())
        # Without its final model it is not finished, and with the others gone it trains alone.
        os.remove(last.checkpoint_path("final"))
        self.assertEqual(0, last.start().exit_code())
        self.assertIn("event=start", last.log())
        self.assertTrue(os.path.exists(last.checkpoint_path("final")))
        # Without the flag it goes on as a member.
        del last.arguments[last.arguments.index("--until") : last.arguments.index("--until") + 2]
        last.start().wait_phase("finished")
        self.assertEqual(0, last.terminate())

    def test_a_signal_before_the_end_is_no_success_for_a_scheduler(self):
        node = self.cluster.founder(self.cluster.job(), "--until", "finished", shard="1/1")
        for number in (signal.SIGTERM, signal.SIGINT):
            node.start().wait_step(5)
            node.signal(number)
            self.assertEqual(128 + number, node.exit_code())
            self.assertRegex(node.log(), r"event=stopped\s*$")  # cleanly

    def test_a_best_model_that_cannot_be_written_does_not_hold_up_the_end(self):
        job = self.cluster.job(**SHORT)
        node = self.cluster.founder(job, "--until", "finished", shard="1/1")
        os.makedirs(node.checkpoint_path("best") + ".tmp")  # as on a file system with a fault there
        self.assertEqual(0, node.start().exit_code(), node.log())
        self.assertIn("checkpoint best was not written", node.log())
        self.assertFalse(os.path.exists(node.checkpoint_path("best")))

    def test_a_job_without_an_evaluation_ends_at_once(self):
        folder = os.path.join(self.cluster.directory, "data")
        os.mkdir(folder)
        samples_file(os.path.join(folder, "train.safetensors"), fashion_mnist("train", 2000))
        data = "\n".join(line for line in DATA.splitlines() if not line.startswith("test_files"))
        node = self.cluster.founder(
            self.cluster.job(**SHORT, data=data), "--until", "finished", data=folder
        )
        self.assertEqual(0, node.start().exit_code(), node.log())
        self.assertIn('why="the job is finished"', node.log())  # not that it waited in vain

    def test_a_checkpoint_says_of_its_evaluation_what_the_node_says(self):
        node = self.cluster.founder(self.cluster.job(**SHORT), shard="1/1").start()
        evaluated = node.wait(
            "an evaluated final model",
            lambda s: s["checkpoints"].get("final", {}).get("evaluation_loss"),
        )["checkpoints"]["final"]
        with open(node.checkpoint_path("final"), "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        said = header["__metadata__"]
        self.assertEqual(evaluated["evaluation_loss"], float(said["evaluation_loss"]))
        self.assertEqual(evaluated["accuracy"], float(said["accuracy"]))

    def test_a_job_that_breaks_ends_with_code_3(self):
        job = self.cluster.job(learning_rate=1000, warmup_samples=0, budget_samples=10_000_000)
        node = self.cluster.founder(
            job,
            "--until",
            "finished",
            shard="1/1",
            membership__finish_cap_ms=2000,
            exchange__step_jump=0,
        )
        self.assertEqual(EXIT_JOB_FAILED, node.start().exit_code(), node.log())
        self.assertIn("event=job-failed", node.log())
        self.assertIn("the model broke", node.log())


class Bootstrap(ClusterTest):
    def three(self):
        """Three nodes with one command line, but for their number."""
        self.assertEqual(0, gossipctl("key", "generate", self.cluster.key).returncode)
        job = self.cluster.job()
        nodes = [self.cluster.node(f"box-{i}", "--job", job, "--shard", "1/1") for i in range(3)]
        for i, node in enumerate(nodes):
            node.arguments += [word for peer in nodes for word in ("--join", peer.address)]
            node.arguments += ["--bootstrap", str(i)]
        return nodes

    def test_the_first_founds_when_all_others_have_no_cluster_and_never_a_second_one(self):
        nodes = self.three()
        nodes[0].start().wait_log("event=start")
        nodes[1].start()
        nodes[0].wait_log(f"event=no-cluster-there endpoint={nodes[1].address}")
        status = nodes[0].wait("words", lambda s: nodes[2].address in s["waiting_for"])
        self.assertEqual("joining", status["phase"])
        self.assertNotIn(nodes[1].address, status["waiting_for"])
        nodes[2].start()
        for node in nodes:
            node.wait_phase("training")
        cluster = nodes[0].status()["cluster_id"]
        self.assertEqual([cluster] * 3, [node.status()["cluster_id"] for node in nodes])
        self.assertIn("event=cluster-founded", nodes[0].log())

        # The first loses its disk while nobody runs: it waits for the others, however long.
        for node in nodes:
            node.wait_step(10)
            self.assertEqual(0, node.terminate())
        shutil.rmtree(nodes[0].state_dir)
        nodes[0].start()
        nodes[0].wait("words", lambda s: "whether there is a cluster" in s["waiting_for"])
        nodes[1].start()
        nodes[0].wait_phase("training")
        self.assertEqual(cluster, nodes[0].status()["cluster_id"])
        self.assertNotIn("event=cluster-founded", nodes[0].log())

    def test_a_founder_that_dies_before_it_trains_goes_on_as_the_founder(self):
        nodes = self.three()
        nodes[0].settings["trainer.min_step_ms"] = 60_000
        for node in nodes:
            node.start()
        nodes[0].wait_log("event=cluster-founded")
        nodes[0].wait_log("event=link-up")
        nodes[0].kill()
        for which in ("current", "best", "final"):
            if os.path.exists(nodes[0].checkpoint_path(which)):
                os.remove(nodes[0].checkpoint_path(which))
        del nodes[0].settings["trainer.min_step_ms"]
        nodes[0].start()
        for node in nodes:
            node.wait_step(5)

    def test_two_nodes_with_number_0_found_nothing(self):
        nodes = self.three()
        nodes[1].arguments[-1] = "0"
        for node in nodes:
            node.start()
        for node in nodes[:2]:
            node.wait("words", lambda s: "would found the cluster as well" in s["waiting_for"])
        nodes[1].terminate()
        nodes[1].arguments[-1] = "1"
        nodes[1].start()
        for node in nodes:
            node.wait_phase("training")
        self.assertEqual(1, len({node.status()["cluster_id"] for node in nodes}))

    def test_mistakes_are_refused_before_anything_is_written(self):
        job = self.cluster.job()
        for words, said in (
            (["--bootstrap", "0", "--job", job], "`join` names nobody"),
            (["--bootstrap", "0", "--join", "box9"], "give --job FILE"),
            (["--bootstrap", "first", "--join", "box9"], "neither auto nor the number"),
            (["--bootstrap", "auto", "--join", "box9"], "--bootstrap N"),
            (["--until", "done", "--job", job], "finished"),
        ):
            node = self.cluster.node(f"bad{len(self.cluster.nodes)}", *words, key="")
            self.assertEqual(EXIT_CONFIG, node.start().exit_code(), words)
            self.assertIn(said, node.log())
            self.assertFalse(os.path.exists(node.state_dir))


if __name__ == "__main__":
    unittest.main()
