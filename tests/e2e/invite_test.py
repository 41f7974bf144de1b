"""An invite: one line of a member takes another box into its cluster, and no other user sees it."""

import json
import os
import pty
import re
import signal
import subprocess
import unittest

from cluster import DEADLINE_S, ClusterTest, clean_environment, read_ready, wait_for
from cluster import _die_with_the_test as die_with_the_test

EXIT_CONFIG = 78


class Invite(ClusterTest):
    def joiner_by(self, name, word, stdin=None):
        """A node that joins by `word`, with `stdin` to read."""
        node = self.cluster.node(name, "--join", word, "--shard", "1/1", key="")
        with open(node.log_path, "ab") as log:
            node.process = subprocess.Popen(
                node.command_line(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=node.directory,
                env=clean_environment(),
                preexec_fn=die_with_the_test,
            )
        if stdin:
            node.process.stdin.write(stdin.encode())
        node.process.stdin.close()
        return node

    def invite_of(self, node):
        done = node.ctl("invite")
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertRegex(done.stdout, r"\Agossipd --join gossip1[a-z2-7]{90,}\n\Z")
        return done.stdout.split()[2]

    def assert_nowhere(self, secret, *nodes):
        for node in nodes:
            self.assertNotIn(secret, node.log())
            with open(f"/proc/{node.process.pid}/cmdline", encoding="utf-8") as file:
                self.assertNotIn(secret, file.read())

    def test_from_a_member_by_every_way_in(self):
        first = self.cluster.found(self.cluster.job(), shard="1/1")
        word = self.invite_of(first)
        self.assertEqual(
            {"invite": word, "addresses": [first.address]},
            json.loads(first.ctl("-o", "json", "invite").stdout),
        )
        self.assertIn("works on this machine only", first.ctl("invite").stderr)
        path = os.path.join(self.cluster.directory, "invite")
        self.assertEqual(path + "\n", first.ctl("invite", "--file", path).stdout)
        self.assertEqual(0o600, os.stat(path).st_mode & 0o777)
        nodes = [
            self.joiner_by("box2", word),
            self.joiner_by("box3", "@" + path),
            self.joiner_by("box4", "-", stdin=f"\ngossipd --join {word} --data DIR\n"),
        ]
        for node in nodes:
            node.wait_phase("training")
        self.assertEqual({"box1", "box2", "box3", "box4"}, set(first.members()))
        self.assert_nowhere(word[20:60], first, *nodes)
        # Every address that is known goes into the next one.
        self.assertEqual(4, len(json.loads(first.ctl("-o", "json", "invite").stdout)["addresses"]))
        # With the same command line it goes on, with what it has kept.
        self.assertEqual(0, nodes[0].terminate())
        nodes[0].start().wait_phase("training")

    def test_founding_prints_it_to_a_terminal_and_to_no_log(self):
        node = self.cluster.founder(self.cluster.job(), shard="1/1")
        terminal, inner = pty.openpty()
        self.addCleanup(os.close, terminal)
        with open(node.log_path, "ab") as log:
            node.process = subprocess.Popen(
                node.command_line(),
                stdin=subprocess.DEVNULL,
                stdout=inner,
                stderr=log,
                cwd=node.directory,
                env=clean_environment(),
                preexec_fn=die_with_the_test,
            )
        os.close(inner)
        shown = ""

        def complete():
            nonlocal shown
            shown += read_ready(terminal).decode(errors="replace")
            return re.search(r"gossipd --join (gossip1\w+) --data DIR\r\n", shown)

        word = wait_for("the line with the invite", complete)[1]
        self.assertIn("only this machine reaches", shown)
        node.wait_log("only this machine reaches .*--advertise")
        self.assert_nowhere(word[20:60], node)
        self.joiner_by("box2", word).wait_phase("training")
        node.process.send_signal(signal.SIGTERM)
        self.assertEqual(0, node.exit_code())

    def test_one_that_is_damaged_or_of_another_cluster(self):
        first = self.cluster.found(self.cluster.job(), shard="1/1")
        word = self.invite_of(first)
        loose = os.path.join(self.cluster.directory, "loose")
        with open(loose, "w", encoding="ascii") as file:
            file.write(word)
        os.chmod(loose, 0o644)
        changed = word[:50] + ("b" if word[50] == "a" else "a") + word[51:]
        for number, (given, said, stdin) in enumerate(
            (
                (changed, "a letter was changed or lost", None),
                (word[:60], "gossipctl invite", None),
                (word[:50] + "0" + word[51:], "letters", None),
                ("@" + loose, "chmod 600", None),
                ("@" + loose + "-nope", "gossipctl invite --file", None),
                ("-", "begins with 'gossip1'", "box1\n"),
            )
        ):
            node = self.joiner_by(f"bad{number}", given, stdin)
            self.assertEqual(EXIT_CONFIG, node.exit_code(), given)
            self.assertIn(said, node.log())
            self.assertNotIn(word[10:45], node.log())
            self.assertFalse(os.path.exists(node.state_dir))

        other_key = os.path.join(self.cluster.directory, "other.key")
        other = self.cluster.found(
            self.cluster.job("other.toml"), name="other", key=other_key, shard="1/1"
        )
        member = self.joiner_by("box2", word)
        member.wait_phase("training")
        member.terminate()
        member.arguments[member.arguments.index("--join") + 1] = self.invite_of(other)
        member.start()
        self.assertEqual(EXIT_CONFIG, member.process.wait(timeout=DEADLINE_S))
        self.assertIn("the invite is to cluster " + other.status()["cluster_id"], member.log())


if __name__ == "__main__":
    unittest.main()
