"""The nodes of shaped.py: the processes of each way to train, in namespaces on their cables."""

import http.client
import json
import os
import signal
import struct
import sys
import time

from rivals import ROOT, Process, descendants, kilobytes, read_text, wait_for
from shaped_path import Cables
from shaped_task import WORLD

sys.path.append(os.path.join(ROOT, "tests/e2e"))

from cluster import UnixConnection  # noqa: E402
from tensors import read_tensors  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
JOB = """name = "shaped"
seed = {seed}
batch = 32
budget_samples = {budget}
evaluate_every_samples = 0
[model]
{model}
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
MODELS = {
    "cnn": 'kind = "cnn"\nwidth = 16\nhidden = [96]',
    "mlp": 'kind = "mlp"\nhidden = [1024, 1024]',
}
LIGHTHOUSE_PORT = 29510


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
        """Counts pages that processes of the node share for each of them."""
        return sum(kilobytes(f"/proc/{pid}/status", "VmHWM") for pid in self.all()) / 1024

    def own_mb(self):
        """Without mapped files, which other nodes, the judge and other work may share."""
        return sum(kilobytes(f"/proc/{pid}/smaps_rollup", "Pss_Anon") for pid in self.all()) / 1024

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
    """gossipd with its built-in trainer. Steps have the time at which a look found them, but those
    of the first look the latest at which steps of `step_s` can have ended: it starts the clock.
    """

    marks = None
    step_s = 0.0

    def poll(self):
        self.marks = self.marks or []
        path = os.path.join(self.folder, "rest")
        status = rest(path, "GET", "/v1/status") if os.path.exists(path) else None
        if status:
            now, new = time.monotonic(), status["step"] - len(self.marks)
            step_s = 0.0 if self.marks else self.step_s
            self.marks += [now - step_s * (new - 1 - i) for i in range(new)]

    def steps(self):
        return self.marks or []

    def snapshot(self, last):
        if rest(os.path.join(self.folder, "rest"), "POST", "/v1/checkpoint") is None:
            return None
        path = os.path.join(self.folder, "state/checkpoints/current.safetensors")
        _, tensors = read_tensors(path)
        parts = [v for k, v in tensors.items() if not k.startswith("momentum.")]
        return time.monotonic(), b"".join(part.tobytes() for part in parts)


class Run:
    """Four nodes of one way to train, from their start to their end."""

    def __init__(self, way, folder, given, rate, seed, line, slow_ms=0):
        self.way, self.folder, self.given = way, folder, given
        self.rate, self.seed, self.slow_ms = rate, seed, slow_ms
        self.cables = Cables(*line)
        self.nodes, self.shared, self.began = [], [], 0.0

    def start_process(self, kind, name, line, on, **environment):
        space = self.cables.prefix(f"node{on}")
        return kind(os.path.join(self.folder, name), [*space, *line], **environment)

    def launch(self, kind, i, line, **environment):
        self.nodes.append(self.start_process(kind, f"node{i}", line, i, **environment))

    def start(self):
        hosts = [self.cables.plug(f"node{i}") for i in range(WORLD)]
        self.cables.connect()
        self.began = time.monotonic()
        getattr(self, f"start_{self.way.partition('-')[0]}", self.start_gloo)(hosts)

    def launch_python(self, i, hosts, python, name, *words, **environment):
        line = [python, os.path.join(HERE, f"shaped_{name}.py"), self.way, *words]
        line += ["--node", str(i), "--first", hosts[0], "--host", hosts[i]]
        line += ["--data", self.given.data, "--model", self.given.model]
        line += ["--rate", str(self.rate), "--seed", str(self.seed)]
        line += ["--budget", str(self.given.budget), "--step-ms", str(self.given.step_ms)]
        line += ["--slow-ms", str(self.slow_ms)] if i == WORLD - 1 else []
        device = self.cables.device(f"node{i}")
        environment.update(GLOO_SOCKET_IFNAME=device, PYTHONDONTWRITEBYTECODE="1")
        self.launch(Node, i, line, **environment)

    def start_gloo(self, hosts):
        for i in range(WORLD):
            self.launch_python(i, hosts, sys.executable, "gloo")

    def start_torchft(self, hosts):
        program = os.path.join(os.path.dirname(self.given.python), "torchft_lighthouse")
        line = [program, "--min_replicas", "1", "--join_timeout_ms", "10000"]
        line += ["--bind", f"{hosts[0]}:{LIGHTHOUSE_PORT}"]
        self.shared.append(self.start_process(Node, "lighthouse", line, 0))
        lighthouse = f"http://{hosts[0]}:{LIGHTHOUSE_PORT}"
        for i in range(WORLD):
            self.launch_python(
                i, hosts, self.given.python, "torchft", TORCHFT_LIGHTHOUSE=lighthouse
            )

    def start_hivemind(self, hosts):
        self.launch_python(0, hosts, self.given.python, "hivemind")
        address = os.path.join(self.nodes[0].folder, "address")
        wait_for("the first peer's address", lambda: os.path.exists(address) or self.ended())
        for i in range(1, WORLD):
            join = ["--join", read_text(address)]
            self.launch_python(i, hosts, self.given.python, "hivemind", *join)

    def start_gossipd(self, hosts):
        key, job = os.path.join(self.folder, "key"), os.path.join(self.folder, "job.toml")
        with open(job, "w", encoding="utf-8") as out:
            model = MODELS[self.given.model]
            out.write(
                JOB.format(rate=self.rate, seed=self.seed, budget=self.given.budget, model=model)
            )
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
            self.nodes[-1].step_s = step_ms / 1000
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

    def cpu_s(self):
        return sum(process.cpu_s() for process in [*self.nodes, *self.shared])

    def end(self):
        """Also of what its parent has left behind. Returns what the switch saw, if there is one."""
        seen = self.cables.disconnect()
        for pid in descendants(os.getpid())[1:]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in [*self.nodes, *self.shared]:
            process.first.wait()
        self.cables.destroy()
        return seen


def last_words(node):
    """The last line that looks like a reason in the node's log."""
    lines = read_text(os.path.join(node.folder, "log")).strip().splitlines()
    reasons = [line for line in lines if "Error" in line or "error" in line or "fail" in line]
    return (reasons or lines or ["it said nothing"])[-1].strip()[:200]
