"""What a new user stumbled over: each was a mistake of the programs, and stays mended."""

import glob
import json
import os
import pty
import re
import signal
import subprocess
import sys
import unittest

from cluster import (
    DATA,
    GOSSIPCTL,
    GOSSIPD,
    ClusterTest,
    clean_environment,
    free_port,
    gossipctl,
    read_ready,
    wait_for,
)
from cluster import _die_with_the_test as die_with_the_test

EXIT_CONFIG = 78

QUICKSTART = os.path.join(os.path.dirname(__file__), "../../deploy/quickstart.sh")
TORCH_WHEEL = os.path.join(os.path.dirname(__file__), "../../deploy/torch-wheel.sh")


# A python3 whose venv has a pip that fetches once `go` is there.
FETCHES = """#!/bin/sh
[ "$1" = -c ] && exit 0
mkdir -p "$3/bin" "$3/lib/python3.11/site-packages/torch/lib"
cat >"$3/bin/pip" <<TEXT
#!/bin/sh
echo once >>{folder}/fetched
until [ -e {folder}/go ]; do sleep 0.05; done
touch "$3/lib/python3.11/site-packages/torch/lib/libtorch.so"
TEXT
chmod +x "$3/bin/pip"
"""

GOSSIPCTL_OF_THAT = """#!/bin/sh
case "$*" in *members*) exit 0 ;; esac
exec sleep infinity
"""

# Writes the key and, into its folder, its job: path and text. Answers with that status, if any.
DAEMON = """#!{python}
import http.server, json, os, sys, time
def value(name):
    return sys.argv[sys.argv.index(name) + 1]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({status!r}).encode())
with open(value("--job")) as job, open(os.path.dirname(value("--state-dir")) + "/job", "w") as out:
    out.write(value("--job") + "\\n" + job.read())
with open(value("--key-file"), "w") as key:
    key.write("key")
if {status!r} is None:
    time.sleep(3600)
host, port = value("--rest").split(":")
http.server.HTTPServer((host, int(port)), Handler).serve_forever()
"""


