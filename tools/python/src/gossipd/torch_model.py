"""The tensors of a PyTorch module that are shared, as one flat model."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from . import wire
from .attachment import Finished, Model, log
from .torch_device import DeviceTraffic

WAY_OUT_OF_HALF = (
    "keep float32 parameters and compute in half precision by torch.autocast, or train only float32"
    " adapters (LoRA) beside frozen half-precision weights"
)
WHOLE_TYPES = (torch.float32, torch.float64)
Put = Callable[[torch.Tensor, torch.Tensor], Any]


class Place(NamedTuple):
    """One shared tensor and where it lies in the flat model."""

    first: int
    floats: int
    tensor: torch.Tensor


def _plain_name(name: str) -> str:
    """Without what wrappers put into it, so that a compiled module and a plain one agree."""
    return name.replace("_orig_mod.", "")


def _unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Without DistributedDataParallel, DataParallel and torch.compile, in whatever order."""
    wrappers = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    while True:
        compiled = getattr(module, "_orig_mod", None)
        if isinstance(module, wrappers):
            module = module.module
        elif isinstance(compiled, torch.nn.Module):
            module = compiled
        else:
            return module


def _check_parameter(name: str, parameter: torch.Tensor) -> None:
    if type(parameter).__name__ in ("DTensor", "FlatParameter") or hasattr(parameter, "_is_flat"):
        raise ValueError(
            f"parameter '{name}' is split over processes (FSDP or DTensor), and gossipd shares"
            " whole models: use DistributedDataParallel inside the box"
        )
    if parameter.dtype in (torch.float16, torch.bfloat16):
        raise ValueError(
            f"parameter '{name}' is of {parameter.dtype}, in which small updates of neighbours"
            f" would be rounded away: {WAY_OUT_OF_HALF}"
        )
    if parameter.dtype not in WHOLE_TYPES:
        raise ValueError(f"parameter '{name}' is of {parameter.dtype}; call .float() before")
    if parameter.is_meta or parameter.layout != torch.strided:
        raise ValueError(f"parameter '{name}' has no plain memory; materialise it before attach")


