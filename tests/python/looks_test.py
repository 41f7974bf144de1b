"""When a loop with PyTorch looks: what goes out before a step, and what a step without costs."""

import ctypes
import functools
import inspect
import os
import sys
import types

import numpy as np
import pytest

import gossipd
from fake_daemon import ADD, COPY, FINISHED, REPLACE, SILENT
from small_network import FLOATS, attached, flat, looks_at_each_step, network, scaler_of, train

torch = pytest.importorskip("torch")


def test_a_look_is_announced_before_the_step_and_taken_after_it(daemon):
    model, optimizer, g = attached(daemon)
    looks_at_each_step(g, ahead=True)
    ones = np.ones(FLOATS, np.float32)
    daemon.answers = [{}, {"flags": ADD, "ranges": [(0, FLOATS)], "update": ones}]
    optimizer.zero_grad()
    before = flat(model)
    optimizer.step()
    np.testing.assert_array_equal(flat(model), before)
    optimizer.step()
    np.testing.assert_array_equal(flat(model), before + 1)
    daemon.wait(lambda: daemon.dones)
    assert daemon.dones == [(2, 10)]
    g.detach()
    daemon.wait(lambda: daemon.of_type(6))
    assert [s[:2] for s in daemon.steps] == [(0, 0), (0, 0), (1, 5), (2, 10)]


def test_an_announced_look_counts_the_time_of_the_step_that_is_almost_made(daemon, monkeypatch):
    model, optimizer, g = attached(daemon)
    looks_at_each_step(g, ahead=True)
    g._is_time = lambda: g._session.announced or due
    clock = types.SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(gossipd.attachment, "time", clock)
    g._mark_look()
    for due in (False, False, False, True):
        clock.now += 2.0
        optimizer.step()
    assert daemon.steps[-1][0] == 3 and daemon.steps[-1][4] == 2.0
    g._look_interval_s = 1.0
    clock.now += 2.0
    optimizer.step()  # the only one since the last look: nothing is known yet
    assert daemon.steps[-1][0] == 4 and daemon.steps[-1][4] == 0.0


@pytest.mark.parametrize("named", [False, True])
def test_no_look_is_announced_before_a_closure(daemon, named):
    model, optimizer, g = attached(daemon)
    looks_at_each_step(g, ahead=True)
    announced = []

    def closure():
        announced.append(g._session.announced)
        optimizer.zero_grad()
        loss = model(torch.randn(5, 3)).pow(2).mean()
        loss.backward()
        return loss

    optimizer.step(closure=closure) if named else optimizer.step(closure)
    assert announced == [False] and [s[0] for s in daemon.steps] == [0, 1]
    optimizer.step(None)
    assert [s[0] for s in daemon.steps] == [0, 1, 1]  # announced as without the argument


def test_the_optimiser_that_torchs_hooks_get_first_is_no_closure():
    given = gossipd.torch_attachment.was_given_closure
    me, closure = object(), lambda: None
    assert given(me, (me, closure), {}) and given(me, (me,), {"closure": closure})
    assert not given(me, (me,), {}) and not given(me, (me, None), {"grad_scaler": 1})


def with_hooks(step):
    """A step() as torch makes it of that of each class from 2.0 on."""

    @functools.wraps(step)
    def made(self):
        for hook in list(self.before.values()):
            hook(self, (self,), {})
        result = step(self)
        for hook in list(self.after.values()):
            hook(self, (self,), {})
        return result

    return made


class Plain(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})
        self.before, self.after = {}, {}

    def register_step_pre_hook(self, hook):
        return self._add(self.before, hook)

    def register_step_post_hook(self, hook):
        return self._add(self.after, hook)

    def _add(self, hooks, hook):
        hooks[hook] = hook
        return types.SimpleNamespace(remove=lambda: hooks.pop(hook, None))

    step = with_hooks(lambda self: None)


class Inherits(Plain):
    step = with_hooks(inspect.unwrap(Plain.step))  # as torch's AdamW, if made before an Adam


class Derived(Plain):
    step = with_hooks(lambda self: super(Derived, self).step())


@pytest.mark.parametrize("kind", [Plain, Inherits, Derived])
def test_a_step_by_way_of_the_parents_step_counts_once(daemon, kind):
    model, optimizer, g = attached(daemon, optimizer=kind)
    assert bool(optimizer.after) == (kind is not Derived)  # accelerate swaps the instance's step()
    train(model, optimizer, 3)
    assert g.steps == 3
    g.detach(0)
    train(model, optimizer)
    assert g.steps == 3 and not optimizer.before and not optimizer.after


class Accelerated(torch.optim.Optimizer):
    """As accelerate wraps an optimiser for a GradScaler, which finds infinities by chance."""

    def __init__(self, optimizer):
        self.optimizer, self.was_called = optimizer, False
        self._optimizer_original_step_method = plain = optimizer.step
        self._optimizer_patched_step_method = lambda: self._note() or plain()

    param_groups = property(lambda self: self.optimizer.param_groups)

    def _note(self):
        self.was_called = True

    def step(self, infinite=False):
        self.was_called = False
        self.optimizer.step = self._optimizer_patched_step_method
        if not infinite:
            self.optimizer.step()
        self.optimizer.step = self._optimizer_original_step_method
        assert self.was_called is not infinite


