"""Traffic between a GPU and the memory that is shared with the daemon.

Copies run on a stream of their own beside the training's kernels, from and to pinned memory, and
the host waits for none of them. NOT RUN on a GPU yet: no machine with one was at hand.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

_cuda: Any = torch.cuda


class DeviceTraffic:
    """The copies of one GPU. The trainer's thread only; its current stream is the training's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = _cuda.Stream(device=device)
        self._staging: Dict[Tuple[int, int], torch.Tensor] = {}
        self._to_land: List[Tuple[torch.Tensor, torch.Tensor]] = []  # pinned, shared
        self.busy = False
        self._scalar: Optional[Tuple[torch.Tensor, Any]] = None

    def to_device(self, source: torch.Tensor) -> torch.Tensor:
        """The floats of `source` on the device, for kernels of the current stream. `source` is
        read before this returns, into pinned memory that no later copy overwrites too early.
        """
        pinned = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        pinned.copy_(source)
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            values = pinned.to(self._device, non_blocking=True)
        current.wait_stream(self._stream)
        # torch's pinned allocator keeps `pinned` until the copy's stream is through with it.
        values.record_stream(current)
        return values

    def to_host(self, tensor: torch.Tensor, target: torch.Tensor) -> None:
        """Begins to copy `tensor`, as it is in the current stream now, to `target`. It is there
        when what `mark` returns says so.
        """
        key = (target.data_ptr(), target.numel())
        frozen = tensor.detach().to(torch.float32, copy=True).reshape(-1)  # steps go on meanwhile
        if key not in self._staging:
            self._staging[key] = torch.empty(target.shape, dtype=target.dtype, pin_memory=True)
        pinned = self._staging[key]
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            pinned.copy_(frozen, non_blocking=True)
        frozen.record_stream(self._stream)
        self._to_land.append((pinned, target))
        self.busy = True

    def mark(self) -> Callable[[], bool]:
        """What is true once all that was begun is in the shared memory."""
        event: Any = _cuda.Event()
        event.record(self._stream)
        landing, self._to_land = self._to_land, []
        self.busy = False

        def is_done() -> bool:
            if not event.query():
                return False
            while landing:
                pinned, target = landing.pop()
                target.copy_(pinned)
            return True

        return is_done

    def scalar(self, value: torch.Tensor, known: float) -> float:
        """The newest scalar that has arrived on the host, else `known`; begins to fetch `value`."""
        if self._scalar is not None:
            pinned, event = self._scalar
            if not event.query():
                return known
            known = float(pinned)
        pinned = torch.empty((), dtype=torch.float32, pin_memory=True)
        frozen = value.detach().float().reshape(())  # may be a kernel, which the copy waits for
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            pinned.copy_(frozen, non_blocking=True)
            event = _cuda.Event()
            event.record(self._stream)
        frozen.record_stream(self._stream)
        self._scalar = (pinned, event)
        return known if math.isfinite(known) else math.nan
