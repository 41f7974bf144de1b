"""The packets between a training process and its daemon, as models/external/ATTACH.md has them.

Pure: bytes in, values out. A packet from the daemon that is not exactly as that page says raises
`BadPacket`; nothing is read past it.
"""

from __future__ import annotations

import struct
from typing import Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

MAGIC = 0x54415047
VERSION = 1
PACKET_BYTES_MAX = 32768
NAME_BYTES_MAX = 512
RANK_MAX = 8
RANGES_MAX = 1024
TEXT_BYTES_MAX = 2048
SEGMENTS_MAX = 65536
FLOATS_MAX = 2**32
STEP_SAMPLES_MAX = 2**20
ROUNDING_MAX = 1e-9  # of a factor that should be at most 1

ATTACH, SEGMENTS, STEP, DONE, REPORT, DETACH = range(1, 7)
ATTACHED, REFUSED, WAITING, GO = range(65, 69)
PARAMETER, STATISTIC, LOCAL = range(3)
ADD, REPLACE, COPY, PAUSED, FINISHED, SETTLED = (1, 2, 4, 8, 16, 32)
FLAGS_ALL = 63
KNOWN_RUN = 1

_HEADER = struct.Struct("<IHHQ")
_ATTACH = struct.Struct("<16sQIIQQQ")
_SEGMENTS = struct.Struct("<II")
_STEP = struct.Struct("<QQdddII")
_DONE = struct.Struct("<QQ")
_REPORT = struct.Struct("<ddQQd")
_ATTACHED = struct.Struct("<QQQQQII")
_NOTICE = struct.Struct("<32sI")
_GO = struct.Struct("<QIIdQQdIIIIQQ")
_RANGE = struct.Struct("<QQ")


class BadPacket(ValueError):
    """The daemon has sent something that the protocol does not allow."""


class Segment(NamedTuple):
    """One tensor of the model: its place in the flat vector follows from those before it."""

    name: str
    shape: Tuple[int, ...]
    kind: int = PARAMETER

    @property
    def floats(self) -> int:
        """Its numbers: the product of the shape; one for a scalar."""
        product = 1
        for extent in self.shape:
            product *= extent
        return product


class Attached(NamedTuple):
    """The daemon takes this trainer; the memory's descriptor came beside it."""

    memory_bytes: int
    schema_hash: int
    node_samples: int
    budget_samples: int
    node_id: int
    known_run: bool


class Notice(NamedTuple):
    """The daemon refuses this trainer, or says what it waits for."""

    refused: bool
    code: str
    text: str


class Go(NamedTuple):
    """The daemon's answer to one step: what to do with the model, and where the cluster is."""

    sequence: int
    answers: int
    flags: int
    progress: float
    cluster_samples: int
    budget_samples: int
    rate_factor: float
    place: int
    trainers: int
    snapshot: int
    members: int
    node_samples: int
    ranges: List[Tuple[int, int]]  # first float, floats

    @property
    def wants_done(self) -> bool:
        """Whether a DONE must follow."""
        return bool(self.flags & (ADD | REPLACE | COPY))


FromDaemon = Union[Attached, Notice, Go]


def _packet(kind: int, sequence: int, fields: bytes = b"") -> bytes:
    return _HEADER.pack(MAGIC, kind, VERSION, sequence) + fields


def attach(
    run: bytes, floats: int, segments: int, step_samples: int, steps: int, samples: int
) -> bytes:
    """ATTACH: the first packet of a connection."""
    return _packet(ATTACH, 0, _ATTACH.pack(run, floats, segments, step_samples, steps, samples, 0))


def _entry(segment: Segment) -> bytes:
    name = segment.name.encode("utf-8")
    shape = segment.shape
    head = struct.pack("<BBH", segment.kind, len(shape), len(name))
    return head + struct.pack(f"<{len(shape)}Q", *shape) + name


def segments(listed: Sequence[Segment]) -> Iterable[bytes]:
    """SEGMENTS: the list, in as many packets as it takes."""
    room = PACKET_BYTES_MAX - _HEADER.size - _SEGMENTS.size
    first, size = 0, 0
    held: List[bytes] = []
    for index, segment in enumerate(listed):
        entry = _entry(segment)
        if held and size + len(entry) > room:
            yield _packet(SEGMENTS, first, _SEGMENTS.pack(len(held), 0) + b"".join(held))
            first, held, size = index, [], 0
        held.append(entry)
        size += len(entry)
    if held:
        yield _packet(SEGMENTS, first, _SEGMENTS.pack(len(held), 0) + b"".join(held))


def step(
    sequence: int,
    steps: int,
    samples: int,
    loss: float,
    learning_rate: float,
    seconds: float,
    finite: bool,
) -> bytes:
    """STEP: what has been done so far; asks for a GO."""
    return _packet(
        STEP, sequence, _STEP.pack(steps, samples, loss, learning_rate, seconds, int(finite), 0)
    )


def done(sequence: int, steps: int, samples: int) -> bytes:
    """DONE: the GO of that sequence is carried out."""
    return _packet(DONE, sequence, _DONE.pack(steps, samples))


