"""PyTorch: shares a module's trained parameters and its running statistics.

Needs torch 1.13 or later. One thread, the one that calls ``optimizer.step()``.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import time
import types
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

import torch

from .attachment import SETTLE_POLL_S, SETTLE_S, WAIT_S, Attachment, log
from .session import NotAttached, Session
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
        self._next_look = 1  # in a group: after which step
        self._settling = False  # in a group: the leader waits for the final model
        self._held = False  # in a group: by the daemon's last answer all processes are paused
        self._ahead = every == 1 and self._group is None  # looks are announced
        self._optimizer = optimizer
        self._remove_hook: Callable[[], None] = lambda: None
        model = TorchModel(module, optimizer)
        leads = self._group is None or self._group.leads
        self._has_begun = False
        with self._said_to_all():
            super().__init__(model, samples_per_step, path, connect=leads)
        self._torch_model = model
        self._loss_on_device: Optional[DeviceTraffic] = None
        self._known_loss = math.nan

    def start(self, wait_s: float = WAIT_S) -> "TorchAttachment":
        """Waits for the daemon, takes the cluster's model and hooks into the optimiser."""
        try:
            self._begin(wait_s)
        except NotAttached as refusal:
            self._close()
            words = self._torch_model.words_of_other_type(str(refusal))
            raise NotAttached(refusal.code, f"{refusal}{words}") from None
        except BaseException:
            self._close()
            raise
        self._has_begun = True
        if self._optimizer is not None:
            self._remove_hook = hook(self._optimizer, self._before_step, self._after_step)
        return self

    def step(self) -> None:
        """Call it after every step where there is no optimiser that gossipd could hook into."""
        if self._optimizer is not None:
            raise RuntimeError("the optimiser's steps are counted already; leave g.step() out")
        self._made_step()

    def _before_step(self, has_closure: bool = False) -> None:
        # A closure computes the loss inside of the step, and the daemon does not wait that long.
        if self._ahead and not has_closure:
            self._announce_look()

    def _after_step(self, optimizer: Any, arguments: Dict[str, Any]) -> None:
        # Of a step that is skipped the samples that log() was told count with the next, as where
        # the optimiser isn't called at all, of which we hear nothing.
        if not was_skipped(optimizer, arguments):
            self._made_step()
        elif self._session is not None and self._session.announced:
            self._look_until_free()

    def _look_once(self) -> bool:
        self._torch_model.warn_of_new()
        return super()._look_once()

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

    def _rank_and_size(self) -> Tuple[int, int]:
        return (0, 1) if self._group is None else (self._group.rank, self._group.size)

    def _is_time(self) -> bool:
        if self._every > 1:
            return self.steps % self._every == 0
        if self._group is not None:  # by count: its processes do not agree on the time
            return self.steps >= self._next_look
        return super()._is_time()

    def _look_until_free(self) -> None:
        if self._group is None:
            super()._look_until_free()
            return
        self.replaced = False
        began = time.perf_counter()
        made = self.steps - self._looked_at_steps
        step_s = (began - self._resumed_at) / max(1, made)
        self._next_look = self.steps + steps_between(self._look_interval_s, step_s, made)
        self._look_together()
        if self.steps:
            self._learn_cost(time.perf_counter() - began)
        while self._held:
            self._look_together()
        self._mark_look()

    def _look_together(self, settle_until: float = 0.0) -> None:
        """One look of the leader's, of which all hear."""
        assert self._group is not None
        with self._said_to_all():
            self._lead_look(settle_until)
        self._group.share(self, self._torch_model)

    def _lead_look(self, settle_until: float) -> None:
        assert self._group is not None
        if self._group.leads:
            self._torch_model.touched = False
            came = self._look_once()
            if self.refusal and not self._has_begun:
                raise self.refusal
            if came:
                more = (self._look_samples - self.samples) / self._samples_per_step
                self._next_look = int(min(self._next_look, self.steps + max(1, more + 0.5)))
            self._held = came and self.paused and not self.finished
            self._settling = self._awaits_final_model(settle_until)

    @contextlib.contextmanager
    def _said_to_all(self) -> Iterator[None]:
        """In a group: what ends the leader here must end those that wait for it."""
        try:
            yield
        except BaseException as error:
            if self._group is not None and self._group.leads:
                self._group.fail(error)
            raise

    def _wait_attached(self, session: Session, wait_s: float) -> None:
        with self._said_to_all():
            session.wait_attached(wait_s, self._group.wait if self._group else None)

    def detach(self, settle_s: float = SETTLE_S) -> None:
        """Ends; see `Attachment.detach`. In a group every process calls it while there is a group;
        with 0 each leaves by itself, and no update comes any more.
        """
        self._remove_hook()
        super().detach(settle_s)

    def _settle(self, settle_s: float) -> None:
        if self._group is None:
            super()._settle(settle_s)
        elif settle_s > 0 and self._group.is_there():
            end = time.monotonic() + settle_s
            self._look_together(end)
            while self._settling:
                time.sleep(SETTLE_POLL_S)
                self._look_together(end)
        elif self._session is not None and self._is_settled(self._session):
            self._session.announce(self._step_packet)  # an answer would reach this process only
            if settle_s > 0:
                log.warning(
                    "gossipd: the process group has ended before detach(), so this model is not the"
                    " cluster's final one: call detach() on all processes before"
                )


