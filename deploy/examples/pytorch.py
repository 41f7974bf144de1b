#!/usr/bin/env python3
"""A plain PyTorch loop; the lines marked with + are what gossipd needs.

gossipd run --job fashion_mnist.toml -- python pytorch.py         founds a cluster
gossipd run --join gossip1... -- python pytorch.py                on every other box
python pytorch.py --alone                                         the same loop without gossipd
"""

import argparse
import json
import math

import torch
from fashion_mnist_data import read
from torch.nn import functional

import gossipd  # +


class Network(torch.nn.Module):
    """Two convolutions and two layers: 63,466 parameters, with `width` 16."""

    def __init__(self, width=16):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, width, 5)
        self.conv2 = torch.nn.Conv2d(width, 2 * width, 5)
        self.linear1 = torch.nn.Linear(2 * width * 16, 6 * width)
        self.linear2 = torch.nn.Linear(6 * width, 10)

    def forward(self, images):  # [batch, 1, 28, 28] → [batch, 10]
        x = torch.relu(functional.max_pool2d(self.conv1(images), 2))
        x = torch.relu(functional.max_pool2d(self.conv2(x), 2))
        return self.linear2(torch.relu(self.linear1(x.flatten(1))))


def accuracy_of(model, images, labels):
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(part).argmax(1) for part in images.split(500)])
    model.train()
    return (found == labels).float().mean().item()


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="ten epochs without gossipd")
    return parser.parse_args()


def main():
    given = parse()
    torch.manual_seed(given.seed)
    torch.set_num_threads(1)
    images, labels = map(torch.from_numpy, read(given.data, "train"))
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), given.learning_rate, weight_decay=0.01)
    g = None
    sampler = torch.utils.data.RandomSampler(labels)
    if not given.alone:
        g = gossipd.attach(model, optimizer, samples_per_step=32)  # +
        sampler = g.sampler(len(labels), seed=given.seed)  # +
    data = torch.utils.data.TensorDataset(images, labels)
    batches = torch.utils.data.BatchSampler(sampler, 32, drop_last=False)
    loader = torch.utils.data.DataLoader(data, sampler=batches, batch_size=None)
    passes = 0
    while not (g.finished if g else passes == 10):  # +
        for x, y in loader:
            if g:
                optimizer.param_groups[0]["lr"] = given.learning_rate * g.rate_factor  # +
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if g:
                g.log(loss=loss, samples=len(y))  # +
                if g.finished:  # +
                    break  # +
        passes += 1
        if g is None:
            share = (1 + math.cos(math.pi * passes / 10)) / 2
            optimizer.param_groups[0]["lr"] = given.learning_rate * share
    if g:
        g.detach()  # + waits for the cluster's final model
    accuracy = accuracy_of(model, *map(torch.from_numpy, read(given.data, "t10k")))
    steps = g.steps if g else passes * len(batches)
    print(json.dumps({"accuracy": round(accuracy, 4), "steps": steps}))


if __name__ == "__main__":
    main()
