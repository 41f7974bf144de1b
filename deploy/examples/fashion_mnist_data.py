"""Reads Fashion-MNIST, as Debian's dataset-fashion-mnist has it."""

import gzip
import os

import numpy as np

MEAN, DEVIATION = 0.2860, 0.3530


def read(folder, which):
    """Images, float32 [n, 1, 28, 28], and labels, int64 [n]; `which` is "train" or "t10k"."""

    def content(name):
        with gzip.open(os.path.join(folder, f"{which}-{name}-ubyte.gz")) as file:
            return file.read()

    pixels = np.frombuffer(content("images-idx3"), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    labels = np.frombuffer(content("labels-idx1"), np.uint8, offset=8).astype(np.int64)
    return (pixels.astype(np.float32) / 255 - MEAN) / DEVIATION, labels
