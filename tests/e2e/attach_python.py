#!/usr/bin/env python3
"""What attaching costs a PyTorch loop, and what three attached scripts learn beside the built-in
trainer. Prints one JSON object.

    attach_python.py overhead [--floats 63466|25000000] [--pairs 40] [--beside idle|nice|equal]
        Steps of one loop in alternating blocks, with gossipd and without its hooks and its log(),
        while a second node exchanges with the first: with SGD at 63,466 parameters, and with AdamW
        beyond, since SGD's small steps would change a large model too little to send anything. That
        node stands for another machine, so its loop and daemon have what processors are idle
        (SCHED_IDLE); with `nice` they have nice 10, and with `equal` the same priority. On a busy
        machine give all of it precedence, and the second node less: `nice -n -15 … --beside nice`.
        Printed are bare / attached by wall clock and by processor time of
        the loop's thread, of all blocks, with half of the pairs' 95 % interval; the medians of the
        pairs; in_hooks, the share of the attached wall clock that gossipd's hooks were seen to
        take; and the processors that the first node's daemon kept busy all the while.
    attach_python.py accuracy [--seeds 11..20] [--samples 120000] [--step-ms 20]
        deploy/examples/pytorch.py at three daemons, and three daemons with the built-in trainer on
        the same job and the same initial model (the daemon's: He's bound, where PyTorch's default
        is smaller by the root of six): cnn, AdamW, cosine, batch 32, the same data divided. One
        pair for each seed, in turn one or the other first, so that both meet the same load. The
        mean difference with half of its 95 % interval: two runs of one seed differ too, since who
        makes which step depends on the clock, so it is the number of pairs that tells the two
        apart. A step takes at least --step-ms on both sides, as on three boxes of their own: three
        loops on two cores would look for each other's updates as seldom as the other load lets
        them.

Needs Debian's python3-torch: run it with /usr/bin/python3, and GOSSIPD_BIN_DIR.
"""

import argparse
import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import time

from cluster import ClusterTest, clean_environment, wait_for, with_cluster
from cluster import _die_with_the_test as die_with_the_test

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
EXAMPLES = os.path.join(ROOT, "deploy/examples")
PACKAGE = os.path.join(ROOT, "tools/python/src")
EXTERNAL = """
name = "by-python"
batch = 32
budget_samples = {samples}
[model]
kind = "external"
[schedule]
kind = "cosine"
warmup_samples = {warmup}
"""
OTHER_MACHINE = {"idle": ["chrt", "--idle", "0"], "nice": ["nice", "-n", "10"], "equal": []}
ADAMW = 'kind = "adamw"\nlearning_rate = 0.001\nweight_decay = 0.01'


def external_job(cluster, samples):
    path = os.path.join(cluster.directory, "external.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(EXTERNAL.format(samples=samples, warmup=min(20_000, samples // 10)))
    return path


def environment_of(node):
    return {
        **clean_environment(),
        "GOSSIPD_SOCKET": os.path.join(node.state_dir, "trainer.sock"),
        "PYTHONPATH": PACKAGE,
        "OMP_NUM_THREADS": "1",
    }


def script(node, *line, prefix=(), stdin=None):
    return subprocess.Popen(
        [*prefix, sys.executable, *line],
        env=environment_of(node),
        stdin=stdin,
        stdout=subprocess.PIPE,
        preexec_fn=die_with_the_test,
    )


# ---- overhead: this file is also the loop ----


def model_of(torch, floats):
    if floats == 63_466:
        sys.path.insert(0, EXAMPLES)
        from pytorch import Network

        return Network(), torch.randn(32, 1, 28, 28)
    width = round((floats / 2) ** 0.5)
    layers = [torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)]
    return torch.nn.Sequential(*layers), torch.randn(8, width)


def optimizer_of(torch, model, floats):
    """With SGD's little steps the large model would change too little to have anything to send."""
    if floats == 63_466:
        return torch.optim.SGD(model.parameters(), 1e-4)
    return torch.optim.AdamW(model.parameters(), 1e-3)