@pytest.mark.parametrize("attach_first", [True, False])
def test_a_wrapper_that_swaps_step_counts_each_step_once(daemon, attach_first):
    model = network()
    plain = Derived(model.parameters())
    wrapper = None if attach_first else Accelerated(plain)
    g = gossipd.attach(model, plain if attach_first else wrapper, samples_per_step=5)
    wrapper = wrapper or Accelerated(plain)
    for infinite in (False, True, False, False):
        wrapper.step(infinite=infinite)
    plain.step()  # between two steps of the wrapper it is the original one
    assert g.steps == 4
    g.detach(0)
    wrapper.step()
    assert g.steps == 4
    again = gossipd.attach(model, wrapper, samples_per_step=5)
    wrapper.step()
    assert (g.steps, again.steps) == (4, 1)


def test_a_look_announced_before_a_step_that_is_skipped_is_taken(daemon):
    scaler = scaler_of()
    model, optimizer, g = attached(daemon, optimizer=lambda p: torch.optim.SGD(p, 0.1, fused=True))
    looks_at_each_step(g, ahead=True)
    scaler.scale(model(torch.randn(5, 3)).pow(2).mean() * float("inf")).backward()
    daemon.answers = [{"flags": ADD | COPY, "ranges": [(0, 1)], "update": np.ones(FLOATS)}]
    scaler.step(optimizer)
    daemon.wait(lambda: daemon.dones)
    assert daemon.dones == [(0, 0)] and g.steps == 0


def test_a_daemon_that_does_not_answer_what_was_announced_is_not_waited_for_twice(daemon):
    model, optimizer, g = attached(daemon)
    looks_at_each_step(g, ahead=True)
    daemon.behaviour = lambda kind, number: SILENT if (kind, number) == (68, 2) else None
    train(model, optimizer, 3)
    assert [s[0] for s in daemon.steps] == [0, 0] and g.steps == 3 and g.attached


def test_a_look_is_due_when_a_hundredth_of_the_budget_or_its_rest_may_be_spent(daemon):
    daemon.plain = {"budget": 2000, "trainers": 2}
    model, optimizer, g = attached(daemon)
    del g._is_time
    g._look_interval_s, g._ahead = 1e9, False
    train(model, optimizer, 6)  # five samples each, and as many of the other box
    assert [s[1] for s in daemon.steps] == [0, 10, 20, 30]
    daemon.plain = {"budget": 2000, "cluster": 1985, "trainers": 2}
    train(model, optimizer, 4)
    assert [s[1] for s in daemon.steps][4:] == [40, 50]
    daemon.plain = {"budget": 2000, "cluster": 1990, "trainers": 2}
    train(model, optimizer, 3)
    assert [s[1] for s in daemon.steps][6:] == [60, 65]
    daemon.plain = {"budget": 2000, "cluster": 2000, "flags": FINISHED}
    train(model, optimizer)
    assert g.finished


def test_a_step_without_a_look_calls_no_kernel_and_keeps_no_memory(daemon):
    """In a child process that the kernel kills at any call but read and write."""
    _, optimizer, g = attached(daemon, [{"budget": 10**9}])
    del g._is_time
    g._ahead, g._look_interval_s, g._resumed_at = True, 1e9, 0.0
    loss, steps = torch.ones(()), g.steps
    prctl = ctypes.CDLL(None).prctl
    there, here = os.pipe()
    child = os.fork()
    if child == 0:
        g._session._connection = types.SimpleNamespace(announced=False)  # the fork has closed it
        # Reads a register, which this mode forbids as well.
        gossipd.attachment.time = types.SimpleNamespace(perf_counter=lambda: 1.0)
        for turn in range(200):
            if turn == 100:
                blocks = sys.getallocatedblocks()
                prctl(22, 1, 0, 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_STRICT
            g._before_step()
            g._after_step(optimizer, {})
            g.log(loss=loss)
        os.write(here, b"%d %d" % (g.steps - steps, sys.getallocatedblocks() - blocks))
        os._exit(0)  # is a call, too
    os.close(here)
    os.waitpid(child, 0)
    with os.fdopen(there, "rb") as said:
        made, kept = said.read().split()
    assert int(made) == 200 and int(kept) < 10


def attached_between_looks(daemon, monkeypatch):
    """A loop that has made a step and whose next regular look is far off."""
    monkeypatch.setattr(gossipd.attachment, "samples_between", lambda go: np.inf)
    model, optimizer, g = attached(daemon, [{"flags": COPY}])
    del g._is_time
    g._learn_cost = lambda seconds: None
    g._look_interval_s = 1e9
    train(model, optimizer)
    return model, optimizer, g


def test_a_loss_that_is_not_finite_is_looked_at_at_once_and_what_comes_of_it_is_said(
    daemon, caplog, monkeypatch
):
    model, optimizer, g = attached_between_looks(daemon, monkeypatch)
    before = len(daemon.steps)
    sound = np.ones(FLOATS, np.float32)
    daemon.answers = [{"flags": REPLACE, "ranges": [(0, FLOATS)], "update": sound}]
    g.log(loss=float("nan"))
    train(model, optimizer)
    assert len(daemon.steps) == before + 1
    np.testing.assert_array_equal(flat(model), sound)
    assert [r for r in caplog.records if "look at the learning rate" in r.message]
    train(model, optimizer)  # the loss was of the model before
    assert len(daemon.steps) == before + 1


def test_one_loss_that_is_not_finite_brings_two_looks_forward_where_the_model_is_sound(
    daemon, monkeypatch
):
    model, optimizer, g = attached_between_looks(daemon, monkeypatch)
    before = len(daemon.steps)
    g.log(loss=float("nan"))
    train(model, optimizer, 20)
    assert before + 1 <= len(daemon.steps) <= before + 2
