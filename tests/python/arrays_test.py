"""gossipd.attach with NumPy and JAX trees, and the sampler."""

from collections import namedtuple

import numpy as np
import pytest

import gossipd
from fake_daemon import ADD, COPY, REPLACE
from gossipd.sampler import SharedSampler

Layer = namedtuple("Layer", "weight bias")


def tree(make=np.ones):
    layers = [Layer(make((2, 3), np.float32), make(2, np.float32)), {"b": make(1, np.float32)}]
    return {"layers": layers, "count": np.zeros(1, np.int64), "head": make((2, 2), np.float64)}


NAMES = ["head", "layers.0.weight", "layers.0.bias", "layers.1.b"]
FLOATS = 4 + 6 + 2 + 1


def attached(daemon, params, answers=()):
    daemon.answers = list(answers)
    g = gossipd.attach(params, samples_per_step=3)
    g._is_time = lambda: True
    return g


def test_a_tree_is_shared_by_name_and_keeps_its_shape(daemon):
    params = tree()
    update = np.arange(FLOATS, dtype=np.float32)
    answers = [{"flags": REPLACE, "ranges": [(0, FLOATS)], "update": update}]
    g = attached(daemon, params, answers)
    assert [name for name, _, _ in daemon.segments] == NAMES
    got = g.params
    assert g.replaced and list(got) == list(params) and isinstance(got["layers"][0], Layer)
    np.testing.assert_array_equal(got["head"], [[0, 1], [2, 3]])
    np.testing.assert_array_equal(got["layers"][0].weight, [[4, 5, 6], [7, 8, 9]])
    assert got["layers"][0].weight is params["layers"][0].weight  # in place, no copy
    assert got["count"] is params["count"]


def test_parts_are_added_to_what_the_step_made_and_copied(daemon):
    params = tree()
    g = attached(daemon, params)
    update = np.full(FLOATS, 10, np.float32)
    daemon.answers = [{"flags": ADD | COPY, "ranges": [(3, 2), (11, 2)], "update": update}]
    params = g.step(params, loss=np.float32(0.5), samples=7, learning_rate=0.1)
    daemon.wait(lambda: daemon.snapshots_done)
    expected = np.ones(FLOATS, np.float32)
    expected[[3, 4, 11, 12]] += 10
    np.testing.assert_array_equal(daemon.snapshots_done[0][0], expected)
    np.testing.assert_array_equal(params["layers"][0].bias, [1, 11])
    steps, samples, loss, rate, _, finite = daemon.steps[-1]
    assert (steps, samples, loss, finite) == (1, 7, 0.5, 1) and rate == pytest.approx(0.1)


class Strict(np.ndarray):
    """As NumPy's from 2.4 on, and JAX's: only an array without dimensions is a number."""

    def __float__(self):
        if self.ndim:
            raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
        return float(self.item())


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_loss_may_be_an_array_of_one_of_any_shape(daemon, shape):
    g = attached(daemon, tree())
    g.step(g.params, loss=np.full(shape, 0.5, np.float32).view(Strict))
    assert daemon.steps[-1][2] == 0.5


def test_a_founders_tree_that_is_not_finite_as_float32_is_refused(daemon):
    params = tree()
    params["head"][1, 1] = 1e300
    with pytest.raises(ValueError, match="'head' holds NaN or infinity"):
        attached(daemon, params, [{"flags": COPY}])
    assert not daemon.dones


def test_arrays_that_cannot_be_written_or_are_not_contiguous_work_as_well(daemon):
    frozen = np.ones(3, np.float32)
    frozen.flags.writeable = False
    strided = np.ones((3, 4), np.float32)[:, ::2]
    g = attached(daemon, [frozen, strided])
    update = np.full(9, 10, np.float32)
    daemon.answers = [{"flags": ADD, "ranges": [(2, 3)], "update": update}]
    first, second = g.step([frozen, strided])
    np.testing.assert_array_equal(first, [1, 1, 11])
    np.testing.assert_array_equal(second, [[11, 11], [1, 1], [1, 1]])
    assert (frozen == 1).all() and second is strided


def test_an_array_without_dimensions_stays_a_parameter_when_numpy_makes_a_scalar_of_it(daemon):
    daemon.answers = [{"flags": ADD, "ranges": [(0, 4)], "update": np.ones(4, np.float32)}]
    g = gossipd.attach({"bias": np.array(0.0), "w": np.zeros(3)}, samples_per_step=8)
    g._is_time = lambda: True
    stepped = {"bias": g.params["bias"] - 0.5, "w": g.params["w"]}
    assert isinstance(stepped["bias"], np.float64)
    params = g.step(stepped, loss=1.0)
    assert float(params["bias"]) == 0.5 and params["w"].tolist() == [1, 1, 1]
    g.detach(0.0)