def _check_plain(module: torch.nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise ValueError(
                f"{repr(name) if name else 'the module'} is TorchScript, whose tensors gossipd"
                " cannot follow: attach the module that was scripted or traced, or let the daemon"
                ' train the file (kind = "torchscript")'
            )


def shared_tensors(module: torch.nn.Module) -> List[Tuple[str, int, torch.Tensor]]:
    """Name, kind and tensor of all that is shared: parameters that are trained, then the buffers of
    float32 that are saved with the module and finite, which are running statistics.

    Raises ValueError with the way out for a parameter that cannot be shared.
    """
    module = _unwrapped(module)
    _check_plain(module)
    found: List[Tuple[str, int, torch.Tensor]] = []
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad or parameter.numel() == 0:
            continue
        _check_parameter(name, parameter)
        found.append((_plain_name(name), wire.PARAMETER, parameter))
    if not found:
        empty = any(parameter.requires_grad for parameter in module.parameters())
        raise ValueError(
            "the module's parameters have no elements, so nothing is trained"
            if empty
            else "the module has no parameter with requires_grad, so nothing is trained"
        )
    saved = module.state_dict().keys()
    for name, buffer in module.named_buffers():
        if name not in saved or buffer.dtype != torch.float32 or buffer.numel() == 0:
            continue
        if bool(torch.isfinite(buffer).all()):  # a mask of -inf is no statistic
            found.append((_plain_name(name), wire.STATISTIC, buffer))
    return found


class TorchModel(Model):
    """See `Model`. Looks the tensors up anew each time, since a module may replace them."""

    def __init__(self, module: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer]) -> None:
        self._module = _unwrapped(module)
        self._optimizer = optimizer
        shared = shared_tensors(module)
        self.segments = [wire.Segment(n, tuple(t.shape), kind) for n, kind, t in shared]
        self._floats = [segment.floats for segment in self.segments]
        self._adds = [_add_of(segment) for segment in self.segments]
        self._owners = self._find_owners()
        # Of the update and the two snapshots.
        self._views: List[Tuple[Any, List[torch.Tensor]]] = []
        self._check_optimizer(shared)
        self._trained_at_attach = self._trained()
        self._traffic: Dict[torch.device, DeviceTraffic] = {}
        self.touched = False  # since the group's leader last said so

    def _check_optimizer(self, shared: List[Tuple[str, int, torch.Tensor]]) -> None:
        if self._optimizer is None:
            return
        optimizer: Any = getattr(self._optimizer, "optimizer", self._optimizer)
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not any(id(tensor) in held for _, _, tensor in shared):
            raise ValueError(
                "the optimiser holds none of the module's parameters: pass the optimiser that"
                " trains this module"
            )

    def _trained(self) -> int:
        """How many tensors are trained, as far as is known."""
        if self._optimizer is None:
            return sum(parameter.requires_grad for parameter in self._module.parameters())
        optimizer: Any = getattr(self._optimizer, "optimizer", self._optimizer)
        return sum(len(group["params"]) for group in optimizer.param_groups)

    def warn_of_new(self) -> None:
        """Says once, where tensors are trained that came after attach."""
        more = self._trained() - self._trained_at_attach
        if more > 0:
            self._trained_at_attach += more
            log.warning(
                "gossipd: %d more parameters are trained than at attach, and not shared: detach()"
                " and attach anew after changing a module",
                more,
            )

    def words_of_other_type(self, refusal: str) -> str:
        """More about a buffer that the daemon misses by name, though the module has it."""
        for name, buffer in self._module.named_buffers():
            plain = _plain_name(name)
            if f"'{plain}'" in refusal and buffer.dtype != torch.float32:
                return (
                    f"; the module has '{plain}' as {buffer.dtype}, and buffers are shared as"
                    " float32 only: call .float() on the module before attach"
                )
        return ""

    def _find_owners(self) -> List[Tuple[Dict[str, Any], str]]:
        """Where each shared tensor stands: in which module's dictionary, under which name."""
        found: Dict[str, Tuple[Dict[str, Any], str]] = {}
        for prefix, module in self._module.named_modules():
            for held in (module._parameters, module._buffers):
                for name in held:
                    whole = _plain_name(f"{prefix}.{name}" if prefix else name)
                    found.setdefault(whole, (held, name))
        return [found[segment.name] for segment in self.segments]

    def places(self) -> List[Place]:
        """The tensors as they are now, since a module may have replaced some since attach; those
        that are trained record what is done to them, outside of no_grad.
        """
        found, first = [], 0
        for segment, floats, (held, name) in zip(self.segments, self._floats, self._owners):
            tensor = held.get(name)
            if tensor is None or tensor.shape != segment.shape:
                raise RuntimeError(
                    f"'{segment.name}' is gone or has another shape than at attach: attach anew"
                    " after changing a module"
                )
            found.append(Place(first, floats, tensor))
            first += floats
        return found

    @torch.no_grad()
    def apply(self, update: Any, ranges: List[Tuple[int, int]], replace: bool) -> None:
        """See `Model.apply`. Touches only what the ranges name."""
        self.touched = True
        places, views = self.places(), self._views_of(update)
        for index, begin, end in _overlaps(places, ranges):
            tensor, source = places[index].tensor, views[index]
            is_whole = begin == 0 and end == places[index].floats
            if not is_whole:
                source = source.view(-1)[begin:end]
            if tensor.device.type != "cpu":
                source = self._traffic_of(tensor.device).to_device(source)
            put = torch.Tensor.copy_ if replace else self._adds[index]
            if is_whole:
                put(tensor, source)
            else:
                _put_part(tensor, begin, end, source, put)
        if replace:
            self.forget_moments()

    def forget_moments(self) -> None:
        """Lets the optimiser begin anew, since its moments are of another model."""
        if self._optimizer is not None:
            optimizer: Any = getattr(self._optimizer, "optimizer", self._optimizer)
            if isinstance(optimizer, torch.optim.Adagrad):
                _begin_adagrad_anew(optimizer)
            else:
                optimizer.state.clear()

    @torch.no_grad()
    def copy(self, snapshot: Any) -> None:
        """See `Model.copy`."""
        places = self.places()
        for place, target in zip(places, self._views_of(snapshot)):
            if place.tensor.device.type == "cpu":
                target.copy_(place.tensor)
            else:
                self._traffic_of(place.tensor.device).to_host(place.tensor, target.view(-1))

    def _views_of(self, flat: Any) -> List[torch.Tensor]:
        """The parts of a part of the memory, in the segments' shapes; made once for each memory."""
        for known, views in self._views:
            if known is flat:
                return views
        parts = torch.split(torch.from_numpy(flat), self._floats)
        views = [part.view(s.shape) for part, s in zip(parts, self.segments)]
        self._views = [*self._views[-2:], (flat, views)]
        return views

    @torch.no_grad()
    def finite(self) -> bool:
        """See `Model.finite`."""
        return all(bool(torch.isfinite(place.tensor.sum())) for place in self.places())

    def settled(self) -> Optional[Finished]:
        """See `Model.settled`: on a GPU what was begun ends later."""
        pending = [traffic.mark() for traffic in self._traffic.values() if traffic.busy]
        return (lambda: all(is_done() for is_done in pending)) if pending else None

    def _traffic_of(self, device: torch.device) -> DeviceTraffic:
        if device not in self._traffic:
            self._traffic[device] = DeviceTraffic(device)
        return self._traffic[device]


def _add_of(segment: wire.Segment) -> Put:
    """How an update is added to it."""
    is_variance = segment.kind == wire.STATISTIC and segment.name.endswith("running_var")
    return _add_to_variance if is_variance else torch.Tensor.add_


def _add_to_variance(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """By no update does it fall by more than a half: it would end below zero. The daemon does the
    same to the bit.
    """
    least = torch.mul(tensor, 0.5)
    tensor.add_(values)
    tensor.copy_(torch.maximum(tensor, least))


@torch.no_grad()
def _begin_adagrad_anew(optimizer: torch.optim.Adagrad) -> None:
    """As it was made: unlike others it does not make a state that is missing in its step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state: Any = optimizer.state[parameter]
            state["step"].zero_()
            state["sum"].fill_(group["initial_accumulator_value"])


def _overlaps(places: List[Place], ranges: List[Tuple[int, int]]) -> List[Tuple[int, int, int]]:
    """Which floats (begin, end) of which places the ranges name; both are ascending."""
    found, index = [], 0
    for first, floats in ranges:
        while places[index].first + places[index].floats <= first:
            index += 1
        at, here = first, index
        while at < first + floats:
            place = places[here]
            end = min(first + floats, place.first + place.floats)
            found.append((here, at - place.first, end - place.first))
            at, here = end, here + 1
    return found


def _put_part(tensor: torch.Tensor, begin: int, end: int, values: torch.Tensor, put: Put) -> None:
    flat = tensor.view(-1) if tensor.is_contiguous() else tensor.reshape(-1)
    put(flat[begin:end], values)
    if not tensor.is_contiguous():
        tensor.copy_(flat.view(tensor.shape))
