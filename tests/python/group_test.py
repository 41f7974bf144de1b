"""Several processes on one box under DistributedDataParallel: rank 0 is attached."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import gossipd
from fake_daemon import ADD, COPY, FINISHED, PAUSED, REPLACE, SETTLED, FakeDaemon
from gossipd.sampler import SharedSampler

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

HEAD = """
import json, sys, torch, gossipd
import torch.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
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
"""


def run_both(tmp_path, daemon, loop):
    """What each of two processes prints at the end of `loop`, as JSON."""
    source = os.path.dirname(os.path.dirname(gossipd.__file__))
    environment = {**os.environ, "GOSSIPD_SOCKET": daemon.path, "PYTHONPATH": source}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", HEAD + loop, str(rank), str(tmp_path / "meet")],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        return [json.loads(worker.communicate(timeout=60)[0]) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        daemon.stop()


LOOKING = """
g._is_time = lambda: True
seen = []
while not g.finished:
    step()
    seen.append([g.replaced, len(optimizer.state), g.progress, g.steps])
g.detach()
print(json.dumps({"seen": seen, "values": values()}))
"""


def test_both_processes_have_the_clusters_model_and_stop_together(tmp_path):
    daemon = FakeDaemon(tmp_path / "trainer.sock")
    update = np.arange(8, dtype=np.float32)
    everything = {"ranges": [(0, 8)], "update": update}
    daemon.answers = [
        {"flags": PAUSED},
        {"flags": REPLACE, **everything},
        {"flags": ADD | COPY, "progress": 0.5, **everything},
        {"flags": REPLACE, "progress": 0.75, **everything},
        {"flags": FINISHED, "progress": 1.0},
    ]
    results = run_both(tmp_path, daemon, LOOKING)
    assert results[0] == results[1]
    # Replaced: the moments began anew, on both.
    assert results[0]["seen"] == [[False, 2, 0.5, 1], [True, 0, 0.75, 2], [False, 2, 1.0, 3]]
    assert daemon.attaches == 1 and daemon.steps[-1][:2] == (3, 24)


DRAWING = """
print(json.dumps(list(g.sampler(21, seed=5))))
"""


def test_the_processes_draw_each_another_part_of_their_nodes(tmp_path):
    daemon = FakeDaemon(tmp_path / "trainer.sock")
    daemon.answers = [{"place": 1, "trainers": 2, "cluster": 2}]
    ours = run_both(tmp_path, daemon, DRAWING)
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
print(json.dumps({"before": before, "after": after, "settled": g.settled, "steps": g.steps}))
"""


@pytest.mark.parametrize("kind", [ADD, REPLACE])
def test_the_clusters_final_model_reaches_both_processes(tmp_path, kind):
    daemon = FakeDaemon(tmp_path / "trainer.sock")
    update = np.arange(1, 9, dtype=np.float32)
    daemon.answers = [
        {},
        {"flags": FINISHED},
        {"flags": FINISHED},
        {"flags": FINISHED | PAUSED},
        {"flags": FINISHED | SETTLED | kind, "ranges": [(0, 8)], "update": update},
    ]
    one, other = run_both(tmp_path, daemon, ENDING)
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
print(json.dumps(g.steps))
"""


def test_a_process_that_leaves_at_once_waits_for_no_other_and_takes_nothing_in(tmp_path):
    daemon = FakeDaemon(tmp_path / "trainer.sock")
    more = {"flags": ADD, "ranges": [(0, 8)], "update": np.ones(8, np.float32)}
    daemon.answers = [{}, {}, more]
    assert run_both(tmp_path, daemon, LEAVING) == [1, 1]
    assert [s[:2] for s in daemon.steps] == [(0, 0), (1, 8), (1, 8)] and not daemon.dones


RUNNING = """
looked = []
inner = g._mark_look
g._mark_look = lambda: (looked.append(g.steps), inner())
for _ in range(64):
    step()
print(json.dumps(looked))
"""


def test_both_processes_look_at_the_same_steps_and_as_rarely_as_it_costs(tmp_path):
    daemon = FakeDaemon(tmp_path / "trainer.sock")
    one, other = run_both(tmp_path, daemon, RUNNING)
    assert one == other and one[:2] == [1, 2]
    assert len(one) < 32
    gaps = np.diff([0, *one])
    assert (gaps[1:] <= 2 * gaps[:-1]).all()  # however short one step seemed
