"""The end of an attachment whose last look fails: its daemon is free, and the error is told."""

import time
import types

import numpy as np
import pytest

import gossipd
from fake_daemon import ADD, FINISHED
from small_network import FLOATS, attached, train

torch = pytest.importorskip("torch")


def spoil(model):
    """The next update meets a tensor of another shape."""
    model[2].weight = torch.nn.Parameter(torch.ones(3, 4))


CHANGE = {"flags": ADD, "ranges": [(0, FLOATS)], "update": np.ones(FLOATS, np.float32)}


def attach_again(daemon):
    daemon.answers = []
    attached(daemon)[2].detach(0)


def test_the_daemon_is_free_after_an_end_that_was_interrupted(daemon, monkeypatch):
    model, optimizer, g = attached(daemon, [{}, {"flags": FINISHED}])
    daemon.plain = {"flags": FINISHED}
    train(model, optimizer)

    def interrupted(_):
        raise KeyboardInterrupt

    clock = types.SimpleNamespace(**{**vars(time), "sleep": interrupted})
    with monkeypatch.context() as patched:
        patched.setattr(gossipd.attachment, "time", clock)
        with pytest.raises(KeyboardInterrupt):
            g.detach()
    assert g not in gossipd.attachments()
    daemon.wait(lambda: daemon.of_type(6))
    attach_again(daemon)


def test_the_daemon_is_free_after_a_last_look_that_failed(daemon):
    model, _, g = attached(daemon, [{}, CHANGE])
    spoil(model)
    with pytest.raises(RuntimeError, match="'2.weight' is gone or has another shape"):
        g.detach(0)
    attach_again(daemon)


def test_a_last_look_that_fails_does_not_cover_the_loops_own_error(daemon, caplog):
    model, _, g = attached(daemon, [{}, CHANGE])
    with pytest.raises(KeyError, match="mine"):
        with g:
            spoil(model)
            raise KeyError("mine")
    assert any("2.weight" in r.getMessage() for r in caplog.records)
    attach_again(daemon)
