"""Cables that are neither whole nor cut: deaf in one direction, lossy, flapping."""

import random
import time
import unittest

from cluster import ClusterTest, wait_for
from pace import lowest_pace, steps_in
from partition import check_counters, deltas_applied, start, wait_heard
from switchboard import Switchboard, unavailable

NO_NAMESPACES = unavailable()
FLAPS = 20
FLAP_MAX_S = 0.8  # plugged or unplugged, drawn at random


@unittest.skipIf(NO_NAMESPACES, NO_NAMESPACES)
class Cables(ClusterTest):
    def setUp(self):
        self.cluster.switchboard = Switchboard()
        self.nodes = start(self.cluster, 3, trainer__min_step_ms=20)

    def train_on(self, nodes, more):
        goals = [(node, node.status()["step"] + more) for node in nodes]
        for node, goal in goals:
            node.wait_step(goal)

    def check_together(self):
        for node in self.nodes:
            node.wait(
                "everybody is there", lambda s: s["members_alive"] == 3 and s["links_open"] == 2
            )
            node.wait("the models agree", lambda s: s["consensus_distance"] < 0.1)
        check_counters(self.nodes)

    def test_a_node_that_hears_but_is_not_heard_is_given_up_and_comes_back(self):
        mute, *others = self.nodes
        self.cluster.switchboard.mute(mute.name)
        for node in others:
            wait_for("it is given up", lambda: node.members()[mute.name]["state"] == "failed")
        self.train_on(self.nodes, 100)
        self.cluster.switchboard.unmute(mute.name)
        self.check_together()

    def test_a_cable_that_loses_an_eighth_of_what_a_node_sends_delays_no_other_node(self):
        lossy = self.nodes[2].name
        usual = steps_in(self.nodes[:2], 10)
        self.cluster.switchboard.lose_an_eighth(lossy)
        before = deltas_applied(self.nodes)
        self.assertGreater(lowest_pace(usual, steps_in(self.nodes[:2], 10)), 0.8)
        self.train_on(self.nodes, 300)
        self.assertGreater(self.cluster.switchboard.lost(lossy), 20, "the cable loses nothing")
        wait_heard(self.nodes, before)
        self.cluster.switchboard.unmute(lossy)
        self.check_together()

    def test_a_flapping_cable_costs_its_node_only_the_link(self):
        draw = random.Random(3)
        flapping, *others = self.nodes[::-1]
        for _ in range(FLAPS):
            self.cluster.switchboard.unplug(flapping.name)
            time.sleep(draw.uniform(0.05, FLAP_MAX_S))
            self.cluster.switchboard.replug(flapping.name)
            time.sleep(draw.uniform(0.05, FLAP_MAX_S))
        self.train_on(self.nodes, 100)
        self.check_together()
        whole = others[0].status()["id"]
        self.assertNotIn("member-failed peer=" + whole, others[1].log(), "their cables are whole")


if __name__ == "__main__":
    unittest.main()
