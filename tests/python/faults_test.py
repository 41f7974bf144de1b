"""Deaths, delays and lies of the daemon, at every message: the loop goes on, and an update is in
the model once or not at all.
"""

import os
import socket
import struct
import threading
import time

import numpy as np
import pytest

import gossipd
from gossipd import session
from processes import wait_until
from fake_daemon import (
    ADD,
    COPY,
    DIE,
    REPLACE,
    SILENT,
    FakeDaemon,
    go,
    notice,
    packet,
    sealed_memory,
)

FLOATS = 6


class Loop:
    """A NumPy loop whose step adds one to every parameter."""

    def __init__(self, path, **options):
        options = {"samples_per_step": 2, "socket": str(path), "wait_s": 20, **options}
        self.g = gossipd.attach({"w": np.zeros((2, 3), np.float32)}, **options)
        self.g._is_time = lambda: True
        self.params = self.g.params

    def steps(self, count=1):
        for _ in range(count):
            self.params["w"] += 1
            self.params = self.g.step(self.params, loss=1.0)
        return self.params["w"].reshape(-1)

    def until(self, condition, timeout_s=20):
        """Steps until the condition holds."""
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, self.g
            self.steps()


@pytest.fixture
def start(tmp_path):
    daemons = []

    def made(*arguments, **options):
        daemons.append(FakeDaemon(tmp_path / "trainer.sock", *arguments, **options))
        return daemons[-1]

    yield made
    for daemon in daemons:
        if not daemon.stopping:
            daemon.stop()


def once(kind, number, what):
    """The behaviour that replaces one message."""
    state = {"left": 1}

    def behave(k, n):
        if (k, n) == (kind, number) and state["left"]:
            state["left"] = 0
            return what
        return None

    return behave


@pytest.mark.parametrize("message", [(65, 1), (68, 1), (68, 2), (68, 3)])
def test_a_daemon_that_dies_before_any_of_its_messages_is_found_again(start, message):
    daemon = start(once(*message, DIE))
    loop = Loop(daemon.path)
    loop.until(lambda: daemon.attaches == 2 and loop.g.attached)
    loop.until(lambda: daemon.steps and daemon.steps[-1][0] == loop.g.steps)
    assert len(set(daemon.runs)) == 1  # one run of one process
    assert (loop.params["w"] == loop.g.steps).all()
    assert [s[0] for s in daemon.steps] == sorted(s[0] for s in daemon.steps)


def test_who_finds_its_place_taken_hears_it_at_once_and_in_the_end(start, caplog):
    text = "process 4167 trains for this daemon; end it"
    daemon = start(lambda kind, number: notice(66, "occupied", text) if kind == 65 else None)
    with pytest.raises(gossipd.NotAttached, match=f"refuses this trainer: {text}") as refused:
        Loop(daemon.path, wait_s=0.5)
    assert refused.value.code == "occupied"
    assert [r.levelname for r in caplog.records][:1] == ["WARNING"]


def test_what_ends_the_attaching_reaches_who_waits_for_it(start, monkeypatch):
    daemon = start()
    monkeypatch.setattr(gossipd.wire, "attach", lambda *_: 1 / 0)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with pytest.raises(gossipd.NotAttached, match="ZeroDivisionError"):
        Loop(daemon.path)


def test_an_update_is_in_the_model_once_though_the_daemon_dies_after_it(start):
    update = np.full(FLOATS, 100, np.float32)
    daemon = start()
    loop = Loop(daemon.path)
    for turn in range(20):
        daemon.answers = [{"flags": ADD | COPY, "ranges": [(0, FLOATS)], "update": update}]
        heard = len(daemon.dones)
        loop.until(lambda: not daemon.answers)
        daemon.wait(lambda: len(daemon.dones) > heard)
        assert daemon.dones[-1] == (loop.g.steps, 2 * loop.g.steps)
        attaches = daemon.attaches
        daemon.kill()
        loop.until(lambda: daemon.attaches > attaches and loop.g.attached)
        assert (loop.params["w"] == loop.g.steps + 100 * (turn + 1)).all()


