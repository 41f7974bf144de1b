"""Identity: two processes with one id, and addresses that lead back to the node itself."""

import os
import shutil
import unittest

from cluster import ClusterTest, free_port, wait_for
from proxy import Proxy
from tensors import read_tensors

SELF_MARK_S = 60  # when an address that leads back to its node is dialled again
LINK_UPS_MAX = 10


class Clone(ClusterTest):
    def copy_of(self, node, name):
        """A node on a copy of the state directory of a node that goes on running."""
        twin = self.cluster.node(name, "--shard", "2/3", trainer__min_step_ms=20)
        shutil.copytree(node.state_dir, twin.state_dir, ignore=shutil.ignore_patterns("*.sock"))
        return twin

    def test_the_copy_takes_a_new_id_and_both_are_named(self):
        nodes = self.cluster.three(self.cluster.job(), trainer__min_step_ms=20)
        original = nodes[1]
        code = original.ctl("checkpoint").returncode
        self.assertEqual(0, code)
        id_before = original.status()["id"]
        samples_before = original.status()["own_samples"]
        others = [nodes[0], nodes[2]]
        ups_before = [node.log().count(f"event=link-up peer={id_before}") for node in others]
        between = others[0].log().count(f"event=link-down peer={others[1].status()['id']}")
        twin = self.copy_of(original, "twin").start()
        pid = twin.process.pid
        wait_for("the copy has an id of its own", lambda: twin.status()["id"] != id_before)
        for node in [*nodes, twin]:
            node.wait("four members", lambda s: s["members_alive"] == 4 and s["links_open"] >= 1)
        self.assertEqual(id_before, original.status()["id"])
        self.assertIsNone(twin.process.poll())
        self.assertEqual(pid, twin.process.pid)
        with open(f"/proc/{pid}/comm", encoding="utf-8") as comm:
            self.assertEqual("gossipd\n", comm.read())
        self.assertIn(id_before, twin.status()["cloned"])
        original.wait_log(f"event=cloned peer={id_before}")
        twin.wait_log(f"event=cloned peer={id_before} .*new_id={twin.status()['id']}")
        self.assertTrue(original.status()["cloned"])
        self.assertTrue(original.members()["box2"]["cloned"])
        self.assertTrue(any(node.members()["box2"]["cloned"] for node in others))
        self.assertIn("/cloned", original.ctl("members").stdout)
        for node, before in zip(others, ups_before):
            self.assertLessEqual(
                node.log().count(f"event=link-up peer={id_before}") - before, LINK_UPS_MAX
            )
        self.assertEqual(
            between, others[0].log().count(f"event=link-down peer={others[1].status()['id']}")
        )
        # The original's samples count once, under its own id.
        self.assertGreaterEqual(original.status()["own_samples"], samples_before)
        twin.wait_step(twin.status()["step"] + 20)
        self.assertEqual(0, twin.terminate())
        twin.start()
        twin.wait("trains", lambda s: s["phase"] == "training" and s["id"] != id_before)


class RemovedState(ClusterTest):
    def test_a_node_whose_directory_another_has_made_again_writes_nothing_there(self):
        first = self.cluster.found(self.cluster.job(), shard="1/1", trainer__min_step_ms=20)
        while os.path.exists(first.state_dir):  # the node may be writing there
            shutil.rmtree(first.state_dir, ignore_errors=True)
        job = self.cluster.job("other.toml", hidden=16)
        second = self.cluster.founder(job, name="box2", shard="1/1", trainer__min_step_ms=20)
        second.state_dir = first.state_dir
        second.start().wait_phase("training")
        self.assertEqual(0, second.ctl("checkpoint").returncode)
        refused = first.ctl("checkpoint")
        self.assertNotEqual(0, refused.returncode)
        self.assertIn("was removed or replaced while this gossipd runs", refused.stderr)
        self.assertEqual(1, first.terminate())
        self.assertEqual("box2", read_tensors(second.checkpoint_path("current"))[0]["node"])
        second.kill()
        second.start().restored()


class Reflection(ClusterTest):
    def test_an_address_that_led_back_is_dialled_again(self):
        ports = [free_port(), free_port()]
        advertise = [["--advertise", f"127.0.0.1:{port}"] for port in ports]
        first = self.cluster.found(
            self.cluster.job(), *advertise[0], shard="1/2", trainer__min_step_ms=20
        )
        second = self.cluster.joiner(
            "box2", first, *advertise[1], shard="2/2", trainer__min_step_ms=20
        )
        proxies = [Proxy(port, node.address) for port, node in zip(ports, (first, second))]
        try:
            second.start()
            nodes = (first, second)
            for node in nodes:
                node.wait_linked(1)
            proxies[0].target, proxies[1].target = second.address, first.address
            second.kill()
            for proxy in proxies:
                proxy.reset_all()
            second.arguments = [a for a in second.arguments if a not in ("--join", first.address)]
            second.start()
            for node, port in zip(nodes, reversed(ports)):
                node.wait_log(f"event=dial-reflected endpoint=127.0.0.1:{port}")
                self.assertIn("self", {r["code"] for r in node.status()["refusals"]})
            own = first.ctl("join", f"127.0.0.1:{ports[0]}")
            self.assertNotEqual(0, own.returncode)
            self.assertIn("cannot join itself", own.stdout + own.stderr)
            proxies[0].target, proxies[1].target = first.address, second.address
            for node in nodes:
                node.wait(
                    "linked again", lambda s: s["links_open"] == 1, deadline_s=3 * SELF_MARK_S
                )
        finally:
            for proxy in proxies:
                proxy.close()


if __name__ == "__main__":
    unittest.main()
