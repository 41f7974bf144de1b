#!/usr/bin/python3
"""Four nodes on narrow lines train Fashion-MNIST, under gossipd and under its rivals.

    GOSSIPD_BIN_DIR=build/dev/bin /usr/bin/python3 tools/bench/rivals/shaped.py MODE [options]

    tune       learning rates: each way with each of --rates, on another seed
    accuracy   time, bytes and processor time until node 0's model has 88 % on the test images
    faults     steps and bytes of the others while one node is slowed by 50 ms a step, stopped,
               killed
    table      the results so far as Markdown, into --publish FILE if given

Each node is a network namespace; both ends of its cable are limited by tbf. A step takes at least
--step-ms on every node, communication included, so that lines and not our few cores are the limit.
Results are appended to --rows FILE; accuracy takes each way's best learning rate of `tune` from
there, or else 0.05. What the name of a rival may say (local-8, diloco-16-0.5,
ddp-powersgd-10, hivemind-10000) is in shaped_gloo.py, shaped_torchft.py and shaped_hivemind.py.
Needs root, iproute2, Debian's python3-torch and dataset-fashion-mnist; torchft and hivemind run in
the virtual environment of rivals.py, which is made if missing (3 GB).
"""

import argparse
import ctypes
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import shaped_table
import torch
from rivals import PR_SET_CHILD_SUBREAPER, ROOT, look, sleep_until, venv
from shaped_nodes import Run, last_words
from shaped_task import BATCH, NETWORKS, TARGETS, network, unflatten

sys.path.append(os.path.join(ROOT, "deploy/examples"))

from fashion_mnist_data import read  # noqa: E402
from pytorch import accuracy_of  # noqa: E402

WAYS = "gossipd,diloco-16,local-4,local-8,ddp-powersgd-10,ddp-powersgd-50,ddp-fp16,ddp"
SCREEN_IMAGES, SCREEN_MARGIN = 2000, 0.02  # a first look at a part, to leave the cores alone
TUNING_SEED = 100
LOOK_S, POLL_S, FINAL_EXCHANGE_S = 1.5, 0.1, 5
LEARNING_RATE = 0.05  # the best of lockstep.py for DDP and local SGD
WARM_S, BEFORE_S, STOP_S, BETWEEN_S, KILLED_S, SLOW_MS = 5, 10, 20, 8, 20, 50


class Judge:
    """Measures models on the test images, outside the nodes."""

    def __init__(self, kind, data, target):
        self.model, self.target = network(kind, 0), target
        self.images, self.labels = map(torch.from_numpy, read(data, "t10k"))

    def accuracy(self, values):
        """On all images, or on the first ones where these are far from the target."""
        unflatten(self.model, torch.from_numpy(numpy.frombuffer(values, numpy.float32).copy()))
        screened = self.accuracy_on(slice(SCREEN_IMAGES))
        return screened if screened < self.target - SCREEN_MARGIN else self.accuracy_on(slice(None))

    def full_accuracy(self, values):
        unflatten(self.model, torch.from_numpy(numpy.frombuffer(values, numpy.float32).copy()))
        return self.accuracy_on(slice(None))

    def accuracy_on(self, part):
        return accuracy_of(self.model, self.images[part], self.labels[part])


def first_step(run):
    return min(node.steps()[0] for node in run.nodes)


