#!/usr/bin/env python3
"""A loop in NumPy alone: softmax regression with one hidden layer and SGD, gradients by hand.

gossipd run --job fashion_mnist.toml -- python numpy_loop.py
gossipd run --join gossip1... -- python numpy_loop.py
"""

import argparse
import json

import numpy as np
from fashion_mnist_data import read

import gossipd

RATE, BATCH, HIDDEN = 0.05, 32, 64


def initial(generator):
    """The first model: weights [inputs, outputs] and biases [outputs]."""

    def layer(inputs, outputs):
        weight = generator.normal(0, (2 / inputs) ** 0.5, (inputs, outputs)).astype(np.float32)
        return {"weight": weight, "bias": np.zeros(outputs, np.float32)}

    return [layer(784, HIDDEN), layer(HIDDEN, 10)]


def forward(params, x):
    hidden = np.maximum(x @ params[0]["weight"] + params[0]["bias"], 0)
    return hidden, hidden @ params[1]["weight"] + params[1]["bias"]


def step(params, x, y):
    """One step of SGD in place; returns the mean loss before it."""
    hidden, scores = forward(params, x)
    scores -= scores.max(1, keepdims=True)
    shares = np.exp(scores)
    shares /= shares.sum(1, keepdims=True)
    rows = np.arange(len(y))
    loss = -np.log(shares[rows, y] + 1e-9).mean()
    shares[rows, y] -= 1
    shares /= len(y)
    back = (shares @ params[1]["weight"].T) * (hidden > 0)
    for layer, inputs, gradient in ((params[1], hidden, shares), (params[0], x, back)):
        layer["weight"] -= RATE * (inputs.T @ gradient)
        layer["bias"] -= RATE * gradient.sum(0)
    return loss


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    images, labels = read(given.data, "train")
    images = images.reshape(len(labels), -1)
    g = gossipd.attach(initial(np.random.default_rng(given.seed)), samples_per_step=BATCH)
    params = g.params
    sampler = g.sampler(len(labels))
    with g:
        while not g.finished:
            drawn = []
            for index in sampler:
                drawn.append(index)
                if len(drawn) < BATCH:
                    continue
                loss = step(params, images[drawn], labels[drawn])
                params = g.step(params, loss=loss, samples=len(drawn), learning_rate=RATE)
                drawn = []
                if g.finished:
                    break
    params = g.params  # the cluster's final model
    images, labels = read(given.data, "t10k")
    _, scores = forward(params, images.reshape(len(labels), -1))
    accuracy = float((scores.argmax(1) == labels).mean())
    print(json.dumps({"accuracy": round(accuracy, 4), "steps": g.steps}))


if __name__ == "__main__":
    main()
