"""Starts that cannot work: one clear line on standard error, and an exit code for service managers.

78 (EX_CONFIG) means that somebody must change something, so do not restart. 1 means that a later
start may work.
"""

import os
import shutil
import signal
import socket
import subprocess
import unittest

from cluster import BIN, DATA, DEADLINE_S, GOSSIPD, ClusterTest
from cluster import clean_environment, gossipctl, wait_for

EXIT_CONFIG = 78


class Startup(ClusterTest):
    def run_once(self, node, *extra, environment=None):
        """The exit code, and the one line with the reason."""
        done = subprocess.run(
            node.command_line(extra),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            cwd=node.directory,
            env={**clean_environment(), **(environment or {})},
            stdin=subprocess.DEVNULL,
        )
        self.assertEqual("", done.stdout)
        complaints = [line for line in done.stderr.splitlines() if line.startswith("gossipd: ")]
        self.assertEqual(1, len(complaints), done.stderr)
        return done.returncode, complaints[0]

    def founder(self, *arguments, **settings):
        return self.cluster.founder(self.cluster.job(), *arguments, shard="1/1", **settings)

    def assert_refused(self, node, code, *words, extra=(), environment=None):
        got, line = self.run_once(node, *extra, environment=environment)
        self.assertEqual(code, got, line)
        for word in words:
            self.assertIn(word, line)

    def write(self, name, text):
        path = os.path.join(self.cluster.directory, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_an_unknown_key_in_the_node_file(self):
        file = self.write("node.toml", "[trainer]\nmin_step_m = 5\n")
        self.assert_refused(
            self.founder("--config", file),
            EXIT_CONFIG,
            "node.toml:2",
            "min_step_m:",
            "did you mean 'min_step_ms'?",
        )

    def test_a_node_file_on_a_disk_that_fails_may_be_read_by_a_later_start(self):
        node = self.founder("--config", "/proc/self/mem")  # its first byte cannot be read
        words = ("/proc/self/mem: cannot be read", "check the disk")
        self.assert_refused(node, 1, *words)
        self.assert_refused(node, EXIT_CONFIG, *words, extra=["--check-config"])

    @unittest.skipUnless(os.geteuid() == 0, "only root may become another user")
    def test_another_users_state_and_a_user_without_a_home(self):
        node = self.founder()
        os.makedirs(node.state_dir, mode=0o700, exist_ok=True)
        with open(os.path.join(node.state_dir, "node.json"), "w", encoding="utf-8"):
            pass
        state = ["--state-dir", os.path.abspath(node.state_dir)]
        nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        program = os.path.join(BIN, "gossipd")
        for arguments, environment, words in (
            (state, {"HOME": "/nonexistent"}, ("cannot be looked into: Permission denied", "user")),
            (["--rest", "none"], {}, ("state_dir: HOME is not set", "--state-dir DIR")),
        ):
            done = subprocess.run(
                [*nobody, program, *arguments],
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                cwd="/",
                env=environment,
                stdin=subprocess.DEVNULL,
            )
            self.assertEqual(EXIT_CONFIG, done.returncode, done.stderr)
            for word in words:
                self.assertIn(word, done.stderr)

    def test_an_unknown_key_in_the_job_file(self):
        job = self.cluster.job()
        with open(job, "a", encoding="utf-8") as file:
            file.write("[optimiser]\nlearning_rate = 1\n")
        self.assert_refused(
            self.cluster.founder(job),
            EXIT_CONFIG,
            "job.toml",
            "optimiser",
            "did you mean",
            "optimizer",
        )

    def test_an_unknown_flag_setting_or_value(self):
        self.assert_refused(
            self.founder(),
            EXIT_CONFIG,
            "--exchnage",
            "did you mean --exchange",
            extra=["--exchnage", "off"],
        )
        self.assert_refused(
            self.founder(name="box3"),
            EXIT_CONFIG,
            "there is no flag --trainer.threads",
            "--set trainer.threads=VALUE",
            extra=["--trainer.threads", "1"],
        )
        node = self.cluster.founder(self.cluster.job(), name="box2")
        self.assert_refused(
            node,
            EXIT_CONFIG,
            "exchange.codek",
            "did you mean 'exchange.codec'",
            extra=["--set", "exchange.codek=int8"],
        )
        self.assert_refused(node, EXIT_CONFIG, "'=3' has no key", extra=["--set", "=3"])
        self.assert_refused(
            node, EXIT_CONFIG, "'init' comes first", "gossipd init --data DIR", extra=["init"]
        )
        self.assert_refused(
            node,
            EXIT_CONFIG,
            "GOSSIPD_EXCHANGE_CODEC",
            "int9",
            environment={"GOSSIPD_EXCHANGE_CODEC": "int9"},
        )

    def test_a_directory_or_a_fifo_in_place_of_the_job_file(self):
        self.assert_refused(
            self.cluster.founder(self.cluster.directory),
            EXIT_CONFIG,
            self.cluster.directory,
            "is a directory",
        )
        fifo = os.path.join(self.cluster.directory, "fifo")
        os.mkfifo(fifo)
        self.assert_refused(self.cluster.founder(fifo, name="box2"), EXIT_CONFIG, fifo, "is a FIFO")

    def test_a_log_file_in_a_directory_that_is_not_there(self):
        directory = os.path.join(self.cluster.directory, "nope")
        self.assert_refused(
            self.founder("--log-file", os.path.join(directory, "log")),
            EXIT_CONFIG,
            "log.file",
            "there is no directory " + directory,
        )
        self.assertFalse(os.path.exists(directory))

    def test_paths_on_a_read_only_file_system_are_refused_before_the_start(self):
        place = os.path.join(self.cluster.directory, "read-only")
        os.mkdir(place)
        mounted = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
        mounted += ['mount -t tmpfs -o ro none "$1" && shift && exec "$@"', "sh", place]
        if subprocess.run([*mounted, "true"], check=False).returncode:
            self.skipTest("no file system can be mounted here")
        line = [*mounted, GOSSIPD, "--check-config"]
        for words in (["--state-dir", place + "/new/state"], ["--log-file", place + "/log"]):
            state = [] if words[0] == "--state-dir" else ["--state-dir", place + "-not"]
            done = subprocess.run(
                [*line, *state, *words], capture_output=True, text=True, check=False
            )
            self.assertEqual(EXIT_CONFIG, done.returncode, done.stderr)
            self.assertIn(words[1], done.stderr)
            self.assertRegex(done.stderr.lower(), "read-only")

    def test_a_log_file_that_the_system_does_not_open_may_be_there_later(self):
        node = self.founder("--log-file", "/proc/self/log")
        self.assert_refused(node, 1, "log.file: /proc/self/log")

    def test_a_member_does_not_need_the_job_file_that_it_began_with(self):
        job = self.write("epochs.toml", "")
        with open(self.cluster.job(), encoding="utf-8") as file:
            text = file.read().replace("budget_samples = 100000000", "epochs = 100")
        self.write("epochs.toml", text)
        node = self.cluster.founder(job, shard="1/1").start()
        node.wait_step(1)
        self.assertEqual(0, node.terminate())
        data = node.arguments.index("--data")
        node.arguments[data : data + 2] = []
        node.start()
        node.wait_log("event=warning .*epochs count the samples.* goes on with the job that it has")
        node.wait_phase("waiting-for-data")
        self.assertEqual(0, node.terminate())
        os.remove(job)
        node.arguments += ["--data", DATA]
        node.start().wait_phase("training")
        self.assertIn("epochs.toml", node.wait_log("event=warning .*goes on with the job")[0])
        self.assertEqual(0, node.terminate())
        self.write("epochs.toml", "no job")
        self.assertEqual(EXIT_CONFIG, node.start().exit_code())

    def test_a_damaged_job_that_nobody_else_has(self):
        node = self.founder().start()
        node.wait_step(20)
        self.assertEqual(0, node.terminate())
        stored = os.path.join(node.state_dir, "job.toml")
        with open(stored, "r+", encoding="utf-8") as file:
            file.write("nonsense")
        at = node.arguments.index("--job")
        job = node.arguments[at : at + 2]
        del node.arguments[at : at + 2]
        self.assert_refused(node, EXIT_CONFIG, stored, "is damaged", "start once with --job FILE")
        node.start(extra=job).wait_step(20)
        self.assertIn("written again from", node.log())

    def test_nothing_to_do(self):
        node = self.cluster.node("box1")
        self.assert_refused(node, EXIT_CONFIG, "belongs to no cluster yet", "--job", "--join")
        self.assertFalse(os.path.exists(node.state_dir))

    def test_a_founder_without_its_data(self):
        for name, data in (("box1", None), ("box2", self.cluster.directory)):
            node = self.cluster.founder(self.cluster.job(), name=name, data=data)
            self.assert_refused(node, EXIT_CONFIG, "train-images-idx3-ubyte")
            self.assertFalse(os.path.exists(node.state_dir))
            self.assertFalse(os.path.exists(self.cluster.key))

    def test_a_founder_killed_before_its_first_checkpoint_begins_anew(self):
        node = self.founder()
        obstacle = node.checkpoint_path("current") + ".tmp"
        os.makedirs(obstacle)
        node.start().wait_log("checkpoint current was not written")
        node.wait("samples", lambda s: s["own_samples"] > 0)
        saved = os.stat(os.path.join(node.state_dir, "node.json")).st_mtime_ns
        wait_for("a state", lambda: os.stat(node.state_dir + "/node.json").st_mtime_ns > saved)
        node.kill()
        self.assertEqual(0, node.state_on_disk()["own_samples"])
        os.rmdir(obstacle)
        node.start().wait_phase("training")
        self.assertIn("restored=no step=0 own_samples=0", node.log())
        # From then on what is on disk is never less than a checkpoint.
        node.wait("a checkpoint", lambda s: "current" in s["checkpoints"])
        wait_for("samples on disk", lambda: node.state_on_disk()["own_samples"] > 0)
        node.kill()
        shutil.rmtree(os.path.dirname(obstacle))
        self.assert_refused(node, EXIT_CONFIG, "there is no whole checkpoint", "backup")
        # One that cannot be read now may be whole.
        os.makedirs(checkpoints := os.path.dirname(node.checkpoint_path("current")), exist_ok=True)
        os.symlink("current.safetensors", os.path.join(checkpoints, "current.safetensors"))
        self.assert_refused(node, 1, "current.safetensors: cannot be read", "then start again")

    def test_a_key_file_that_is_not_there_or_open_to_others(self):
        nobody = self.founder()
        node = self.cluster.joiner("box2", nobody)
        self.assert_refused(node, EXIT_CONFIG, self.cluster.key, "does not exist")
        self.write("cluster.key", "gossipd-cluster-key-v1\n")
        os.chmod(self.cluster.key, 0o644)
        self.assert_refused(node, EXIT_CONFIG, self.cluster.key, "chmod 600")

    def test_a_digit_mistyped_in_the_key_file(self):
        self.assertEqual(0, gossipctl("key", "generate", self.cluster.key).returncode)
        with open(self.cluster.key, encoding="ascii") as file:
            words = file.read().split()
        words[2] = ("1" if words[2][0] == "0" else "0") + words[2][1:]
        self.write("cluster.key", " ".join(words) + "\n")
        self.assert_refused(self.founder(), EXIT_CONFIG, self.cluster.key, "line 1", "checksum")

    def test_a_token_file_that_others_may_read(self):
        token = self.write("token", "0123456789abcdef\n")
        os.chmod(token, 0o644)
        self.assert_refused(
            self.founder("--rest-token-file", token), EXIT_CONFIG, token, "chmod 600"
        )

    def test_a_signal_to_stop_that_came_while_the_program_was_started_ends_it(self):
        def signalled():
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            os.kill(os.getpid(), signal.SIGTERM)

        done = subprocess.run([GOSSIPD, "--version"], preexec_fn=signalled, capture_output=True)
        self.assertEqual(-signal.SIGTERM, done.returncode, done)

    def test_a_file_in_place_of_the_rest_socket_and_one_where_there_is_no_folder(self):
        node = self.founder()
        node.rest = "unix:" + os.path.join(self.cluster.directory, "nowhere", "rest.sock")
        self.assert_refused(node, EXIT_CONFIG, node.rest[5:], "create its directory")
        node.rest = "unix:" + self.write("precious", "precious")
        self.assert_refused(node, EXIT_CONFIG, node.rest[5:], "no socket")
        with open(node.rest[5:], encoding="ascii") as file:
            self.assertEqual("precious", file.read())

    def test_invalid_utf_8_and_control_characters_for_a_terminal(self):
        node = self.founder()
        for words in (
            ["--set", b"advertise=caf\xe9"],
            ["--join", b"\xff"],
            ["--set", "advertise=a\x1b[2J"],
            ["--\x1b[2J"],
            ["--set", b"log.level=\xff"],
        ):
            code, line = self.run_once(node, *words)
            self.assertEqual(EXIT_CONFIG, code, line)
            self.assertNotRegex(line, "[\x00-\x1f\x7f-\x9f]")

    def test_a_node_told_to_join_itself(self):
        self.assertEqual(0, gossipctl("key", "generate", self.cluster.key).returncode)
        node = self.cluster.node("box1", "--shard", "1/1")
        port = node.address.rsplit(":", 1)[1]
        self.assert_refused(
            node,
            EXIT_CONFIG,
            node.address,
            "is this node itself",
            "another member",
            extra=["--join", node.address],
        )
        node.address = f"0.0.0.0:{port}"
        for own in (f"127.0.0.1:{port}", f"localhost:{port}"):
            self.assert_refused(
                node, EXIT_CONFIG, own, "is this node itself", extra=["--join", own]
            )

    def test_beyond_loopback_without_a_key(self):
        node = self.founder(key="none")
        node.address = "0.0.0.0:7610"
        self.assert_refused(node, EXIT_CONFIG, "0.0.0.0:7610", "beyond loopback")

    def test_rest_beyond_loopback_without_a_token(self):
        node = self.founder()
        node.rest = "0.0.0.0:7611"
        self.assert_refused(node, EXIT_CONFIG, "0.0.0.0:7611", "beyond loopback", "rest.token_file")

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "this machine has a GPU")
    def test_a_gpu_that_is_not_there(self):
        self.assert_refused(self.founder(trainer__device="cuda"), EXIT_CONFIG, "cuda")

    def test_ports_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            node = self.founder()
            node.address = address
            self.assert_refused(node, 1, "listen: ", address)
            node.address, node.rest = node.rest, address
            self.assert_refused(node, 1, "rest.listen: ", address)
            # Refused before there is a key, a cluster or anything else.
            self.assertFalse(os.path.exists(self.cluster.key))
            self.assertFalse(os.path.exists(node.state_dir))

    def test_two_daemons_on_one_state_directory(self):
        first = self.founder().start()
        first.wait_phase("training")
        second = self.cluster.founder(self.cluster.job(), name="box2")
        second.state_dir = first.state_dir
        self.assert_refused(second, 1, first.state_dir)
        self.assertEqual("training", first.status()["phase"])

    def test_another_job_in_a_used_state_directory(self):
        node = self.founder().start()
        node.wait_step(20)
        self.assertEqual(0, node.terminate())
        other = self.cluster.job("other.toml", hidden=48)
        node.arguments[node.arguments.index("--job") + 1] = other
        self.assert_refused(node, EXIT_CONFIG, "other.toml", "--state-dir")


if __name__ == "__main__":
    unittest.main()
