"""Several processes on this box that train one model together, as DistributedDataParallel does.

The process of rank 0 is attached; after every look it tells the others what the daemon said and,
where the model has changed, sends them the tensors, so that all stay equal bit for bit.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, List, Optional

import torch
import torch.distributed as dist

from .session import NotAttached

if TYPE_CHECKING:
    from .torch_attachment import TorchAttachment
    from .torch_model import TorchModel

WORDS = (
    "paused",
    "finished",
    "settled",
    "replaced",
    "progress",
    "rate_factor",
    "cluster_samples",
    "budget_samples",
    "place",
    "trainers",
    "members",
    "_next_look",
    "_settling",
    "_held",
)
WAITS, GOES_ON, FAILED = 0.0, 1.0, 2.0  # the leader
FAILURE_BYTES = 512
FLAGS = frozenset(("paused", "finished", "settled", "replaced", "_settling", "_held"))
NUMBERS = frozenset(("progress", "rate_factor"))


def group_of(module: torch.nn.Module) -> Optional["Group"]:
    """The processes that train `module` together; None where this one trains alone."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    device = torch.device("cpu")
    if dist.get_backend() == "nccl":
        device = next(module.parameters()).device
    return Group(device)


class Group:
    """The default process group; all of its processes call `share` after the same steps."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    @property
    def leads(self) -> bool:
        """Whether this process is the one that is attached."""
        return self.rank == 0

    def is_there(self) -> bool:
        """Whether its processes can still reach each other."""
        return dist.is_initialized()

    def wait(self) -> None:
        """The leader's word to those who are in `share` that it has to wait first: no collective
        may take so long that it is given up.
        """
        self._say([WAITS] + [0.0] * (len(WORDS) + 1))

    def fail(self, error: BaseException) -> None:
        """The leader's word to those who are in `share` that it cannot come; they raise that."""
        code = getattr(error, "code", "")
        text = f"{code}\n{type(error).__name__}: {error}".encode()[:FAILURE_BYTES]
        with contextlib.suppress(Exception):  # the others may have gone first
            self._say([FAILED] + [0.0] * (len(WORDS) + 1))
            self._broadcast(torch.tensor(list(text.ljust(FAILURE_BYTES)), dtype=torch.uint8))

    def _failure(self) -> Exception:
        said = self._broadcast(torch.zeros(FAILURE_BYTES, dtype=torch.uint8))
        code, _, text = bytes(said.tolist()).decode(errors="ignore").strip(" ").partition("\n")
        words = f"rank 0, which is attached for all processes of this box, has failed: {text}"
        return NotAttached(code, words) if code else RuntimeError(f"gossipd: {words}")

    def _broadcast(self, said: torch.Tensor) -> torch.Tensor:
        said = said.to(self._device)
        dist.broadcast(said, 0)
        return said

    def _say(self, numbers: List[float]) -> List[float]:
        return self._broadcast(torch.tensor(numbers, dtype=torch.float64)).tolist()  # type: ignore

    def share(self, attachment: "TorchAttachment", model: "TorchModel") -> None:
        """Gives the leader's words, and its model if it was touched, to all."""
        words = [float(getattr(attachment, word)) for word in WORDS] + [float(model.touched)]
        state, *values, touched = self._say([GOES_ON, *words])
        while state == WAITS:
            state, *values, touched = self._say([GOES_ON, *words])
        if state == FAILED:
            raise self._failure()
        if not self.leads:
            for word, value in zip(WORDS, values):
                kind = bool if word in FLAGS else float if word in NUMBERS else int
                setattr(attachment, word, kind(value))
        if not touched:
            return
        for place in model.places():
            dist.broadcast(place.tensor.detach(), 0)
        if not self.leads and attachment.replaced:
            model.forget_moments()
