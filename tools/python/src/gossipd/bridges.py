"""Shows a node's training in TensorBoard or Weights & Biases, from its ``/v1/history``.

    gossipd tensorboard runs/box1 [--rest 127.0.0.1:7611] [--once]
    gossipd wandb --project clothes [--rest ...] [--once]

Points are written once each, with the step that the node had; a daemon that restarts within 10
minutes goes on.
wandb decides by WANDB_MODE whether it sends anything; ``offline`` writes files only.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from .client import Client, NoDaemon, Refused

POLL_S = 2.0
SILENCE_S = 600.0  # of a daemon that may come back
ENDING = ("finishing", "finished")
# The fields of a point that are figures, and their names in the charts.
FIGURES = {
    "loss": "train/loss",
    "evaluation_loss": "evaluation/loss",
    "accuracy": "evaluation/accuracy",
    "top5_accuracy": "evaluation/top5_accuracy",
    "perplexity": "evaluation/perplexity",
    "consensus_distance": "cluster/consensus_distance",
    "cluster_samples": "cluster/samples",
    "bytes_sent": "cluster/bytes_sent",
}
Write = Callable[[int, Dict[str, float]], None]

log = logging.getLogger("gossipd")


class HistoryFeed:
    """Gives each point of a node's history once, in order.

    A daemon that restarts goes on with the history on its disk, which may lack the last points that
    were given. A history with another first point, such as that of the next job, is a new one.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._first: Optional[Tuple[float, int]] = None  # time_s and step
        self._given: Set[Tuple[float, int]] = set()

    def poll(self) -> List[Tuple[int, Dict[str, float]]]:
        """The new points as (step, {chart: figure}). Raises `NoDaemon` where nothing answers."""
        points = self._client.history()["points"]
        found = []
        for number, point in enumerate(points):
            when = (float(point["time_s"]), int(point["step"]))
            if number == 0 and when != self._first:
                self._first, self._given = when, set()
            if when in self._given:
                continue
            self._given.add(when)
            figures = {
                chart: float(point[field])
                for field, chart in FIGURES.items()
                if isinstance(point.get(field), (int, float))
            }
            found.append((when[1], figures))
        return found


def tensorboard_writer(folder: str) -> Tuple[Write, Callable[[], None]]:
    """Writes event files into `folder` by torch.utils.tensorboard. Returns write and close.

    Raises ImportError where torch or the package tensorboard is missing.
    """
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(folder)

    def write(step: int, figures: Dict[str, float]) -> None:
        for chart, value in figures.items():
            writer.add_scalar(chart, value, step)
        writer.flush()

    return write, writer.close


def wandb_writer(
    project: str, name: Optional[str] = None, folder: Optional[str] = None
) -> Tuple[Write, Callable[[], None]]:
    """Logs into a new run of `project`. Returns write and close.

    Raises ImportError without wandb, and ValueError where wandb begins no run.
    """
    import wandb

    try:
        run = wandb.init(project=project, name=name, dir=folder)
    except wandb.Error as error:
        raise ValueError(f"wandb: {error}") from error
    # A chart's axis is the node's step; wandb's own counter cannot go back after a restart.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")

    def write(step: int, figures: Dict[str, float]) -> None:
        run.log({"step": step, **figures})

    return write, run.finish


def follow(
    client: Client,
    write: Write,
    *,
    once: bool = False,
    poll_s: float = POLL_S,
    silence_s: float = SILENCE_S,
) -> int:
    """Copies the node's history by `write` until the job has finished, or the present points only
    if `once`. A daemon that is silent after it was finishing has ended with its job; any other is
    waited for, `silence_s` seconds at most, unless `once`. Returns the points written.

    Raises `NoDaemon` where it is silent for longer.
    """
    feed, written, phase = HistoryFeed(client), 0, ""
    silent_since: Optional[float] = None
    while True:
        try:
            phase = client.status()["phase"]  # before the last points
            for step, figures in feed.poll():
                write(step, figures)
                written += 1
            if once or phase == "finished":
                return written
            silent_since = None
        except NoDaemon as error:
            if phase in ENDING:
                return written
            if once or (silent_since and time.monotonic() - silent_since >= silence_s):
                raise
            if silent_since is None:
                silent_since = time.monotonic()
                log.warning("gossipd: %s; waiting for it, %g s at most", error, silence_s)
        time.sleep(poll_s)


def missing(kind: str, error: ImportError) -> str:
    """The package to install: `kind` brings along what it needs, but for torch."""
    return "torch" if (error.name or "").partition(".")[0] == "torch" else kind


def main(kind: str, argv: Sequence[str]) -> int:
    """``gossipd tensorboard`` and ``gossipd wandb``; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=f"gossipd {kind}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if kind == "tensorboard":
        parser.add_argument("folder", help="where TensorBoard looks for event files")
    else:
        parser.add_argument("--project", default="gossipd")
        parser.add_argument("--name", help="of the run (default: the node's)")
        parser.add_argument("--dir", help="where wandb keeps its files")
    parser.add_argument("--rest", metavar="[https://]HOST:PORT|unix:PATH")
    parser.add_argument("--ca-file", metavar="FILE")
    parser.add_argument("--token-file", metavar="FILE")
    parser.add_argument("--once", action="store_true", help="write what there is, then end")
    given = parser.parse_args(argv)
    try:
        client = Client(given.rest, ca_file=given.ca_file, token_file=given.token_file)
        if kind == "tensorboard":
            write, close = tensorboard_writer(given.folder)
        else:
            name = given.name or client.status()["name"]
            write, close = wandb_writer(given.project, name, given.dir)
        try:
            print(f"{follow(client, write, once=given.once)} points written")
        finally:
            close()
    except KeyboardInterrupt:
        return 0
    except ImportError as error:
        print(f"gossipd {kind}: {error}; pip install '{missing(kind, error)}'", file=sys.stderr)
        return 1
    except (NoDaemon, Refused, OSError, ValueError) as error:
        print(f"gossipd {kind}: {error}", file=sys.stderr)
        return 1
    return 0
