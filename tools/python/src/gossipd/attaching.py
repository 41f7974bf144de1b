"""`gossipd.attach`: picks what fits the model that it is given."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Optional, Union, overload

from .attachment import WAIT_S
from .words import whole

if TYPE_CHECKING:
    import torch

    from .array_attachment import ArrayAttachment
    from .torch_attachment import TorchAttachment


@overload
def attach(
    model: "torch.nn.Module",
    optimizer: Optional["torch.optim.Optimizer"] = ...,
    *,
    samples_per_step: int,
    socket: Optional[str] = ...,
    every: int = ...,
    wait_s: float = ...,
) -> "TorchAttachment": ...


@overload
def attach(
    model: Any,
    optimizer: None = ...,
    *,
    samples_per_step: int,
    socket: Optional[str] = ...,
    every: int = ...,
    wait_s: float = ...,
) -> "ArrayAttachment": ...


def attach(
    model: Any,
    optimizer: Any = None,
    *,
    samples_per_step: int,
    socket: Optional[str] = None,
    every: int = 1,
    wait_s: float = WAIT_S,
) -> Union["TorchAttachment", "ArrayAttachment"]:
    """Attaches a training loop to the gossipd of this box and takes the cluster's model.

    With a PyTorch module and its optimiser every ``optimizer.step()`` counts by itself; without an
    optimiser call ``g.step()`` after each. With a tree of NumPy or JAX arrays begin with
    ``g.params`` and call ``params = g.step(params, loss=..., samples=...)`` after each step.

    Shared are the parameters that require a gradient and the running statistics (saved float32
    buffers); all nodes must have the same ones. Gradient accumulation and GradScaler need nothing:
    a step is one that the optimiser has made. Under DistributedDataParallel all processes call
    this and `detach`, and rank 0 is attached.

    Args:
        model: a ``torch.nn.Module``, or a tree (dict, list, tuple, any JAX pytree) of arrays.
        optimizer: the PyTorch optimiser that trains the module.
        samples_per_step: samples of one step on this box, all micro-batches and processes
            together; 1 ... 2^20. `Attachment.log` can tell the true number of each step.
        socket: the daemon's; by default GOSSIPD_SOCKET, as ``gossipd run`` sets it, else
            trainer.sock in the daemon's default state directory.
        every: look for the cluster's updates after so many steps; 1: as often as costs little.
        wait_s: seconds to wait for the daemon's first word. Where it says that it waits itself,
            as for a cluster to join, this waits with it, and as long again if it goes meanwhile.

    Returns:
        The attachment, with the cluster's model in place. If the daemon dies later, the loop goes
        on alone and is attached again when it is back.

    Raises:
        NotAttached: no daemon answers, or it refuses this model; the text has the way out.
        ValueError, TypeError: the model cannot be shared, as with bfloat16 parameters, or an
            argument is not what it should be; or the cluster would begin with this model, which
            holds NaN or infinity.
    """
    samples_per_step = whole("samples_per_step", samples_per_step)
    if whole("every", every) < 1:
        raise ValueError(f"every is {every}; give 1 or more steps")
    torch = sys.modules.get("torch")
    if hasattr(model, "param_groups"):
        raise TypeError(
            f"model is {type(model).__name__}, an optimiser: write attach(model, optimizer, ...)"
        )
    if torch is not None and isinstance(model, torch.nn.Module):
        from .torch_attachment import TorchAttachment

        _check_optimizer(optimizer)
        return TorchAttachment(model, optimizer, samples_per_step, socket, every).start(wait_s)
    if optimizer is not None:
        raise TypeError(f"a model of {type(model).__name__} has no PyTorch optimiser")
    from .array_attachment import ArrayAttachment

    return ArrayAttachment(model, samples_per_step, socket, every).start(wait_s)


def _check_optimizer(optimizer: Any) -> None:
    # A wrapper such as accelerate's has the groups of what is in it; a scheduler has none.
    if optimizer is None or hasattr(optimizer, "param_groups"):
        return
    inner = hasattr(getattr(optimizer, "optimizer", None), "param_groups")
    raise TypeError(
        f"optimizer is {type(optimizer).__name__}; pass the torch.optim.Optimizer that trains the"
        f" module{', which is its .optimizer' if inner else ''}, or none and call g.step() after"
        " each step"
    )