class FirstSteps(ClusterTest):
    def gossipd(self, *arguments):
        """Runs gossipd in an empty home until it ends; what it has left there is `self.home`."""
        self.home = os.path.join(self.cluster.directory, "home")
        os.makedirs(self.home, exist_ok=True)
        environment = clean_environment()
        environment.update(HOME=self.home, XDG_STATE_HOME=os.path.join(self.home, "state"))
        return subprocess.run(
            [GOSSIPD, "--rest", "none", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self.home,
            env=environment,
        )

    def test_a_number_that_is_none_is_refused_in_a_short_sentence(self):
        for word in ("abc", "-1", "1.5", "1e5", "99999999999999999999999999"):
            done = gossipctl("job", "extend", word)
            self.assertEqual(2, done.returncode, word)
            self.assertIn("give a whole number from 1 to", done.stderr)
            self.assertLess(len(done.stderr), 300)

    def test_an_answer_that_could_not_be_written_is_no_success(self):
        state = os.path.join(self.cluster.directory, "state")
        for words in (
            [GOSSIPCTL, "version"],
            [GOSSIPCTL, "--help"],
            [GOSSIPCTL, "key", "generate", "-"],
            [GOSSIPD, "--version"],
            [GOSSIPD, "--help"],
            [GOSSIPD, "init", "--help"],
            [GOSSIPD, "init", "--data", DATA, "-o", "-"],
            [GOSSIPD, "--check-config", "--state-dir", state],
        ):
            with open("/dev/full", "w") as full:
                done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
            self.assertEqual(1, done.returncode, words)
            self.assertIn("standard output cannot be written", done.stderr)
            self.assertIn("is the disk full?", done.stderr)
        done = subprocess.run(
            ["sh", "-c", '"$0" version >&-', GOSSIPCTL], stderr=subprocess.PIPE, text=True
        )
        self.assertEqual(1, done.returncode)
        self.assertIn("(Bad file descriptor); what it was sent to lacks a part\n", done.stderr)

    def test_nodes_that_announce_themselves_are_listed(self):
        """avahi-browse is a program that prints what Avahi's does (deploy.avahi has a real one)."""
        directory = os.path.join(self.cluster.directory, "bin")
        os.mkdir(directory)
        environment = {**clean_environment(), "PATH": directory}
        ask = [GOSSIPCTL, "discover", "-o", "tsv", "--no-headers"]
        run = lambda: subprocess.run(ask, capture_output=True, text=True, env=environment)
        missing = run()
        self.assertEqual(1, missing.returncode)
        self.assertIn("avahi-browse is not installed", missing.stderr)
        browse = os.path.join(directory, "avahi-browse")
        lines = [
            "+;eth0;IPv4;gossipd\\032on\\032box1;_gossipd._tcp;local",
            "=;eth0;IPv4;gossipd\\032on\\032box1;_gossipd._tcp;local;box1.local;10.0.0.5;7610;",
            "=;eth0;IPv6;x;_gossipd._tcp;local;box1.local;fe80::1;7610;",
            "=;eth0;IPv4;y;_gossipd._tcp;local;box2.local;10.0.0.6;99999;",
            "nonsense",
        ]
        with open(browse, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + "".join(f"printf '%s\\n' '{line}'\n" for line in lines))
        os.chmod(browse, 0o755)
        found = run()
        self.assertEqual((0, ""), (found.returncode, found.stderr))
        self.assertEqual("10.0.0.5:7610\tgossipd_on_box1\tbox1.local\n", found.stdout)

    def test_mistyped_commands_help_and_version_are_answered(self):
        done = gossipctl("memebrs")
        self.assertEqual(2, done.returncode)
        self.assertIn("did you mean 'members'?", done.stderr)
        for words in (("help",), ("help", "members"), ("--version",), ("version",)):
            done = gossipctl(*words)
            self.assertEqual((0, ""), (done.returncode, done.stderr), words)
        for words in ((), ("key",), ("tpo",)):
            done = gossipctl(*words)
            self.assertEqual(2, done.returncode)
            self.assertNotIn("subcommand is required", done.stderr)

    def test_nothing_to_do_and_a_log_that_cannot_be_leave_nothing_behind(self):
        job = self.cluster.job()
        state = os.path.join(self.cluster.directory, "new")
        for words, said in (
            ((), "nothing to do"),
            (("--join", "gossip1aerukz4jvpg"), "this is no whole invite"),
            (("--state-dir", state), "nothing to do"),
            (("--job", job, "--log-file", "/nope/x", "--state-dir", state), "log.file: /nope/x"),
            (("--job", job, "--data", "/nope", "--state-dir", state), "/nope"),
            (("--join", "127.0.0.1:1", "--key-file", "/nope", "--state-dir", state), "/nope"),
            (("--join", "127.0.0.1:1", "--state-dir", state), "needs the cluster's secret"),
            (("--join", "127.0.0.1:1", "--key-file", job, "--state-dir", state), "chmod 600"),
        ):
            with self.subTest(words):
                if os.geteuid() == 0 and not words:
                    continue  # the usual directory of root is not in its home
                done = self.gossipd(*words)
                self.assertEqual(EXIT_CONFIG, done.returncode, done.stderr)
                self.assertEqual(1, done.stderr.count(said), done.stderr)
                self.assertNotIn("event=device", done.stderr)
                self.assertEqual([], os.listdir(self.home))
                self.assertFalse(os.path.exists(state))

    def test_a_token_that_others_can_read_is_refused_before_anything_is_made(self):
        node = self.cluster.founder(self.cluster.job(), shard="1/1")
        token = os.path.join(node.directory, "token")
        with open(token, "w", encoding="ascii") as file:
            file.write("0123456789abcdef\n")
        os.chmod(token, 0o644)
        done = subprocess.run(
            [*node.command_line(), "--rest-token-file", token],
            capture_output=True,
            text=True,
            cwd=node.directory,
            timeout=60,
        )
        self.assertEqual(EXIT_CONFIG, done.returncode)
        self.assertIn("rest.token_file", done.stderr)
        self.assertFalse(os.path.exists(os.path.join(node.directory, node.state_dir)))

    def test_a_terminal_that_cannot_move_its_cursor_gets_lines(self):
        node = self.cluster.founder(self.cluster.job(), shard="1/1")
        node.start()
        node.wait_phase("training")
        terminal, inner = pty.openpty()
        self.addCleanup(os.close, terminal)
        top = subprocess.Popen(
            [GOSSIPCTL, "--rest", node.rest, "top"],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**os.environ, "TERM": "dumb"},
            preexec_fn=die_with_the_test,
        )
        self.addCleanup(top.wait)
        self.addCleanup(top.kill)
        os.close(inner)
        shown = b""

        def has_a_line():
            nonlocal shown
            shown += read_ready(terminal)
            return b"alive, sent" in shown

        wait_for("a line of progress", has_a_line)
        self.assertNotIn(b"\x1b", shown)

    def test_joining_oneself_is_refused_at_once(self):
        self.assertEqual(0, gossipctl("key", "generate", self.cluster.key).returncode)
        address = f"127.0.0.1:{free_port()}"
        done = self.gossipd(
            *("--listen", address, "--join", address, "--key-file", self.cluster.key),
            *("--state-dir", os.path.join(self.cluster.directory, "self")),
        )
        self.assertEqual(EXIT_CONFIG, done.returncode, done.stderr)
        self.assertIn(f"{address} is this node itself", done.stderr)

    def test_help_says_where_the_state_is(self):
        text = subprocess.run([GOSSIPD, "--help"], capture_output=True, text=True).stdout
        self.assertIn("/var/lib/gossipd", text)
        self.assertIn("~/.local/state/gossipd", text)

    def test_a_script_empties_no_folder_that_is_not_its_own(self):
        theirs = os.path.join(self.cluster.directory, "theirs")
        job = os.path.join(theirs, "job.toml")
        names = ["cluster.key", "job.toml", "node_modules", "venv"]
        os.makedirs(os.path.join(theirs, "venv"))
        for name in ("cluster.key", "job.toml", "node_modules"):
            with open(os.path.join(theirs, name), "w", encoding="utf-8") as file:
                file.write("mine\n")
        made = os.path.join(self.cluster.directory, "made")
        os.mkdir(made)
        with open(os.path.join(made, ".quickstart"), "w", encoding="utf-8"):
            pass
        here = ("--bin", os.path.dirname(GOSSIPD))
        for script, words, said in (
            (QUICKSTART, (*here, "--dir", theirs), "holds other things"),
            (TORCH_WHEEL, ("--choose", "wheel", theirs), "holds other things"),
            (TORCH_WHEEL, ("--choose", "wheel", job), "holds other things"),
        ):
            with self.subTest(words):
                done = subprocess.run([script, *words], capture_output=True, text=True, timeout=60)
                self.assertEqual(2, done.returncode, done.stderr)
                self.assertIn(said, done.stderr)
                self.assertEqual(names, sorted(os.listdir(theirs)))
        with open(os.path.join(made, "j"), "w", encoding="utf-8"):
            pass
        done = subprocess.run(
            [QUICKSTART, *here, "--dir", made, "--job", f"{made}/j"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual(2, done.returncode)
        self.assertIn("lies in --dir, which is emptied", done.stderr)

    def test_of_two_that_fetch_libtorch_into_a_folder_one_waits_for_the_other(self):
        folder = self.cluster.directory
        with open(f"{folder}/python3", "w", encoding="utf-8") as file:
            file.write(FETCHES.format(folder=folder))
        os.chmod(f"{folder}/python3", 0o755)
        environment = {**clean_environment(), "PATH": f"{folder}:{os.environ['PATH']}"}

        def fetch():
            process = subprocess.Popen(
                [TORCH_WHEEL, "--choose", "wheel", f"{folder}/torch"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
                preexec_fn=die_with_the_test,
            )
            self.addCleanup(process.communicate)
            self.addCleanup(process.kill)
            return process

        first = fetch()
        wait_for("the first to fetch", lambda: os.path.exists(f"{folder}/fetched"))
        second = fetch()
        self.assertIn("waiting for another torch-wheel.sh", second.stderr.readline())
        with open(f"{folder}/go", "w", encoding="utf-8"):
            pass
        for process in (first, second):
            self.assertIn("/site-packages/torch\n", process.communicate(timeout=60)[0])
            self.assertEqual(0, process.returncode)
        with open(f"{folder}/fetched", encoding="utf-8") as file:
            self.assertEqual("once\n", file.read())

    def test_quickstart_builds_what_export_needs(self):
        with open(QUICKSTART, encoding="utf-8") as file:
            self.assertIn("gossip-export", file.read())

    def test_a_founder_on_loopback_and_its_answers_name_what_is_there(self):
        node = self.cluster.founder(self.cluster.job(), shard="1/1")
        node.state_dir = "relative"  # to the node's directory
        node.start()
        node.wait_phase("training")
        self.assertRegex(node.log(), "event=key-written .*hint=\"only this machine reaches")
        self.assertNotIn("--join 127.", node.log())

        path = node.ctl("checkpoint").stdout.strip()
        self.assertEqual(os.path.join(node.directory, "relative"), path.split("/checkpoints")[0])
        self.assertTrue(os.path.exists(path))

        status, text = self.request_as(node, "evil.example")
        self.assertEqual(421, status)
        keys = subprocess.run(
            [GOSSIPD, "--check-config", "--set", "rest.token_file="], capture_output=True, text=True
        ).stdout
        named = re.findall(r"\b\w+\.\w+_\w+\b", json.loads(text)["hint"])
        self.assertTrue(named, text)
        for setting in named:
            table, key = setting.split(".")
            self.assertRegex(keys, rf"(?ms)^\[{table}\].*^(# )?{key} = ", "no such setting")
        self.assertIn("rest.token_file", text)

    @staticmethod
    def request_as(node, host):
        done = subprocess.run(
            ["curl", "-s", "-w", "\n%{http_code}", "-H", f"Host: {host}", f"{node.rest}/v1/status"],
            capture_output=True,
            text=True,
        )
        text, _, status = done.stdout.rpartition("\n")
        return int(status), text


class Quickstart(ClusterTest):
    def setUp(self):
        self.folder = os.path.join(self.cluster.directory, "quickstart")
        self.addCleanup(self.quickstart, "--stop")

    def quickstart(self, *words):
        line = [QUICKSTART, "--bin", os.path.dirname(GOSSIPD), "--dir", self.folder, *words]
        # A proxy for other machines, which nobody asks about this one, and settings of other nodes.
        environment = {**clean_environment(), "http_proxy": "http://127.0.0.1:1"}
        environment |= {"GOSSIPD_METRICS_LISTEN": "nowhere", "GOSSIPCTL_TOKEN_FILE": "/nope"}
        done = subprocess.run(line, capture_output=True, text=True, timeout=240, env=environment)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        return done.stdout

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.cluster.directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def said_of(self, status, job="seed = 1\n", *words, code=1):
        """What quickstart says of a daemon that answers with this status, or not if it is none."""
        self.write("bin/gossipd", DAEMON.format(python=sys.executable, status=status), 0o755)
        self.write("bin/gossipctl", GOSSIPCTL_OF_THAT, 0o755)
        with open(QUICKSTART, encoding="utf-8") as file:
            script = file.read().replace("start_limit_s=60", "start_limit_s=2")
        line = [self.write("deploy/quickstart.sh", script, 0o755), "--bin"]
        line += [f"{self.cluster.directory}/bin", "--dir", self.folder, "--nodes", "1", *words]
        line += ["--job", self.write("jobs/mine.toml", job)]
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=60, env=clean_environment()
        )
        self.assertEqual(code, done.returncode, done.stdout + done.stderr)
        self.assertEqual(["mine.toml"], os.listdir(f"{self.cluster.directory}/jobs"))
        self.assertEqual([], self.daemons())
        return done.stdout if code == 0 else done.stderr

    def test_a_job_without_accuracy_ends_with_its_loss(self):
        final = {"accuracy": None, "evaluation_loss": 0.5, "path": "final.safetensors"}
        status = dict.fromkeys(("cluster_samples", "step", "bytes_sent_total"), 1)
        status |= {"name": "node1", "phase": "finished", "checkpoints": {"final": final}}
        status |= {"dense_baseline_bytes": 1, "consensus_distance": None}
        result = json.loads(self.said_of(status, code=0).splitlines()[-1])
        self.assertEqual(([None], [0.5]), (result["accuracy"], result["evaluation_loss"]))

    def train(self, *words):
        words += ("--nodes", "2", "--job", self.cluster.job(budget_samples=100_000))
        words += ("--data", DATA, "--set", "trainer.min_step_ms=5")
        result = json.loads(self.quickstart(*words).splitlines()[-1])
        self.assertEqual(2, result["nodes"])
        self.assertGreater(min(result["accuracy"]), 0.6)
        self.assertLess(result["consensus_distance"], 0.02)
        self.assertGreaterEqual(result["samples"], 100_000)
        self.assertTrue(os.path.exists(result["checkpoint"]), result)

    def daemons(self):
        """Those of its daemons that run."""
        found = []
        for path in glob.glob(os.path.join(self.folder, "node*/pid")):
            try:
                with open(path, encoding="ascii") as file:
                    pid = int(file.read())
                with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
                    found += [pid] * (self.folder in file.read())
            except (OSError, ValueError):  # it is being started, or has ended
                pass
        return found

    def test_one_command_trains_a_model_and_leaves_nothing_running(self):
        self.train()
        self.assertEqual([], self.daemons())

    def test_a_node_that_nobody_reaches_or_that_is_broken_ends_it_with_words(self):
        self.assertIn("no node answers at 127.0.0.1:", self.said_of(None))
        broken = {"name": "node1", "phase": "broken", "trainer": {"failure": ""}}
        self.assertIn("broken at node1; logs", self.said_of(broken))
        broken = {"name": "node1", "phase": "training", "trainer": {"failure": "out of memory"}}
        self.assertIn("broken at node1: out of memory; logs", self.said_of(broken))

    def test_another_seed_is_the_jobs_only_one_and_leaves_its_files_where_they_are(self):
        job = 'name = "x"\n  seed = 1\n[model]\nfile = "beside.pt"\nseed = 3\n'
        broken = {"name": "node1", "phase": "broken"}
        self.said_of(broken, job, "--seed", "7")
        with open(f"{self.folder}/node1/job", encoding="utf-8") as file:
            where, text = file.read().split("\n", 1)
        self.assertEqual(f"{self.cluster.directory}/jobs", os.path.dirname(where))
        self.assertEqual("seed = 7\n" + job.replace("  seed = 1\n", ""), text)

    def test_killed_it_stops_its_daemons_though_nobody_hears_its_words(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number):
                line = [QUICKSTART, "--bin", os.path.dirname(GOSSIPD), "--dir", self.folder]
                line += ["--keep", "--nodes", "2", "--job", self.cluster.job(), "--data", DATA]
                script = subprocess.Popen(
                    line,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=clean_environment(),
                    preexec_fn=die_with_the_test,
                )
                wait_for("both daemons", lambda: len(self.daemons()) == 2)
                script.stdout.close()
                script.send_signal(number)
                self.assertEqual(143, script.wait(120))
                self.assertEqual([], self.daemons())

    def test_what_it_keeps_runs_until_it_is_stopped(self):
        self.train("--keep")
        self.assertEqual(2, len(self.daemons()))
        self.assertIn("stopping 2 daemons", self.quickstart("--stop"))
        self.assertEqual([], self.daemons())


if __name__ == "__main__":
    unittest.main()