def test_a_model_taken_on_attaching_anew_is_no_sign_of_a_bad_step(start, caplog):
    daemon = start()
    loop = Loop(daemon.path)
    daemon.answers = [{"flags": COPY}]
    loop.until(lambda: daemon.dones)
    attaches = daemon.attaches
    daemon.kill()
    replace = {"flags": REPLACE, "ranges": [(0, FLOATS)], "update": np.ones(FLOATS, np.float32)}
    daemon.answers = [replace]
    loop.until(lambda: daemon.attaches > attaches and not daemon.answers)
    assert not [r for r in caplog.records if "look at the learning rate" in r.message]
    daemon.answers = [replace]
    loop.until(lambda: not daemon.answers)
    assert [r for r in caplog.records if "look at the learning rate" in r.message]


def test_a_daemon_started_anew_at_the_same_place_is_found(start):
    first = start()
    loop = Loop(first.path)
    loop.steps(2)
    first.stop()
    loop.steps(3)
    assert not loop.g.attached
    second = start(known=True)
    loop.until(lambda: second.steps)
    assert second.runs == first.runs[:1] and second.steps[0][0] > 2


def test_after_a_second_without_an_answer_the_loop_goes_on_and_takes_it_later(start):
    update = np.full(FLOATS, 10, np.float32)
    daemon = start(once(68, 2, SILENT))
    loop = Loop(daemon.path)
    loop.steps(3)  # the first of them waits, the others do not
    assert [s[0] for s in daemon.steps] == [0, 1] and loop.g.attached
    daemon.memory[0][:] = update
    daemon.connection.send(go(2, 2, ADD, [(2, 3)]))
    loop.until(lambda: daemon.dones)
    expected = np.full(FLOATS, loop.g.steps, np.float32)
    expected[2:5] += 10
    np.testing.assert_array_equal(loop.params["w"].reshape(-1), expected)
    loop.until(lambda: len(daemon.steps) > 2)


def test_a_go_that_waits_unread_when_its_daemon_dies_is_whole_or_not_there(start):
    daemon = start(once(68, 2, SILENT))
    loop = Loop(daemon.path)
    loop.steps(1)
    daemon.memory[0][:] = 10
    daemon.connection.send(go(2, 2, ADD, [(0, FLOATS)]))
    daemon.kill()
    loop.until(lambda: daemon.attaches == 2)
    beyond = loop.params["w"] - loop.g.steps
    assert (beyond == 0).all() or (beyond == 10).all()


def attached_bytes(size, **changes):
    values = {"schema": 7, "own": 0, "budget": 1000, "node": 42, "flags": 0, "reserved": 0}
    values.update(changes)
    return packet(65, 0, struct.pack("<QQQQQII", size, *values.values()))