def train(run, judge, limit_s, budget):
    """Until the target or a limit. The clock begins with the first step of any node."""
    run.start()
    run.wait_for_steps()
    began, last, best, best_values = first_step(run), 0.0, -1.0, None
    found = {"start_s": time.monotonic() - run.began, "start_cpu_s": run.cpu_s()}
    found.update(start_mb=run.cables.sent_bytes() / 1e6, reached=False, samples=0, looks=[])
    due = time.monotonic()
    end = began + limit_s
    while not found["reached"] and time.monotonic() < end:
        if found["samples"] > 0.999 * budget:
            end = min(end, time.monotonic() + FINAL_EXCHANGE_S)
        due = max(due + LOOK_S, time.monotonic())
        sleep_until(due)
        if ended := run.ended():
            raise ChildProcessError(f"a node ended: {last_words(ended[0])}")
        snapshot = run.nodes[0].snapshot(last)
        if snapshot is None:
            continue
        last, values = snapshot
        run.poll()
        counts = {
            "seconds": last - began,
            "sent_mb": run.cables.sent_bytes() / 1e6,
            "cpu_s": run.cpu_s() - found["start_cpu_s"],
            "samples": sum(len(node.steps()) for node in run.nodes) * BATCH,
        }
        accuracy = judge.accuracy(values)
        if accuracy > best:
            best, best_values = accuracy, values
        found.update(counts, reached=accuracy >= judge.target)
        found["looks"].append([round(last - began, 1), counts["samples"], round(accuracy, 4)])
    if best_values is None:
        raise TimeoutError("no model of node 0 was there to measure")
    found["accuracy"] = judge.full_accuracy(best_values)
    found["samples_per_s"] = found["samples"] / found["seconds"]
    found["peak_mb"] = max(node.peak_mb() for node in run.nodes)
    found["pss_mb"] = max(node.memory_mb() for node in run.nodes)
    found["own_mb"] = max(node.own_mb() for node in run.nodes)
    return found


def watch(run, seconds, others):
    """How the others get on in the next seconds, and whether they still exchange."""
    begin, sent = time.monotonic(), run.cables.sent_bytes()
    while (now := time.monotonic()) < begin + seconds:
        run.poll()
        sleep_until(now + POLL_S)
    sent_mb = (run.cables.sent_bytes() - sent) / 1e6
    return {**look(others, begin, begin + seconds), "sent_mb": sent_mb}


def suffer(run):
    """Stops and kills the last node."""
    *others, victim = run.nodes
    watch(run, WARM_S, others)
    found = {"before": watch(run, BEFORE_S, others)}
    victim.signal(signal.SIGSTOP)
    found["stopped"] = watch_rest(run, STOP_S, others)
    victim.signal(signal.SIGCONT)
    found["resumed"] = watch(run, BETWEEN_S, others)
    victim.signal(signal.SIGKILL)
    found["killed"] = watch_rest(run, KILLED_S, others)
    ended = [node for node in others if node.first.poll() is not None]
    found["ended"] = len(ended)
    found["message"] = last_words(ended[0]) if ended else ""
    return found


def watch_rest(run, seconds, others):
    """watch() without asking the last node, which cannot answer."""
    silent = run.nodes[-1]
    run.nodes.remove(silent)
    try:
        return watch(run, seconds, others)
    finally:
        run.nodes.append(silent)


def limit_s(given, row):
    """Until when a run may take: --limit-times gossipd's seconds on the same line, if known."""
    rows = shaped_table.read_rows(given.rows)
    own = [r for r in rows if shaped_table.alike(r, row) and r["way"] == "gossipd"]
    own = {r["seed"]: r["seconds"] for r in own if r.get("reached")}
    if row["way"].startswith("gossipd") or not own or not given.limit_times:
        return given.limit_s
    seconds = own.get(row["seed"], statistics.median(own.values()))
    return min(given.limit_s, given.limit_times * seconds)


def one(given, mode, way, rate, seed, line, judge):
    """A row, which says why if the way failed."""
    row = {"mode": mode, "way": way, "rate": rate, "seed": seed, "model": given.model}
    row.update(zip(("mbit", "delay_ms"), line))
    row.update(target=judge.target, step_ms=given.step_ms, load=os.getloadavg()[0])
    row.update(when=time.strftime("%Y-%m-%d %H:%M"), of=given.versions, nice=os.nice(0))
    if way == "gossipd" and given.set:
        row["way"] = " ".join([way, *given.set])
    slowed = mode == "slowed"
    folder = tempfile.mkdtemp(prefix=f"shaped-{way}-")
    run = Run(way, folder, given, rate, seed, line, SLOW_MS if slowed else 0)
    try:
        if mode in ("tune", "accuracy"):
            row.update(train(run, judge, limit_s(given, row), given.budget))
        else:
            run.start()
            run.wait_for_steps(20)
            if slowed:
                watch(run, WARM_S, run.nodes[:-1])
                row["slowed"] = watch(run, BEFORE_S, run.nodes[:-1])
            else:
                row.update(suffer(run))
    except (TimeoutError, ChildProcessError) as error:
        row["failed"] = str(error)
        print(f"{way}: {error}; logs: {folder}", file=sys.stderr)
        folder = None
    finally:
        row["path"] = run.end()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(row), flush=True)
    with open(given.rows, "a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")


