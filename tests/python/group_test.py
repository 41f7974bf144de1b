"""Several processes on one box under DistributedDataParallel: rank 0 is attached."""

import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import gossipd
from fake_daemon import ADD, COPY, DIE, FINISHED, PAUSED, REPLACE, SETTLED, FakeDaemon
from gossipd.sampler import SharedSampler
from processes import die_with_the_test

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

# Both processes stay, since to import torch takes far longer than a test.
WORKER = """
import json, os, sys, torch, gossipd
import torch.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
for line in sys.stdin:
    asked = json.loads(line)
    os.environ["GOSSIPD_SOCKET"] = asked["socket"]
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    g = gossipd.attach(model, optimizer, samples_per_step=8)
    def step():
        optimizer.zero_grad()
        model(torch.randn(4, 3)).pow(2).mean().backward()
        optimizer.step()
    def values():
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()
    exec(asked["loop"])
    print(json.dumps(said), flush=True)
    g.detach(0.0)
"""


class Pair:
    """Two processes that train one model together."""

    def __init__(self, folder, worker=WORKER):
        source = os.path.dirname(os.path.dirname(gossipd.__file__))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._workers = [
            subprocess.Popen(
                [sys.executable, "-c", worker, str(rank), str(folder / "meet")],
                env={**os.environ, "PYTHONPATH": source},
                preexec_fn=die_with_the_test,
                **pipes,
            )
            for rank in range(2)
        ]

    def run(self, daemon, loop):
        """What `loop` leaves in `said` in each process; one that takes too long is killed."""
        end = threading.Timer(60, self.kill)
        end.start()
        try:
            for worker in self._workers:
                worker.stdin.write(json.dumps({"socket": daemon.path, "loop": loop}) + "\n")
                worker.stdin.flush()
            return [json.loads(worker.stdout.readline()) for worker in self._workers]
        except (OSError, ValueError):
            self.kill()  # one has failed, and the other waits for it
            raise
        finally:
            end.cancel()

    def is_there(self):
        return all(worker.poll() is None for worker in self._workers)

    def kill(self):
        for worker in self._workers:
            worker.kill()
            worker.wait()

    def end(self):
        self.kill()
        for worker in self._workers:
            worker.communicate()


@pytest.fixture(scope="module")
def pairs():
    made = []
    yield made
    for pair in made:
        pair.end()


@pytest.fixture
def pair(pairs, tmp_path):
    """The pair of the tests before, or another where one of them has failed."""
    if not pairs or not pairs[-1].is_there():
        pairs.append(Pair(tmp_path))
    return pairs[-1]


@pytest.fixture
def daemon(tmp_path):
    made = FakeDaemon(tmp_path / "trainer.sock")
    yield made
    made.stop()


LOOKING = """
g._is_time = lambda: True
seen = []
while not g.finished:
    step()
    seen.append([g.replaced, len(optimizer.state), g.progress, g.steps])
g.detach()
said = {"seen": seen, "values": values()}
"""


def test_both_processes_have_the_clusters_model_and_stop_together(pair, daemon):
    update = np.arange(8, dtype=np.float32)
    everything = {"ranges": [(0, 8)], "update": update}
    daemon.answers = [
        {"flags": PAUSED},
        {"flags": REPLACE, **everything},
        {"flags": ADD | COPY, "progress": 0.5, **everything},
        {"flags": REPLACE, "progress": 0.75, **everything},
        {"flags": FINISHED, "progress": 1.0},
    ]
    results = pair.run(daemon, LOOKING)
    assert results[0] == results[1]
    # Replaced: the moments began anew, on both.
    assert results[0]["seen"] == [[False, 2, 0.5, 1], [True, 0, 0.75, 2], [False, 2, 1.0, 3]]
    daemon.wait(lambda: daemon.of_type(6))
    assert daemon.attaches == 1 and daemon.steps[-1][:2] == (3, 24)


LEFT_ALONE = """
g._is_time = lambda: True
for _ in range(5):
    step()
said = [g.paused, g.steps]
"""


def test_paused_processes_whose_daemon_is_gone_train_on(pair, daemon):
    def die_at_the_third_go(kind, number):
        if (kind, number) != (68, 3):
            return None
        daemon.disappear()
        return DIE

    daemon.behaviour = die_at_the_third_go
    daemon.answers = [{}, {"flags": PAUSED}]
    assert pair.run(daemon, LEFT_ALONE) == [[True, 5], [True, 5]]


