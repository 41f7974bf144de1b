"""gossipd.attach with PyTorch against a daemon made of the protocol's page."""

import logging
import os
import threading

import numpy as np
import pytest

import gossipd
from fake_daemon import ADD, COPY, FINISHED, PAUSED, REPLACE, SETTLED, notice
from small_network import FLOATS, attached, flat, looks_at_each_step, network, scaler_of, train

torch = pytest.importorskip("torch")


def test_parameters_and_statistics_are_the_segments(daemon):
    attached(daemon)
    assert daemon.segments == [
        ("0.weight", (4, 3), 0),
        ("0.bias", (4,), 0),
        ("1.weight", (4,), 0),
        ("1.bias", (4,), 0),
        ("2.weight", (2, 4), 0),
        ("1.running_mean", (4,), 1),
        ("1.running_var", (4,), 1),
    ]


def test_a_founders_model_is_copied_and_a_joiners_replaced(daemon):
    model, _, founding = attached(daemon, [{"flags": COPY, "snapshot": 1}])
    daemon.wait(lambda: daemon.snapshots_done)
    np.testing.assert_array_equal(daemon.snapshots_done[0][1], flat(model))
    update = np.arange(FLOATS, dtype=np.float32)
    founding.detach(0)
    answer = {"flags": REPLACE, "ranges": [(0, FLOATS)], "update": update}
    daemon.attaches = 0
    other, _, g = attached(daemon, [answer])
    np.testing.assert_array_equal(flat(other), update)
    assert g.replaced


def test_a_founders_model_that_is_not_finite_is_refused_and_a_joiners_is_not(daemon):
    model = network()
    with torch.no_grad():
        model[2].weight[1, 3] = float("nan")
    daemon.answers = [{"flags": COPY | PAUSED}]
    with pytest.raises(ValueError, match="'2.weight' holds NaN"):
        gossipd.attach(model, samples_per_step=5)
    assert not daemon.dones
    update = np.ones(FLOATS, np.float32)
    daemon.answers = [{"flags": REPLACE | COPY, "ranges": [(0, FLOATS)], "update": update}]
    assert gossipd.attach(model, samples_per_step=5).replaced
    assert (flat(model) == 1).all()


def test_only_the_named_ranges_are_added(daemon):
    model, optimizer, g = attached(daemon)
    ranges = [(1, 2), (11, 3), (FLOATS - 9, 9)]  # within, over a border, to the end
    update = np.full(FLOATS, np.nan, np.float32)
    for first, floats in ranges:
        update[first : first + floats] = np.arange(1, floats + 1)
    daemon.answers = [{"flags": ADD | COPY, "ranges": ranges, "update": update}]
    optimizer.zero_grad()
    before = flat(model)
    optimizer.step()
    expected = before.copy()
    for first, floats in ranges:
        expected[first : first + floats] += update[first : first + floats]
    np.testing.assert_array_equal(flat(model), expected)
    daemon.wait(lambda: daemon.snapshots_done)
    np.testing.assert_array_equal(daemon.snapshots_done[0][0], expected)


def test_a_variance_falls_by_at_most_a_half_by_an_update(daemon):
    model, optimizer, g = attached(daemon)
    with torch.no_grad():
        model[1].running_var[:] = torch.tensor([1.0, 1.0, 3.0, 1.0])
    update = np.full(FLOATS, -1.25, np.float32)
    update[-3:] = [-0.25, -8.0, 2.0]
    ranges = [(FLOATS - 8, 8)], [(FLOATS - 2, 2)]  # the whole of mean and variance, and a part
    daemon.answers = [{"flags": ADD, "ranges": r, "update": update} for r in ranges]
    optimizer.zero_grad()
    optimizer.step()
    assert model[1].running_var.tolist() == [0.5, 0.75, 1.5, 3.0]
    assert model[1].running_mean.tolist() == [-1.25] * 4
    optimizer.step()
    assert model[1].running_var.tolist() == [0.5, 0.75, 0.75, 5.0]


