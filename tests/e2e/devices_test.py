"""Several devices in one box are one node: `cpu,cpu` beside an ordinary daemon, on real data."""

import unittest

from cluster import ClusterTest
from tensors import distance, read_tensors

EXIT_CONFIG = 78


class Devices(ClusterTest):
    def test_a_node_of_two_devices_founds_a_cluster_trains_beside_one_of_one_and_comes_back(self):
        job = self.cluster.job(
            model='kind = "cnn"\nwidth = 8\nhidden = [32]',
            budget_samples=60_000,
            evaluate_every_samples=20_000,
        )
        two = self.cluster.found(job, trainer__device="cpu,cpu", shard="1/2")
        one = self.cluster.joiner("box2", two, shard="2/2", trainer__device="auto").start()
        for node in (two, one):
            node.wait_linked(1)
        self.assertEqual("cpu,cpu", two.status()["trainer"]["device"])
        trainer = one.status()["trainer"]
        self.assertIn(trainer["device"], ("cpu", "cuda:0"))
        if trainer["device"] == "cpu":  # and says why
            self.assertIn("trainer.device=cpu", trainer["device_note"])
            self.assertIn("event=device device=cpu reason=", one.log())
        self.assertEqual("", two.status()["trainer"]["device_note"])
        self.assertIn("cpu,cpu", two.ctl("status").stdout)

        two.wait_step(100)
        self.assertEqual(0, two.terminate())
        step = int(read_tensors(two.checkpoint_path("current"))[0]["step"])
        two.start()
        two.wait("it goes on from its checkpoint", lambda s: s["step"] > step)

        for node in (two, one):
            status = node.wait(
                "the final checkpoint and its evaluation",
                lambda s: s["checkpoints"].get("final", {}).get("accuracy") is not None,
                200,
            )
            self.assertGreater(status["accuracy"], 0.75)
            self.assertGreater(status["own_samples"], 0)
        finals = [read_tensors(node.checkpoint_path("final"))[1] for node in (two, one)]
        self.assertLess(distance(finals[1], finals[0]), 0.02)

    def test_devices_that_cannot_be_one_node_end_the_start(self):
        node = self.cluster.founder(self.cluster.job(), trainer__device="cpu,cuda:0").start()
        self.assertEqual(EXIT_CONFIG, node.exit_code(), node.log())
        self.assertIn("mixes the CPU and CUDA", node.log())


if __name__ == "__main__":
    unittest.main()