def test_what_is_no_tree_of_parameters_is_refused_in_words(daemon):
    with pytest.raises(TypeError, match="'a' is of <U1; parameters are of float32"):
        gossipd.attach({"a": np.array(["x"])}, samples_per_step=1)
    knot = {"a": np.zeros(1, np.float32)}
    knot["knot"] = knot
    with pytest.raises(ValueError, match="contains itself"):
        gossipd.attach(knot, samples_per_step=1)


def test_a_tree_is_read_only_where_a_look_is_due(daemon):
    params = tree()
    g = attached(daemon, params)
    g._is_time = lambda: False
    odd = {"head": None}
    assert g.step(odd) is odd
    g._is_time = lambda: True
    with pytest.raises(TypeError, match="'head' is NoneType"):
        g.step(odd)
    g.step(params)


def test_trees_that_cannot_be_shared_are_refused_in_words(daemon):
    for bad, error, words in [
        ({}, ValueError, "nothing is trained"),
        ({"a": 1.0}, TypeError, "'a' is float"),
        ([np.ones(1, np.float16)], ValueError, "'0' is of float16"),
        ([np.ones(1, ">f4")], ValueError, "not in this machine's order"),
        ({"a": np.ones(1, complex)}, ValueError, "complex"),
    ]:
        with pytest.raises(error, match=words):
            gossipd.attach(bad, samples_per_step=1)
    with pytest.raises(TypeError, match="no PyTorch optimiser"):
        gossipd.attach(tree(), object(), samples_per_step=1)
    g = attached(daemon, tree())
    other = tree()
    other["head"] = np.ones((2, 3))
    with pytest.raises(ValueError, match="'head'"):
        g.step(other)


def test_arrays_that_share_memory_are_refused_by_their_names(daemon):
    whole = np.ones((4, 6), np.float32)
    for one, other in [
        (whole, whole),
        (whole[:3], whole[2:]),
        (whole.T, whole[1]),
        (whole[::-1], whole[:, 5]),
    ]:
        with pytest.raises(ValueError, match="'embed' and 'head' share|'head' and 'embed' share"):
            gossipd.attach({"embed": one, "head": other, "b": np.ones(1)}, samples_per_step=1)
    frozen = np.broadcast_to(np.float32(1), 3)  # of which each gets a copy
    params = [whole[:, ::2], whole[:, 1::2], frozen, frozen]
    g = attached(daemon, params)
    daemon.answers = [{"flags": ADD, "ranges": [(0, 30)], "update": np.ones(30, np.float32)}]
    assert all((part == 2).all() for part in g.step(params)) and (whole == 2).all()


def test_jax_trees_are_replaced_and_jitted_steps_take_them(daemon):
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    params = {"layers": [Layer(jnp.ones((2, 3)), jnp.ones(2)), {"b": jnp.ones(1)}]}
    g = attached(daemon, params)
    assert [name for name, _, _ in daemon.segments] == NAMES[1:]
    step = jax.jit(lambda p: jax.tree_util.tree_map(lambda leaf: leaf * 2, p))
    daemon.answers = [{"flags": ADD | COPY, "ranges": [(8, 1)], "update": np.full(9, 5.0)}]
    after = step(g.params)
    params = g.step(after, loss=jnp.float32(1))
    daemon.wait(lambda: daemon.snapshots_done)
    assert isinstance(params["layers"][1]["b"], jax.Array)
    np.testing.assert_array_equal(params["layers"][1]["b"], [7])
    np.testing.assert_array_equal(params["layers"][0].bias, [2, 2])
    np.testing.assert_array_equal(daemon.snapshots_done[0][0][8:], [7])


def place_of(place, trainers, samples=0):
    state = [place, trainers, samples]
    return state, lambda: tuple(state)


def test_the_members_samplers_share_each_pass_out(daemon):
    samplers = [SharedSampler(10, 1, place_of(i, 3)[1]) for i in range(3)]
    first, second = ([list(s) for s in samplers] for _ in range(2))
    for drawn in (first, second):
        assert sorted(sum(drawn, [])) == list(range(10))
    assert first != second  # each pass has an order of its own
    assert [len(s) for s in samplers] == [4, 4, 4]


def test_a_sampler_follows_members_that_come_and_go():
    state, place = place_of(0, 2)
    sampler = iter(SharedSampler(12, 1, place))
    drawn = [next(sampler), next(sampler)]
    state[:2] = [0, 1]  # the other has gone
    drawn += list(sampler)
    order = list(SharedSampler(12, 1, place_of(0, 1)[1]))
    assert drawn == [order[0], order[2], *order[3:]]


