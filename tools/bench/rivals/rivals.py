#!/usr/bin/env python3
"""The same loop under gossipd, hivemind and torchft: three local peers, of which one is stopped for
20 s (SIGSTOP) and later killed (SIGKILL), each time with all of its processes. Prints what the two
others did, as a Markdown table or as JSON.

    GOSSIPD_BIN_DIR=build/dev/bin tools/bench/rivals/rivals.py [--only gossipd,torchft] [--json]

Makes a virtual environment in build/rivals-venv (fetches 3 GB) unless --venv names one that has
what requirements.txt says. With the timeouts that each one's own documentation shows first.
"""

import argparse
import array
import ctypes
import functools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "../../.."))
PEERS = 3
WARM_S, BEFORE_S, STOP_S, BETWEEN_S, KILLED_S = 20, 15, 20, 20, 40
STEADY_STEPS = 300  # of each peer, before the measurement begins
START_LIMIT_S = 180
PR_SET_CHILD_SUBREAPER = 36
JOB = 'name = "rivals"\nbatch = 32\nbudget_samples = 1_000_000_000\n[model]\nkind = "external"\n'


@functools.cache
def blas_environment():
    """What gossipd tells OpenBLAS where that does not know the processor (models/devices/blas.h),
    for rivals on Debian's PyTorch too.
    """
    with open("/proc/cpuinfo", encoding="ascii") as file:
        flags = set(file.read().split())
    if "OPENBLAS_CORETYPE" in os.environ or not {"avx2", "fma"} <= flags:
        return {}
    ask = (
        "import ctypes; name = ctypes.CDLL('libopenblas.so.0').openblas_get_corename;"
        " name.restype = ctypes.c_char_p; print(name().decode())"
    )
    asked = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
    if asked.stdout.strip() not in ("Prescott", "Core2", "Nehalem", "Sandybridge"):
        return {}
    return {"OPENBLAS_CORETYPE": "SkylakeX" if "avx512vl" in flags else "Haswell"}


