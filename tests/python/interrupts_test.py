"""What comes in the middle of a look, Ctrl-C, an error or a fork, spoils none of those after it."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

import gossipd
from small_network import attached, train


class Loop:
    """A NumPy loop that looks at each step."""

    def __init__(self):
        self.g = gossipd.attach({"w": np.zeros(3, np.float32)}, samples_per_step=2)
        self.g._is_time = lambda: True

    def step(self, loss=1.0):
        self.g.step(self.g.params, loss=loss)

    def until_told(self, daemon):
        """Steps until the daemon hears of them at once."""
        end = time.monotonic() + 20
        self.step()
        while daemon.steps[-1][0] != self.g.steps:
            assert time.monotonic() < end, daemon.steps[-1]
            self.step()


class Lost:
    """A loss on a device that has failed."""

    size = 1

    def __float__(self):
        raise RuntimeError("the device has failed")


def test_a_loss_that_cannot_be_read_leaves_the_next_look_as_it_was(daemon):
    loop = Loop()
    with pytest.raises(RuntimeError, match="the device has failed"):
        loop.step(Lost())
    loop.step()
    assert [s[0] for s in daemon.steps] == [0, 2] and daemon.attaches == 1


class Interrupted:
    """A socket that Ctrl-C finds `before` or after a call, the `number`th of that name."""

    def __init__(self, sock, name, number, before):
        self._sock, self._name, self._left, self._before = sock, name, number, before

    def __getattr__(self, name):
        plain = getattr(self._sock, name)
        if name != self._name:
            return plain

        def called(*arguments):
            self._left -= 1
            made = None if self._left == 0 and self._before else plain(*arguments)
            if self._left == 0:
                raise KeyboardInterrupt
            return made

        return called


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("name,number", [("send", 1), ("recv", 1), ("recv", 2)])
def test_an_interrupt_at_any_place_of_a_look_lets_the_steps_be_told(daemon, name, number, before):
    loop = Loop()
    connection = loop.g._session._connection
    connection.sock = Interrupted(connection.sock, name, number, before)
    with pytest.raises(KeyboardInterrupt):
        loop.step()
    loop.until_told(daemon)
    # The first recv waits and takes nothing, so it may be given up without harm.
    assert daemon.attaches == (1 if (name, number) == ("recv", 1) else 2)


def test_a_forked_child_leaves_the_connection_to_its_parent(daemon):
    model, optimizer, g = attached(daemon)
    child = os.fork()
    if child == 0:
        optimizer.step()  # torch's backward pass cannot run in a forked process
        os._exit(0 if not g.attached else 1)
    assert os.waitpid(child, 0)[1] == 0
    train(model, optimizer)
    assert [s[0] for s in daemon.steps] == [0, 1]


# Forks while another thread holds the session's lock; says how the child has ended.
FORKS = """
import os, sys, threading, time, gossipd
import numpy as np
g = gossipd.attach({{"w": np.zeros(3, np.float32)}}, samples_per_step=2)
held = threading.Event()
def hold():
    with g._session._changed:
        held.set()
        time.sleep(3600)
threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    {}
    sys.exit(3)
end = time.monotonic() + 20
while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
    if time.monotonic() > end:
        os.kill(child, 9)
        print("hangs")
        os._exit(0)
    time.sleep(0.01)
print("ends with", os.WEXITSTATUS(ended[1]))
os._exit(0)
"""


@pytest.mark.parametrize(
    "child", ["pass", "g.detach(0)", "gossipd.Attachment.detach = lambda *_: time.sleep(3600)"]
)
def test_a_forked_child_ends_though_the_lock_was_held_at_the_fork(daemon, child):
    source = os.path.dirname(os.path.dirname(gossipd.__file__))
    ran = subprocess.run(
        [sys.executable, "-c", FORKS.format(child)],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stdout == "ends with 3\n", ran.stderr
