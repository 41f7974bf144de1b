"""A daemon that speaks models/external/ATTACH.md, written from that page alone, and that can die or
lie at any message.

It serves in a thread of the test. `behaviour(kind, number)` is asked before each of its own
messages and may return other bytes, DIE (close the connection) or SILENT (say nothing).
"""

import contextlib
import fcntl
import mmap
import os
import socket
import struct
import threading

import numpy as np

MAGIC = 0x54415047
DIE, SILENT = object(), object()
ADD, REPLACE, COPY, PAUSED, FINISHED, SETTLED = (1, 2, 4, 8, 16, 32)


def packet(kind, sequence=0, fields=b"", magic=MAGIC, version=1):
    return struct.pack("<IHHQ", magic, kind, version, sequence) + fields


def notice(kind, code, text, claimed=None):
    raw = text.encode()
    length = len(raw) if claimed is None else claimed
    return packet(kind, 0, struct.pack("<32sI", code.encode(), length) + raw)


def go(sequence, answers, flags=0, ranges=(), snapshot=0, **words):
    values = {
        "progress": 0.0,
        "cluster": 0,
        "budget": 1000,
        "factor": 1.0,
        "place": 0,
        "trainers": 1,
        "members": 1,
        "own": 0,
        **words,
    }
    fields = struct.pack(
        "<QIIdQQdIIIIQQ",
        answers,
        flags,
        len(ranges),
        values["progress"],
        values["cluster"],
        values["budget"],
        values["factor"],
        values["place"],
        values["trainers"],
        snapshot,
        values["members"],
        values["own"],
        0,
    )
    return packet(68, sequence, fields + b"".join(struct.pack("<QQ", *r) for r in ranges))


def sealed_memory(floats, seals=7, header=None):
    """A memory file as the page has it, and its arrays: update and two snapshots."""
    part = -(-4 * floats // 64) * 64
    size = 4096 + 3 * part
    descriptor = os.memfd_create("gossipd-test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    mapped = mmap.mmap(descriptor, size)
    places = [4096 + i * part for i in range(3)]
    values = header or (0x4D535047, 1, floats, 7, *places, size)
    mapped[:56] = struct.pack("<IIQQQQQQ", *values)
    fcntl.fcntl(descriptor, 1033, seals)
    return descriptor, size, [np.frombuffer(mapped, np.float32, floats, at) for at in places]


class FakeDaemon:
    """Accepts one trainer after the other at `path`.

    `answers`: what the next GOs say, as keyword arguments of go(); then `plain` ones. A value
    `update` is written into the memory first. Everything heard is in `heard` as (type, fields).
    """

    def __init__(self, path, behaviour=lambda kind, number: None, known=False):
        self.path = str(path)
        self.behaviour = behaviour
        self.known = known
        self.answers, self.plain = [], {}
        self.heard = []
        self.snapshots_done = []
        self.segments = []
        self.attaches = 0
        self.memory_of = sealed_memory
        self.changed = threading.Condition()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen()
        self.connection = None
        self.stopping = False
        threading.Thread(target=self._serve, daemon=True).start()

    # ---- what tests ask ----

    def wait(self, condition, timeout_s=20):
        """Waits until condition() of what was heard holds."""
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), self.heard[-5:]

    def of_type(self, kind):
        return [fields for heard, fields in list(self.heard) if heard == kind]

    @property
    def steps(self):
        """(steps, samples, loss, rate, seconds, finite) of every STEP."""
        return [struct.unpack("<QQdddII", f)[:6] for f in self.of_type(3)]

    @property
    def dones(self):
        return [struct.unpack("<QQ", f) for f in self.of_type(4)]

    @property
    def runs(self):
        return [f[:16] for f in self.of_type(1)]

    def kill(self):
        """Closes the connection without a word."""
        connection = self.connection
        with contextlib.suppress(OSError):  # the trainer may have gone first
            if connection is not None:
                connection.shutdown(socket.SHUT_RDWR)

    def stop(self):
        self.stopping = True
        self.kill()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.disappear()

    def disappear(self):
        """Nobody reaches it any more."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    # ---- serving ----

    def _serve(self):
        while not self.stopping:
            try:
                self.connection, _ = self.listener.accept()
            except OSError:
                return
            try:
                self._converse(self.connection)
            except (OSError, EOFError):
                pass
            finally:  # a failed assertion, too, lets nobody wait for it
                self.connection.close()

    def _hear(self, sock):
        raw = sock.recv(32769)
        if not raw:
            raise EOFError
        magic, kind, version, sequence = struct.unpack_from("<IHHQ", raw)
        assert (magic, version) == (MAGIC, 1) and len(raw) <= 32768
        with self.changed:
            self.heard.append((kind, raw[16:]))
            self.changed.notify_all()
        return kind, sequence, raw[16:]

    def _say(self, sock, kind, number, content, descriptors=()):
        other = self.behaviour(kind, number)
        if other is DIE:
            raise EOFError
        if other is SILENT:
            return
        content = content if other is None else other
        for part in content if isinstance(content, list) else [content]:
            rights = [
                (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", d)) for d in descriptors
            ]
            sock.sendmsg([part], rights)

    def _attach(self, sock):
        kind, sequence, fields = self._hear(sock)
        assert (kind, sequence, len(fields)) == (1, 0, 56)
        _, floats, count, *_ = struct.unpack("<16sQIIQQQ", fields)
        segments = []
        while len(segments) < count:
            kind, first, fields = self._hear(sock)
            assert kind == 2 and first == len(segments)
            segments += read_segments(fields)
        self.segments = segments
        assert sum(int(np.prod(shape)) for _, shape, _ in segments) == floats
        self.attaches += 1
        descriptor, size, self.memory = self.memory_of(floats)
        fields = struct.pack("<QQQQQII", size, 7, 0, 1000, 42, int(self.known), 0)
        try:
            self._say(sock, 65, self.attaches, packet(65, 0, fields), [descriptor])
        finally:
            os.close(descriptor)

    def _converse(self, sock):
        self._attach(sock)
        goes = 0
        while True:
            kind, sequence, fields = self._hear(sock)
            if kind == 4:
                with self.changed:
                    self.snapshots_done.append([np.array(s) for s in self.memory[1:]])
                    self.changed.notify_all()
            if kind != 3:
                continue
            goes += 1
            words = dict(self.answers.pop(0)) if self.answers else dict(self.plain)
            update = words.pop("update", None)
            if update is not None:
                self.memory[0][:] = update
            self._say(sock, 68, goes, go(goes, sequence, **words))


def read_segments(fields):
    count, reserved = struct.unpack_from("<II", fields)
    assert reserved == 0
    at, found = 8, []
    for _ in range(count):
        kind, rank, length = struct.unpack_from("<BBH", fields, at)
        shape = struct.unpack_from(f"<{rank}Q", fields, at + 4)
        at += 4 + 8 * rank
        found.append((fields[at : at + length].decode(), shape, kind))
        at += length
    assert at == len(fields)
    return found
