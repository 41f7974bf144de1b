"""Bad lines between good machines (slow, breaking, silently dead), and a full disk."""

import os
import subprocess
import unittest

from cluster import ClusterTest, free_port, pause_all, wait_for
from proxy import Proxy
from tensors import read_tensors


class Lines(ClusterTest):
    def setUp(self):
        self.proxies = []

    def tearDown(self):
        for proxy in self.proxies:
            proxy.close()

    def through_proxies(self, count, **line):
        """`count` linked nodes, each reached through its own proxy."""
        nodes = []
        for i in range(count):
            port = free_port()
            arguments = ["--advertise", f"127.0.0.1:{port}"]
            settings = {"shard": f"{i + 1}/{count}", "trainer__min_step_ms": 20}
            if i == 0:
                node = self.cluster.founder(
                    self.cluster.job(learning_rate=0.02), *arguments, **settings
                )
            else:
                node = self.cluster.node(
                    f"box{i + 1}",
                    "--join",
                    self.proxies[0].address,
                    "--shard",
                    settings.pop("shard"),
                    *arguments,
                    **settings,
                )
            self.proxies.append(Proxy(port, node.address, seed=i + 1, **line))
            node.start()
            if i == 0:
                node.wait_phase("training")
            nodes.append(node)
        for node in nodes:
            node.wait_linked(count - 1)
        return nodes

    def check_together(self, nodes):
        """All nodes know each other and the same counters, and their models agree."""
        for node in nodes:
            node.wait(
                "everybody is there, and the models agree",
                lambda s: s["members_alive"] == len(nodes) and s["consensus_distance"] < 0.1,
            )
        own = {s["name"]: s["own_samples"] for s in pause_all(nodes)}
        for node in nodes:
            wait_for(
                f"{node.name} knows the counters of all",
                lambda node=node: own == {name: m["samples"] for name, m in node.members().items()},
            )
            self.assertEqual(
                0, sum(link["deltas_refused"] for link in node.links().values()), node.name
            )

    def test_a_line_of_a_hundred_milliseconds_is_seen_and_bridged(self):
        nodes = self.through_proxies(3, delay_s=0.1)
        for node in nodes:
            node.wait_step(node.status()["step"] + 200)
            for link in node.links().values():
                self.assertGreaterEqual(link["rtt_ms"], 200)
                self.assertGreater(link["deltas_applied"], 0)
        self.check_together(nodes)

    def test_lines_that_break_again_and_again_lose_nothing(self):
        nodes = self.through_proxies(3)
        for proxy in self.proxies:
            proxy.bytes_until_reset = 100_000
            proxy.reset_all()
        wait_for("many broken connections", lambda: sum(p.resets for p in self.proxies) >= 12)
        for proxy in self.proxies:
            proxy.bytes_until_reset = None
            proxy.reset_all()
        self.check_together(nodes)

    def test_lines_that_go_dead_silently_are_noticed_and_come_back(self):
        nodes = self.through_proxies(3)
        for proxy in self.proxies:
            proxy.cut()
        for node in nodes:
            others = [n.name for n in nodes if n is not node]
            wait_for(
                "the others are given up",
                lambda: {node.members()[name]["state"] for name in others} == {"failed"},
            )
            node.wait_step(node.status()["step"] + 100)
        for proxy in self.proxies:
            proxy.mend()
        self.check_together(nodes)


class FullDisk(ClusterTest):
    def on_a_disk_of_its_own(self, node, what):
        """Calls what() while the node's state is on a small disk."""
        os.mkdir(node.state_dir)
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", node.state_dir],
            capture_output=True,
            text=True,
            check=False,
        )
        if mounted.returncode != 0:
            self.skipTest(f"mount: {mounted.stderr.strip()}")
        try:
            what()
        finally:
            node.destroy()
            subprocess.run(["umount", node.state_dir], check=False)

    def fill(self, node):
        """Fills the disk and returns the file to remove to empty it again."""
        filler = os.path.join(node.state_dir, "filler")
        with open(filler, "wb", buffering=0) as out, self.assertRaises(OSError):
            while True:
                out.write(b"x" * 4096)
        return filler

    def test_a_full_disk_is_reported_and_training_goes_on(self):
        node = self.cluster.founder(
            self.cluster.job(evaluate_every_samples=20_000), shard="1/1", trainer__min_step_ms=5
        )

        def check():
            node.start().wait_phase("training")
            filler = self.fill(node)
            self.assertNotEqual(0, node.ctl("checkpoint").returncode)
            warned = node.wait(
                "the full disk is said",
                lambda s: any("space" in w["text"] or "cannot" in w["text"] for w in s["warnings"]),
            )
            node.wait_step(warned["step"] + 200)
            os.remove(filler)
            self.assertEqual(0, node.ctl("checkpoint").returncode)
            written = node.status()["checkpoints"]["current"]
            self.assertGreaterEqual(written["step"], warned["step"] + 200, "as of now")
            node.kill()
            node.start().wait_phase("training")
            self.assertGreaterEqual(node.restored()[0], written["step"])
            self.assertGreaterEqual(node.status()["own_samples"], written["own_samples"])

        self.on_a_disk_of_its_own(node, check)

    def test_a_founder_without_room_for_its_key_may_be_started_again(self):
        node = self.cluster.founder(self.cluster.job(), shard="1/1", key="")

        def check():
            filler = self.fill(node)
            self.assertEqual(1, node.start().exit_code(), "78 is never started again")
            self.assertRegex(node.log(), r"cluster.key: No space left .*; make room there")
            os.remove(filler)
            node.start().wait_phase("training")

        self.on_a_disk_of_its_own(node, check)

    def test_a_node_that_is_stopped_on_a_full_disk_says_that_a_restart_knows_less(self):
        node = self.cluster.founder(self.cluster.job(), shard="1/1", trainer__min_step_ms=5)

        def check():
            node.start().wait_phase("training")
            filler = self.fill(node)
            self.assertEqual(1, node.terminate())
            self.assertRegex(node.log(), r"the last (state and )?checkpoint could not be written")
            os.remove(filler)
            node.start().wait_phase("training")
            self.assertEqual(0, node.terminate())

        self.on_a_disk_of_its_own(node, check)

    def test_a_job_that_ends_on_a_full_disk_writes_its_final_model_when_there_is_room(self):
        job = self.cluster.job(budget_samples=10_000, warmup_samples=1_000)
        node = self.cluster.founder(
            job, shard="1/1", trainer__min_step_ms=10, checkpoint__every_s=1
        )

        def check():
            node.start().wait_phase("training")
            filler = self.fill(node)
            node.wait_phase("finished")
            said = "checkpoint final was not written"
            node.wait("it is said", lambda s: any(said in w["text"] for w in s["warnings"]))
            # Its evaluation makes it write the model once more; after that only a retry does.
            tried = node.wait("the evaluation", lambda s: s["evaluation"])["checkpoints_failed"]
            node.wait("it is tried again", lambda s: s["checkpoints_failed"] > tried + 1)
            self.assertFalse(os.path.exists(node.checkpoint_path("final")))
            waiting = node.status()["waiting_for"]
            self.assertRegex(waiting, "^the disk to take the final model: .*No space left")
            os.remove(filler)
            node.wait("the final model is written", lambda s: "final" in s["checkpoints"])
            node.wait("it waits for nothing", lambda s: s["waiting_for"] == "")
            self.assertTrue(read_tensors(node.checkpoint_path("final"))[1])

        self.on_a_disk_of_its_own(node, check)


if __name__ == "__main__":
    unittest.main()