def report(accuracy: float, loss: float, samples: int, steps: int, seconds: float) -> bytes:
    """REPORT: an evaluation of the trainer's. `accuracy` may be NaN."""
    return _packet(REPORT, 0, _REPORT.pack(accuracy, loss, samples, steps, seconds))


def detach() -> bytes:
    """DETACH: the trainer ends."""
    return _packet(DETACH, 0)


def decode(packet: bytes, floats: int) -> FromDaemon:
    """One packet of the daemon's. `floats`: P, which ranges keep to."""
    if len(packet) < _HEADER.size:
        raise BadPacket(f"{len(packet)} bytes are no packet")
    magic, kind, version, sequence = _HEADER.unpack_from(packet)
    if magic != MAGIC:
        raise BadPacket("it does not speak this protocol")
    if version != VERSION:
        raise BadPacket(f"it speaks version {version} of the protocol, and we speak {VERSION}")
    fields = packet[_HEADER.size :]
    try:
        if kind == GO:
            return _decode_go(sequence, fields, floats)
        if kind == ATTACHED:
            size, schema, own, budget, node, flags, reserved = _ATTACHED.unpack(fields)
            if sequence or reserved or flags & ~KNOWN_RUN:
                raise BadPacket("ATTACHED has reserved bits set")
            return Attached(size, schema, own, budget, node, bool(flags & KNOWN_RUN))
        if kind in (REFUSED, WAITING):
            return _decode_notice(kind, fields)
    except struct.error as error:
        raise BadPacket(f"a packet of type {kind} has {len(packet)} bytes") from error
    raise BadPacket(f"packets of type {kind} are unknown")


def _decode_notice(kind: int, fields: bytes) -> Notice:
    code, length = _NOTICE.unpack_from(fields)
    text = fields[_NOTICE.size :]
    if length != len(text) or length > TEXT_BYTES_MAX:
        raise BadPacket(f"its text has {len(text)} bytes and claims {length}")
    words = text.decode("utf-8", "replace")
    words = "".join(c if c.isprintable() else " " for c in words)
    word = code.rstrip(b"\0").decode("ascii", "replace")
    return Notice(kind == REFUSED, word, words)


def _decode_go(sequence: int, fields: bytes, floats: int) -> Go:
    answers, flags, count, *values = _GO.unpack_from(fields)
    progress, cluster, budget, factor, place, trainers, snapshot, members, own, reserved = values
    if count > RANGES_MAX or len(fields) != _GO.size + count * _RANGE.size:
        raise BadPacket(f"GO has {len(fields)} bytes for {count} ranges")
    if flags & ~FLAGS_ALL or reserved or (flags & ADD and flags & REPLACE) or snapshot > 1:
        raise BadPacket(f"GO asks for what does not exist: flags {flags}, snapshot {snapshot}")
    if 1 < factor <= 1 + ROUNDING_MAX:  # a schedule's arithmetic
        factor = 1.0
    if not (0 <= progress <= 1 and 0 <= factor <= 1) or place >= trainers or members == 0:
        raise BadPacket("GO describes a cluster that cannot be")
    ranges: List[Tuple[int, int]] = []
    end = 0
    for first, length in _RANGE.iter_unpack(fields[_GO.size :]):
        if first < end or length == 0 or first + length > floats:
            raise BadPacket(f"GO has a range from {first} of {length} floats in {floats}")
        end = first + length
        ranges.append((first, length))
    if ranges and not flags & (ADD | REPLACE):
        raise BadPacket("GO has ranges and nothing to do with them")
    return Go(
        sequence,
        answers,
        flags,
        progress,
        cluster,
        budget,
        factor,
        place,
        trainers,
        snapshot,
        members,
        own,
        ranges,
    )


def check_segments(listed: Sequence[Segment]) -> Optional[str]:
    """Why the daemon would refuse this list; None if it would not."""
    if not listed:
        return "the model has no parameters that are trained"
    if len(listed) > SEGMENTS_MAX:
        return f"the model has {len(listed)} tensors, of at most {SEGMENTS_MAX}"
    for segment in listed:
        length = len(segment.name.encode("utf-8"))
        if not 0 < length <= NAME_BYTES_MAX or not segment.name.isprintable():
            return f"the name {segment.name!r} has {length} bytes or is not printable; rename it"
        if len(segment.shape) > RANK_MAX:
            return f"'{segment.name}' has {len(segment.shape)} dimensions, of at most {RANK_MAX}"
    names = {segment.name for segment in listed}
    if len(names) != len(listed):
        return "two of the model's tensors have one name"
    for name in sorted(names):
        state, _, subject = name.partition(".")
        if state in ("momentum", "variance") and subject in names:
            return (
                f"'{name}' is what checkpoints call the optimiser's state of '{subject}', which the"
                " model has as well; rename the module"
            )
    floats = sum(segment.floats for segment in listed)
    return f"the model has {floats} numbers, of at most 2^32" if floats > FLOATS_MAX else None
