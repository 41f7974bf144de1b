"""Reads checkpoints of gossipd, and any other safetensors file, with NumPy alone.

    model = gossipd.load("final.safetensors")
    network.load_state_dict(model.state_dict())

Where that misses names, give ``strict=False``: a checkpoint has tied tensors once, under the first
of their names, and no buffers with infinities (masks); one of an attached loop has no integer
buffers (counters of batch norm) and no frozen parameters either.

The file is mapped, not copied: a checkpoint larger than memory can be opened, and an array is read
when it is used. Writing into an array changes this process's copy only.
"""

from __future__ import annotations

import json
import os
from typing import Any, Container, Dict, Iterator, List, Mapping, Tuple, Union

import numpy as np

HEADER_BYTES_MAX = 100_000_000
TENSORS_MAX = 1_000_000
OPTIMIZER_PREFIXES = ("momentum", "variance")
FORMAT = "gossipd-checkpoint-1"
PLAIN_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}


class CheckpointError(ValueError):
    """The file is no whole safetensors file; the text says what is wrong and what to do."""


def widened(bits: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """The float32 array of bfloat16 values, given as uint16; exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Checkpoint(Mapping[str, "np.ndarray[Any, Any]"]):
    """The model of a checkpoint by tensor name; what the optimiser keeps lies apart.

    Attributes:
        optimizer: ``{"momentum": {name: array}, "variance": {name: array}}``, each of the
            parameter's shape; empty where the file has none.
        metadata: the file's words, as text: ``step``, ``samples``, ``job_hash``, ...
        path: where it was read.
    """

    def __init__(
        self,
        path: str,
        tensors: Dict[str, "np.ndarray[Any, Any]"],
        optimizer: Dict[str, Dict[str, "np.ndarray[Any, Any]"]],
        metadata: Dict[str, str],
    ) -> None:
        self.path = path
        self.optimizer = optimizer
        self.metadata = metadata
        self._tensors = tensors

    def __getitem__(self, name: str) -> "np.ndarray[Any, Any]":
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        floats = sum(array.size for array in self._tensors.values())
        return f"<gossipd checkpoint {self.path}: {len(self)} tensors, {floats} numbers>"

    @property
    def step(self) -> int:
        """Optimiser steps of the node that wrote it; 0 where the file does not say."""
        return int(self.metadata.get("step", 0))

    @property
    def samples(self) -> int:
        """Samples that the node itself trained on; 0 where the file does not say."""
        return int(self.metadata.get("samples", 0))

    def state_dict(self) -> Dict[str, Any]:
        """The model as PyTorch tensors, for ``load_state_dict``. Needs torch.

        The tensors share the file's pages: clone them to write into them without a copy on write.
        """
        import torch

        return {name: torch.from_numpy(np.asarray(array)) for name, array in self.items()}


def _header_of(path: str, file: Any, size: int) -> Tuple[Dict[str, Any], int]:
    """The header's JSON and where the data begin."""
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, HEADER_BYTES_MAX):
        raise CheckpointError(
            f"{path}: {size} bytes are no whole safetensors file; was it copied completely?"
        )
    try:
        header = json.loads(file.read(length).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: its header is no JSON ({error})") from error
    if not isinstance(header, dict) or len(header) > TENSORS_MAX:
        raise CheckpointError(f"{path}: its header is no list of tensors")
    return header, 8 + length


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _array_of(
    path: str, name: str, entry: Any, data: "np.ndarray[Any, Any]"
) -> "np.ndarray[Any, Any]":
    """The tensor `name` of `data`, the bytes behind the header."""
    try:
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        sound = isinstance(kind, str) and all(map(_is_count, [*shape, begin, end]))
        sound = sound and begin <= end <= data.size
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound:
        raise CheckpointError(f"{path}: the entry of '{name}' is damaged; take another copy")
    half = kind == "BF16"
    if not half and kind not in PLAIN_TYPES:
        raise CheckpointError(
            f"{path}: '{name}' is of type {kind!r}, which NumPy does not have; convert it to F32"
        )
    dtype = np.dtype("<u2" if half else PLAIN_TYPES[kind])
    numbers = 1
    for extent in shape:
        numbers *= extent
    if numbers * dtype.itemsize != end - begin:
        raise CheckpointError(
            f"{path}: '{name}' of shape {shape} has {end - begin} bytes; take another copy"
        )
    flat = data[begin:end].view(dtype)
    return (widened(flat) if half else flat).reshape(shape)


def _parted(name: str) -> Tuple[str, str]:
    """The kind of the optimiser's state that the name begins with, and of what; or twice ""."""
    prefix, _, rest = name.partition(".")
    return (prefix, rest) if prefix in OPTIMIZER_PREFIXES else ("", "")


def _is_state(name: str, names: Container[str]) -> bool:
    """Whether it is the optimiser's in a checkpoint with tensors of these names.

    A model may have names that begin so. It is the optimiser's where the tensor of the model that
    it speaks of is there; models/files/state_names.h has the same rule.
    """
    state = False
    _, name = _parted(name)
    while name and name in names:
        state = not state
        _, name = _parted(name)
    return state


def load(path: Union[str, "os.PathLike[str]"]) -> Checkpoint:
    """Opens a checkpoint of a node, or any safetensors file.

    Args:
        path: the file; of a node's state directory ``checkpoints/final.safetensors``.

    Returns:
        A mapping from names to arrays of the shapes that the file says. bfloat16 becomes float32.

    Raises:
        CheckpointError: the file is cut, damaged or of another kind.
        OSError: it cannot be read.
    """
    path = os.fspath(path)
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        header, begin = _header_of(path, file, size)
    data: "np.ndarray[Any, Any]"
    if size > begin:
        data = np.memmap(path, np.uint8, "c", begin)
    else:
        data = np.zeros(0, np.uint8)  # nothing can be mapped where there is nothing
    words = header.pop("__metadata__", {})
    if not isinstance(words, dict):
        raise CheckpointError(f"{path}: its metadata are no words")
    metadata = {str(key): str(value) for key, value in words.items()}
    tensors: Dict[str, "np.ndarray[Any, Any]"] = {}
    optimizer: Dict[str, Dict[str, "np.ndarray[Any, Any]"]] = {}
    spans: List[Tuple[int, int]] = []
    for name, entry in header.items():
        array = _array_of(path, name, entry, data)
        spans.append(tuple(entry["data_offsets"]))
        if metadata.get("format") == FORMAT and _is_state(name, header):
            kind, rest = _parted(name)
            optimizer.setdefault(kind, {})[rest] = array
        else:
            tensors[name] = array
    spans.sort()
    if any(later[0] < earlier[1] for earlier, later in zip(spans, spans[1:])):
        raise CheckpointError(f"{path}: its tensors overlap; take another copy")
    return Checkpoint(path, tensors, optimizer, metadata)
