#!/usr/bin/env python3
"""Rewrites tests/fuzz/corpus/TARGET: of all that campaigns found, keeps the few small inputs that
reach most of what the seeds miss.

    keep.py BUILD [TARGET ...]

BUILD as for campaign.sh. Takes inputs one by one, each time the one that adds the most edges (the
smallest of several), until FILES_MAX, BYTES_MAX or the end is reached. Files named regression-*
always stay.
"""

import os
import shutil
import subprocess
import sys
import tempfile

FILES_MAX = 30
BYTES_MAX = 60_000
HERE = os.path.dirname(os.path.abspath(__file__))


def edges_of_inputs(program, folders):
    """Path → edges that no input of the first folder takes, read from libFuzzer's merge file."""
    with tempfile.TemporaryDirectory() as scratch:
        control = os.path.join(scratch, "control")
        # Without counters a feature is an edge, no matter how many times it is taken.
        done = subprocess.run(
            [
                program,
                "-merge=1",
                "-set_cover_merge=1",
                "-use_counters=0",
                f"-merge_control_file={control}",
                *folders,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            sys.exit(f"keep: {program}: {done.stderr[-2000:]}")
        with open(control, encoding="utf-8") as file:
            lines = file.read().splitlines()
    count, of_first = int(lines[0]), int(lines[1])
    paths = lines[2 : 2 + count]
    features = {
        int(line.split()[1]): frozenset(line.split()[2:])
        for line in lines[2 + count :]
        if line.startswith("FT ")
    }
    seeds = frozenset().union(*(features.get(i, frozenset()) for i in range(of_first)))
    return {paths[i]: features.get(i, frozenset()) - seeds for i in range(of_first, count)}


def pick(edges):
    """The chosen paths, by a greedy cover, which is as good as it gets in reasonable time."""
    size = {path: os.path.getsize(path) for path in edges}
    picked, covered, left = [], frozenset(), BYTES_MAX
    while len(picked) < FILES_MAX:
        fitting = [path for path in edges if size[path] <= left]
        best = max(
            fitting, key=lambda path: (len(edges[path] - covered), -size[path], path), default=None
        )
        if best is None or not edges[best] - covered:
            break
        picked.append(best)
        covered |= edges[best]
        left -= size[best]
    return picked, len(covered), len(frozenset().union(*edges.values()))


def keep(build, target):
    corpus = os.path.join(HERE, "corpus", target)
    os.makedirs(corpus, exist_ok=True)
    with tempfile.TemporaryDirectory() as first:
        shutil.copytree(os.path.join(build, "tests/fuzz/seeds", target), first, dirs_exist_ok=True)
        edges = edges_of_inputs(
            os.path.join(build, "bin", f"fuzz_{target}"),
            [first, os.path.join(build, "tests/fuzz/found", target), corpus],
        )
        picked, covered, all_edges = pick(
            {
                path: e
                for path, e in edges.items()
                if not os.path.basename(path).startswith("regression-")
            }
        )
        kept = {os.path.basename(path): open(path, "rb").read() for path in picked}
    for name in os.listdir(corpus):
        if not name.startswith("regression-"):
            os.remove(os.path.join(corpus, name))
    for name, content in kept.items():
        with open(os.path.join(corpus, name), "wb") as file:
            file.write(content)
    print(
        f"{target}: {len(kept)} inputs, {sum(map(len, kept.values()))} bytes, {covered} of the"
        f" {all_edges} edges that the seeds leave out",
        flush=True,
    )


def main():
    if len(sys.argv) < 2 or not os.path.isdir(os.path.join(sys.argv[1], "tests/fuzz/seeds")):
        sys.exit(__doc__)
    build, targets = os.path.abspath(sys.argv[1]), sys.argv[2:]
    for target in targets or sorted(os.listdir(os.path.join(build, "tests/fuzz/found"))):
        keep(build, target)


if __name__ == "__main__":
    main()
