"""The secret changes while a cluster trains; only a node that has just the old one notices."""

import os
import resource
import shutil
import signal
import unittest

from cluster import GOSSIPD, ClusterTest, gossipctl, wait_for

NOBODY = 65534


class Keys(ClusterTest):
    def key_id(self, path):
        with open(path, encoding="ascii") as file:
            return file.readline().split()[1]

    def on_all(self, *words):
        for node in self.nodes:
            done = node.ctl("key", *words)
            self.assertEqual(0, done.returncode, done.stderr)

    def held(self, node):
        keys = node.get("/v1/keys")
        return {k["id"]: k for k in keys["keys"]}, keys["retired"]

    def test_a_new_key_replaces_the_old_one_without_a_pause(self):
        self.nodes = self.cluster.three(self.cluster.job(), trainer__min_step_ms=20)
        new_file = os.path.join(self.cluster.directory, "new.key")
        self.assertEqual(0, gossipctl("key", "generate", new_file).returncode)
        old, new = self.key_id(self.cluster.key), self.key_id(new_file)

        self.on_all("install", new_file)
        wrong_order = self.nodes[0].ctl("key", "retire", old)
        self.assertEqual(6, wrong_order.returncode)
        self.assertIn("in use", wrong_order.stderr)
        self.on_all("use", new)
        for node in self.nodes:
            self.assertEqual(2, node.status()["links_open"], "nothing was interrupted so far")
        goals = [(n, n.status()["step"] + 100) for n in self.nodes]
        self.on_all("retire", old)
        for node, goal in goals:
            node.wait_linked(2)
            node.wait_step(goal)
            wait_for(
                "all sessions are under the new key",
                lambda: self.held(node)[0] == {new: {"id": new, "in_use": True, "sessions": 2}},
            )
            self.assertEqual([old], self.held(node)[1])

        # A restart with the original key file still in its configuration.
        again = self.nodes[2]
        self.assertEqual(0, again.terminate())
        again.start()
        again.wait_linked(2)
        again.wait_log("was retired on this node")
        # The old key no longer admits a node; the new one does.
        late = self.cluster.joiner("late", self.nodes[0], trainer__min_step_ms=20).start()
        wait_for(
            "it is refused",
            lambda: [r for r in late.status()["refusals"] if "cluster key differs" in r["reason"]],
        )
        self.assertEqual("joining", late.status()["phase"])
        fourth = self.cluster.joiner(
            "fourth", self.nodes[0], key=new_file, trainer__min_step_ms=20
        ).start()
        fourth.wait("it is in", lambda s: s["phase"] == "training" and s["members_alive"] == 4)
        # The secrets are only in their files.
        with open(new_file, encoding="ascii") as file:
            secret = file.readline().split()[2]
        for node in self.nodes:
            for text in (
                node.log(),
                node.request("GET", "/v1/keys")[1],
                node.request("GET", "/v1/status")[1],
            ):
                self.assertNotIn(secret, text)

    def test_a_founder_with_a_key_file_keeps_that_one_and_not_what_lay_in_its_state(self):
        node = self.cluster.founder(self.cluster.job(), shard="1/1")
        os.makedirs(node.state_dir)
        kept = os.path.join(node.state_dir, "cluster.key")
        self.assertEqual(0, gossipctl("key", "generate", kept).returncode)
        old = self.key_id(kept)
        node.start().wait_phase("training")
        self.assertNotEqual(old, self.key_id(self.cluster.key))
        wait_for("the key is kept", lambda: self.key_id(kept) == self.key_id(self.cluster.key))

    def test_a_crash_leaves_no_core_file_with_the_secret_unless_told_to(self):
        with open("/proc/sys/kernel/core_pattern", encoding="ascii") as file:
            pattern = file.read().strip()
        if pattern.startswith(("|", "/")):
            self.skipTest(f"core files go elsewhere: {pattern}")
        resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
        job = self.cluster.job()
        for allowed in ("false", "true"):
            node = self.cluster.found(
                job,
                name=f"dumps-{allowed}",
                shard="1/1",
                trainer__min_step_ms=20,
                log__core_dumps=allowed,
            )
            node.signal(signal.SIGABRT)
            self.assertEqual(-signal.SIGABRT, node.exit_code())
            cores = [name for name in os.listdir(node.directory) if name.startswith("core")]
            self.assertEqual(allowed == "true", bool(cores), cores)

    def as_nobody(self, node):
        """Makes root start the node as a user without rights; returns the user it runs as."""
        if os.geteuid() != 0:
            return os.geteuid()
        ids = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        node.prefix = ["setpriv", *ids, "--pdeathsig", "KILL"]
        # This user may not come where the build lies.
        node.program = shutil.copy(GOSSIPD, self.cluster.directory)
        for path in (self.cluster.directory, node.directory):
            os.chown(path, NOBODY, NOBODY)
        return NOBODY

    def test_other_processes_of_its_user_cannot_read_a_nodes_memory_unless_told_to(self):
        job = self.cluster.job()
        for allowed in ("false", "true"):
            node = self.cluster.founder(
                job, name=f"memory-{allowed}", shard="1/1", log__core_dumps=allowed
            )
            user = self.as_nobody(node)
            node.start().wait_phase("training")
            owner = os.stat(f"/proc/{node.process.pid}/mem").st_uid
            self.assertEqual(user if allowed == "true" else 0, owner)
            node.kill()


if __name__ == "__main__":
    unittest.main()
