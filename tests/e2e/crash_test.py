"""Machines that die, return and freeze, in a cluster where no node is in charge."""

import signal
import unittest

from cluster import DATA, ClusterTest, pause_all, wait_for

BATCH = 32


class CrashAlone(ClusterTest):
    def test_what_a_node_that_has_met_nobody_loses_to_kill_9_it_trains_anew(self):
        node = self.cluster.founder(
            self.cluster.job(), shard="1/1", trainer__min_step_ms=15, checkpoint__every_s=600
        ).start()
        node.wait_step(100)

        def beyond_the_checkpoint():
            written = node.status()["checkpoints"]["current"]["own_samples"]
            return node.state_on_disk()["own_samples"] > written + 10 * BATCH

        wait_for("samples on disk beyond the checkpoint's", beyond_the_checkpoint)
        counted = node.state_on_disk()["own_samples"]
        node.kill()
        node.start()
        node.wait_log(r"event=steps-lost samples=\d+")
        _, samples = node.restored()
        self.assertLess(samples, counted)
        status = node.wait_step(20)
        self.assertEqual(BATCH * status["step"], status["own_samples"])


class CrashTogether(ClusterTest):
    def test_nodes_that_all_die_soon_go_back_to_a_checkpoint_of_that_time(self):
        settings = {"trainer__min_step_ms": 15, "checkpoint__every_s": 600}
        first = self.cluster.found(self.cluster.job(), shard="1/2", **settings)
        second = self.cluster.joiner("box2", first, shard="2/2", **settings).start()
        nodes = [first, second]
        written = [
            node.wait(
                "a checkpoint of some steps",
                lambda s: s["checkpoints"].get("current", {}).get("step", 0) >= 50,
            )["checkpoints"]["current"]["step"]
            for node in nodes
        ]

        def beyond_the_checkpoint():
            current = first.status()["checkpoints"]["current"]
            return first.state_on_disk()["own_samples"] > current["own_samples"] + 10 * BATCH

        wait_for("samples on disk beyond the checkpoint's", beyond_the_checkpoint)
        for node in nodes:
            node.kill()
        behind = []
        for node, step in zip(nodes, written):
            counted = node.state_on_disk()["own_samples"]
            node.start()
            restored, samples = node.restored()
            self.assertGreaterEqual(restored, step)
            self.assertGreaterEqual(node.status()["own_samples"], counted, "they stay counted")
            behind.append(counted - samples)
            if behind[-1] > 0:
                said = node.wait_log(r"event=steps-behind samples=(\d+)")
                self.assertGreaterEqual(int(said[1]), behind[-1])
        self.assertGreater(max(behind), 0, "no checkpoint was behind, so nothing is shown")


