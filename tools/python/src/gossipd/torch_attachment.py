"""PyTorch: shares a module's trained parameters and its running statistics.

Needs torch 1.13 or later. One thread, the one that calls ``optimizer.step()``.
"""

from __future__ import annotations

import functools
import math
import types
from typing import Any, Callable, Dict, Optional

import torch

from .attachment import WAIT_S, Attachment
from .torch_device import DeviceTraffic
from .torch_group import Group, group_of
from .torch_model import TorchModel


def was_skipped(optimizer: Any, arguments: Dict[str, Any]) -> bool:
    """Whether a GradScaler found infinities and a fused optimiser made no step inside of step().

    Other optimisers are not called at all then.
    """
    found = getattr(optimizer, "found_inf", None)  # from torch 2.0 on
    scaler = arguments.get("grad_scaler")  # before
    if found is None and scaler is not None:
        found = sum(v.item() for v in scaler._found_inf_per_device(optimizer).values())
    return found is not None and bool(found)


class TorchAttachment(Attachment):
    """`Attachment` for PyTorch; see `gossipd.attach`."""

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: Optional[torch.optim.Optimizer],
        samples_per_step: int,
        path: Optional[str],
        every: int,
    ) -> None:
        self._group: Optional[Group] = group_of(module)
        self._every = every
        self._ahead = every == 1 and self._group is None  # looks are announced
        self._optimizer = optimizer
        self._remove_hook: Callable[[], None] = lambda: None
        model = TorchModel(module, optimizer)
        leads = self._group is None or self._group.leads
        super().__init__(model, samples_per_step, path, connect=leads)
        self._torch_model = model
        self._loss_on_device: Optional[DeviceTraffic] = None
        self._known_loss = math.nan

    def start(self, wait_s: float = WAIT_S) -> "TorchAttachment":
        """Waits for the daemon, takes the cluster's model and hooks into the optimiser."""
        try:
            self._begin(wait_s)
        except BaseException:
            self._close()
            raise
        if self._optimizer is not None:
            self._remove_hook = hook(self._optimizer, self._before_step, self._after_step)
        return self

    def step(self) -> None:
        """Call it after every step where there is no optimiser that gossipd could hook into."""
        if self._optimizer is not None:
            raise RuntimeError("the optimiser's steps are counted already; leave g.step() out")
        self._made_step()

    def _before_step(self) -> None:
        if self._ahead:
            self._announce_look()

    def _after_step(self, optimizer: Any, arguments: Dict[str, Any]) -> None:
        if was_skipped(optimizer, arguments):
            self._pending_samples = 0
            if self._session is not None and self._session.announced:
                self._look_until_free()
        else:
            self._made_step()

    def _learning_rate(self) -> float:
        if self._rate or self._optimizer is None:
            return self._rate
        return float(self._optimizer.param_groups[0]["lr"])

    # ---- the loss, without waiting for a device ----

    def _kept(self, loss: Any) -> Any:
        if not isinstance(loss, torch.Tensor):
            return super()._kept(loss)
        if loss.numel() != 1:
            raise TypeError(f"loss is a tensor of shape {tuple(loss.shape)}; give its mean")
        return loss.detach()

    def _loss_number(self) -> float:
        loss = self._loss
        if not isinstance(loss, torch.Tensor) or loss.device.type == "cpu":
            return super()._loss_number()
        if self._loss_on_device is None:
            self._loss_on_device = DeviceTraffic(loss.device)
        self._known_loss = self._loss_on_device.scalar(loss, self._known_loss)
        return self._known_loss

    # ---- several processes on this box ----

    def _is_time(self) -> bool:
        # By count and not by time, which the processes of a group do not agree on.
        if self._every > 1 or self._group is not None:
            return self.steps % self._every == 0
        return super()._is_time()

    def _look_until_free(self) -> None:
        if self._group is None:
            super()._look_until_free()
            return
        self.replaced = False
        while True:
            if self._group.leads:
                self._torch_model.touched = False
                self._look_once()
            self._group.share(self, self._torch_model)
            if not self.paused or self.finished:
                break
        self._mark_look()

    def detach(self, settle_s: float = 60.0) -> None:
        """Ends; see `Attachment.detach`. In a group every process calls it."""
        self._remove_hook()
        super().detach(settle_s)


def hook(
    optimizer: torch.optim.Optimizer,
    before: Callable[[], None],
    after: Callable[[Any, Dict[str, Any]], None],
) -> Callable[[], None]:
    """Calls `before()` before and `after(optimizer, keyword arguments)` after every step; returns
    what ends that.
    """
    inner = getattr(optimizer, "optimizer", None)  # of a wrapper such as accelerate's
    if isinstance(inner, torch.optim.Optimizer) and inner is not optimizer:
        return hook(inner, before, after)
    if hasattr(optimizer, "register_step_post_hook"):  # from torch 2.0 on
        handles = [
            optimizer.register_step_pre_hook(lambda o, args, kwargs: before()),
            optimizer.register_step_post_hook(lambda o, args, kwargs: after(o, kwargs)),
        ]

        def remove() -> None:
            for handle in handles:
                handle.remove()

        return remove
    plain: Any = optimizer.step
    active = True

    @functools.wraps(plain)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if active:
            before()
        result = plain(*args, **kwargs)
        if active:
            after(self, kwargs)
        return result

    # A bound method, since torch's schedulers look for __self__ and __func__.
    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]

    def end() -> None:
        nonlocal active
        active = False

    return end
