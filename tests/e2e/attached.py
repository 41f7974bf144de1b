"""A training process that attaches to a daemon: ATTACH.md spoken by NumPy and Python's sockets.

    attached.py SOCKET [--floats N] [--step-ms MS] [--target T] [--counters FILE] …

trains a vector towards a target with noise of its own. What it has done is in a small mapped file,
which outlives a SIGKILL, so that a test can compare it with what the daemon says.
"""

import argparse
import array
import json
import mmap
import os
import select
import socket
import struct
import sys
import time

import numpy

MAGIC = 0x54415047
ATTACH, SEGMENTS, STEP, DONE, REPORT, DETACH = 1, 2, 3, 4, 5, 6
ATTACHED, REFUSED, WAITING, GO = 65, 66, 67, 68
ADD, REPLACE, COPY, PAUSED, FINISHED, SETTLED = 1, 2, 4, 8, 16, 32
KINDS = {"parameter": 0, "statistic": 1, "local": 2}
GO_FIELDS = struct.Struct("<QIIdQQdIIIIQQ")
ANSWER_S = 1.0


class Refused(Exception):
    """REFUSED: args are the code and the text."""


class Gone(Exception):
    """The daemon has ended the connection."""


def packet(kind, sequence, body=b""):
    return struct.pack("<IHHQ", MAGIC, kind, 1, sequence) + body


def segments_packets(segments):
    """`segments`: (kind, shape, name), all of the model."""
    packets, entries, first = [], [], 0
    for index, (kind, shape, name) in enumerate(segments):
        word = name.encode()
        entry = struct.pack("<BBH", KINDS[kind], len(shape), len(word))
        entries.append(entry + b"".join(struct.pack("<Q", extent) for extent in shape) + word)
        last = index == len(segments) - 1
        if last or sum(map(len, entries)) > 30_000:
            head = struct.pack("<II", len(entries), 0)
            packets.append(packet(SEGMENTS, first, head + b"".join(entries)))
            entries, first = [], index + 1
    return packets


def connect(path):
    """A connection to the daemon's socket, however long its path."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    directory = os.open(os.path.dirname(os.path.abspath(path)), os.O_PATH)
    try:
        sock.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    finally:
        os.close(directory)
    return sock


class Attachment:
    """One connection: attach(), then step() between two steps of training."""

    def __init__(self, path, segments, model, run=None, step_samples=32, steps=0, samples=0):
        self.model = model  # flat, fp32; changed in place
        self.run = run or os.urandom(16)
        self.steps, self.samples = steps, samples
        self.loss, self.rate, self.finite = float("nan"), 0.1, True
        self.go = None  # of the last GO: a dict
        self.adds = self.replaces = self.copies = self.alone = 0
        self.notices = []
        self.telling = lambda sent: None  # called before and after the daemon is told of steps
        self.step_sequence, self.waiting_since = 0, None
        self.sock = connect(path)
        body = self.run + struct.pack(
            "<QIIQQQ", model.size, len(segments), step_samples, steps, samples, 0
        )
        self.sock.send(packet(ATTACH, 0, body))
        for words in segments_packets(segments):
            self.sock.send(words)

    def wait_attached(self, timeout_s=None):
        """Returns when the daemon has attached this process."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if end is None else max(0, end - time.monotonic())
            if not select.select([self.sock], [], [], left)[0]:
                raise TimeoutError(self.notices)
            fds = array.array("i")
            data, control, _, _ = self.sock.recvmsg(32768, socket.CMSG_SPACE(fds.itemsize))
            if not data:
                raise Gone()
            kind = struct.unpack_from("<IHHQ", data)[1]
            if kind in (REFUSED, WAITING):
                code = data[16:48].rstrip(b"\0").decode()
                text = data[52 : 52 + struct.unpack_from("<I", data, 48)[0]].decode()
                if kind == REFUSED:
                    raise Refused(code, text)
                self.notices.append((code, text))
                continue
            assert kind == ATTACHED, kind
            fds.frombytes(control[0][2][: fds.itemsize])
            self._map(fds[0])
            self.node_samples, self.budget = struct.unpack_from("<QQ", data, 32)
            self.known_run = bool(struct.unpack_from("<I", data, 56)[0] & 1)
            return self

    def _map(self, fd):
        self.memory = mmap.mmap(fd, 0)
        os.close(fd)
        magic, version, floats = struct.unpack_from("<IIQ", self.memory, 0)
        assert (magic, version, floats) == (0x4D535047, 1, self.model.size)
        places = struct.unpack_from("<QQQ", self.memory, 24)
        self.update, *self.snapshots = [
            numpy.frombuffer(self.memory, numpy.float32, floats, at) for at in places
        ]

    # ---- between two steps ----

    def step(self, wait_s=ANSWER_S):
        """Says what has been done, takes a GO if there is one; True where it was answered."""
        if self.waiting_since is None:
            self.step_sequence += 1
            body = struct.pack(
                "<QQdddII", self.steps, self.samples, self.loss, self.rate, 0.0, int(self.finite), 0
            )
            self._tell(packet(STEP, self.step_sequence, body))
            self.waiting_since = time.monotonic()
        left = max(0.0, self.waiting_since + wait_s - time.monotonic())
        if not select.select([self.sock], [], [], left)[0]:
            self.alone += 1
            return False
        self._take_go()
        return True

    def _take_go(self):
        try:
            data = self.sock.recv(32768)
        except ConnectionResetError as error:
            raise Gone() from error
        if not data:
            raise Gone()
        _, kind, _, sequence = struct.unpack_from("<IHHQ", data)
        if kind == REFUSED:
            text = data[52 : 52 + struct.unpack_from("<I", data, 48)[0]].decode()
            raise Refused(data[16:48].rstrip(b"\0").decode(), text)
        assert kind == GO, kind
        names = "answers flags ranges progress cluster_samples budget rate_factor place trainers "
        names += "snapshot members node_samples reserved"
        self.go = dict(zip(names.split(), GO_FIELDS.unpack_from(data, 16)))
        self.waiting_since = None
        flags = self.go["flags"]
        for i in range(self.go["ranges"]):
            first, floats = struct.unpack_from("<QQ", data, 96 + 16 * i)
            part = slice(first, first + floats)
            if flags & ADD:
                self.model[part] += self.update[part]
            else:
                self.model[part] = self.update[part]
        self.adds += bool(flags & ADD)
        self.replaces += bool(flags & REPLACE)
        if flags & COPY:
            self.snapshots[self.go["snapshot"]][:] = self.model
            self.copies += 1
        if flags & (ADD | REPLACE | COPY):
            self._tell(packet(DONE, sequence, struct.pack("<QQ", self.steps, self.samples)))

    def _tell(self, words):
        self.telling(False)
        try:
            self.sock.send(words)
        except OSError as error:
            raise Gone() from error
        self.telling(True)

    @property
    def paused(self):
        return self.go is None or bool(self.go["flags"] & (PAUSED | FINISHED))

    @property
    def finished(self):
        return self.go is not None and bool(self.go["flags"] & FINISHED)

    @property
    def settled(self):
        return self.finished and bool(self.go["flags"] & SETTLED)

    def report(self, accuracy, loss, samples):
        self.sock.send(
            packet(REPORT, 0, struct.pack("<ddQQd", accuracy, loss, samples, self.steps, 0.0))
        )

    def detach(self):
        self.sock.send(packet(DETACH, 0))

    def close(self):
        self.sock.close()


