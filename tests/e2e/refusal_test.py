"""Nodes that are not admitted, and both sides say why."""

import os
import unittest

from cluster import ClusterTest, gossipctl, wait_for


class Refusal(ClusterTest):
    def setUp(self):
        self.first = self.cluster.found(self.cluster.job(), shard="1/1", trainer__min_step_ms=20)

    def assert_said(self, node, words, by=None):
        """The status and the log of `node` give the reason."""

        def said():
            found = [
                r
                for r in node.status()["refusals"]
                if words in r["code"] + " " + r["reason"] and by in (None, r["by"])
            ]
            return found[-1] if found else None

        refusal = wait_for(f"{node.name} says '{words}'", said)
        self.assertTrue(refusal["peer"], refusal)
        self.assertIn(refusal["reason"], node.log())

    def assert_apart(self, stranger):
        self.assertEqual({"box1"}, set(self.first.members()))
        self.assertNotIn("box1", stranger.members())
        self.assertEqual({}, self.first.links())
        step = self.first.status()["step"]
        self.first.wait_step(step + 20)

    def test_another_key(self):
        other = os.path.join(self.cluster.directory, "other.key")
        self.assertEqual(0, gossipctl("key", "generate", other).returncode)
        stranger = self.cluster.joiner("box2", self.first, key=other).start()
        self.assert_said(stranger, "cluster key differs")
        self.assert_said(self.first, "cluster key differs", by="us")
        self.assertEqual("joining", stranger.status()["phase"])
        self.assert_apart(stranger)

    def test_no_key(self):
        stranger = self.cluster.joiner("box2", self.first, key="none").start()
        self.assert_said(stranger, "the peer speaks TLS")
        self.assert_said(self.first, "the peer speaks without encryption", by="us")
        self.assertEqual("joining", stranger.status()["phase"])
        self.assert_apart(stranger)

    def test_another_job(self):
        other = self.cluster.job(
            "other.toml", hidden=48
        )  # another model, so another schema as well
        stranger = self.cluster.joiner("box2", self.first, "--job", other).start()
        self.assert_said(stranger, "job-mismatch")
        self.assert_said(self.first, "job-mismatch")
        self.assert_said(stranger, "in the budget (`epochs` are counted in each node's own data")
        self.assertNotEqual("training", stranger.status()["phase"])
        self.assert_apart(stranger)

    def test_another_cluster_with_the_same_key_and_job(self):
        twin = self.cluster.found(
            self.cluster.job("twin.toml"), name="box2", shard="1/1", trainer__min_step_ms=20
        )
        self.assertEqual(self.first.status()["job_hash"], twin.status()["job_hash"])
        asked = twin.ctl("join", self.first.address)
        self.assertEqual(0, asked.returncode, asked.stderr)
        self.assert_said(twin, "cluster-mismatch")
        self.assert_said(self.first, "cluster-mismatch")
        twin.wait_step(twin.status()["step"] + 20)
        self.assert_apart(twin)

    def test_two_clusters_pointed_at_each_other_do_not_merge(self):
        a1 = self.first
        b1 = self.cluster.found(self.cluster.job(), name="b1", shard="1/1", trainer__min_step_ms=20)
        self.assertEqual(0, a1.ctl("join", b1.address).returncode)  # one while it runs …
        self.assertEqual(0, b1.terminate())
        b1.start(extra=["--join", a1.address])  # … the other from the start
        for node in (a1, b1):
            self.assert_said(node, "cluster-mismatch")
        # A later joiner belongs to the cluster whose member it asked and meets no member of the
        # other.
        a2 = self.cluster.joiner("a2", a1, trainer__min_step_ms=20).start()
        b2 = self.cluster.joiner("b2", b1, trainer__min_step_ms=20).start()
        for node in (a1, a2, b1, b2):
            node.wait_linked(1)
            node.wait_step(node.status()["step"] + 20)
        self.assertNotEqual(a1.status()["cluster_id"], b1.status()["cluster_id"])
        for cluster in ((a1, a2), (b1, b2)):
            self.assertEqual(1, len({n.status()["cluster_id"] for n in cluster}))
            for node in cluster:
                self.assertEqual({n.name for n in cluster}, set(node.members()), node.name)


if __name__ == "__main__":
    unittest.main()
