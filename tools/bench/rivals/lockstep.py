#!/usr/bin/python3
"""What lock-step rivals of shaped.py reach without lines: their nodes take turns in one process.

    /usr/bin/python3 tools/bench/rivals/lockstep.py WAY... [--rates 0.05,0.1] [--seeds 100,101]

Ways: ddp, local-H, diloco-H or diloco-H-MOMENTUM. An average of all nodes is the same on every
line, so a run says how many samples a rate, a period or a momentum needs; shaped.py says how long
they take. Prints a row for each run: thousands of samples until the model after an average has
the target on the test images, and what the model has when the budget is spent. Nothing waits, so a
run costs about a minute of one core. Needs what shaped.py needs, but no root and no gossipd.
"""

import argparse
import json
import os
import sys
import tempfile

import torch
from shaped_gloo import DiLoCo, LocalSgd
from shaped_task import BATCH, NETWORKS, ROOT, TARGETS, WORLD, Task, flat, unflatten
from torch.nn import functional

sys.path.append(os.path.join(ROOT, "deploy/examples"))

from fashion_mnist_data import read  # noqa: E402
from pytorch import accuracy_of  # noqa: E402

FIRST_LOOK, LOOK_EVERY = 0.4, 48  # of the budget; steps


def nodes_of(given, rate, seed):
    common = {"model": given.model, "data": given.data, "budget": given.budget}
    common.update(rate=rate, seed=seed, step_ms=0, slow_ms=0)
    return [Task(argparse.Namespace(**common, node=i)) for i in range(WORLD)]


class Gradients:
    """DDP: every node makes the step of the mean gradient, so one model stands for all."""

    def __init__(self, tasks):
        self.tasks, self.optimizer = tasks, tasks[0].optimizer()

    def step(self, _):
        batches = [task.next_batch() for task in self.tasks]
        x, y = (torch.cat(parts) for parts in zip(*batches))
        descend(self.tasks[0], self.optimizer, x, y)
        return True

    def mean(self):
        return flat(self.tasks[0].model)


def descend(task, optimizer, x, y):
    task.set_rate(optimizer)
    optimizer.zero_grad()
    functional.cross_entropy(task.model(x), y).backward()
    optimizer.step()


class Models:
    """Nodes with models of their own, which `way` averages."""

    def __init__(self, tasks, way):
        self.tasks, self.way = tasks, way
        self.optimizers = [task.optimizer() for task in tasks]

    def step(self, steps):
        for task, optimizer in zip(self.tasks, self.optimizers):
            descend(task, optimizer, *task.next_batch())
        if not self.way.is_due(steps):
            return False
        values = self.way.averaged(self.mean())
        for task in self.tasks:
            unflatten(task.model, values)
        return True

    def mean(self):
        return sum(flat(task.model) for task in self.tasks) / WORLD


def method_of(way, tasks):
    name, *words = way.split("-")
    if name == "ddp":
        return Gradients(tasks)
    return Models(tasks, (LocalSgd if name == "local" else DiLoCo)(tasks[0].model, *words))


def run(given, way, rate, seed):
    tasks = nodes_of(given, rate, seed)
    method, test = method_of(way, tasks), tuple(map(torch.from_numpy, read(given.data, "t10k")))
    reached, best, due = None, 0.0, FIRST_LOOK * given.budget
    steps = given.budget // (BATCH * WORLD)
    for made in range(1, steps + 1):
        averaged = method.step(made)
        for task in tasks:
            task.steps = made
        samples = made * BATCH * WORLD
        if averaged and samples >= due:
            due = samples + LOOK_EVERY * BATCH * WORLD
            best = max(best, accuracy_of(tasks[0].model, *test))
            if reached is None and best >= given.target:
                reached = samples
    unflatten(tasks[0].model, method.mean())
    return {
        **{"way": way, "rate": rate, "seed": seed, "model": given.model, "target": given.target},
        **{"samples": reached, "best": best, "last": accuracy_of(tasks[0].model, *test)},
    }


def numbers(kind):
    return lambda text: [kind(word) for word in text.split(",")]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ways", nargs="+")
    parser.add_argument("--rates", type=numbers(float), default=[0.025, 0.05, 0.1])
    parser.add_argument("--seeds", type=numbers(int), default=[100, 101])
    parser.add_argument("--model", choices=NETWORKS, default="cnn")
    parser.add_argument("--budget", type=int, default=150_000, help="samples, of all nodes")
    parser.add_argument("--target", type=float, help="accuracy to reach (0.88; of the mlp 0.87)")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    given = parser.parse_args()
    given.target = given.target or TARGETS[given.model]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # a Task keeps its ledger where it works
        for seed in given.seeds:
            for way in given.ways:
                for rate in given.rates:
                    print(json.dumps(run(given, way, rate, seed)), flush=True)


if __name__ == "__main__":
    main()