def test_a_tensor_that_is_not_contiguous_is_changed_in_part(daemon):
    model = torch.nn.Conv2d(2, 3, 2, bias=False).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    looks_at_each_step(gossipd.attach(model, optimizer, samples_per_step=1))
    before = model.weight.detach().reshape(-1).numpy().copy()
    update = np.arange(24, dtype=np.float32)
    daemon.answers = [{"flags": ADD, "ranges": [(3, 5)], "update": update}]
    optimizer.step()
    before[3:8] += update[3:8]
    np.testing.assert_array_equal(model.weight.detach().reshape(-1).numpy(), before)


def test_replacing_lets_the_moments_begin_anew(daemon):
    model, optimizer, g = attached(daemon, optimizer=lambda p: torch.optim.AdamW(p, 0.1))
    train(model, optimizer, 2)
    assert len(optimizer.state) == 5
    answer = {"flags": REPLACE, "ranges": [(0, FLOATS)], "update": np.ones(FLOATS, np.float32)}
    daemon.answers = [answer]
    train(model, optimizer)
    assert g.replaced and len(optimizer.state) == 0
    train(model, optimizer)
    assert not g.replaced and next(iter(optimizer.state.values()))["step"] == 1


def test_replacing_lets_adagrad_begin_as_it_was_made(daemon):
    joins = {"flags": REPLACE, "ranges": [(0, FLOATS)], "update": np.ones(FLOATS, np.float32)}
    adagrad = lambda p: torch.optim.Adagrad(p, 0.1, initial_accumulator_value=0.5)
    model, optimizer, g = attached(daemon, [joins], adagrad)
    assert g.replaced
    train(model, optimizer, 2)
    state = optimizer.state[model[2].weight]
    assert state["step"] == 2 and (state["sum"] > 0.5).any()
    daemon.answers = [joins]
    train(model, optimizer)
    assert g.replaced and len(optimizer.state) == 5
    assert all(s["step"] == 0 and (s["sum"] == 0.5).all() for s in optimizer.state.values())
    train(model, optimizer)
    assert optimizer.state[model[2].weight]["step"] == 1


def test_progress_comes_with_every_look(daemon):
    words = {"progress": 0.25, "cluster": 250, "factor": 0.5, "place": 2, "trainers": 3}
    _, _, g = attached(daemon, [{**words, "members": 4}])
    assert (g.progress, g.cluster_samples, g.budget_samples) == (0.25, 250, 1000)
    assert (g.rate_factor, g.place, g.trainers, g.members) == (0.5, 2, 3, 4)
    assert "progress 0.250" in repr(g)


def test_steps_count_once_each_with_loss_and_rate(daemon):
    model, optimizer, g = attached(daemon)
    for _ in range(3):
        loss = train(model, optimizer)
        g.log(loss=loss)
    g.detach()
    daemon.wait(lambda: daemon.of_type(6))
    assert [s[:2] for s in daemon.steps] == [(0, 0), (1, 5), (2, 10), (3, 15), (3, 15)]
    assert daemon.steps[-1][2] == pytest.approx(loss.item())
    assert daemon.steps[-1][3] == pytest.approx(0.1) and daemon.steps[-1][5] == 1


def test_micro_batches_make_one_step_with_all_their_samples(daemon):
    model, optimizer, g = attached(daemon)
    for _ in range(3):
        optimizer.zero_grad()
        for part in (4, 4, 2):
            model(torch.randn(part, 3)).mean().backward()
            g.log(samples=part)
        optimizer.step()
    assert [s[:2] for s in daemon.steps] == [(0, 0), (1, 10), (2, 20), (3, 30)]


def test_samples_logged_after_each_step_are_exact_at_the_end(daemon):
    model, optimizer, g = attached(daemon)
    for n in (5, 5, 3):
        train(model, optimizer)
        g.log(samples=n)
    g.detach()
    daemon.wait(lambda: daemon.of_type(6))
    assert daemon.steps[-1][:2] == (3, 13)
    assert all(a[1] <= b[1] for a, b in zip(daemon.steps, daemon.steps[1:]))


