"""Real gossipd processes on loopback, observed through REST, gossipctl, the log and their files.

A test derives from ClusterTest and starts nodes from self.cluster. It waits by wait_for(), which
polls a condition until a deadline far beyond what a busy machine needs, so a deadline is never the
claim. Only a moment drawn for a fault and the span of a measurement are slept. All processes are
killed at the end, even when the test itself is killed, which leaves its directory (and its network,
which the next Switchboard deletes). A failed test prints the ends of the logs.
"""

import ctypes
import http.client
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

BIN = os.path.abspath(
    os.environ.get(
        "GOSSIPD_BIN_DIR", os.path.join(os.path.dirname(__file__), "../../build/release/bin")
    )
)
GOSSIPD = os.path.join(BIN, "gossipd")
GOSSIPD_CORE = os.path.join(BIN, "gossipd-core")
GOSSIPCTL = os.path.join(BIN, "gossipctl")
DATA = os.environ.get("GOSSIPD_TEST_DATA", "/usr/share/datasets/fashion-mnist")

DEADLINE_S = float(os.environ.get("GOSSIPD_E2E_DEADLINE_S", "60"))
POLL_S = 0.1
REQUEST_TIMEOUT_S = 3

# Quicker than the defaults, so that tests do not spend their time waiting for suspicion.
POLICY = {
    "membership.tick_ms": 200,
    "membership.ping_ms": 200,
    "membership.suspect_after_ms": 1500,
    "membership.fail_after_ms": 4000,
    "membership.redial_min_ms": 100,
    "membership.redial_max_ms": 1000,
    "membership.isolation_grace_ms": 4000,
    "exchange.heartbeat_ms": 500,
    "trainer.threads": 1,
    "trainer.device": "cpu",
}

JOB = """
name = "{name}"
seed = {seed}
batch = {batch}
budget_samples = {budget_samples}
evaluate_every_samples = {evaluate_every_samples}
[model]
{model}
[data]
{data}
[optimizer]
{optimizer}
[schedule]
kind = "cosine"
warmup_samples = {warmup_samples}
{rest}
"""

FASHION_MNIST = """kind = "idx"
shape = [1, 28, 28]
classes = 10
mean = 0.2860
deviation = 0.3530"""

SGD = """kind = "sgd"
learning_rate = {learning_rate}
momentum = 0.9
weight_decay = 5e-4"""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _die_with_the_test():
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_ports_given = []  # sockets that hold the names of ports for as long as this process lives


def free_port():
    """A port not given before to a test that still runs, even if no node listens there now. It lies
    below the ephemeral range, so no outgoing connection takes it before the daemon does.
    """
    while True:
        port = random.randrange(20000, 32000)
        # The kernel keeps the name for one process of whatever user, and leaves no file behind.
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0gossipd-e2e-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            name.close()
            continue
        _ports_given.append(name)
        return port


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout_s):
        super().__init__("localhost", timeout=timeout_s)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Unexpected(Exception):
    """The condition of a wait does not hold yet."""


def wait_for(what, condition, deadline_s=DEADLINE_S):
    """The first true value of condition(). A daemon that does not answer counts as 'not yet'."""
    end = time.monotonic() + deadline_s
    last = None
    while True:
        try:
            last = condition()
            if last:
                return last
        except (OSError, http.client.HTTPException, Unexpected) as error:
            last = error
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s} s in vain for: {what}; last seen: {last!r}")
        time.sleep(POLL_S)


def read_ready(file):
    """What can be read from a file descriptor without waiting."""
    seen = b""
    while select.select([file], [], [], 0)[0]:
        try:
            part = os.read(file, 65536)
        except OSError:  # nobody has the terminal's other end open any more
            break
        if not part:
            break
        seen += part
    return seen