LIES = {
    "nothing": b"\0",
    "short": b"GPAT",
    "magic": packet(68, 1, magic=1),
    "version": packet(68, 1, version=2),
    "type": packet(99, 1),
    "cut": go(2, 2)[:-1],
    "long": go(2, 2) + b"\0",
    "huge": go(2, 2) + b"\0" * 32700,
    "sequence": go(7, 2),
    "answers": go(2, 9),
    "flags": go(2, 2, 64),
    "both": go(2, 2, ADD | REPLACE, [(0, 1)]),
    "snapshot": go(2, 2, COPY, snapshot=2),
    "beyond": go(2, 2, ADD, [(0, FLOATS + 1)]),
    "overflow": go(2, 2, ADD, [(2**64 - 1, 2)]),
    "empty": go(2, 2, ADD, [(0, 0)]),
    "descending": go(2, 2, ADD, [(3, 1), (0, 1)]),
    "overlap": go(2, 2, ADD, [(0, 3), (2, 2)]),
    "aimless": go(2, 2, 0, [(0, 1)]),
    "progress": go(2, 2, progress=float("nan")),
    "factor": go(2, 2, factor=-1.0),
    "great factor": go(2, 2, factor=1 + 1e-8),
    "place": go(2, 2, place=1),
    "members": go(2, 2, members=0),
    "twice": [go(2, 2), go(3, 2)],
    "refused": notice(66, "stopping", "the daemon ends"),
    "notice": notice(66, "x", "text", claimed=2**32 - 1),
    "again": attached_bytes(0),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_in_place_of_a_go_changes_nothing_and_ends_the_connection(start, lie):
    daemon = start(once(68, 2, LIES[lie]))
    loop = Loop(daemon.path)
    daemon.memory[0][:] = 1000
    loop.until(lambda: daemon.attaches == 2 and loop.g.attached)
    loop.until(lambda: daemon.steps[-1][0] == loop.g.steps)
    assert (loop.params["w"] == loop.g.steps).all()


class Device:
    """A founder's loop whose later copies end as a GPU's do: afterwards, when `landed` is set."""

    def __init__(self, daemon):
        daemon.answers = [{"flags": COPY}, {"flags": COPY, "snapshot": 1}]
        self.loop = Loop(daemon.path)
        daemon.wait(lambda: daemon.dones == [(0, 0)])
        self.landed = threading.Event()
        self.asked = threading.Semaphore(0)
        self.loop.g._model.settled = lambda: self._has_landed
        self.loop.steps()
        for _ in range(2):  # somebody asks, and asks again
            assert self.asked.acquire(timeout=20)

    def _has_landed(self):
        self.asked.release()
        return self.landed.is_set()


def test_a_copy_of_a_device_is_done_as_soon_as_it_has_landed(start):
    daemon = start()
    device = Device(daemon)
    ones = np.ones(FLOATS, np.float32)
    daemon.answers = [{"flags": ADD, "ranges": [(0, FLOATS)], "update": ones}]
    device.loop.steps(3)
    assert [s[0] for s in daemon.steps] == [0, 1] and len(daemon.dones) == 1
    device.landed.set()
    daemon.wait(lambda: len(daemon.dones) == 2)  # while the loop is elsewhere
    assert daemon.dones[1] == (1, 2)
    device.loop.until(lambda: len(daemon.dones) == 3)
    assert (device.loop.params["w"] == device.loop.g.steps + 1).all() and daemon.attaches == 1


def test_the_end_waits_for_a_copy_and_tells_the_last_steps(start):
    daemon = start()
    device = Device(daemon)
    device.loop.steps(3)
    threading.Timer(0.05, device.landed.set).start()
    device.loop.g.detach()
    daemon.wait(lambda: daemon.of_type(6))
    assert daemon.dones[1:] == [(1, 2)] and [s[0] for s in daemon.steps] == [0, 1, 4]


def test_a_copy_that_lands_after_its_daemon_has_gone_is_told_to_no_other(start):
    daemon = start()
    device = Device(daemon)
    daemon.kill()
    device.landed.set()
    device.loop.until(lambda: daemon.attaches == 2 and daemon.steps[-1][0] == device.loop.g.steps)
    assert len(daemon.dones) == 1


def test_a_copy_that_fails_attaches_anew_and_is_raised(start):
    daemon = start()
    device = Device(daemon)
    device.landed.is_set = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        device.loop.until(lambda: False)
    device.loop.until(lambda: daemon.attaches == 2 and daemon.steps[-1][0] == device.loop.g.steps)
    assert len(daemon.dones) == 1


def test_a_founders_model_is_looked_at_when_it_has_landed(start, monkeypatch):
    left = [False, False, True]
    monkeypatch.setattr(gossipd.attachment.Model, "settled", lambda model: lambda: left.pop(0))
    daemon = start()
    daemon.answers = [{"flags": COPY}]
    Loop(daemon.path)
    daemon.wait(lambda: daemon.dones)
    assert daemon.dones == [(0, 0)] and not left


def test_a_factor_that_rounding_has_put_above_one_is_one(start):
    daemon = start()
    loop = Loop(daemon.path)
    daemon.answers = [{"factor": 0.5}, {"factor": 1 + 2**-52}]
    loop.steps(1)
    assert loop.g.rate_factor == 0.5
    loop.steps(1)
    assert loop.g.rate_factor == 1.0 and loop.g.attached and daemon.attaches == 1


WRONG_MEMORY = {
    "unsealed": {"seals": 0},
    "may shrink": {"seals": 1 | 4},
    "magic": {"header": (1, 1, FLOATS, 7, 4096, 4160, 4224, 4288)},
    "version": {"header": (0x4D535047, 2, FLOATS, 7, 4096, 4160, 4224, 4288)},
    "floats": {"header": (0x4D535047, 1, FLOATS + 1, 7, 4096, 4160, 4224, 4288)},
    "size": {"header": (0x4D535047, 1, FLOATS, 7, 4096, 4160, 4224, 9999)},
    "overlap": {"header": (0x4D535047, 1, FLOATS, 7, 4096, 4096, 4224, 4288)},
    "in the header": {"header": (0x4D535047, 1, FLOATS, 7, 0, 4160, 4224, 4288)},
    "outside": {"header": (0x4D535047, 1, FLOATS, 7, 4096, 4160, 2**63, 4288)},
    "crooked": {"header": (0x4D535047, 1, FLOATS, 7, 4100, 4160, 4224, 4288)},
}


@pytest.mark.parametrize("wrong", WRONG_MEMORY)
def test_a_memory_that_is_not_as_the_page_says_is_not_touched(start, wrong):
    daemon = start()
    made = []

    def memory_of(floats):
        options = {} if made else WRONG_MEMORY[wrong]
        made.append(sealed_memory(floats, **options))
        return made[-1]

    daemon.memory_of = memory_of
    files = len(os.listdir("/proc/self/fd"))
    loop = Loop(daemon.path)
    assert daemon.attaches == 2
    assert not made[0][2][1].any()
    loop.g.detach()
    daemon.wait(lambda: daemon.of_type(6))
    # Each mapping of the fake daemon keeps a descriptor, and so may its connection.
    assert len(os.listdir("/proc/self/fd")) <= files + len(made) + 1


@pytest.mark.parametrize("lie", ["nothing", "type", "version", "notice", "again", "cut"])
def test_lies_in_place_of_attached_are_tried_again(start, lie):
    daemon = start(once(65, 1, LIES[lie]))
    loop = Loop(daemon.path)
    assert daemon.attaches == 2 and loop.steps(1).all()


def test_a_refusal_for_good_is_raised_with_its_words_and_not_told_twice(start, caplog):
    text = "tensor 'w' is [2, 3], but the job's is [3, 3]; attach that model"
    daemon = start(lambda kind, n: notice(66, "other-segments", text) if kind == 65 else None)
    with pytest.raises(gossipd.NotAttached, match="tensor 'w'") as refusal:
        Loop(daemon.path)
    assert refusal.value.code == "other-segments" and daemon.attaches == 1
    assert not caplog.records


def refused_unread():
    """The trainer's end of a connection whose daemon has read nothing, refused and gone."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.send(b"unread")
    theirs.send(notice(66, "not-allowed", "user 7 is not the daemon's"))
    theirs.close()
    return ours


def test_a_reset_does_not_hide_the_words_before_it():
    with refused_unread() as ours:
        packet, descriptors, *_ = session.receive_with_descriptors(ours)
    assert b"user 7" in packet and not descriptors


def test_a_refusal_before_all_is_said_is_raised_with_its_words(monkeypatch, tmp_path):
    monkeypatch.setattr(session, "connect", lambda path: refused_unread())
    with pytest.raises(gossipd.NotAttached, match="user 7") as refusal:
        Loop(tmp_path / "trainer.sock", wait_s=5)
    assert refusal.value.code == "not-allowed"


def test_a_later_refusal_for_good_is_told_and_leaves_the_loop_alone(start, caplog):
    refused = notice(66, "not-external", "the job is the daemon's")
    daemon = start(lambda kind, n: refused if (kind, n > 1) == (65, True) else None)
    loop = Loop(daemon.path)
    loop.steps()
    daemon.kill()
    loop.until(lambda: loop.g.refusal)
    assert loop.g.refusal.code == "not-external" and not loop.g.attached
    assert (loop.steps(3) == loop.g.steps).all()
    loop.until(lambda: [r for r in caplog.records if "the job is the daemon's" in r.message])


@pytest.mark.parametrize("goes", [1, 2])
def test_a_model_that_the_daemon_finds_not_finite_is_not_brought_again(start, caplog, goes):
    refused = notice(66, "not-finite", "NaN is in 'w'")
    daemon = start(lambda kind, n: refused if (kind, n) == (68, goes) else None)
    if goes == 1:
        with pytest.raises(gossipd.NotAttached, match="NaN is in 'w'"):
            Loop(daemon.path)
    else:
        loop = Loop(daemon.path)
        loop.until(lambda: loop.g.refusal)
        assert (loop.steps(3) == loop.g.steps).all()
    assert daemon.attaches == 1 and [r.levelname for r in caplog.records] == ["ERROR"]


@pytest.mark.parametrize("code", ["occupied", "too-slow", "no-memory", "stopping"])
def test_a_passing_refusal_is_tried_again(start, code):
    daemon = start(once(65, 1, notice(66, code, "later")))
    assert Loop(daemon.path).g.attached and daemon.attaches == 2


def test_nobody_is_told_to_end_the_process_that_attaches_again(start, caplog):
    words = f"process {os.getpid()} trains for this daemon; end it"
    daemon = start(once(65, 1, notice(66, "occupied", words)))
    assert Loop(daemon.path).g.attached and daemon.attaches == 2
    assert "end it" not in caplog.text and "is being closed" in caplog.text


def test_a_daemon_that_waits_is_waited_for_and_says_why(start, caplog):
    words = [notice(67, "no-cluster", "it has heard of no job yet"), notice(67, "preparing", "…")]
    daemon = start()
    inner = daemon._say

    def say(sock, kind, number, content, descriptors=()):
        if kind == 65:
            for word in words:
                sock.send(word)
        inner(sock, kind, number, content, descriptors)

    daemon._say = say
    assert Loop(daemon.path, wait_s=5).g.attached
    assert [r.levelname for r in caplog.records] == ["WARNING", "WARNING"]
    assert "it has heard of no job yet" in caplog.records[0].message


def test_a_daemon_that_has_gone_while_it_waited_is_not_waited_for_longer(start, caplog):
    daemon = start()

    def say(sock, kind, number, content, descriptors=()):
        sock.send(notice(67, "no-cluster", "it has heard of no job yet"))
        daemon.disappear()
        wait_until(lambda: [r for r in caplog.records if "heard of no job" in r.message])
        raise EOFError

    daemon._say = say
    with pytest.raises(gossipd.NotAttached, match="no gossipd answers") as refusal:
        Loop(daemon.path, wait_s=0.5)
    assert refusal.value.code == "no-daemon"
    assert "heard of no job" in caplog.text


def test_no_daemon_is_said_at_once_and_in_the_end_with_the_way_out(tmp_path, caplog):
    with pytest.raises(gossipd.NotAttached, match="GOSSIPD_SOCKET") as refusal:
        Loop(tmp_path / "none", wait_s=0.3)
    assert refusal.value.code == "no-daemon"
    assert [r.message for r in caplog.records] == [
        f"gossipd: not attached at {tmp_path / 'none'} yet: [Errno 2] No such file or directory"
        + session.WAY_OUT
    ]


def test_a_silent_daemon_is_said_after_the_time_to_wait(start):
    daemon = start(lambda kind, number: SILENT)
    with pytest.raises(gossipd.NotAttached, match="no gossipd answers"):
        Loop(daemon.path, wait_s=0.3)


def test_a_socket_with_a_long_path_is_reached(tmp_path):
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    here = os.getcwd()
    os.chdir(folder)
    daemon = FakeDaemon("trainer.sock")
    os.chdir(here)
    assert Loop(folder / "trainer.sock").g.attached
    daemon.kill()


def test_an_interrupt_while_an_update_is_applied_attaches_anew(start, monkeypatch):
    daemon = start()
    loop = Loop(daemon.path)

    def interrupted(*_):
        raise KeyboardInterrupt

    daemon.answers = [{"flags": ADD, "ranges": [(0, FLOATS)], "update": np.ones(FLOATS)}]
    with monkeypatch.context() as patched:
        patched.setattr(loop.g._model, "apply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.steps()
    loop.until(lambda: daemon.attaches == 2 and daemon.steps[-1][0] == loop.g.steps)
    assert daemon.dones == []  # what was not done is not said to be