@pytest.mark.parametrize("before", [False, True])
def test_a_step_without_its_number_of_samples_counts_as_attached(daemon, before):
    model, optimizer, g = attached(daemon)
    for n in [None, 2] * 10:
        if before:
            g.log(loss=1.0, samples=n)
        train(model, optimizer)
        if not before:
            g.log(loss=1.0, samples=n)
    g.detach()
    daemon.wait(lambda: daemon.of_type(6))
    assert daemon.steps[-1][:2] == (20, 10 * 5 + 10 * 2)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_skips_is_none(daemon, fused):
    scaler = scaler_of()
    model, optimizer, g = attached(daemon, optimizer=lambda p: torch.optim.SGD(p, 0.1, fused=fused))
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(5, 3)).pow(2).mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    assert g.steps == 2


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_the_samples_of_a_skipped_step_count_with_the_next_however_it_is_skipped(
    daemon, called, before
):
    model, optimizer, g = attached(daemon)
    for samples, skipped in ((4, False), (3, True), (5, False), (2, False)):
        if before:
            g.log(samples=samples)
        if skipped:
            optimizer.found_inf = torch.ones(1)  # as a GradScaler tells a fused optimiser
        if called or not skipped:
            optimizer.step()
        optimizer.found_inf = None
        if not before:
            g.log(samples=samples)
    g.detach()
    daemon.wait(lambda: daemon.of_type(6))
    assert daemon.steps[-1][:2] == (3, 14)


def test_a_paused_loop_stands_still_until_it_may_go_on(daemon):
    answers = [{}, {"flags": PAUSED}, {"flags": PAUSED}, {}]
    model, optimizer, g = attached(daemon, answers)
    train(model, optimizer)
    assert [s[0] for s in daemon.steps] == [0, 1, 1, 1] and not g.paused


def test_why_a_loop_is_held_is_said_once(daemon, caplog):
    model, optimizer, g = attached(daemon, [{}, *[{"flags": PAUSED}] * 9])
    train(model, optimizer)
    (words,) = caplog.messages
    assert "gossipctl resume" in words and "gossipctl join" in words


def test_the_end_waits_for_the_final_model(daemon):
    final = np.full(FLOATS, 3, np.float32)
    last = {"flags": REPLACE | FINISHED | SETTLED, "ranges": [(0, FLOATS)], "update": final}
    answers = [{}, {"flags": FINISHED}, {"flags": FINISHED | PAUSED}, last]
    model, optimizer, g = attached(daemon, answers)
    with g:
        while not g.finished:
            train(model, optimizer)
    assert g.settled and g.steps == 1
    np.testing.assert_array_equal(flat(model), final)
    train(model, optimizer)
    assert g.steps == 1  # detached: the hook counts no more


def test_a_loop_that_fails_does_not_wait_for_the_final_model(daemon):
    with pytest.raises(KeyError):
        with attached(daemon, [{"flags": FINISHED}])[2]:
            raise KeyError
    daemon.wait(lambda: daemon.of_type(6))


def test_nan_is_told_and_an_infinite_loss_alone_is_not(daemon):
    model, optimizer, g = attached(daemon)
    g.log(loss=float("inf"))
    train(model, optimizer)
    assert daemon.steps[-1][5] == 1
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    train(model, optimizer)
    assert daemon.steps[-1][5] == 0


def test_what_no_step_can_have_is_refused_where_it_is_logged(daemon):
    model, optimizer, g = attached(daemon)
    for samples in (-1, 2**20 + 1, 2**70):
        with pytest.raises(ValueError, match="samples"):
            g.log(samples=samples)
    for samples in (1.5, "x"):
        with pytest.raises(TypeError, match="samples is .*whole number"):
            g.log(samples=samples)
    for loss in ("x", torch.zeros(3), np.zeros(3)):
        with pytest.raises(TypeError, match="loss is"):
            g.log(loss=loss)
    train(model, optimizer)
    assert daemon.steps[-1][:2] == (1, 5)
    with pytest.raises(TypeError, match="seed is"):
        g.sampler(10, seed="x")
    with pytest.raises(ValueError, match="cannot be divided"):
        g.sampler(2**40)


def test_steps_of_an_optimiser_that_is_not_attached_are_said_to_count_for_nothing(daemon, caplog):
    model, _, g = attached(daemon)
    other = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(300):
        g.log(loss=train(model, other))
    assert len(caplog.records) == 1 and "another optimiser" in caplog.records[0].message
    assert "micro-batches" in caplog.records[0].message