DRAWING = """
said = list(g.sampler(21, seed=5))
"""


def test_the_processes_draw_each_another_part_of_their_nodes(pair, daemon):
    daemon.answers = [{"place": 1, "trainers": 2, "cluster": 2}]
    ours = pair.run(daemon, DRAWING)
    alone = list(SharedSampler(21, 5, lambda: (1, 2, 2)))
    assert len(alone) == 9 and [len(drawn) for drawn in ours] == [4, 4]
    assert sorted(ours[0] + ours[1]) == sorted(alone[:8])


ENDING = """
while not g.finished:
    step()
before = values()
g.detach()
after = values()
g.detach()
said = {"before": before, "after": after, "settled": g.settled, "steps": g.steps}
"""


@pytest.mark.parametrize("kind", [ADD, REPLACE])
def test_the_clusters_final_model_reaches_both_processes(pair, daemon, kind):
    update = np.arange(1, 9, dtype=np.float32)
    daemon.answers = [
        {},
        {"flags": FINISHED},
        {"flags": FINISHED},
        {"flags": FINISHED | PAUSED},
        {"flags": FINISHED | SETTLED | kind, "ranges": [(0, 8)], "update": update},
    ]
    one, other = pair.run(daemon, ENDING)
    assert one == other and one["settled"] and one["steps"] == 1
    moved = np.array(one["after"]) - (np.array(one["before"]) if kind == ADD else 0)
    np.testing.assert_allclose(moved, update, rtol=1e-5)
    assert daemon.answers == [] and len(daemon.steps) == 5


LEAVING = """
step()
if rank == 0:
    before = values()
    g.detach(0.0)
    assert values() == before
said = g.steps
"""


def test_a_process_that_leaves_at_once_waits_for_no_other_and_takes_nothing_in(pair, daemon):
    more = {"flags": ADD, "ranges": [(0, 8)], "update": np.ones(8, np.float32)}
    daemon.answers = [{}, {}, more]
    assert pair.run(daemon, LEAVING) == [1, 1]
    daemon.wait(lambda: len(daemon.steps) == 3)
    assert [s[:2] for s in daemon.steps] == [(0, 0), (1, 8), (1, 8)] and not daemon.dones


RUNNING = """
looked = []
inner = g._mark_look
g._mark_look = lambda: (looked.append(g.steps), inner())
for _ in range(64):
    step()
said = looked
"""


def test_both_processes_look_at_the_same_steps_and_as_rarely_as_it_costs(pair, daemon):
    daemon.plain = {"budget": 10**9}
    one, other = pair.run(daemon, RUNNING)
    assert one == other and one[:2] == [1, 2]
    assert len(one) < 32
    gaps = np.diff([0, *one])
    assert (gaps[1:] <= 2 * gaps[:-1]).all()  # however short one step seemed


def test_both_processes_look_before_the_budget_can_be_spent(pair, daemon):
    daemon.plain = {"budget": 10**9, "cluster": 10**9 - 32, "trainers": 2}
    one, other = pair.run(daemon, RUNNING)  # eight samples a step, and as many of the other box
    assert one == other and (np.diff(one) <= 2).all()


class Compiled(torch.nn.Module):
    """As torch.compile, which torch 1.13 has not, wraps a module."""

    def __init__(self, module):
        super().__init__()
        self._orig_mod = module

    def forward(self, x):
        return self._orig_mod(x)


def test_a_module_has_the_same_names_whatever_it_is_wrapped_in(tmp_path):
    from gossipd.torch_model import TorchModel

    def network():
        return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))

    def names(module):
        return [segment.name for segment in TorchModel(module, None).segments]

    dist, parallel = torch.distributed, torch.nn.parallel.DistributedDataParallel
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        plain = names(network())
        assert plain[:2] == ["0.weight", "0.bias"] and "1.running_mean" in plain
        assert names(Compiled(network())) == plain
        assert names(parallel(network())) == plain
        assert names(parallel(Compiled(network()))) == plain
        assert names(Compiled(parallel(network()))) == plain
        assert names(Compiled(torch.nn.DataParallel(network()))) == plain
    finally:
        dist.destroy_process_group()