class Crash(ClusterTest):
    def setUp(self):
        self.nodes = self.cluster.three(
            self.cluster.job(), trainer__min_step_ms=15, checkpoint__every_s=1
        )

    def expect_steps(self, nodes, more):
        goals = [(n, n.status()["step"] + more) for n in nodes]
        for node, goal in goals:
            node.wait_step(goal)

    def test_a_killed_node_stops_nobody_and_comes_back_from_its_checkpoint(self):
        victim, *others = (
            self.nodes
        )  # the founder and everybody's seed, which gives it no special role
        before = victim.wait(
            "a checkpoint worth the name",
            lambda s: s["checkpoints"].get("current", {}).get("step", 0) >= 50,
        )
        old = victim.members()[victim.name]
        kept = before["checkpoints"]["current"]["own_samples"]
        for (
            node
        ) in others:  # counters travel by gossip: killed earlier, its last samples would be lost
            wait_for(
                "its samples are known", lambda: node.members()[victim.name]["samples"] >= kept
            )
        victim.kill()

        self.expect_steps(others, 100)
        for node in others:
            wait_for(
                "it is missed",
                lambda: node.members()[victim.name]["state"] in ("suspect", "failed"),
            )
            wait_for("it is given up", lambda: node.members()[victim.name]["state"] == "failed")
            self.assertEqual(2, node.status()["members_alive"])
        self.expect_steps(others, 100)
        counted = max(n.members()[victim.name]["samples"] for n in others)
        self.assertGreaterEqual(counted, kept)

        victim.start()
        now = victim.wait_linked(2)
        step, _ = victim.restored()
        self.assertGreaterEqual(step, before["checkpoints"]["current"]["step"])
        self.assertGreaterEqual(now["step"], step)
        self.assertGreaterEqual(now["own_samples"], counted, "what the others had counted was lost")
        self.assertEqual(before["id"], now["id"])
        self.assertGreater(now["incarnation"], before["incarnation"])
        for node in others:
            back = wait_for(
                "it is back",
                lambda: (m := node.members()[victim.name])["state"] == "alive"
                and m["phase"] == "training"
                and m,
            )
            self.assertEqual(old["id"], back["id"])
            self.assertGreater(back["incarnation"], old["incarnation"])
            self.assertEqual(3, len(node.members()))
            node.wait_linked(2)
        self.expect_steps(self.nodes, 20)

    def test_a_frozen_node_stops_nobody_and_is_a_member_again_when_it_thaws(self):
        frozen, *others = self.nodes[1], self.nodes[0], self.nodes[2]
        incarnation = frozen.status()["incarnation"]
        frozen.signal(signal.SIGSTOP)
        self.expect_steps(others, 60)  # before anybody notices …
        for node in others:
            wait_for(
                "it is missed",
                lambda: node.members()[frozen.name]["state"] in ("suspect", "failed"),
            )
        self.expect_steps(others, 60)  # … while it is suspected …
        for node in others:
            wait_for("it is given up", lambda: node.members()[frozen.name]["state"] == "failed")
        self.expect_steps(others, 60)  # … and after it has been given up

        frozen.signal(signal.SIGCONT)
        frozen.wait_log(r"event=stood-still seconds=([2-9]|\d\d)")
        for node in others:
            wait_for(
                "it is back",
                lambda: node.members()[frozen.name]["state"] == "alive"
                and frozen.name in node.links(),
            )
            node.wait_linked(2)
        frozen.wait_linked(2)
        self.assertGreater(
            frozen.status()["incarnation"], incarnation, "it has refuted what was said of it"
        )
        self.assertIsNone(frozen.process.poll(), "the same process as before")
        self.expect_steps(self.nodes, 20)

    # "Exact" means, after every node was killed at once and all are paused again:
    # 1. every node shows the same cluster_samples, and it is the sum of all own_samples;
    # 2. every node shows, for every member, exactly that member's own_samples;
    # 3. each own_samples is what was known before plus one batch for each step made since. Known is
    # the most that any disk held: the node's checkpoint, its state, the others' state.
    def check_counters(self, known, steps_before):
        statuses = {s["name"]: s for s in pause_all(self.nodes)}
        own = {name: s["own_samples"] for name, s in statuses.items()}
        for node in self.nodes:
            self.assertEqual(sum(own.values()), statuses[node.name]["cluster_samples"], node.name)
            self.assertEqual(
                own, {name: m["samples"] for name, m in node.members().items()}, node.name
            )
        for name, s in statuses.items():
            self.assertGreater(s["step"], steps_before[name], f"{name} has not trained on")
        self.assertEqual(
            {
                name: known[name] + BATCH * (s["step"] - steps_before[name])
                for name, s in statuses.items()
            },
            own,
        )
        return statuses

    def restart_all(self, order, paused=False):
        for node in self.nodes:
            node.kill()
        for i in order:
            # A restart has only the disk: no job, no seed, no key.
            self.nodes[i].arguments = ["--data", DATA, "--shard", f"{i + 1}/3"]
            self.nodes[i].start()
        if paused:
            for node in self.nodes:
                node.wait_phase("paused")
                self.assertEqual(0, node.ctl("resume").returncode)
        for node in self.nodes:
            node.wait_linked(2)
        for node in self.nodes:
            node.wait_step(node.restored()[0] + 30)

    def known_on_disk(self):
        known = {}
        for node in self.nodes:
            state = node.state_on_disk()
            for name, samples in [(node.name, state["own_samples"])] + [
                (m["name"], m["samples"]) for m in state["members"]
            ]:
                known[name] = max(known.get(name, 0), samples)
        return known

    def test_all_killed_at_rest_and_restarted_in_another_order_count_exactly(self):
        for node in self.nodes:
            node.wait_step(100)
        before = {s["name"]: s for s in pause_all(self.nodes)}
        for node in self.nodes:
            self.assertEqual(0, node.ctl("checkpoint").returncode)
        self.restart_all(order=(2, 0, 1), paused=True)
        for node in self.nodes:
            self.assertEqual(before[node.name]["step"], node.restored()[0])
        self.check_counters(
            {name: s["own_samples"] for name, s in before.items()},
            {name: s["step"] for name, s in before.items()},
        )
        for node in self.nodes:
            self.assertEqual(before[node.name]["id"], node.status()["id"])
            self.assertEqual(before[node.name]["cluster_id"], node.status()["cluster_id"])

    def test_all_killed_at_work_and_restarted_in_another_order_count_exactly(self):
        for node in self.nodes:
            node.wait(
                "a checkpoint", lambda s: s["checkpoints"].get("current", {}).get("step", 0) >= 100
            )
        for node in self.nodes:
            node.kill()
        known = self.known_on_disk()
        self.restart_all(order=(1, 2, 0))
        steps = {}
        for node in self.nodes:
            step, samples = node.restored()
            steps[node.name] = step
            known[node.name] = max(known[node.name], samples)
        self.check_counters(known, steps)


if __name__ == "__main__":
    unittest.main()
