"""An operator's actions: leave and join, stop and start, inspection, damaged checkpoints."""

import contextlib
import glob
import json
import os
import signal
import unittest

from cluster import ClusterTest, free_port, gossipctl, wait_for
from tensors import read_tensors


OUT = "this node has left; `gossipctl join` brings it back"


class Leave(ClusterTest):
    def test_leave_is_durable_over_a_restart_and_join_undoes_it(self):
        nodes = self.cluster.three(self.cluster.job(), trainer__min_step_ms=20)
        *others, node = nodes
        left = node.ctl("leave")
        self.assertEqual(0, left.returncode, left.stderr)
        self.assert_out(node, others)
        incarnation = node.status()["incarnation"]

        self.assertEqual(0, node.terminate())
        node.start()  # with --join, as before
        node.wait_phase("left")
        self.assertIn(OUT, node.log())
        goal = others[0].status()["step"] + 50  # time for dials in either direction
        others[0].wait_step(goal)
        self.assert_out(node, others)
        self.assertGreater(node.status()["incarnation"], incarnation)
        again = node.ctl("leave")
        self.assertEqual(6, again.returncode)
        self.assertIn("gossipctl join", again.stderr)

        back = node.ctl("join")
        self.assertEqual(0, back.returncode, back.stderr)
        self.assertEqual(0, node.ctl("wait", "--for", "ready").returncode)
        node.wait_linked(2)
        self.assertNotIn(OUT, [warning["text"] for warning in node.status()["warnings"]])
        for other in others:
            wait_for("it is back", lambda: other.members()[node.name]["state"] == "alive")
        node.wait_step(node.status()["step"] + 20)
        refused = node.ctl("join")
        self.assertEqual(6, refused.returncode, "it has not left")

    def assert_out(self, node, others):
        status = node.status()
        self.assertEqual("left", status["phase"])
        self.assertEqual(0, status["links_open"])
        self.assertIn(OUT, [warning["text"] for warning in status["warnings"]])
        self.assertEqual(503, node.request("GET", "/readyz")[0])
        self.assertEqual(200, node.request("GET", "/livez")[0])
        self.assertNotEqual("training", status["trainer"]["state"])
        for other in others:
            wait_for("the others know", lambda: other.members()[node.name]["state"] == "left")
            self.assertEqual(2, other.status()["members_alive"])


