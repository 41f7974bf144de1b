"""NumPy and JAX: shares a tree of arrays, such as the parameters of a hand-written loop."""

from __future__ import annotations

import math
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

from . import wire
from .attachment import WAIT_S, Attachment, Model

SHARING_WORK_MAX = 100_000  # of NumPy's search for a byte that two arrays have in common

Leaf = Any  # a NumPy or JAX array
Rebuild = Callable[[List[Leaf]], Any]
_TooHard: Any = getattr(np, "exceptions", np).TooHardError  # moved in NumPy 1.25


def _is_jax(leaf: Leaf) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(leaf, jax.Array)


def _is_array(leaf: Leaf) -> bool:
    # NumPy makes a scalar of what is computed with arrays of no dimension.
    return isinstance(leaf, (np.ndarray, np.generic)) or _is_jax(leaf)


def flatten(tree: Any) -> Tuple[List[Tuple[str, Leaf]], Rebuild]:
    """The leaves of a tree with their names ("layers.0.weight"), and what puts others in place.

    Trees are dictionaries (in the order of their keys' text), lists, tuples and named tuples of
    arrays; with JAX every pytree.
    """
    if "jax" in sys.modules and _needs_jax(tree):
        return _flatten_by_jax(tree)
    leaves: List[Tuple[str, Leaf]] = []
    _walk(tree, "", leaves)

    def rebuild(values: List[Leaf]) -> Any:
        rest = iter(values)
        return _rebuilt(tree, rest)

    return leaves, rebuild


def _needs_jax(tree: Any) -> bool:
    if isinstance(tree, dict):
        return any(map(_needs_jax, tree.values()))
    if isinstance(tree, (list, tuple)):
        return any(map(_needs_jax, tree))
    return not isinstance(tree, (np.ndarray, np.generic))


def _in_order(tree: Dict[Any, Any]) -> List[Any]:
    return sorted(tree, key=str)


def _walk(tree: Any, name: str, leaves: List[Tuple[str, Leaf]]) -> None:
    below = name + "." if name else ""
    if isinstance(tree, dict):
        for key in _in_order(tree):
            _walk(tree[key], f"{below}{key}", leaves)
    elif isinstance(tree, (list, tuple)):
        keys = getattr(tree, "_fields", range(len(tree)))
        for key, part in zip(keys, tree):
            _walk(part, f"{below}{key}", leaves)
    else:
        leaves.append((name or "value", tree))


def _rebuilt(tree: Any, rest: Any) -> Any:
    if isinstance(tree, dict):
        made = {key: _rebuilt(tree[key], rest) for key in _in_order(tree)}
        return type(tree)((key, made[key]) for key in tree)
    if isinstance(tree, (list, tuple)):
        parts = [_rebuilt(part, rest) for part in tree]
        named = hasattr(tree, "_fields")
        return type(tree)(*parts) if named else type(tree)(parts)
    return next(rest)


def _flatten_by_jax(tree: Any) -> Tuple[List[Tuple[str, Leaf]], Rebuild]:
    util = sys.modules["jax"].tree_util
    paths, structure = util.tree_flatten_with_path(tree)
    leaves = [(".".join(map(_word, path)) or "value", leaf) for path, leaf in paths]
    return leaves, lambda values: util.tree_unflatten(structure, values)


