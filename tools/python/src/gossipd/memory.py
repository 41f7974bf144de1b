"""The memory that a daemon and its trainer share: ``update[P]`` and two snapshots, float32.

The daemon seals its size, so a mapping can never be cut short under the trainer. This side checks
the seals and every offset before it uses one.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import Any, List, Tuple

import numpy as np

from .wire import BadPacket

MAGIC = 0x4D535047
VERSION = 1
HEADER_BYTES = 4096
ALIGNMENT = 64
POPULATE_BYTES_MAX = 1 << 30
# Of <linux/fcntl.h>; fcntl names them from Python 3.10 on.
F_GET_SEALS = 1034
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW = 1, 2, 4
MAP_POPULATE = 0x8000

_HEADER = struct.Struct("<IIQQQQQQ")


class SharedMemory:
    """One mapping; closes `descriptor` whatever happens.

    Attributes:
        update: float32 [P]; the daemon's, read only by convention.
        snapshots: two of float32 [P]; the trainer's while a GO names one.
    """

    def __init__(self, descriptor: int, bytes_said: int, floats: int) -> None:
        try:
            size = os.fstat(descriptor).st_size
            wanted = HEADER_BYTES + 3 * 4 * floats
            if size != bytes_said or size < wanted:
                raise BadPacket(f"its memory has {size} bytes, said {bytes_said}, wants {wanted}")
            try:
                seals = fcntl.fcntl(descriptor, F_GET_SEALS)
            except OSError as error:
                raise BadPacket(f"its memory cannot be sealed ({error})") from error
            if seals & (SEAL_SEAL | SEAL_SHRINK | SEAL_GROW) != 7:
                raise BadPacket("its memory is not sealed")
            flags = mmap.MAP_SHARED | (MAP_POPULATE if size <= POPULATE_BYTES_MAX else 0)
            mapped = mmap.mmap(descriptor, size, flags)
        finally:
            os.close(descriptor)
        offsets = self._offsets(mapped, size, floats)
        parts: List["np.ndarray[Any, Any]"] = [
            np.frombuffer(mapped, np.float32, floats, offset) for offset in offsets
        ]
        self.update = parts[0]
        self.snapshots = parts[1:]

    @staticmethod
    def _offsets(mapped: mmap.mmap, size: int, floats: int) -> Tuple[int, int, int]:
        magic, version, count, _, update, first, second, said = _HEADER.unpack_from(mapped)
        if (magic, version, count, said) != (MAGIC, VERSION, floats, size):
            raise BadPacket(f"its memory is of another kind (version {version}, {count} floats)")
        places = sorted((update, first, second))
        ends = [*places[1:], size]
        if places[0] < HEADER_BYTES or any(
            place % ALIGNMENT or place + 4 * floats > end for place, end in zip(places, ends)
        ):
            raise BadPacket("the parts of its memory overlap or lie outside of it")
        return update, first, second
