"""What every node of shaped.py trains: the model, data, batch and pace, and how it tells of steps.

A Python rival's program makes one Task and calls its functions in this order for every step:
next_batch(), rate(), its own step, made_step(). gossipd's trainer has all of this by its job file.
"""

import argparse
import gzip
import math
import os
import struct
import sys
import time

import numpy
import torch

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.."))
sys.path += [os.path.join(ROOT, "deploy/examples"), os.path.join(ROOT, "tools/python/src")]

from fashion_mnist_data import DEVIATION, MEAN  # noqa: E402
from pytorch import Network  # noqa: E402

BATCH = 32
WORLD = 4
WARM_UP_SAMPLES = 10_000  # of all nodes, in which the learning rate rises from 0
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4
SNAPSHOT_S = 1.0
TARGETS = {"cnn": 0.88, "mlp": 0.87}
OUTER_RATE, OUTER_MOMENTUM = 1.0, 0.5


def perceptron():
    layers = [torch.nn.Linear(*ends) for ends in ((784, 1024), (1024, 1024), (1024, 10))]
    rectifier = torch.nn.ReLU()
    return torch.nn.Sequential(
        torch.nn.Flatten(), layers[0], rectifier, layers[1], rectifier, layers[2]
    )


NETWORKS = {"cnn": Network, "mlp": perceptron}  # of 63,466 and 1,863,690 parameters


def network(kind, seed):
    """The same on all nodes, drawn from the interval that gossipd's own uses."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = NETWORKS[kind]()
    for values in model.parameters():
        if values.dim() > 1:
            torch.nn.init.kaiming_uniform_(values, nonlinearity="relu")
        else:
            torch.nn.init.zeros_(values)
    return model


def read_bytes(folder):
    """All images, in bytes, and their labels."""

    def content(name, skip):
        with gzip.open(os.path.join(folder, f"train-{name}-ubyte.gz")) as file:
            return numpy.frombuffer(file.read(), numpy.uint8, offset=skip)

    images = content("images-idx3", 16).reshape(-1, 1, 28, 28)
    labels = content("labels-idx1", 8).astype(numpy.int64)
    return torch.from_numpy(images.copy()), torch.from_numpy(labels)


def flat(model):
    return torch.cat([values.detach().reshape(-1) for values in model.parameters()])


def unflatten(model, values):
    at = 0
    with torch.no_grad():
        for parameter in model.parameters():
            count = parameter.numel()
            parameter.copy_(values[at : at + count].view_as(parameter))
            at += count


def parse(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("way")
    parser.add_argument("--node", type=int, required=True, help="from 0")
    parser.add_argument("--first", required=True, help="address of node 0")
    parser.add_argument("--host", required=True, help="address of this node")
    parser.add_argument("--join", help="what a way's first node left for the others")
    parser.add_argument("--model", choices=NETWORKS, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--budget", type=int, required=True, help="samples of all nodes")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--step-ms", type=float, required=True, help="shortest duration of a step")
    parser.add_argument("--slow-ms", type=float, default=0, help="added to that")
    return parser.parse_args()


class Task:
    def __init__(self, given):
        self.given = given
        self.model = network(given.model, given.seed)
        self.images, self.labels = read_bytes(given.data)
        self.random = torch.Generator().manual_seed(given.seed)  # the same on all nodes
        self.order, self.steps, self.due = [], 0, 0.0
        self.snapshot_due = 0.0
        self.ledger = open("steps", "ab", buffering=0)

    def optimizer(self):
        return torch.optim.SGD(
            self.model.parameters(), self.given.rate, MOMENTUM, weight_decay=WEIGHT_DECAY
        )

    def next_batch(self):
        self.due = time.monotonic() + (self.given.step_ms + self.given.slow_ms) / 1000
        if len(self.order) < BATCH:  # the images are dealt anew for each pass, as gossipd does
            dealt = torch.randperm(len(self.labels), generator=self.random)
            self.order = dealt[self.given.node :: WORLD]
        chosen, self.order = self.order[:BATCH], self.order[BATCH:]
        return (self.images[chosen].float() / 255 - MEAN) / DEVIATION, self.labels[chosen]

    def rate(self):
        """As models/job/schedule.cpp has it: a warm-up, then a cosine that ends at 0."""
        done = self.steps * BATCH * WORLD
        if done < WARM_UP_SAMPLES:
            return self.given.rate * min(done + BATCH, WARM_UP_SAMPLES) / WARM_UP_SAMPLES
        share = min(1, (done - WARM_UP_SAMPLES) / (self.given.budget - WARM_UP_SAMPLES))
        return self.given.rate * (1 + math.cos(math.pi * share)) / 2

    def set_rate(self, optimizer):
        for group in optimizer.param_groups:
            group["lr"] = self.rate()

    def made_step(self, averaged=True):
        """`averaged`: now is when node 0's model is at its best for a snapshot."""
        self.steps += 1
        now = time.monotonic()
        self.ledger.write(struct.pack("<d", now))
        if averaged:
            self.take_snapshot()
        time.sleep(max(0, self.due - time.monotonic()))

    def take_snapshot(self):
        """Of node 0, for the process that measures; not too often."""
        now = time.monotonic()
        if self.given.node == 0 and now >= self.snapshot_due:
            self.snapshot_due = now + SNAPSHOT_S
            with open("model.part", "wb") as out:
                out.write(struct.pack("<d", now) + flat(self.model).numpy().tobytes())
            os.rename("model.part", "model")