def rotated(ways, by):
    by %= len(ways)
    return ways[by:] + ways[:by]


def best_rates(rows, ways, model):
    """Of each way the rate that needed the fewest samples in `tune`; fp16's is DDP's."""
    found = {}
    rows = [r for r in rows if r["mode"] == "tune" and r["model"] == model and r.get("reached")]
    for way in ways:
        like = "ddp" if way == "ddp-fp16" else way
        tried = [r for r in rows if r["way"] == like]
        found[way] = min(tried, key=lambda r: r["samples"], default={}).get("rate", LEARNING_RATE)
    return found


def measure(given, ways):
    judge = Judge(given.model, given.data, given.target)
    if given.mode == "tune":
        rates = [float(word) for word in given.rates.split(",")]
        for way in ways:
            for rate in rates:
                one(given, "tune", way, rate, TUNING_SEED, (1000, 0), judge)
        return
    rates = best_rates(shaped_table.read_rows(given.rows), ways, given.model)
    modes = ("slowed", "faults") if given.mode == "faults" else ("accuracy",)
    mbits, delays = map(int, given.mbit.split(",")), map(float, given.delay_ms.split(","))
    lines = list(itertools.product(mbits, delays))
    for repeat in range(given.repeats):
        for line in lines:
            for way in rotated(ways, given.seed + repeat - 1):
                for mode in modes:
                    one(given, mode, way, rates[way], given.seed + repeat, line, judge)


def versions(ways):
    asked = ["git", "-C", ROOT, "describe", "--always", "--dirty"]
    tree = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    lines = [f"torch {torch.__version__}, Debian 12, scripts of {tree or 'no git tree'}"]
    if "gossipd" in ways:
        if "GOSSIPD_BIN_DIR" not in os.environ:
            sys.exit("GOSSIPD_BIN_DIR is not set; name the folder of a built gossipd")
        program = os.path.join(os.environ["GOSSIPD_BIN_DIR"], "gossipd")
        asked = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        lines.insert(0, asked.stdout.strip().splitlines()[0])
    return "; ".join(lines)


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=("tune", "accuracy", "faults", "table"))
    parser.add_argument("--ways", default=WAYS)
    parser.add_argument("--mbit", default="20,5", help="rates of the lines")
    parser.add_argument("--delay-ms", default="0", help="of each path, in one direction")
    parser.add_argument("--model", choices=NETWORKS, default="cnn")
    parser.add_argument("--rates", default="0.05,0.1,0.2", help="learning rates of `tune`")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="of the first repeat, then the next")
    parser.add_argument("--step-ms", type=float, default=60)
    parser.add_argument("--limit-s", type=float, default=200, help="an accuracy run ends then")
    parser.add_argument("--limit-times", type=float, help="or at so many times gossipd's seconds")
    parser.add_argument("--budget", type=int, default=150_000, help="samples, of all nodes")
    parser.add_argument("--target", type=float, help="accuracy to reach (0.88; of the mlp 0.87)")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--rows", default=os.path.join(ROOT, "build/shaped.jsonl"))
    parser.add_argument("--venv", default=os.path.join(ROOT, "build/rivals-venv"))
    parser.add_argument("--set", action="append", default=[], help="a setting for gossipd")
    parser.add_argument("--publish", metavar="FILE")
    given = parser.parse_args()
    given.rows = os.path.abspath(given.rows)
    given.target = given.target or TARGETS[given.model]
    os.makedirs(os.path.dirname(given.rows), exist_ok=True)
    return given


def main():
    given = parse()
    if given.mode == "table":
        text = shaped_table.markdown(shaped_table.read_rows(given.rows))
        print(text)
        if given.publish:
            with open(given.publish, "w", encoding="utf-8") as out:
                out.write(text + "\n")
        return
    ways = given.ways.split(",")
    if "torchft" in given.ways or "hivemind" in given.ways:
        given.python = venv(os.path.abspath(given.venv))
    given.versions = versions(ways)
    print(f"{given.versions}; {' '.join(sys.argv)}", file=sys.stderr)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    torch.set_num_threads(1)
    measure(given, ways)


if __name__ == "__main__":
    main()