def _word(entry: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def _is_shared(name: str, leaf: Leaf) -> bool:
    if not _is_array(leaf):
        raise TypeError(
            f"'{name}' is {type(leaf).__name__}; a tree of parameters has NumPy or JAX arrays only"
        )
    kind = np.dtype(leaf.dtype)
    if kind in (np.float32, np.float64):
        return bool(leaf.size)
    if kind.kind in "iub":
        return False  # counters and masks stay this node's own
    if kind.newbyteorder("=") in (np.float32, np.float64):
        raise ValueError(
            f"'{name}' is of {kind}, whose bytes are not in this machine's order; convert it:"
            " a.astype(a.dtype.newbyteorder('='))"
        )
    if kind.kind in "USOMm":
        raise TypeError(f"'{name}' is of {kind}; parameters are of float32 or float64")
    raise ValueError(
        f"'{name}' is of {kind}, in which small updates of neighbours would be rounded away: keep"
        " float32 parameters and cast copies of them for the computation"
    )


def _bounds(array: Any) -> Tuple[int, int]:
    """The addresses of the array's first byte and of the one behind its last."""
    first = last = array.__array_interface__["data"][0]
    for extent, stride in zip(array.shape, array.strides):
        reach = (extent - 1) * stride
        first, last = first + min(reach, 0), last + max(reach, 0)
    return first, last + array.itemsize


def _share_memory(one: Any, other: Any) -> bool:
    if not (one.flags.writeable or other.flags.writeable):
        return False  # each is replaced by a copy
    try:
        return bool(np.shares_memory(one, other, max_work=SHARING_WORK_MAX))
    except _TooHard:
        return True


def _check_apart(named: List[Tuple[str, Leaf]]) -> None:
    """ValueError where two arrays are one memory, which each update would reach twice."""
    arrays = sorted(
        ((*_bounds(leaf), name, leaf) for name, leaf in named if isinstance(leaf, np.ndarray)),
        key=lambda entry: entry[:2],
    )
    reaching: List[Any] = []  # of those before, what goes on beyond where the next begins
    for entry in arrays:
        reaching = [before for before in reaching if before[1] > entry[0]]
        for before in reaching:
            if _share_memory(before[3], entry[3]):
                raise ValueError(
                    f"'{before[2]}' and '{entry[2]}' share memory, which would get each update"
                    " twice: give the array once, and use it in both places"
                )
        reaching.append(entry)


class ArrayModel(Model):
    """See `Model`. NumPy arrays are changed in place, JAX's are replaced."""

    def __init__(self, tree: Any) -> None:
        try:
            found = self._read(tree)
        except RecursionError:
            raise ValueError("the tree of parameters contains itself") from None
        _check_apart(found)
        self.segments = [wire.Segment(name, tuple(leaf.shape)) for name, leaf in found]
        if not self.segments:
            raise ValueError("the tree has no array of float32 or float64, so nothing is trained")
        self._last = tree  # that was as attached

    def _read(self, tree: Any) -> List[Tuple[str, Leaf]]:
        leaves, self._rebuild = flatten(tree)
        self._leaves = [leaf for _, leaf in leaves]
        self._shared = [i for i, (name, leaf) in enumerate(leaves) if _is_shared(name, leaf)]
        self._tree, self._unread = tree, False
        return [leaves[index] for index in self._shared]

    def take(self, tree: Any) -> None:
        """`tree` is the model from now on; `read` must come before its arrays are needed."""
        self._tree, self._unread = tree, True

    def read(self) -> None:
        """Looks at the tree that was taken. ValueError if it has other arrays than at attach."""
        if not self._unread:
            return
        try:
            self._read_as_attached()
        except BaseException:
            self._read(self._last)
            raise

    def _read_as_attached(self) -> None:
        found = [wire.Segment(name, tuple(leaf.shape)) for name, leaf in self._read(self._tree)]
        if found != self.segments:
            differing = sorted(
                {str(s.name) for s in set(found).symmetric_difference(self.segments)}
            )
            raise ValueError(
                f"the parameters are not those that were attached: see '{differing[0]}'"
            )
        self._last = self._tree

    def give(self) -> Any:
        """The tree as it is now."""
        return self._tree

    def apply(self, update: Any, ranges: List[Tuple[int, int]], replace: bool) -> None:
        """See `Model.apply`."""
        first, changed = 0, False
        for index, segment in zip(self._shared, self.segments):
            end = first + segment.floats
            parts = [
                (max(a, first) - first, min(a + n, end) - first)
                for a, n in ranges
                if a < end and a + n > first
            ]
            if parts:
                leaf = self._leaves[index]
                self._leaves[index] = _changed(leaf, update[first:end], parts, replace)
                changed = changed or self._leaves[index] is not leaf
            first = end
        if changed:
            self._tree = self._rebuild(self._leaves)

    def copy(self, snapshot: Any) -> None:
        """See `Model.copy`."""
        first = 0
        for index, segment in zip(self._shared, self.segments):
            end = first + segment.floats
            snapshot[first:end].reshape(segment.shape)[...] = np.asarray(self._leaves[index])
            first = end

    def finite(self) -> bool:
        """See `Model.finite`."""
        return all(
            math.isfinite(float(np.sum(np.asarray(self._leaves[index])))) for index in self._shared
        )


def _changed(leaf: Leaf, values: Any, parts: List[Tuple[int, int]], replace: bool) -> Leaf:
    """`leaf` with these parts (begin, end) of it added or replaced by those of `values`."""
    in_place = isinstance(leaf, np.ndarray) and leaf.flags.writeable
    array = leaf if in_place else np.array(leaf)
    flat = array.reshape(-1)  # a copy where the array is not contiguous
    for begin, end in parts:
        if replace:
            flat[begin:end] = values[begin:end]
        else:
            flat[begin:end] += values[begin:end]
    if not np.shares_memory(flat, array):
        array[...] = flat.reshape(array.shape)
    if _is_jax(leaf):
        return sys.modules["jax"].device_put(array, leaf.sharding)
    return array


class ArrayAttachment(Attachment):
    """`Attachment` for trees of arrays; see `gossipd.attach`."""

    def __init__(self, tree: Any, samples_per_step: int, path: Optional[str], every: int) -> None:
        self._every = every
        self._array_model = ArrayModel(tree)
        super().__init__(self._array_model, samples_per_step, path)

    def start(self, wait_s: float = WAIT_S) -> "ArrayAttachment":
        """Waits for the daemon, and takes the cluster's model: see `params`."""
        try:
            self._begin(wait_s)
        except BaseException:
            self._close()
            raise
        return self

    @property
    def params(self) -> Any:
        """The tree with what the cluster has brought; after `attach` where to begin."""
        return self._array_model.give()

    def step(
        self,
        params: Any,
        loss: Any = None,
        samples: Optional[int] = None,
        learning_rate: Optional[float] = None,
    ) -> Any:
        """Call it after every step, with its result; go on with what it returns.

        Args:
            params: the tree after the step: the arrays and shapes that were attached. NumPy arrays
                that can be written are changed in place, without a copy.
            loss: mean over the step's samples; a number or an array of one.
            samples: of the step; by default `samples_per_step`.
            learning_rate: of the next step, if it should be shown.

        Returns:
            The tree with what neighbours have sent. After `replaced` optimisers begin anew.
        """
        self._array_model.take(params)
        self.log(loss, samples, learning_rate)
        self._made_step()
        return self._array_model.give()

    def _look_once(self) -> bool:
        self._array_model.read()
        return super()._look_once()

    def _is_time(self) -> bool:
        return self.steps % self._every == 0 if self._every > 1 else super()._is_time()
