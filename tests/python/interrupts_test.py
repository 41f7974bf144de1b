"""What comes in the middle of a look, Ctrl-C, an error or a fork, spoils none of those after it."""

import os
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