class Ledger:
    """What a process has done, for others to read, also after it was killed."""

    # Of `samples`, `told` have been said to the daemon; `telling` are, if its newest word arrives.
    FIELDS = "steps samples attaches alone adds replaces state telling told".split()
    STATES = ("begun", "waiting", "training", "paused", "finished", "settled")

    def __init__(self, path):
        if not os.path.exists(path):
            with open(path, "wb") as out:
                out.write(bytes(8 * len(self.FIELDS)))
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)

    def write(self, **values):
        for name, value in values.items():
            struct.pack_into("<Q", self.memory, 8 * self.FIELDS.index(name), value)

    def note_telling(self, samples, sent):
        self.write(**{"told" if sent else "telling": samples})

    def read(self):
        return dict(zip(self.FIELDS, struct.unpack_from(f"<{len(self.FIELDS)}Q", self.memory)))


def segments_of(floats):
    half = floats // 2
    return [("parameter", (half,), "first.weight"), ("parameter", (floats - half,), "last weight")]


def train(arguments):
    """The loop of a user's program: attach, train, and attach again when the daemon has gone."""
    ledger = Ledger(arguments.counters)
    random = numpy.random.default_rng(arguments.seed)
    segments = (
        json.loads(arguments.segments) if arguments.segments else segments_of(arguments.floats)
    )
    model = random.normal(0, 1, arguments.floats).astype(numpy.float32)
    target = numpy.float32(arguments.target)
    done = dict(steps=0, samples=0)
    run, link, pause_s, attaches, next_try = os.urandom(16), None, 0.1, 0, 0.0
    totals = dict(alone=0, adds=0, replaces=0)
    while True:
        if link is None and time.monotonic() >= next_try:
            try:
                ledger.write(state=1)
                ledger.note_telling(done["samples"], False)  # counts if the run is known
                link = Attachment(arguments.socket, segments, model, run, arguments.samples, **done)
                link.telling = lambda sent: ledger.note_telling(done["samples"], sent)
                link.wait_attached()
                attaches += 1
                pause_s = 0.1
                ledger.write(attaches=attaches)
            except (OSError, Gone):
                link = None
                next_try, pause_s = time.monotonic() + pause_s, min(5, pause_s * 2)
        if link is not None:
            try:
                link.step()
                if link.settled or (link.finished and arguments.leave_at_end):
                    ledger.write(state=5 if link.settled else 4)
                    link.detach()
                    break
                state = 4 if link.finished else 3 if link.paused else 2
                ledger.write(
                    state=state,
                    adds=totals["adds"] + link.adds,
                    replaces=totals["replaces"] + link.replaces,
                    alone=totals["alone"] + link.alone,
                )
                if link.paused:
                    continue
            except Gone:
                for name in totals:
                    totals[name] += getattr(link, name)
                link, next_try = None, time.monotonic() + pause_s
        if link is None and attaches == 0:
            time.sleep(0.05)  # nothing to go on from yet
            continue
        gradient = model - target + random.normal(0, 0.1, model.size).astype(numpy.float32)
        model -= numpy.float32(arguments.rate) * gradient
        done["steps"] += 1
        done["samples"] += arguments.samples
        ledger.write(**done)
        if link is not None:
            link.steps, link.samples = done["steps"], done["samples"]
            link.loss, link.rate = float(numpy.mean(gradient**2) / 2), arguments.rate
        time.sleep(arguments.step_ms / 1000)
    if arguments.save:
        numpy.save(arguments.save, model)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("socket")
    parser.add_argument("--floats", type=int, default=1000)
    parser.add_argument("--segments", help="JSON: [[kind, shape, name], …]")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--step-ms", type=float, default=5)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--target", type=float, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--counters", required=True)
    parser.add_argument("--save")
    parser.add_argument("--leave-at-end", action="store_true")
    try:
        train(parser.parse_args())
    except Refused as refused:
        print("refused:", *refused.args, file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    main()