def test_the_processes_of_a_node_share_out_what_it_draws():
    state, place = place_of(1, 2)
    whole = list(SharedSampler(26, 1, place))
    samplers = [SharedSampler(26, 1, place, rank, 3) for rank in range(3)]
    drawn = [list(sampler) for sampler in samplers]
    assert [len(s) for s in samplers] == [4, 4, 4] and len(whole) == 13
    assert sorted(sum(drawn, [])) == sorted(whole[:12])
    ones = [iter(sampler) for sampler in samplers]  # of the next pass
    drawn = [[next(one) for one in ones]]
    state[:] = [0, 1, 0]  # the other node has gone
    assert len({sampler.state_dict()["position"] for sampler in samplers}) == 1
    drawn += zip(*ones)
    assert len(drawn) == 7 and len(set(sum(map(list, drawn), []))) == 21
    with pytest.raises(ValueError, match="3 processes cannot share 2 samples"):
        SharedSampler(2, 1, place, 0, 3)


def test_a_joiner_begins_where_the_cluster_is_and_a_restart_where_it_stood(daemon):
    order = list(SharedSampler(10, 1, place_of(0, 1, 10)[1]))
    assert list(SharedSampler(10, 1, place_of(0, 1, 14)[1])) == order[4:]
    g = attached(daemon, tree(), [{"cluster": 14}])
    one = iter(g.sampler(10, seed=1))
    assert next(one) == order[4]
    g.step(g.params, samples=1)
    next(one)  # as for a data loader's worker: not trained on yet
    state = g.state_dict()
    g.sampler(10, seed=1)
    g.load_state_dict(state)
    assert list(g._sampler) == order[5:]
    with pytest.raises(ValueError, match="10 samples with seed 1"):
        g.sampler(11, seed=1).load_state_dict(state["sampler"])
    with pytest.raises(ValueError, match="at least 1"):
        g.sampler(0)


def test_a_state_that_is_loaded_before_there_is_a_sampler_is_the_samplers(daemon):
    order = list(SharedSampler(10, 1, place_of(0, 1, 10)[1]))
    g = attached(daemon, tree(), [{"cluster": 14}])
    state = {"sampler": {"n": 10, "seed": 1, "pass": 1, "position": 7}}
    g.load_state_dict(state)
    assert g.state_dict()["sampler"] == state["sampler"]  # of a checkpoint that is written now
    with pytest.raises(ValueError, match="10 samples with seed 1"):
        g.sampler(11, seed=1)
    assert list(g.sampler(10, seed=1)) == order[7:]
    assert list(g.sampler(10, seed=1)) == order[4:]  # another one begins where the cluster is
    g.detach(0)


def test_a_restart_goes_on_behind_the_last_step_though_a_loader_was_ahead(daemon):
    data = pytest.importorskip("torch.utils.data")
    order = list(SharedSampler(64, 1, place_of(0, 1)[1]))
    g = attached(daemon, tree())

    def loader(sampler):
        return data.DataLoader(list(range(64)), batch_size=4, sampler=sampler, num_workers=2)

    seen = []
    for batch in loader(g.sampler(64, seed=1)):
        seen += [int(n) for n in batch]
        g.step(g.params, samples=4)
        if len(seen) == 12:
            break
    state = g.state_dict()["sampler"]
    other = SharedSampler(64, 1, place_of(0, 1)[1])
    other.load_state_dict(state)
    assert seen + list(other) == order
    g.detach(0)
    assert g.state_dict()["sampler"] == state
    next(drawn := iter(g._sampler))  # trains on alone, and nobody counts
    next(drawn)
    assert g.state_dict()["sampler"]["position"] > state["position"] + 1


def test_what_is_drawn_in_one_iteration_is_trained_on_in_the_next(daemon):
    g = attached(daemon, tree())
    sampler = g.sampler(10)
    list(sampler)  # a loader that drops the last, smaller batch makes fewer steps than that
    g.step(g.params, samples=8)
    assert g.state_dict()["sampler"]["position"] == 8
    next(iter(sampler))
    state = g.state_dict()["sampler"]
    assert (state["pass"], state["position"]) == (1, 0)
    g.step(g.params, samples=100)  # of an estimate that is too high
    state = g.state_dict()["sampler"]
    assert (state["pass"], state["position"]) == (1, 1)


def test_a_torch_loader_takes_the_sampler(daemon):
    data = pytest.importorskip("torch.utils.data")
    g = attached(daemon, tree(), [{"place": 1, "trainers": 2}])
    loader = data.DataLoader(list(range(10)), batch_size=2, sampler=g.sampler(10))
    found = [int(n) for batch in loader for n in batch]
    assert len(found) == 5 and len(set(found)) == 5
