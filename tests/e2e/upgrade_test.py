"""A rolling upgrade while the cluster trains: two protocol versions side by side."""

import itertools
import unittest

from cluster import ClusterTest, settled, wait_for
from tensors import distance, read_tensors

BATCH = 32
OLDER, NEWER = 2, 3


class Upgrade(ClusterTest):
    def test_a_rolling_restart_at_the_next_protocol_stops_nobody_and_loses_nothing(self):
        job = self.cluster.job(budget_samples=250_000)
        nodes = self.cluster.three(
            job, trainer__min_step_ms=15, membership__protocol=OLDER, checkpoint__every_s=600
        )
        self.expect(nodes, dict.fromkeys((n.name for n in nodes), OLDER))
        for node in nodes:
            others = [n for n in nodes if n is not node]
            before = {n.name: n.status()["step"] for n in others}
            self.assertEqual(0, node.terminate())
            for other in others:
                other.wait_step(before[other.name] + 20)
            node.settings["membership.protocol"] = NEWER
            node.start()
            for n in nodes:
                n.wait_linked(2)
            self.expect(nodes, {n.name: n.settings["membership.protocol"] for n in nodes})
        self.assertIn(f" {NEWER} ", nodes[0].ctl("links").stdout)

        for node in nodes:
            node.wait_phase("finished", 200)
        statuses = settled(nodes, "finished")
        for status in statuses:
            self.assertEqual(BATCH * status["step"], status["own_samples"], status["name"])
            self.assertEqual(
                sum(s["own_samples"] for s in statuses), status["cluster_samples"], status["name"]
            )
        finals = [
            wait_for("its final checkpoint", lambda: read_tensors(n.checkpoint_path("final"))[1])
            for n in nodes
        ]
        for other in finals[1:]:
            self.assertLess(distance(other, finals[0]), 0.01)

    def expect(self, nodes, newest):
        """Each pair speaks the lower of its two versions; every link carries exchanges in both
        directions, none refused.
        """
        turns = {}
        for node, peer in itertools.permutations(nodes, 2):
            link = wait_for(
                "the link is open", lambda: (l := node.links()[peer.name])["state"] == "open" and l
            )
            self.assertEqual(
                min(newest[node.name], newest[peer.name]), link["protocol"], (node.name, peer.name)
            )
            turns[node.name, peer.name] = link["turns_heard"]
        for node, peer in itertools.permutations(nodes, 2):
            link = wait_for(
                "exchanges go on",
                lambda: (l := node.links()[peer.name])["turns_heard"]
                >= turns[node.name, peer.name] + 4
                and l,
            )
            self.assertEqual(0, link["deltas_refused"], (node.name, peer.name, link["refused"]))
        self.assertEqual({"training"}, {n.status()["phase"] for n in nodes})

    def test_a_version_that_no_release_speaks_is_refused_before_the_start(self):
        node = self.cluster.founder(self.cluster.job(), membership__protocol=1)
        node.start()
        self.assertNotEqual(0, node.exit_code())
        self.assertRegex(node.log(), r"membership\.protocol.*'1' is not a whole number from 2 to 3")


if __name__ == "__main__":
    unittest.main()
