"""Four machines on one: namespaces whose cables have a rate, and the nodes that run in them."""

import http.client
import json
import os
import signal
import struct
import sys
import time

from rivals import ROOT, Process, kilobytes, read_text, wait_for
from shaped_task import WORLD

sys.path.append(os.path.join(ROOT, "tests/e2e"))

from cluster import UnixConnection  # noqa: E402
from switchboard import Switchboard, _tc  # noqa: E402
from tensors import read_tensors  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
PARAMETERS = 63_466
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
JOB = """name = "shaped"
seed = {seed}
batch = 32
budget_samples = {budget}
evaluate_every_samples = 0
[model]
kind = "cnn"
width = 16
hidden = [96]
[data]
kind = "idx"
shape = [1, 28, 28]
classes = 10
mean = 0.2860
deviation = 0.3530
division = "shared"
[optimizer]
kind = "sgd"
learning_rate = {rate}
momentum = 0.9
weight_decay = 5e-4
[schedule]
kind = "cosine"
warmup_samples = 10_000
"""


class Cables(Switchboard):
    """Each end of each cable sends at most `mbit` megabits a second."""

    def __init__(self, mbit):
        super().__init__()
        self.mbit = mbit

    def plug(self, name):
        address = super().plug(name)
        space, outer, inner = self.cables[name]
        burst = max(16_000, self.mbit * 1_000_000 // 8 // 250)  # what a tick of 4 ms lets through
        limit = f"qdisc replace DEV root tbf rate {self.mbit}mbit burst {burst} latency 400ms"
        _tc(limit, inner, space)
        _tc(limit, outer)
        return address

    def device(self, name):
        """The end of the cable in `name`'s namespace."""
        return self.cables[name][2]

    def sent_bytes(self):
        """What all nodes have sent, as the bridge's ends of the cables count it."""
        return sum(
            int(read_text(f"/sys/class/net/{outer}/statistics/rx_bytes"))
            for _, outer, _ in self.cables.values()
        )


def rest(path, method, what):
    """The answer of a daemon at its Unix socket, or None where none comes."""
    connection = UnixConnection(path, 5)
    try:
        connection.request(method, what)
        answer = connection.getresponse()
        text = answer.read()
        return json.loads(text) if answer.status in (200, 202) else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class Node(Process):
    """A process tree in a namespace. poll() brings steps() up to date."""

    def poll(self):
        pass

    def cpu_s(self):
        ticks = 0
        for pid in self.all():
            if stat := read_text(f"/proc/{pid}/stat"):
                ticks += sum(int(n) for n in stat.rpartition(")")[2].split()[11:15])
        return ticks / TICKS_A_SECOND

    def peak_mb(self):
        return sum(kilobytes(f"/proc/{pid}/status", "VmHWM") for pid in self.all()) / 1024

    def snapshot(self, last):
        """Time and parameters of a model that is newer than `last`, or None."""
        try:
            with open(os.path.join(self.folder, "model"), "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return None
        when = struct.unpack("<d", content[:8])[0]
        return (when, content[8:]) if when > last else None


class GossipNode(Node):
    """gossipd with its built-in trainer. Steps have the time at which a look found them."""

    marks = None

    def poll(self):
        self.marks = self.marks or []
        path = os.path.join(self.folder, "rest")
        status = rest(path, "GET", "/v1/status") if os.path.exists(path) else None
        if status:
            now = time.monotonic()
            self.marks += [now] * (status["step"] - len(self.marks))

    def steps(self):
        return self.marks or []

    def snapshot(self, last):
        if rest(os.path.join(self.folder, "rest"), "POST", "/v1/checkpoint") is None:
            return None
        path = os.path.join(self.folder, "state/checkpoints/current.safetensors")
        _, tensors = read_tensors(path)
        parts = [v for k, v in tensors.items() if not k.startswith("momentum.")]
        assert sum(map(len, parts)) == PARAMETERS
        return time.monotonic(), b"".join(part.tobytes() for part in parts)


class Run:
    """Four nodes of one way to train, from their start to their end."""

    def __init__(self, way, folder, given, rate, seed, mbit, slow_ms=0):
        self.way, self.folder, self.given = way, folder, given
        self.rate, self.seed, self.slow_ms = rate, seed, slow_ms
        self.cables = Cables(mbit)
        self.nodes, self.began = [], 0.0

    def launch(self, kind, i, line, **environment):
        space = self.cables.prefix(f"node{i}")
        folder = os.path.join(self.folder, f"node{i}")
        self.nodes.append(kind(folder, [*space, *line], **environment))

    def start(self):
        hosts = [self.cables.plug(f"node{i}") for i in range(WORLD)]
        self.began = time.monotonic()
        getattr(self, f"start_{self.way.partition('-')[0]}", self.start_python)(hosts)

    def start_python(self, hosts):
        for i in range(WORLD):
            line = [sys.executable, os.path.join(HERE, "shaped_gloo.py"), self.way]
            line += ["--node", str(i), "--first", hosts[0], "--data", self.given.data]
            line += ["--rate", str(self.rate), "--seed", str(self.seed)]
            line += ["--budget", str(self.given.budget), "--step-ms", str(self.given.step_ms)]
            line += ["--slow-ms", str(self.slow_ms)] if i == WORLD - 1 else []
            device = self.cables.device(f"node{i}")
            self.launch(Node, i, line, GLOO_SOCKET_IFNAME=device, PYTHONDONTWRITEBYTECODE="1")

    def start_gossipd(self, hosts):
        key, job = os.path.join(self.folder, "key"), os.path.join(self.folder, "job.toml")
        with open(job, "w", encoding="utf-8") as out:
            out.write(JOB.format(rate=self.rate, seed=self.seed, budget=self.given.budget))
        program = os.path.join(os.path.abspath(os.environ["GOSSIPD_BIN_DIR"]), "gossipd")
        for i, host in enumerate(hosts):
            step_ms = self.given.step_ms + (self.slow_ms if i == WORLD - 1 else 0)
            line = [program, "--name", f"node{i}", "--state-dir", "state", "--key-file", key]
            line += ["--listen", f"{host}:7610", "--rest", "unix:rest", "--threads", "1"]
            line += ["--data", self.given.data, "--set", f"trainer.min_step_ms={step_ms}"]
            for setting in self.given.set:
                line += ["--set", setting]
            line += ["--join", f"{hosts[0]}:7610"] if i else ["--job", job]
            self.launch(GossipNode, i, line)
            if i == 0:
                wait_for("the cluster's key", lambda: os.path.exists(key) or self.ended())

    def ended(self):
        return [node for node in self.nodes if node.first.poll() is not None]

    def poll(self):
        for node in self.nodes:
            node.poll()

    def wait_for_steps(self, count=1, limit_s=120):
        def all_have():
            self.poll()
            if ended := self.ended():
                raise ChildProcessError(f"a node ended: {last_words(ended[0])}")
            return all(len(node.steps()) >= count for node in self.nodes)

        wait_for(f"{count} steps of each node", all_have, limit_s)

    def end(self):
        for node in self.nodes:
            node.signal(signal.SIGKILL)
        for node in self.nodes:
            node.first.wait()
        self.cables.destroy()


def last_words(node):
    """The last line that looks like a reason in the node's log."""
    lines = read_text(os.path.join(node.folder, "log")).strip().splitlines()
    reasons = [line for line in lines if "Error" in line or "error" in line or "fail" in line]
    return (reasons or lines or ["it said nothing"])[-1].strip()[:200]
