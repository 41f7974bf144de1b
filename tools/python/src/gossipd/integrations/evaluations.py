"""Publishes what a library has evaluated, without ending its training by a figure that is none."""

from __future__ import annotations

import logging
import math
from typing import Any, Optional

from ..attachment import Attachment

log = logging.getLogger("gossipd")


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def publish(
    attachment: Attachment, loss: Any, accuracy: Any, samples: int = 0, seconds: float = 0.0
) -> None:
    """See `Attachment.report`. A loss that is not finite is published nowhere, and an accuracy
    outside of 0 ... 1, as one in per cent, is left out; the log says so.
    """
    mean, share = _number(loss), None if accuracy is None else _number(accuracy)
    if not math.isfinite(mean):
        log.warning("gossipd: an evaluation with loss %s is not published", loss)
        return
    if share is not None and not 0 <= share <= 1:
        log.warning("gossipd: accuracy %s is not published; log it as a share, 0 ... 1", accuracy)
        share = None
    attachment.report(loss=mean, accuracy=share, samples=samples, seconds=seconds)