def environment_in(folder, **more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GOSSIPD_", "TORCHFT_"))}
    one_thread = {"OMP_NUM_THREADS": "1", "RIVALS_FOLDER": folder}
    return {**clean, **blas_environment(), **one_thread, **more}


def wait_for(what, condition, limit_s=START_LIMIT_S):
    end = time.monotonic() + limit_s
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited {limit_s} s in vain for {what}")
        time.sleep(0.1)
    return found


def read_text(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):  # the latter of a process that has just ended
        return ""


def kilobytes(path, field):
    """What a file of /proc/PID gives for `field`; 0 where the process has ended."""
    lines = read_text(path).splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def descendants(pid):
    """Process ids below `pid`, which comes first."""
    children = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        stat = read_text(f"/proc/{name}/stat")
        if stat:
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    found = [pid]
    for pid in found:
        found += children.get(pid, [])
    return found


class Process:
    """A program with all that it starts."""

    def __init__(self, folder, line, **environment):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "log"), "ab") as log:
            self.first = subprocess.Popen(
                line,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment_in(folder, **environment),
                start_new_session=True,
            )

    def all(self):
        """Its process ids, its own first."""
        return descendants(self.first.pid)

    def signal(self, number):
        for pid in self.all():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def memory_mb(self):
        """Pages that several processes share are divided among them (PSS)."""
        return sum(kilobytes(f"/proc/{pid}/smaps_rollup", "Pss") for pid in self.all()) / 1024

    def steps(self):
        times = array.array("d")
        path = os.path.join(self.folder, "steps")
        if os.path.exists(path):
            with open(path, "rb") as file:
                content = file.read()
            times.frombytes(content[: len(content) // 8 * 8])
        return times


class Way:
    """How PEERS peers are started. `shared`: what runs once for all."""

    def __init__(self, name, python, folder):
        self.name, self.python, self.folder = name, python, folder
        self.peers, self.shared = [], []

    def script(self):
        return os.path.join(HERE, f"with_{self.name}.py")

    def start(self, *words, **environment):
        folder = os.path.join(self.folder, f"peer{len(self.peers) + 1}")
        line = [self.python, *words] if words else [self.python, self.script()]
        self.peers.append(Process(folder, line, **environment))
        return self.peers[-1]

    def start_nothing(self):
        for _ in range(PEERS):
            self.start()

    def start_gossipd(self):
        environment = {
            "GOSSIPD_BIN_DIR": os.path.abspath(os.environ["GOSSIPD_BIN_DIR"]),
            "PYTHONPATH": os.path.join(ROOT, "tools/python/src"),
        }
        job = os.path.join(self.folder, "job.toml")
        with open(job, "w", encoding="utf-8") as out:
            out.write(JOB)
        run = ["-m", "gossipd", "run", "--state-dir", "state", "--listen", "127.0.0.1:27610"]
        loop = ["--", self.python, self.script()]
        first = self.start(*run, "--job", job, *loop, **environment)
        key = os.path.join(first.folder, "state/cluster.key")
        wait_for("the cluster's key", lambda: os.path.exists(key))
        for i in range(1, PEERS):
            run[-1] = f"127.0.0.1:{27610 + i}"
            joining = ["--join", "127.0.0.1:27610", "--key-file", key]
            self.start(*run, *joining, *loop, **environment)

    def start_hivemind(self):
        first = self.start()
        address = os.path.join(first.folder, "address")
        wait_for("the first peer's address", lambda: os.path.exists(address))
        for _ in range(1, PEERS):
            self.start(self.script(), read_text(address))

    def start_torchft(self):
        program = os.path.join(os.path.dirname(self.python), "torchft_lighthouse")
        line = [program, "--min_replicas", "1", "--join_timeout_ms", "10000"]
        line += ["--bind", "127.0.0.1:29510"]
        self.shared.append(Process(os.path.join(self.folder, "lighthouse"), line))
        for _ in range(PEERS):
            self.start(TORCHFT_LIGHTHOUSE="http://127.0.0.1:29510")

    def end(self):
        """Also of what its parent has left behind, which is a child of ours then."""
        for pid in descendants(os.getpid())[1:]:
            os.kill(pid, signal.SIGKILL)
        for process in [*self.peers, *self.shared]:
            process.first.wait()


def look(peers, begin, end):
    """Steps a second and the longest standstill in seconds, of the worst of the peers."""
    rates, pauses = [], []
    for peer in peers:
        times = [t for t in peer.steps() if begin <= t <= end]
        rates.append(len(times) / (end - begin))
        marks = [begin, *times, end]
        pauses.append(max(b - a for a, b in zip(marks, marks[1:])))
    return {"rate": min(rates), "pause_s": max(pauses)}


def sleep_until(moment):
    time.sleep(max(0, moment - time.monotonic()))


def apart(peers):
    """The distance of the peers' models over their length."""
    models = []
    for peer in peers:
        for pid in peer.all()[:1]:
            os.kill(pid, signal.SIGTERM)
        path = os.path.join(peer.folder, "model")
        wait_for("a model", lambda path=path: os.path.exists(path), 60)
        with open(path, "rb") as file:
            models.append(array.array("f", file.read()))
    first, second = models
    length = sum(a * a for a in first) ** 0.5
    return sum((a - b) ** 2 for a, b in zip(first, second)) ** 0.5 / length


def measure(way):
    getattr(way, f"start_{way.name}")()
    wait_for(
        f"{STEADY_STEPS} steps of each peer",
        lambda: all(len(peer.steps()) >= STEADY_STEPS for peer in way.peers),
    )
    time.sleep(WARM_S)
    begin = time.monotonic()
    sleep_until(begin + BEFORE_S)
    *others, victim = way.peers
    found = {
        "way": way.name,
        "lines": sum("  # +" in line for line in read_text(way.script()).splitlines()),
        "processes": len(victim.all()),
        "shared": len(way.shared),
        "memory_mb": round(statistics.mean(peer.memory_mb() for peer in way.peers)),
        "before": look(others, begin, begin + BEFORE_S),
    }
    stopped = time.monotonic()
    victim.signal(signal.SIGSTOP)
    sleep_until(stopped + STOP_S)
    victim.signal(signal.SIGCONT)
    found["stopped"] = look(others, stopped, stopped + STOP_S)
    sleep_until(stopped + STOP_S + BETWEEN_S)
    found["resumed"] = look(others, stopped + STOP_S, stopped + STOP_S + BETWEEN_S)
    killed = time.monotonic()
    victim.signal(signal.SIGKILL)
    sleep_until(killed + KILLED_S)
    found["killed"] = look(others, killed, killed + KILLED_S)
    found["ended"] = sum(peer.first.poll() is not None for peer in others)  # by themselves
    found["apart"] = None if found["ended"] else round(apart(others), 4)
    return found


def venv(folder):
    python = os.path.join(folder, "bin/python")
    if not os.path.exists(python):
        print(f"installing into {folder} (some GB)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        wanted = os.path.join(HERE, "requirements.txt")
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", wanted], check=True)
    return python


def table(rows):
    words = "steps/s of the others | standstill"
    print(f"| | lines | processes | memory, MB | {words}: before | stopped 20 s | killed |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        parts = [row["way"], str(row["lines"])]
        parts.append(f"{row['processes']}" + (f" + {row['shared']}" if row["shared"] else ""))
        parts.append(str(row["memory_mb"]))
        for when in ("before", "stopped", "killed"):
            parts.append(f"{row[when]['rate']:.0f}, {row[when]['pause_s']:.1f} s")
        if row["ended"]:
            parts[-1] = f"{row['ended']} of {PEERS - 1} others ended, too"
        print("| " + " | ".join(parts) + " |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="nothing,gossipd,hivemind,torchft")
    parser.add_argument("--venv", default=os.path.join(ROOT, "build/rivals-venv"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    python, rows = venv(given.venv), []
    for name in given.only.split(","):
        folder = tempfile.mkdtemp(prefix=f"rivals-{name}-")
        way = Way(name, python, folder)
        try:
            rows.append(measure(way))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        except TimeoutError as error:
            tail = read_text(os.path.join(folder, "peer1/log"))[-1500:]
            sys.exit(f"{name}: {error}; the end of {folder}/peer1/log:\n{tail}")
        finally:
            way.end()
    print(json.dumps(rows)) if given.json else table(rows)


if __name__ == "__main__":
    main()
