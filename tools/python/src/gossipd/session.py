"""One training process's side of the socket to its daemon: attaches, sends steps, takes answers.

The trainer's thread owns a `Session`; it never waits longer than `deadline_s` for an answer and
never for the network. A second thread attaches, and attaches again after the daemon has gone. What
the two share is guarded by one lock.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import socket
import struct
import threading
import time
import weakref
from typing import Callable, List, Optional, Sequence, Tuple

from . import wire
from .memory import SharedMemory
from .sockets import connect, receive_with_descriptors

DEADLINE_S = 1.0
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.1, 5.0
POLL_S = 0.2
MEANWHILE_S = 1.0
SEND_TIMEOUT_S = 10
WAY_OUT = (
    "; it waits: start gossipd with a job of kind 'external', or this script by 'gossipd run --job"
    " JOB -- COMMAND', or name the socket in GOSSIPD_SOCKET"
)
# What another try in a while may change; any other refusal is for good.
PASSING = frozenset({"occupied", "too-slow", "no-memory", "stopping"})
NOT_FINITE = "not-finite"  # said in place of a GO, and for good

log = logging.getLogger("gossipd")
_sessions: "weakref.WeakSet[Session]" = weakref.WeakSet()
Counters = Tuple[int, int]  # steps and samples of this run


class NotAttached(RuntimeError):
    """The daemon does not take this trainer.

    Attributes:
        code: the daemon's word, such as ``other-segments``; ``no-daemon`` where none answers.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Refusal(Exception):
    def __init__(self, notice: wire.Notice) -> None:
        super().__init__(f"{notice.text or notice.code} ({notice.code})")
        self.code = notice.code


