"""Cables pulled and put back between machines that are network namespaces; nobody else acts."""

import json
import subprocess
import unittest

from cluster import ClusterTest, wait_for
from pace import lowest_pace, steps_in
from partition import check_counters, deltas_applied, part_and_heal, start, wait_heard
from switchboard import Switchboard, unavailable

NO_NAMESPACES = unavailable()


@unittest.skipIf(NO_NAMESPACES, NO_NAMESPACES)
class Partition(ClusterTest):
    def nodes(self, count, **settings):
        self.cluster.switchboard = Switchboard()
        return start(self.cluster, count, **settings)

    def test_halves_train_on_and_become_one_cluster_again_by_themselves(self):
        report = part_and_heal(self.cluster, seconds=10)
        print(json.dumps(report), flush=True)
        self.assertLess(report["points_below_the_better_side"], 0.5)

    def test_a_node_on_a_narrow_cable_takes_part_and_delays_no_other(self):
        nodes = self.nodes(3, trainer__min_step_ms=20)
        usual = steps_in(nodes[:2], 10)
        self.cluster.switchboard.rate(nodes[2].name, 0.5)
        heard = deltas_applied(nodes)
        self.assertEqual(6, len(heard))
        before = [n.status()["step"] for n in nodes]
        self.assertGreater(lowest_pace(usual, steps_in(nodes[:2], 10)), 0.8)
        for node, step in zip(nodes, before):
            node.wait_step(step + 300)
        for node in nodes:
            self.assertEqual(3, node.status()["members_alive"])
            self.assertLess(node.status()["consensus_distance"], 0.2)
        wait_heard(nodes, heard)
        check_counters(nodes)

    def test_a_path_that_drops_large_packets_is_named_until_it_is_mended(self):
        nodes = self.nodes(2, trainer__min_step_ms=20)
        self.cluster.switchboard.swallow_large("box2")
        for node in nodes:
            peer = "box2" if node is nodes[0] else "box1"
            wait_for("the link says so", lambda: node.links()[peer]["large_packets_lost"], 180)
            node.wait_log(
                r"event=large-packets-lost peer=\w+ reason=\"small packets arrive there, large ones"
                r" do not"
            )
            wait_for(
                "the status says so",
                lambda: [
                    w
                    for w in node.status()["warnings"]
                    if f"path to {peer}" in w["text"] and "MTU" in w["text"]
                ],
            )
            self.assertIn("large packets lost", node.ctl("links").stdout)
        self.cluster.switchboard.spare_large("box2")
        for node in nodes:
            wait_for(
                "it is forgotten",
                lambda: not any(link["large_packets_lost"] for link in node.links().values()),
            )
            self.assertEqual([], [w for w in node.status()["warnings"] if "MTU" in w["text"]])
            node.wait(
                "models agree", lambda s: s["links_open"] == 1 and s["consensus_distance"] < 0.1
            )

    def test_a_node_that_can_only_dial_out_takes_full_part(self):
        nodes = self.nodes(2, trainer__min_step_ms=20)
        inside = self.cluster.joiner("box3", nodes[0], shard="1/3", trainer__min_step_ms=20)
        self.cluster.switchboard.refuse_calls(inside.name)
        nodes.append(inside.start())
        for node in nodes:
            node.wait_linked(2)
        host, port = inside.address.split(":")
        call = subprocess.run(
            [*nodes[0].prefix, "timeout", "1", "bash", "-c", f"</dev/tcp/{host}/{port}"],
            capture_output=True,
            check=False,
        )
        self.assertNotEqual(0, call.returncode, "the firewall lets calls in")
        for node in nodes[:2]:  # its links break, and only it can open them again
            node.kill()
            node.start()
        for node in nodes:
            node.wait_linked(2)
        heard = deltas_applied(nodes)
        self.assertEqual(6, len(heard))
        for node in nodes:
            node.wait("models agree", lambda s: s["consensus_distance"] < 0.1)
            self.assertEqual(3, node.status()["members_alive"])
        wait_heard(nodes, heard)
        check_counters(nodes)

    def test_a_node_that_moves_to_another_address_is_found_again(self):
        nodes = self.nodes(3, trainer__min_step_ms=20)
        mover = nodes[2]
        old = mover.address
        self.assertEqual(0, mover.terminate())
        host = self.cluster.switchboard.plug("elsewhere")
        mover.prefix = self.cluster.switchboard.prefix("elsewhere")
        mover.address = f"{host}:{old.rsplit(':', 1)[1]}"
        mover.start()
        mover.wait_linked(2)
        for node in nodes[:2]:
            wait_for(
                "its new address is known",
                lambda: node.members()[mover.name]["address"] == mover.address,
            )
        check_counters(nodes)


if __name__ == "__main__":
    unittest.main()