def test_micro_batches_without_number_are_no_mistake(daemon, caplog):
    model, optimizer, g = attached(daemon)
    for _ in range(3):
        for _ in range(90):
            g.log(loss=1.0)
        train(model, optimizer)
    for _ in range(300):
        g.log(loss=1.0)
    assert not caplog.records


def test_an_evaluation_is_reported(daemon):
    _, _, g = attached(daemon)
    assert g.report(loss=0.5, accuracy=0.75, samples=100, seconds=2)
    daemon.wait(lambda: daemon.of_type(5))
    with pytest.raises(ValueError, match="no evaluation"):
        g.report(loss=float("nan"))


@pytest.mark.parametrize("schedule_first", [False, True])
def test_schedulers_and_wrapped_steps_get_along(daemon, schedule_first):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    make = lambda: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    schedule = make() if schedule_first else None
    g = gossipd.attach(model, optimizer, samples_per_step=5)
    looks_at_each_step(g)
    schedule = schedule or make()
    for _ in range(2):
        train(model, optimizer)
        schedule.step()
    g.detach()
    assert g.steps == 2 and daemon.steps[-1][3] == 0.25


def test_a_loop_without_an_optimiser_calls_step(daemon):
    model = network()
    g = gossipd.attach(model, samples_per_step=5)
    g.step()
    assert g.steps == 1
    g.detach(0)
    with pytest.raises(RuntimeError, match="counted already"):
        attached(daemon)[2].step()


def test_a_process_attaches_to_one_daemon_once(daemon):
    model, optimizer, g = attached(daemon)
    with pytest.raises(gossipd.NotAttached, match=r"detach\(0\).*attachments\(\)") as refused:
        gossipd.attach(model, optimizer, samples_per_step=5)
    assert refused.value.code == "occupied" and daemon.attaches == 1
    del g  # as a notebook does that runs a cell again: the optimiser's hook keeps it
    (lost,) = gossipd.attachments()
    lost.detach(0)
    assert not gossipd.attachments()
    gossipd.attach(model, optimizer, samples_per_step=5).detach(0)
    assert daemon.attaches == 2


def test_what_nobody_can_reach_is_in_nobodys_way(daemon):
    tree = {"w": np.zeros(3, np.float32)}
    gossipd.attach(tree, samples_per_step=5)
    gossipd.attach(tree, samples_per_step=5).detach(0)
    assert daemon.attaches == 2


def test_frozen_weights_and_masks_are_not_shared(daemon):
    model = network()
    model[0].requires_grad_(False).bfloat16()
    model.register_buffer("mask", torch.full((2, 2), float("-inf")))
    model.register_buffer("scratch", torch.zeros(9), persistent=False)
    gossipd.attach(model, torch.optim.SGD(model[2].parameters(), 0.1), samples_per_step=1)
    assert [name for name, _, _ in daemon.segments] == [
        "1.weight",
        "1.bias",
        "2.weight",
        "1.running_mean",
        "1.running_var",
    ]


@pytest.mark.parametrize(
    "spoil,words",
    [
        (lambda m: m.bfloat16(), "keep float32 parameters"),
        (lambda m: m.half(), "LoRA"),
        (lambda m: m.requires_grad_(False), "nothing is trained"),
        (lambda m: setattr(m, "0", torch.nn.Linear(1, 1).to("meta")), "no plain memory"),
        (lambda m: m.register_parameter("z" * 513, torch.nn.Parameter(torch.ones(1))), "513"),
        (lambda m: m.append(torch.jit.script(torch.nn.Linear(1, 1))), "'3' is TorchScript"),
        (lambda m: m.add_module("momentum", network()), "rename the module"),
    ],
)
def test_a_model_that_cannot_be_shared_is_refused_in_words(daemon, spoil, words):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    spoil(model)
    with pytest.raises(ValueError, match=words):
        gossipd.attach(model, optimizer, samples_per_step=5)
    assert daemon.heard == []


def test_a_statistic_that_is_missing_for_its_type_is_named_with_it(daemon):
    text = "this model is not the cluster's: '1.running_mean' of the job is missing here"
    refused = notice(66, "other-segments", text)
    daemon.behaviour = lambda kind, number: refused if kind == 65 else None
    model = network().double()
    with pytest.raises(gossipd.NotAttached, match=r"missing here.*float64.*\.float\(\)") as told:
        gossipd.attach(model, samples_per_step=5)
    assert told.value.code == "other-segments"


