"""How little is sent, and that something is sent."""

import unittest

from cluster import ClusterTest, settled, wait_for
from tensors import distance, read_tensors


class Traffic(ClusterTest):
    def test_a_run_sends_a_small_part_of_the_dense_baseline(self):
        job = self.cluster.job(budget_samples=120_000)
        nodes = self.cluster.three(job, trainer__min_step_ms=10)
        for node in nodes:
            node.wait("the final checkpoint", lambda s: "final" in s["checkpoints"], 120)
        for node in nodes:
            status = node.status()
            self.assertGreater(
                status["dense_baseline_bytes"], 1000 * 8 * status["model_floats"], node.name
            )
            self.assertLess(
                status["bytes_sent_total"], 0.05 * status["dense_baseline_bytes"], node.name
            )
            links = node.links()
            self.assertEqual(2, len(links))
            for link in links.values():
                self.assertGreater(link["deltas_sent"], 10)
                self.assertGreater(link["deltas_applied"], 10)
                self.assertEqual(0, link["deltas_refused"], link["refused"])
            self.assertGreater(
                status["bytes_sent_total"],
                sum(link["bytes_sent"] for link in links.values()),
                "counted on the wire: TLS, framing and control messages as well",
            )
            self.assertLess(status["consensus_distance"], 0.01)
        finals = [read_tensors(n.checkpoint_path("final"))[1] for n in nodes]
        self.assertLess(distance(finals[1], finals[0]), 0.01)

    def test_nodes_that_begin_together_send_no_whole_block(self):
        job = self.cluster.job(budget_samples=10_000_000)
        # However long the second takes to start.
        near = {
            "exchange__joiner_steps": 1_000_000,
            "exchange__threads": 2,
            "trainer__min_step_ms": 10,
        }
        first = self.cluster.found(job, shard="1/2", **near)
        second = self.cluster.joiner("box2", first, shard="2/2", **near).start()
        links = []
        for node, other in ((first, second), (second, first)):
            node.wait_linked(1)
            wait_for(
                f"{node.name} hears {other.name}",
                lambda node=node, other=other: node.links()[other.name]["deltas_applied"] > 5,
            )
            links.append(node.links()[other.name])
        for link in links:
            self.assertEqual((0, 0), (link["keyframes_sent"], link["deltas_refused"]))
        self.assertRegex(second.log(), "event=model-adopted from=")

    def test_with_the_exchange_off_members_share_only_the_budget(self):
        job = self.cluster.job(budget_samples=64_000, hidden=128)
        first = self.cluster.found(job, "--exchange", "off", shard="1/2", trainer__min_step_ms=10)
        second = self.cluster.joiner(
            "box2", first, "--exchange", "off", shard="2/2", trainer__min_step_ms=10
        ).start()
        nodes = (first, second)
        for node in nodes:
            node.wait("the final checkpoint", lambda s: "final" in s["checkpoints"], 120)
        for node in nodes:
            status = node.status()
            self.assertEqual(2, status["members_alive"])
            self.assertGreater(status["own_samples"], 0)
            links = node.links()
            self.assertEqual(1, len(links))
            for link in links.values():
                self.assertEqual(
                    (0, 0, 0), (link["deltas_sent"], link["deltas_applied"], link["keyframes_sent"])
                )
            self.assertLess(
                status["bytes_sent_total"], 4 * status["model_floats"], "less than the model once"
            )
        statuses = settled(nodes, "finished")
        self.assertEqual(statuses[0]["cluster_samples"], sum(s["own_samples"] for s in statuses))
        a, b = (read_tensors(n.checkpoint_path("final"))[1] for n in nodes)
        self.assertGreater(distance(a, b), 0.05)


if __name__ == "__main__":
    unittest.main()