class Node:
    """One gossipd with a state directory, two ports and a log, over any number of process lives."""

    def __init__(self, cluster, name, arguments, settings, host=None):
        self.cluster = cluster
        self.name = name
        self.directory = os.path.join(cluster.directory, name)
        os.mkdir(self.directory)
        self.state_dir = os.path.join(self.directory, "state")
        self.log_path = os.path.join(self.directory, "log")
        self.prefix = []  # of the command line, usually a namespace
        self.program = GOSSIPD
        self.address = f"{host or '127.0.0.1'}:{free_port()}"
        # A Unix socket is reachable from every namespace.
        self.rest = f"unix:{self.directory}/rest" if host else f"127.0.0.1:{free_port()}"
        self.arguments = list(arguments)
        self.settings = {**POLICY, **settings}
        self.process = None
        self.log_start = 0

    # ---- process ----

    def command_line(self, extra=()):
        line = [*self.prefix, self.program, "--name", self.name, "--state-dir", self.state_dir]
        line += ["--listen", self.address, "--rest", self.rest]
        for key, value in self.settings.items():
            line += ["--set", f"{key}={value}"]
        return line + self.arguments + list(extra)

    def start(self, extra=()):
        assert self.process is None or self.process.poll() is not None, f"{self.name} runs already"
        with open(self.log_path, "ab") as log:
            self.log_start = log.tell()
            self.process = subprocess.Popen(
                self.command_line(extra),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=clean_environment(),
                preexec_fn=_die_with_the_test,
            )
        return self

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def exit_code(self):
        return self.process.wait(timeout=DEADLINE_S)

    def terminate(self):
        """Sends SIGTERM and returns the exit code."""
        self.process.terminate()
        return self.exit_code()

    def destroy(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    # ---- REST and gossipctl ----

    def request(self, method, path, body=None, timeout_s=REQUEST_TIMEOUT_S):
        """The status and text of the answer."""
        connection = (
            UnixConnection(self.rest[5:], timeout_s)
            if self.rest.startswith("unix:")
            else http.client.HTTPConnection(self.rest, timeout=timeout_s)
        )
        try:
            connection.request(method, path, body=body)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def get(self, path):
        if self.process.poll() is not None:
            raise AssertionError(
                f"{self.name} ended by itself with exit code {self.process.returncode}"
            )
        status, text = self.request("GET", path)
        if status != 200:
            raise Unexpected(f"GET {path} on {self.name}: {status} {text}")
        return json.loads(text)

    def post(self, path):
        status, text = self.request("POST", path)
        if status not in (200, 202):
            raise Unexpected(f"POST {path} on {self.name}: {status} {text}")
        return json.loads(text)

    def status(self):
        return self.get("/v1/status")

    def members(self):
        """The members, by name."""
        return {m["name"]: m for m in self.get("/v1/members")["members"]}

    def links(self):
        """The links, by the peer's name."""
        return {link["name"]: link for link in self.get("/v1/links")["links"]}

    def ctl(self, *arguments, timeout_s=DEADLINE_S):
        return gossipctl("--rest", self.rest, "--timeout", str(timeout_s), *arguments)

    # ---- files ----

    def log(self):
        """The log of the present process."""
        return self.whole_log(self.log_start)

    def whole_log(self, start=0):
        """The log of all its processes."""
        with open(self.log_path, "rb") as log:
            log.seek(start)
            return log.read().decode(errors="replace")

    def checkpoint_path(self, which, previous=False):
        name = which + (".previous" if previous else "") + ".safetensors"
        return os.path.join(self.state_dir, "checkpoints", name)

    def state_on_disk(self):
        with open(os.path.join(self.state_dir, "node.json"), encoding="utf-8") as file:
            state = json.load(file)
        return state.get("state", state)

    def restored(self):
        """Step and samples of the checkpoint that this process began with, from its log."""
        found = self.wait_log(r"event=model-ready .*restored=yes step=(\d+) own_samples=(\d+)")
        return int(found[1]), int(found[2])

    # ---- conditions ----

    def wait(self, what, condition, deadline_s=DEADLINE_S):
        """Waits until condition(status) holds, and returns that status."""
        shown = "phase waiting_for step cluster_samples members_alive links_open".split()

        def holds():
            status = self.status()
            if condition(status):
                return status
            raise Unexpected({key: status[key] for key in shown})

        return wait_for(f"{self.name}: {what}", holds, deadline_s)

    def wait_phase(self, phase, deadline_s=DEADLINE_S):
        return self.wait(f"phase {phase}", lambda s: s["phase"] == phase, deadline_s)

    def wait_step(self, step, deadline_s=DEADLINE_S):
        return self.wait(f"step {step}", lambda s: s["step"] >= step, deadline_s)

    def wait_linked(self, count):
        return self.wait(
            f"{count} links", lambda s: s["phase"] == "training" and s["links_open"] == count
        )

    def wait_log(self, pattern, deadline_s=DEADLINE_S):
        return wait_for(
            f"{self.name} logs /{pattern}/", lambda: re.search(pattern, self.log()), deadline_s
        )


class Cluster:
    """Nodes that share a temporary directory and a key file, which the founder writes."""

    def __init__(self, prefix="gossipd-e2e-"):
        self.directory = tempfile.mkdtemp(prefix=prefix)
        self.key = os.path.join(self.directory, "cluster.key")
        self.nodes = []
        self.switchboard = None  # with a Switchboard, every node gets its own namespace

    def job(self, file="job.toml", hidden=32, model=None, **values):
        """Writes a job and returns its path. `model`, `data` and `optimizer` are the lines of those
        tables (by default an mlp with `hidden` units on Fashion-MNIST with SGD), `rest` is more
        tables.
        """
        optimizer = values.pop("optimizer", None) or SGD.format(
            learning_rate=values.pop("learning_rate", 0.05)
        )
        text = JOB.format(
            **{
                "model": model or f'kind = "mlp"\nhidden = [{hidden}]',
                "name": "e2e",
                "seed": 1,
                "batch": 32,
                "budget_samples": 100_000_000,
                "evaluate_every_samples": 0,
                "data": FASHION_MNIST,
                "optimizer": optimizer,
                "warmup_samples": 4_000,
                "rest": "",
                **values,
            }
        )
        path = os.path.join(self.directory, file)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        return path

    def node(self, name, *arguments, key=None, data=DATA, **settings):
        """A node, not started. trainer__min_step_ms=20 sets trainer.min_step_ms=20."""
        key = self.key if key is None else key  # "" where the node has certificates
        line = (
            (["--key-file", key] if key else []) + [*arguments] + (["--data", data] if data else [])
        )
        host = self.switchboard.plug(name) if self.switchboard else None
        node = Node(self, name, line, {k.replace("__", "."): v for k, v in settings.items()}, host)
        if host:
            node.prefix = self.switchboard.prefix(name)
        self.nodes.append(node)
        return node

    def founder(self, job, *arguments, name="box1", shard="1/3", **settings):
        return self.node(name, "--job", job, "--shard", shard, *arguments, **settings)

    def found(self, *arguments, **settings):
        """A founder that trains already, so its key file exists."""
        node = self.founder(*arguments, **settings).start()
        node.wait_phase("training")
        return node

    def joiner(self, name, seed, *arguments, shard="1/1", **settings):
        return self.node(name, "--join", seed.address, "--shard", shard, *arguments, **settings)

    def three(self, job, *arguments, **settings):
        """Three nodes in training, each linked to both others."""
        first = self.found(job, *arguments, **settings)
        others = [
            self.joiner(f"box{i}", first, *arguments, shard=f"{i}/3", **settings).start()
            for i in (2, 3)
        ]
        nodes = [first, *others]
        for node in nodes:
            node.wait_linked(2)
        return nodes

    def print_tails(self, lines=40):
        for node in self.nodes:
            if not os.path.exists(node.log_path):
                continue
            tail = node.whole_log().splitlines()[-lines:]
            print(f"---- {node.name}, the end of its log ----", *tail, sep="\n", flush=True)

    def destroy(self):
        for node in self.nodes:
            node.destroy()
        if self.switchboard:
            self.switchboard.destroy()
        if os.environ.get("GOSSIPD_E2E_KEEP"):
            print(f"kept: {self.directory}")
        else:
            shutil.rmtree(self.directory, ignore_errors=True)


def with_cluster(name, what, *arguments, **options):
    """Calls what(cluster, ...) with a temporary cluster. A failed assertion prints the ends of the
    logs.
    """
    cluster = Cluster(f"gossipd-{name}-")
    try:
        return what(cluster, *arguments, **options)
    except AssertionError:
        cluster.print_tails()
        raise
    finally:
        cluster.destroy()


class ClusterTest(unittest.TestCase):
    maxDiff = None

    def run(self, result=None):
        result = result if result is not None else self.defaultTestResult()
        before = len(result.errors) + len(result.failures)
        self.cluster = Cluster()
        try:
            super().run(result)
            if len(result.errors) + len(result.failures) > before:
                print(f"\n==== {self.id()} failed ====", flush=True)
                self.cluster.print_tails()
        finally:
            self.cluster.destroy()
        return result

    @classmethod
    def setUpClass(cls):
        for path in (GOSSIPD, GOSSIPCTL):
            if not os.path.exists(path):
                raise RuntimeError(f"{path} is missing: build it, or set GOSSIPD_BIN_DIR")
        if not os.path.isdir(DATA):
            raise RuntimeError(
                f"{DATA} is missing: apt-get install dataset-fashion-mnist, or set"
                " GOSSIPD_TEST_DATA"
            )


def clean_environment():
    """The environment without variables that would configure a node."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("GOSSIPD_", "GOSSIPCTL_"))}


def gossipctl(*arguments):
    return subprocess.run(
        [GOSSIPCTL, *arguments],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=2 * DEADLINE_S,
    )


def settled(nodes, phase):
    """The statuses of all nodes, once all are in `phase`, make no steps and show the same counts
    twice in a row.
    """
    before = None

    def stand_still():
        nonlocal before
        statuses = [node.status() for node in nodes]
        now = [
            (s["name"], s["phase"], s["trainer"]["state"], s["own_samples"], s["cluster_samples"])
            for s in statuses
        ]
        still = now == before and all(
            s["phase"] == phase and s["trainer"]["state"] != "training" for s in statuses
        )
        before = now
        if not still or len({s["cluster_samples"] for s in statuses}) != 1:
            raise Unexpected(now)
        return statuses

    return wait_for(f"all {phase} with equal counters", stand_still)


def pause_all(nodes):
    for node in nodes:
        node.post("/v1/training/pause")
    return settled(nodes, "paused")