def test_a_module_of_torchscript_is_refused_in_words(daemon):
    scripted = torch.jit.script(network())
    with pytest.raises(ValueError, match="the module is TorchScript.*attach the module that was"):
        gossipd.attach(scripted, torch.optim.SGD(scripted.parameters(), 0.1), samples_per_step=5)


def test_a_layer_that_comes_after_attach_is_said_once_to_be_not_shared(daemon, caplog):
    model, optimizer, g = attached(daemon)
    train(model, optimizer)
    model.append(torch.nn.Linear(2, 2))
    train(model, optimizer)
    assert not caplog.messages  # it is not trained
    optimizer.add_param_group({"params": model[3].parameters()})
    train(model, optimizer, 3)
    (words,) = caplog.messages
    assert "2 more parameters" in words and "attach anew" in words


def test_a_layer_that_changes_its_shape_ends_the_connection_by_the_loops_own_fault(daemon, caplog):
    model, optimizer, g = attached(daemon)
    model[2].weight = torch.nn.Parameter(torch.ones(3, 4))
    daemon.answers = [{"flags": COPY}]
    with pytest.raises(RuntimeError, match="'2.weight' is gone or has another shape"):
        optimizer.step()
    (words,) = caplog.messages
    assert "given up" in words and "daemon is gone" not in words
    for thread in threading.enumerate():
        if thread.name == "gossipd-attach":
            thread.join()  # it attaches again


def test_arguments_are_checked(daemon):
    model = network()
    stranger = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
    with pytest.raises(ValueError, match="none of the module's"):
        gossipd.attach(model, stranger, samples_per_step=5)
    for samples in (0, 2**20 + 1):
        with pytest.raises(ValueError, match="samples_per_step"):
            gossipd.attach(model, samples_per_step=samples)
    with pytest.raises(ValueError, match="every"):
        gossipd.attach(model, samples_per_step=1, every=0)
    for samples in (16.0, float("nan"), "32", None):
        with pytest.raises(TypeError, match="samples_per_step is .*whole number"):
            gossipd.attach(model, samples_per_step=samples)
    with pytest.raises(TypeError, match="optimizer is str; pass the torch"):
        gossipd.attach(model, "sgd", samples_per_step=1)
    schedule = torch.optim.lr_scheduler.StepLR(stranger, 1)
    with pytest.raises(TypeError, match="optimizer is StepLR; .*is its .optimizer"):
        gossipd.attach(model, schedule, samples_per_step=1)
    with pytest.raises(TypeError, match=r"model is SGD, an optimiser: write attach\(model, opt"):
        gossipd.attach(stranger, model, samples_per_step=1)
    empty = torch.nn.ParameterList([torch.nn.Parameter(torch.empty(0))])
    with pytest.raises(ValueError, match="have no elements"):
        gossipd.attach(empty, samples_per_step=1)


def test_looking_after_several_steps_counts_all(daemon):
    model, optimizer, g = attached(daemon, every=4)
    del g._is_time
    train(model, optimizer, 9)
    assert [s[0] for s in daemon.steps] == [0, 4, 8]


def test_no_thread_and_no_descriptor_is_left(daemon):
    def open_files():
        return len(os.listdir("/proc/self/fd"))

    for turn in range(4):
        _, _, g = attached(daemon)
        g.detach()
        daemon.wait(lambda: len(daemon.of_type(6)) == turn + 1)
        del g
        if turn == 0:
            before = open_files()
    assert open_files() <= before + 1  # the daemon's end may still be open
    assert not [t for t in threading.enumerate() if t.name == "gossipd-attach"]


def test_its_words_go_to_the_log_once(daemon, caplog):
    model, optimizer, g = attached(daemon)
    with caplog.at_level(logging.WARNING, "gossipd"):
        daemon.stop()
        for _ in range(5):
            train(model, optimizer)
    assert [r.message for r in caplog.records if "goes on alone" in r.message] != []
    assert len(caplog.records) == 1