class Loop:
    """A loop whose steps are made with gossipd, and without its hooks and its log()."""

    def __init__(self, floats):
        import torch

        import gossipd
        from gossipd.torch_attachment import hook

        torch.manual_seed(1)
        self.model, self.x = model_of(torch, floats)
        self.optimizer = optimizer_of(torch, self.model, floats)
        self.g = gossipd.attach(self.model, self.optimizer, samples_per_step=len(self.x))
        self.looks, self.hooks_s = 0, 0.0
        timed = self.timed(self.g._before_step), self.timed(self.g._after_step)
        self.add_hooks = lambda: hook(self.optimizer, *timed)

    def timed(self, call):
        def run(*arguments):
            began, before = time.perf_counter(), self.g._resumed_at
            call(*arguments)
            self.hooks_s += time.perf_counter() - began
            self.looks += self.g._resumed_at != before

        return run

    def steps(self, count, attached=True):
        """Seconds by wall clock and of the processor."""
        wall, used = time.perf_counter(), time.thread_time()
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = self.model(self.x).pow(2).mean()
            loss.backward()
            self.optimizer.step()
            if attached:
                self.g.log(loss=loss)
        return time.perf_counter() - wall, time.thread_time() - used

    def block(self, count, attached):
        """The same; without gossipd the time until the next look stands still."""
        self.g._remove_hook()
        vars(self.optimizer).pop("step", None)  # torch 1 has no hooks: the wrapper goes, too
        if attached:
            self.g._remove_hook = self.add_hooks()
            return self.steps(count)
        began = time.perf_counter()
        seconds = self.steps(count, False)
        self.g._resumed_at += time.perf_counter() - began
        return seconds


def loop(floats, pairs):
    """The measured loop, which begins to measure at a line of standard input; or without pairs one
    that trains until it is killed.
    """
    # A long block without looks would seem to the daemon as if nobody trained.
    trains, block = Loop(floats), 200 if floats < 1e6 else 5
    while not pairs or not select.select([sys.stdin], [], [], 0)[0]:
        trains.steps(1)
    found = []
    for pair in range(pairs):
        order = (True, False) if pair % 2 else (False, True)
        seconds = {attached: trains.block(block, attached) for attached in order}
        found.append([*seconds[False], *seconds[True]])
    wall, used, wall_attached, used_attached = map(list, zip(*found))
    by_wall = [bare / with_g for bare, with_g in zip(wall, wall_attached)]
    by_processor = [bare / with_g for bare, with_g in zip(used, used_attached)]
    found = {
        "floats": sum(p.numel() for p in trains.model.parameters()),
        "by_wall": sum(wall) / sum(wall_attached),
        "by_processor": sum(used) / sum(used_attached),
        "within_by_wall": half_interval(by_wall),
        "within_by_processor": half_interval(by_processor),
        "median_by_wall": statistics.median(by_wall),
        "median_by_processor": statistics.median(by_processor),
        "in_hooks": trains.hooks_s / sum(wall_attached),
        "looks": trains.looks,
        "look_ms": trains.g._look_cost_s * 1e3,
        "step_ms": sum(used) / pairs / block * 1e3,
    }
    print(json.dumps({name: round(value, 4) for name, value in found.items()}))


def processor_seconds(node):
    with open(f"/proc/{node.process.pid}/stat", encoding="utf-8") as file:
        user, system = file.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def overhead(cluster, floats, pairs, beside):
    first = cluster.node("box1", "--job", external_job(cluster, 10**12), data=None).start()
    line = [__file__, "loop", "--floats", str(floats), "--pairs"]
    measured = script(first, *line, str(pairs), stdin=subprocess.PIPE)
    first.wait_phase("training")
    other = cluster.node("box2", "--join", first.address, data=None)
    other.prefix = OTHER_MACHINE[beside]
    second = script(other.start(), *line, "0", prefix=OTHER_MACHINE[beside])
    link = lambda: first.links().get("box2", {})
    applied = lambda: link().get("deltas_applied", 0)
    wait_for("deltas of box2", lambda: applied() > 1, 600)
    before, began, used = applied(), time.monotonic(), processor_seconds(first)
    out, _ = measured.communicate(b"\n")
    seconds = time.monotonic() - began
    second.kill()
    return {
        **json.loads(out),
        "deltas_applied": applied() - before,
        "daemon_cores": round((processor_seconds(first) - used) / seconds, 4),
    }


# ---- accuracy ----


def paced(step_ms, initial, line):
    """deploy/examples/pytorch.py, each of whose steps begins `step_ms` after the last or later, and
    which begins with the model in the file `initial`."""
    sys.path.insert(0, EXAMPLES)
    import pytorch

    import gossipd

    build, forward, begun = pytorch.Network.__init__, pytorch.Network.forward, [0.0]

    def build_initial(network):
        build(network)
        state = gossipd.load(initial).state_dict()
        network.load_state_dict({name.replace("head.", ""): v for name, v in state.items()})

    def paced_forward(network, images):
        if network.training:
            time.sleep(max(0.0, begun[0] + step_ms / 1e3 - time.perf_counter()))
            begun[0] = time.perf_counter()
        return forward(network, images)

    pytorch.Network.__init__, pytorch.Network.forward = build_initial, paced_forward
    sys.argv = ["pytorch.py", *line]
    pytorch.main()


