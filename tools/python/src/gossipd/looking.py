"""When a loop looks again, as far as its job says."""

from __future__ import annotations

import math

from . import wire

LOOK_PROGRESS = 100  # looks in a job's budget at least, however dear one is


def samples_between(go: wire.Go) -> float:
    """After how many more samples of this loop to look again, for the schedule's sake and the
    budget's end: the other trainers are taken to be as fast. Infinite where nothing is left of it.
    """
    left = go.budget_samples - go.cluster_samples
    if left <= 0:
        return math.inf
    return min(left, go.budget_samples / LOOK_PROGRESS) / go.trainers