class Stop(ClusterTest):
    def setUp(self):
        self.first = self.cluster.found(
            self.cluster.job(), shard="1/2", trainer__min_step_ms=15, checkpoint__every_s=600
        )

    def second(self):
        node = self.cluster.joiner(
            "box2", self.first, shard="2/2", trainer__min_step_ms=15, checkpoint__every_s=600
        ).start()
        node.wait_linked(1)
        node.wait_step(60)
        return node

    def test_a_stopped_node_says_goodbye_writes_a_checkpoint_and_goes_on_from_it(self):
        node = self.second()
        step = node.status()["step"]
        self.assertEqual(0, node.terminate())
        self.first.wait_log(r"event=bye peer=\w+ why=restarting")
        self.assertNotEqual("left", self.first.members()["box2"]["state"])
        metadata, _ = read_tensors(node.checkpoint_path("current"))
        self.assertGreaterEqual(int(metadata["step"]), step)

        node.start()
        node.wait_linked(1)
        node.wait_log(rf"event=model-ready .*restored=yes step={metadata['step']} ")
        self.assertGreaterEqual(node.status()["step"], int(metadata["step"]))
        node.wait_step(int(metadata["step"]) + 20)

    def test_sigint_stops_a_node_as_cleanly_as_sigterm(self):
        node = self.second()
        step = node.status()["step"]
        node.signal(signal.SIGINT)
        self.assertEqual(0, node.exit_code())
        self.assertRegex(node.log(), "event=stopping why=.*SIGINT")
        self.first.wait_log(r"event=bye peer=\w+ why=restarting")
        metadata, _ = read_tensors(node.checkpoint_path("current"))
        self.assertGreaterEqual(int(metadata["step"]), step)

    def test_while_it_waits_for_a_silent_peer_to_hear_its_goodbye_a_node_is_idle(self):
        node = self.second()
        self.first.signal(signal.SIGSTOP)
        self.addCleanup(self.first.signal, signal.SIGCONT)

        def seconds_of_the_loop():
            with open(f"/proc/{node.process.pid}/task/{node.process.pid}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        node.signal(signal.SIGTERM)
        node.wait_log("event=stopping")
        seen = [seconds_of_the_loop()]

        def is_gone():
            with contextlib.suppress(OSError):
                seen.append(seconds_of_the_loop())
            return node.process.poll() is not None

        wait_for("the node's end", is_gone)
        self.assertEqual(0, node.process.returncode)
        self.assertLess(seen[-1] - seen[0], 0.5)

    def test_a_paused_node_is_paused_again_after_a_restart_until_it_is_told_to_go_on(self):
        node = self.second()
        self.assertEqual(0, node.ctl("pause").returncode)
        node.wait_phase("paused")
        self.assertEqual(0, node.terminate())
        node.start()
        step = node.wait_phase("paused")["step"]
        self.assertEqual(0, node.ctl("resume").returncode)
        node.wait_step(step + 20)
        self.assertEqual(0, node.terminate())
        node.start().wait_step(step + 40)

    def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_used(self):
        self.first.wait_step(40)
        self.assertEqual(0, self.first.ctl("checkpoint").returncode)
        self.first.wait_step(80)
        self.assertEqual(0, self.first.terminate())
        newest = self.first.checkpoint_path("current")
        older, _ = read_tensors(self.first.checkpoint_path("current", previous=True))
        flip_a_byte(newest)

        self.first.start()
        status = self.first.wait_phase("training")
        self.assertRegex(
            self.first.log(), rf"event=model-ready .*restored=yes step={older['step']} "
        )
        words = " ".join(w["text"] for w in status["warnings"])
        self.assertIn("current.safetensors", words)
        self.assertIn("the previous checkpoint is used", words)
        self.assertTrue(
            glob.glob(os.path.join(os.path.dirname(newest), "*corrupt*")),
            "the damaged file is kept aside",
        )
        self.first.wait_step(int(older["step"]) + 20)

    def test_with_both_checkpoints_damaged_a_member_takes_the_clusters_model(self):
        node = self.second()
        self.assertEqual(0, node.ctl("checkpoint").returncode)
        self.assertEqual(0, node.terminate())
        for previous in (False, True):
            flip_a_byte(node.checkpoint_path("current", previous))
        node.start()
        status = node.wait_linked(1)
        self.assertRegex(node.log(), r"event=model-ready .*restored=no")
        self.assertRegex(node.log(), r"event=model-adopted from=peer=")
        self.assertIn("no checkpoint is used", " ".join(w["text"] for w in status["warnings"]))
        node.wait_step(node.status()["step"] + 20)

    def test_with_both_checkpoints_damaged_and_no_neighbour_a_node_does_not_start_over(self):
        self.first.wait_step(20)
        self.assertEqual(0, self.first.ctl("checkpoint").returncode)
        self.assertEqual(0, self.first.terminate())
        for previous in (False, True):
            flip_a_byte(self.first.checkpoint_path("current", previous))
        self.first.start()
        self.assertEqual(78, self.first.exit_code())
        self.assertRegex(self.first.log(), r"gossipd: .*current\.safetensors.*; ")


class CommandLine(ClusterTest):
    def test_exit_codes_and_tables(self):
        first = self.cluster.found(self.cluster.job(), shard="1/2", trainer__min_step_ms=20)
        second = self.cluster.joiner("box2", first, shard="2/2", trainer__min_step_ms=20).start()
        first.wait_linked(1)
        second.wait_linked(1)

        for condition in ("ready", "members=2", "step=10", "samples=1000"):
            done = first.ctl("wait", "--for", condition)
            self.assertEqual(0, done.returncode, (condition, done.stderr))
        for words, code, said in (
            (["wait", "--for", "members=3"], 7, "still waiting for members=3"),
            (["wait", "--for", "dinner"], 2, "dinner"),
            (["dance"], 2, "gossipctl --help"),
            (["join"], 6, "has not left"),
            (["join", first.address], 6, f"{first.address} is this node itself"),
            (["join", b"caf\xe9"], 2, "no UTF-8"),
        ):
            done = first.ctl(*words, timeout_s=1 if code == 7 else 20)
            self.assertEqual(code, done.returncode, (words, done.stderr))
            self.assertIn(said, done.stderr)
            self.assertEqual("", done.stdout, words)
        nobody = gossipctl("--rest", f"127.0.0.1:{free_port()}", "status")
        self.assertEqual(3, nobody.returncode)
        self.assertIn("start gossipd", nobody.stderr)

        lines = first.ctl("members").stdout.splitlines()
        self.assertEqual(
            "NAME ADDRESS STATE REACHABLE RTT STEP SAMPLES/S BATCH LOSS ACCURACY AGE DEVICE VERSION"
            " ID".split(),
            lines[0].split(),
        )
        self.assertEqual(
            [["box1*", first.address, "alive"], ["box2", second.address, "alive"]],
            sorted(line.split()[:3] for line in lines[1:]),
        )
        links = first.ctl("links").stdout.splitlines()
        self.assertEqual(["box2", "open"], links[1].split()[:2])
        self.assertEqual(2, len(links))
        status = first.ctl("status").stdout
        for label, value in (
            ("node", "box1"),
            ("phase", "training"),
            ("members", "2 alive, 1 linked"),
            ("traffic", "sent"),
        ):
            self.assertRegex(status, rf"(?m)^{label} +.*{value}")
        self.assertEqual(
            first.status()["id"], json.loads(first.ctl("status", "-o", "json").stdout)["id"]
        )
        self.assertEqual(
            first.get("/v1/job")["document"], first.ctl("job").stdout.split("\n", 1)[1]
        )

        self.assertEqual(0, first.ctl("pause").returncode)
        self.assertEqual("paused", first.status()["phase"])
        self.assertEqual(0, first.ctl("resume").returncode)
        self.assertEqual("training", first.status()["phase"])

    def test_rest_under_tls_is_verified_by_the_daemons_certificate(self):
        node = self.cluster.founder(self.cluster.job(), shard="1/1", rest__tls="on").start()
        node.wait_log("event=rest-tls .*sha256=(..:){31}..")
        certificate = os.path.join(node.state_dir, "rest-certificate.pem")
        place = f"https://{node.rest}"
        self.assertEqual(
            0,
            gossipctl(
                "--rest", place, "--ca-file", certificate, "wait", "--for", "ready"
            ).returncode,
        )
        self.assertIn(
            '"phase": "training"',
            json.dumps(
                json.loads(
                    gossipctl(
                        "--rest", place, "--ca-file", certificate, "status", "-o", "json"
                    ).stdout
                )
            ),
        )
        stranger = gossipctl("--rest", place, "status")
        self.assertEqual(5, stranger.returncode)
        self.assertIn("--ca-file", stranger.stderr)
        plain = node.ctl("status")
        self.assertEqual(1, plain.returncode)
        self.assertIn("https://", plain.stderr)
        self.assertEqual(0, node.terminate())

    def test_no_job_yet_and_no_token(self):
        token = os.path.join(self.cluster.directory, "token")
        with open(token, "w", encoding="utf-8") as file:
            file.write("0123456789abcdef0123456789abcdef\n")
        os.chmod(token, 0o600)
        self.assertEqual(0, gossipctl("key", "generate", self.cluster.key).returncode)
        nobody = self.cluster.founder(self.cluster.job())  # never started
        node = self.cluster.joiner("box2", nobody, "--rest-token-file", token).start()
        wait_for("REST answers", lambda: node.request("GET", "/livez")[0] in (200, 401))
        refused = node.ctl("status")
        self.assertEqual(5, refused.returncode)
        self.assertIn("--token-file", refused.stderr)
        self.assertEqual(0, node.ctl("--token-file", token, "status").returncode)
        unknown = node.ctl("--token-file", token, "job")
        self.assertEqual(4, unknown.returncode)
        self.assertIn("the job comes from the cluster", unknown.stderr)
        refused = node.ctl("--token-file", token, "resume")
        self.assertEqual(6, refused.returncode)
        self.assertIn("this node is joining", refused.stderr)


def flip_a_byte(path):
    with open(path, "r+b") as file:
        middle = os.path.getsize(path) // 2
        file.seek(middle)
        byte = file.read(1)[0]
        file.seek(middle)
        file.write(bytes([byte ^ 0x10]))


if __name__ == "__main__":
    unittest.main()