class _Connection:
    """An attached connection, with its memory. The trainer's thread only, but for `try_done`."""

    def __init__(self, sock: socket.socket, memory: SharedMemory, said: wire.Attached) -> None:
        self.sock = sock
        self.memory = memory
        self.said = said
        self.floats = len(memory.update)
        self.awaiting = False
        self.torn = False  # an interrupt has left open what was sent or taken
        self.announced = False  # that STEP was sent ahead: its GO is still worth waiting for
        self._steps_sent = 0
        self._goes_taken = 0
        self._closing = threading.Lock()  # a closed descriptor's number may be another file's
        sock.settimeout(None)
        whole, part = divmod(DEADLINE_S, 1)
        sock.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(whole), int(part * 1e6))
        )

    def send_step(self, pack: Callable[[int], bytes]) -> bool:
        """False when the daemon does not read, as when it is stopped."""
        packet = pack(self._steps_sent + 1)  # first: where that raises, no GO is awaited
        self.torn = True
        try:
            self.sock.send(packet, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self.torn = False
            return False
        except (BrokenPipeError, ConnectionResetError):
            pass  # its last words may still be there
        self._steps_sent += 1
        self.awaiting, self.torn = True, False
        return True

    def receive(self, wait: bool) -> Optional[wire.Go]:
        """The GO that is awaited; None if it has not come."""
        try:
            if wait:
                self.sock.recv(1, socket.MSG_PEEK)  # an interrupt of the wait takes nothing away
            self.torn = True
            packet = self.sock.recv(wire.PACKET_BYTES_MAX + 1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self.torn = False
            return None
        except ConnectionResetError:
            # The daemon died with something of ours unread; what it had sent is still there.
            packet = self.sock.recv(wire.PACKET_BYTES_MAX + 1, socket.MSG_DONTWAIT)
        if not packet:
            raise ConnectionResetError("it has closed the connection")
        go = wire.decode(packet, self.floats)
        if isinstance(go, wire.Notice) and go.code == NOT_FINITE:
            raise _Refusal(go)
        if isinstance(go, wire.Notice):
            raise ConnectionResetError(f"it says: {go.text or go.code}")
        if not isinstance(go, wire.Go):
            raise wire.BadPacket("it has attached us twice")
        if go.sequence != self._goes_taken + 1 or go.answers != self._steps_sent:
            raise wire.BadPacket(f"GO {go.sequence} answers STEP {go.answers}, which is not ours")
        self._goes_taken += 1
        self.awaiting = self.torn = False
        return go

    def send_done(self, go: wire.Go, counters: Counters) -> None:
        self.sock.send(wire.done(go.sequence, *counters))

    def try_done(self, go: wire.Go, counters: Counters) -> bool:
        """For any thread. False: the daemon does not read now. An error shows at the next look."""
        with self._closing:
            try:
                self.sock.send(wire.done(go.sequence, *counters), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:
                pass
        return True

    def close(self) -> None:
        with self._closing:
            self.sock.close()


class Session:
    """The trainer's end. All methods but the attaching thread's are the trainer's thread's.

    Args:
        path: the daemon's socket.
        segments: the model, in its order.
        step_samples: samples of one step, 1 ... 2^20.
        counters: called from the attaching thread; steps and samples of this run so far.
    """

    def __init__(
        self,
        path: str,
        segments: Sequence[wire.Segment],
        step_samples: int,
        counters: Callable[[], Counters],
    ) -> None:
        objection = wire.check_segments(segments)
        if objection:
            raise ValueError(objection)
        if not 0 < step_samples <= wire.STEP_SAMPLES_MAX:
            raise ValueError(f"samples_per_step is {step_samples}; give 1 ... 2^20")
        _check_is_free(path)
        self.path = path
        self.run = os.urandom(16)
        self.floats = sum(segment.floats for segment in segments)
        self._step_samples = step_samples
        self._packets: List[bytes] = list(wire.segments(segments))
        self._segments = len(segments)
        self._counters = counters
        self._connection: Optional[_Connection] = None
        self._changed = threading.Condition()  # guards the six below
        self._awaited = True  # whether the trainer waits in `wait_attached`, or has yet to
        self._ready: Optional[_Connection] = None
        self._refused: Optional[NotAttached] = None
        self._waiting_for = ""
        self._refused_for_now = ""  # the code of it
        self._closing = False
        _sessions.add(self)
        self._attach_in_background()

    # ---- the trainer's thread ----

    @property
    def attached(self) -> bool:
        """Whether a daemon has this trainer now."""
        return self._connection is not None or self._ready is not None

    @property
    def refused(self) -> Optional[NotAttached]:
        """Why no daemon will take this trainer, ever; None: none has said so."""
        return self._refused

    @property
    def claims_daemon(self) -> bool:
        """Whether it has the daemon at `path`, or means to have it."""
        return not self._closing and self._refused is None

    @property
    def said(self) -> Optional[wire.Attached]:
        """What the daemon said when it took this trainer."""
        return self._connection.said if self._connection else None

    def wait_attached(
        self, timeout_s: float, meanwhile: Optional[Callable[[], None]] = None
    ) -> None:
        """Waits for the daemon: `timeout_s` for its first word, and then for as long as it says
        that it must wait; where it is gone meanwhile, `timeout_s` again. Calls `meanwhile` about
        once a second. Raises NotAttached.
        """
        pause = MEANWHILE_S if meanwhile else threading.TIMEOUT_MAX
        end = time.monotonic() + timeout_s
        while not (self._ready or self._refused):
            with self._changed:
                if self._ready or self._refused:
                    break
                left = end - time.monotonic()
                if self._waiting_for.startswith("WAITING"):
                    self._changed.wait(pause)
                    end = time.monotonic() + timeout_s  # for it to come back, if it has gone now
                elif left > 0:
                    self._changed.wait(min(left, pause))
                else:
                    raise self._no_word()
            if meanwhile:
                meanwhile()
        with self._changed:
            if self._refused:
                raise self._refused
            self._awaited = False
        self._take_ready()

    def _no_word(self) -> NotAttached:
        """What the time to wait has ended with."""
        if self._refused_for_now:
            text = f"gossipd at {self.path} refuses this trainer: {self._waiting_for}"
            return NotAttached(self._refused_for_now, text)
        reason = self._waiting_for or "it says nothing"
        return NotAttached(
            "no-daemon",
            f"no gossipd answers at {self.path} ({reason}); start it with 'gossipd run --"
            " COMMAND', or name its socket (STATE/trainer.sock, which only a"
            ' job of kind = "external" has) in GOSSIPD_SOCKET',
        )

    def announce(self, pack: Callable[[int], bytes]) -> None:
        """Sends the STEP that `pack` makes ahead of `look`, so that the daemon has its answer ready
        by then. Call `look` soon: until it has taken the answer the daemon waits for this trainer.
        """
        connection = self._whole_connection()
        if connection is None or connection.awaiting:
            return
        try:
            connection.announced = connection.send_step(pack)
        except OSError as error:
            self.lose(error)

    @property
    def announced(self) -> bool:
        """Whether a STEP was sent ahead, whose answer `look` has not looked for yet."""
        return self._connection is not None and self._connection.announced

    def look(self, pack: Callable[[int], bytes]) -> Optional[wire.Go]:
        """Sends the STEP that `pack` makes of its sequence, or looks for the GO of the one before.

        Returns the GO, or None where the trainer goes on alone.
        """
        connection = self._whole_connection()
        if connection is None:
            return None
        try:
            if connection.awaiting:
                wait, connection.announced = connection.announced, False
                return connection.receive(wait)
            if connection.send_step(pack):
                return connection.receive(wait=True)
        except (OSError, wire.BadPacket) as error:
            self.lose(error)
        except _Refusal as refusal:
            self.close()
            self._end(NotAttached(refusal.code, f"gossipd refuses this trainer: {refusal}"))
        return None

    @property
    def memory(self) -> SharedMemory:
        """Of the connection that the last GO came by."""
        assert self._connection is not None
        return self._connection.memory

    def done(self, go: wire.Go, counters: Counters) -> None:
        """Says that `go` is carried out."""
        if self._connection is None:
            return
        try:
            self._connection.send_done(go, counters)
        except OSError as error:
            self.lose(error)

    def done_later(self, go: wire.Go, counters: Counters) -> Callable[[], bool]:
        """What another thread calls to say so, again where it returns false."""
        assert self._connection is not None
        return functools.partial(self._connection.try_done, go, counters)

    def send(self, packet: bytes) -> bool:
        """Sends a REPORT or DETACH; false where no daemon takes it."""
        if self._connection is None:
            return False
        try:
            self._connection.sock.send(packet, socket.MSG_DONTWAIT)
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                self.lose(error)
            return False
        return True

    def lose(self, reason: BaseException) -> None:
        """Gives the connection up and attaches anew; what it had under way is void."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if self._closing:
            return
        words = (
            "gossipd: the daemon is gone (%s); training goes on alone until it is back"
            if isinstance(reason, OSError)
            else "gossipd: the connection to the daemon is given up (%s); training goes on alone"
            " until this loop is attached again"
        )
        log.warning(words, str(reason) or type(reason).__name__)
        self._attach_in_background()

    def close(self) -> None:
        """Ends the connection and the attaching."""
        with self._changed:
            self._closing = True
            ready, self._ready = self._ready, None
            self._changed.notify_all()
        for connection in (ready, self._connection):
            if connection is not None:
                connection.close()
        self._connection = None

    def _whole_connection(self) -> Optional[_Connection]:
        if self._connection is not None and self._connection.torn:
            self.lose(RuntimeError("an interrupt came in the middle of a packet"))
        return self._connection or self._take_ready()

    def _take_ready(self) -> Optional[_Connection]:
        if self._ready is None:
            return None
        with self._changed:
            self._connection, self._ready = self._ready, None
        return self._connection

    # ---- the attaching thread ----

    def _attach_in_background(self) -> None:
        threading.Thread(target=self._attach, name="gossipd-attach", daemon=True).start()

    def _attach(self) -> None:
        delay_s = BACKOFF_MIN_S
        while True:
            try:
                connection = self._try_to_attach()
            except _Refusal as refusal:
                if refusal.code not in PASSING:
                    text = f"gossipd refuses this trainer: {refusal}"
                    self._end(NotAttached(refusal.code, text))
                    return
                self._say_waiting(_of_this_process(refusal) or str(refusal), refusal.code)
            except (OSError, wire.BadPacket) as error:
                self._say_waiting(str(error), way_out=WAY_OUT)
            except Exception as error:  # nobody may wait for a thread that has ended
                self._end(NotAttached("failed", f"gossipd cannot attach: {error!r}"))
                raise
            else:
                with self._changed:
                    if connection is not None and self._closing:
                        connection.close()
                    elif connection is not None:
                        self._ready = connection
                    self._changed.notify_all()
                return
            with self._changed:
                if self._changed.wait_for(lambda: self._closing, delay_s):
                    return
            delay_s = min(2 * delay_s, BACKOFF_MAX_S)

    def _try_to_attach(self) -> Optional[_Connection]:
        """One connection up to ATTACHED; None when the session has ended meanwhile."""
        sock = connect(self.path)
        try:
            sock.settimeout(SEND_TIMEOUT_S)
            steps, samples = self._counters()
            attach = wire.attach(
                self.run, self.floats, self._segments, self._step_samples, steps, samples
            )
            # A daemon that refuses does not read on: what it has said counts.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for packet in [attach, *self._packets]:
                    sock.send(packet)
            sock.settimeout(POLL_S)
            while not self._closing:
                taken = self._first_words(sock)
                if taken is not None:
                    return taken
        except BaseException:
            sock.close()
            raise
        sock.close()
        return None

    def _first_words(self, sock: socket.socket) -> Optional[_Connection]:
        descriptors: List[int] = []
        try:
            packet, descriptors, _, _ = receive_with_descriptors(sock)
            if not packet:
                raise ConnectionResetError("it has closed the connection")
            said = wire.decode(packet, self.floats)
            if isinstance(said, wire.Notice):
                if said.refused:
                    raise _Refusal(said)
                self._say_waiting(f"WAITING: {said.text or said.code}")
                return None
            if not isinstance(said, wire.Attached) or len(descriptors) != 1:
                raise wire.BadPacket("its first words are not ATTACHED with one descriptor")
            memory = SharedMemory(descriptors.pop(), said.memory_bytes, self.floats)
            return _Connection(sock, memory, said)
        except socket.timeout:
            return None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _say_waiting(self, text: str, refused: str = "", way_out: str = "") -> None:
        with self._changed:
            if text != self._waiting_for:
                # A loop that stands still says why; one that trains on alone has said it before.
                level = logging.WARNING if refused or self._awaited else logging.INFO
                hint = way_out if self._awaited and not self._waiting_for else ""
                log.log(level, "gossipd: not attached at %s yet: %s%s", self.path, text, hint)
            self._waiting_for, self._refused_for_now = text, refused
            self._changed.notify_all()

    def _end(self, refusal: NotAttached) -> None:
        with self._changed:
            self._refused, awaited = refusal, self._awaited
            self._changed.notify_all()
        if not awaited:  # who waits has it as an exception
            log.error("%s", refusal)

    def forget(self) -> None:
        """In a child process: the connection is the parent's."""
        for connection in (self._connection, self._ready):
            if connection is not None:
                os.close(connection.sock.detach())
        self._connection = self._ready = None
        self._closing = True
        self._changed = threading.Condition()  # the parent's may have been locked at the fork


def _of_this_process(refusal: _Refusal) -> str:
    """Where this process's own last attachment occupies the daemon: do not end the process."""
    if refusal.code == "occupied" and f"process {os.getpid()} " in str(refusal):
        return "the attachment that this process had before is being closed"
    return ""


def _check_is_free(path: str) -> None:
    """NotAttached where another session of this process has the daemon at `path`, which would take
    no second one.
    """

    def is_claimed() -> bool:
        here = os.path.realpath(path)
        return any(s.claims_daemon and os.path.realpath(s.path) == here for s in list(_sessions))

    if is_claimed():
        gc.collect()  # of one that nobody can reach any more
    if is_claimed():
        raise NotAttached(
            "occupied",
            f"this process is attached to gossipd at {path} already, as when a notebook's cell is"
            " run again: call g.detach(0) on that attachment first; where it is lost:"
            " for g in gossipd.attachments(): g.detach(0)",
        )


def _forget_all() -> None:
    for session in list(_sessions):
        session.forget()


# A data loader's workers must not keep the daemon believing that the trainer lives.
os.register_at_fork(after_in_child=_forget_all)

__all__ = ["NotAttached", "Session", "connect"]