def built_in_job(cluster, seed, samples, optimizer=ADAMW):
    data = 'kind = "idx"\nshape = [1, 28, 28]\nclasses = 10\nmean = 0.2860\ndeviation = 0.3530'
    return cluster.job(
        model='kind = "cnn"\nwidth = 16\nhidden = [96]',
        data=data + '\ndivision = "shared"',
        optimizer=optimizer,
        seed=seed,
        budget_samples=samples,
        warmup_samples=min(20_000, samples // 10),
    )


def initial_model(cluster, seed, path):
    """Writes to `path` what the built-in trainer begins with: one step at next to no rate."""
    still = 'kind = "sgd"\nlearning_rate = 1e-30\nmomentum = 0.0'
    node = cluster.founder(built_in_job(cluster, seed, 32, still), shard="auto").start()
    status = node.wait("its end", lambda s: s["checkpoints"].get("final"))
    shutil.copy(status["checkpoints"]["final"]["path"], path)


def attached_accuracy(cluster, seed, samples, step_ms):
    initial = os.path.join(cluster.directory, "initial.safetensors")
    with_cluster("initial", initial_model, seed, initial)
    first = cluster.node("box1", "--job", external_job(cluster, samples), data=None).start()
    line = [__file__, "paced", "--step-ms", str(step_ms), "--seeds", str(seed)]
    line += ["--initial", initial]
    scripts = [script(first, *line)]
    first.wait_phase("training")
    for name in ("box2", "box3"):
        node = cluster.node(name, "--join", first.address, data=None).start()
        scripts.append(script(node, *line))
    return [json.loads(s.communicate()[0])["accuracy"] for s in scripts]


def built_in_accuracy(cluster, seed, samples, step_ms):
    job = built_in_job(cluster, seed, samples)
    settings = dict(shard="auto", trainer__min_step_ms=step_ms)
    nodes = [cluster.found(job, **settings)]
    for name in ("box2", "box3"):
        nodes.append(cluster.joiner(name, nodes[0], **settings).start())
    ends = [
        n.wait("its end", lambda s: (s["checkpoints"].get("final") or {}).get("accuracy"), 36_000)
        for n in nodes
    ]
    return [s["checkpoints"]["final"]["accuracy"] for s in ends]


SIDES = {"attached": attached_accuracy, "built_in": built_in_accuracy}


def accuracy(seeds, samples, step_ms):
    rows = []
    for seed in seeds:
        order = list(SIDES)[:: -1 if len(rows) % 2 else 1]
        rows.append({"seed": seed})
        for side in order:
            rows[-1][side] = with_cluster(side, SIDES[side], seed, samples, step_ms)
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    means = {k: [statistics.mean(row[k]) for row in rows] for k in SIDES}
    differences = [a - b for a, b in zip(means["attached"], means["built_in"])]
    return {
        "samples": samples,
        "rows": rows,
        **{k: round(statistics.mean(v), 4) for k, v in means.items()},
        "difference": round(statistics.mean(differences), 4),
        "within": round(half_interval(differences), 4),
    }


def half_interval(found):
    """Half of the 95 % interval of the mean, by Student's t (its Cornish-Fisher expansion)."""
    more, z = len(found) - 1, statistics.NormalDist().inv_cdf(0.975)
    t = z + (z**3 + z) / (4 * more) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * more**2)
    return t * statistics.stdev(found) / len(found) ** 0.5


def numbers(text):
    """1,2,5..8 → [1, 2, 5, 6, 7, 8]."""
    ends = [part.split("..") for part in text.split(",")]
    return [seed for part in ends for seed in range(int(part[0]), int(part[-1]) + 1)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["overhead", "accuracy", "loop", "paced"])
    parser.add_argument("--floats", type=int, default=63_466)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--beside", choices=list(OTHER_MACHINE), default="idle")
    parser.add_argument("--seeds", type=numbers, default="11..20")
    parser.add_argument("--samples", type=int, default=120_000)
    parser.add_argument("--step-ms", type=float, default=20)
    parser.add_argument("--initial", help="of paced")
    given = parser.parse_args()
    if given.what == "loop":
        return loop(given.floats, given.pairs)
    if given.what == "paced":
        return paced(given.step_ms, given.initial, ["--seed", str(given.seeds[0])])
    ClusterTest.setUpClass()
    if given.what == "overhead":
        found = with_cluster("overhead", overhead, given.floats, given.pairs, given.beside)
        print(json.dumps(found))
    else:
        print(json.dumps(accuracy(given.seeds, given.samples, given.step_ms)))


if __name__ == "__main__":
    main()