def steps_between(interval_s: float, step_s: float, before: int) -> int:
    """After how many steps to look again, where `before` were made since the last look: as many as
    fill `interval_s`, but at most twice as many as before, since one step may mislead.
    """
    wanted = math.ceil(interval_s / max(step_s, 1e-6))
    return max(1, min(wanted, 2 * before))


def was_given_closure(optimizer: Any, arguments: Tuple[Any, ...], keywords: Dict[str, Any]) -> bool:
    """Whether these arguments of step() hold a closure; torch's hooks get the optimiser first."""
    if arguments and arguments[0] is optimizer:
        arguments = arguments[1:]
    return (arguments[0] if arguments else keywords.get("closure")) is not None


def calls_parents_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step() may go through that of another class, by super(). A class that inherits
    step() has it too, wrapped, once torch has made an instance: that is the same one.
    """
    steps = [
        inspect.unwrap(vars(made)["step"])
        for made in type(optimizer).__mro__
        if made is not torch.optim.Optimizer and "step" in vars(made)
    ]
    return len(set(steps)) > 1


# What accelerate's wrapper, with a scaler, puts in place of its optimiser's step() at each step.
SWAPPED = ("_optimizer_original_step_method", "_optimizer_patched_step_method")


def hook(
    optimizer: torch.optim.Optimizer,
    before: Callable[[bool], None],
    after: Callable[[Any, Dict[str, Any]], None],
    wrappers: Tuple[Any, ...] = (),
) -> Callable[[], None]:
    """Calls `before(has a closure)` before and `after(optimizer, keyword arguments)` after every
    step, also where `wrappers` call it; returns what ends that.
    """
    inner = getattr(optimizer, "optimizer", None)  # of a wrapper such as accelerate's
    if isinstance(inner, torch.optim.Optimizer) and inner is not optimizer:
        return hook(inner, before, after, (*wrappers, optimizer))
    # From torch 2.0 on; but it calls them for each class whose step() is gone through.
    if hasattr(optimizer, "register_step_post_hook") and not calls_parents_step(optimizer):
        handles = [
            optimizer.register_step_pre_hook(
                lambda o, args, kwargs: before(was_given_closure(o, args, kwargs))
            ),
            optimizer.register_step_post_hook(lambda o, args, kwargs: after(o, kwargs)),
        ]

        def remove() -> None:
            for handle in handles:
                handle.remove()

        return remove
    active = True

    def watched(plain: Any) -> Any:
        @functools.wraps(plain)
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if active:
                before(was_given_closure(self, args, kwargs))
            result = plain(*args, **kwargs)
            if active:
                after(self, kwargs)
            return result

        # A bound method, since torch's schedulers look for __self__ and __func__.
        return types.MethodType(step, optimizer)

    optimizer.step = watched(optimizer.step)  # type: ignore[method-assign]
    for wrapper in wrappers:
        for name in SWAPPED:
            if hasattr(wrapper, name):
                setattr(wrapper, name, watched(getattr(wrapper, name)))

    def end() -> None:
        nonlocal active
        active = False

    return end
