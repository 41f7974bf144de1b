#!/usr/bin/env python3
"""Takes the dashboard's picture for README.md: three daemons train Fashion-MNIST, seen from one.

    GOSSIPD_BIN_DIR=build/release/bin tests/e2e/dashboard_picture.py FILE.png
    ... FILE.png --width 390 --height 844 --dark --scale 2   # on a phone, at night
"""

import argparse

from browser import Browser
from cluster import with_cluster


def take(cluster, options):
    # Named as the example; short, so that the learning rate has begun to fall.
    job = cluster.job(
        file="fashion-mnist.toml",
        name="fashion-mnist",
        budget_samples=300_000,
        evaluate_every_samples=15_000,
    )
    first = cluster.three(job, trainer__min_step_ms=20)[0]
    browser = Browser()
    try:
        browser.look(options.width, options.height, options.dark, options.scale)
        browser.open(f"http://{first.rest}/")
        browser.wait(
            f"{options.progress:.0%} of the job",
            "document.querySelector('#bar').value >= arguments[0]",
            options.progress,
        )
        browser.screenshot(options.file)
    finally:
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("file")
    parser.add_argument("--width", type=int, default=1240)
    parser.add_argument("--height", type=int, default=1120)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--progress", type=float, default=0.6)
    parser.add_argument("--dark", action="store_true")
    with_cluster("picture", take, parser.parse_args())
