#!/usr/bin/env python3
"""tools/lab/evidence/made_data.py - data sets of the tables, made from what every Debian 12 has.

    made_data.py text|cifar DIR

text   Debian's Python library, its files in the order of their names, as two streams of bytes:
       train.txt (about 10 MB) and test.txt (100 kB of every 20th file). Which files there are
       depends on the Python packages installed, so compare the set's SHA-256
cifar  Fashion-MNIST in CIFAR-10's binary format: 28 x 28 grey pixels in a frame of zeros, three
       times; data_batch_1.bin ... data_batch_5.bin (12,000 images each) and test_batch.bin

A set that is there already is not made again. Prints its directory and its SHA-256.
"""

import gzip
import hashlib
import sys
from pathlib import Path

PYTHON_LIBRARY = Path("/usr/lib/python3.11")
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
TEST_BYTES = 100_000
SIDE, FRAME = 28, 2


def text_files():
    files = sorted(p for p in PYTHON_LIBRARY.rglob("*.py") if not p.is_symlink())
    if not files:
        sys.exit(f"made_data: no Python file in {PYTHON_LIBRARY}; install libpython3.11-stdlib")
    train = b"".join(p.read_bytes() for i, p in enumerate(files) if i % 20)
    test = b"".join(p.read_bytes() for i, p in enumerate(files) if i % 20 == 0)
    return {"train.txt": train, "test.txt": test[:TEST_BYTES]}


def idx_bytes(name, header):
    path = FASHION_MNIST / f"{name}.gz"
    if not path.exists():
        sys.exit(f"made_data: {path} is missing; install dataset-fashion-mnist")
    return gzip.decompress(path.read_bytes())[header:]


def cifar_records(images, labels):
    edge = bytes(FRAME)
    above = bytes(FRAME * (SIDE + 2 * FRAME))
    records = []
    for n, label in enumerate(labels):
        image = images[n * SIDE * SIDE : (n + 1) * SIDE * SIDE]
        rows = (edge + image[r * SIDE : (r + 1) * SIDE] + edge for r in range(SIDE))
        plane = above + b"".join(rows) + above
        records.append(bytes([label]) + 3 * plane)
    return records


def cifar_files():
    train = cifar_records(
        idx_bytes("train-images-idx3-ubyte", 16), idx_bytes("train-labels-idx1-ubyte", 8)
    )
    test = cifar_records(
        idx_bytes("t10k-images-idx3-ubyte", 16), idx_bytes("t10k-labels-idx1-ubyte", 8)
    )
    part = len(train) // 5
    files = {
        f"data_batch_{i + 1}.bin": b"".join(train[i * part : (i + 1) * part]) for i in range(5)
    }
    return files | {"test_batch.bin": b"".join(test)}


SETS = {"text": text_files, "cifar": cifar_files}


def make(name, directory):
    """The directory with the data set `name`, made below `directory` if it is not there."""
    made = Path(directory) / name
    if not (made / "complete").exists():
        made.mkdir(parents=True, exist_ok=True)
        for file, content in SETS[name]().items():
            (made / file).write_bytes(content)
        (made / "complete").touch()
    return made


def digest(made):
    """SHA-256 of the set's files, one after the other in the order of their names."""
    found = hashlib.sha256()
    for file in sorted(path for path in made.iterdir() if path.name != "complete"):
        found.update(file.read_bytes())
    return found.hexdigest()


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in SETS:
        sys.exit(__doc__.strip())
    made = make(sys.argv[1], sys.argv[2])
    print(made, digest(made))


if __name__ == "__main__":
    main()
