"""What ends or holds the process that is attached for several ends or holds the others with it."""

import threading

import pytest

from fake_daemon import COPY, FakeDaemon, notice
from group_test import Pair

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

# Counts the broadcasts, of which none may take as long as the daemon does.
WORKER = """
import json, os, sys, torch, gossipd
import torch.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
broadcast, counted = dist.broadcast, []
dist.broadcast = lambda *args, **kwargs: (counted.append(1), broadcast(*args, **kwargs))
for line in sys.stdin:
    asked = json.loads(line)
    os.environ["GOSSIPD_SOCKET"] = asked["socket"]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    counted.clear()
    try:
        g = gossipd.attach(model, optimizer, samples_per_step=8)
        said = ["attached", "", len(counted)]
        exec(asked["loop"])
        g.detach(0.0)
    except Exception as error:
        said = [type(error).__name__, getattr(error, "code", ""), str(error)]
    print(json.dumps(said), flush=True)
"""


@pytest.fixture(scope="module")
def pairs():
    made = []
    yield made
    for pair in made:
        pair.end()


@pytest.fixture
def pair(pairs, tmp_path):
    if not pairs or not pairs[-1].is_there():
        pairs.append(Pair(tmp_path, WORKER))
    return pairs[-1]


@pytest.fixture
def daemon(tmp_path):
    made = FakeDaemon(tmp_path / "trainer.sock")
    yield made
    made.stop()


def test_a_refusal_is_raised_in_every_process(pair, daemon):
    refused = notice(66, "other-segments", "tensor 'weight' is another")
    daemon.behaviour = lambda kind, n: refused if kind == 65 else None
    one, other = pair.run(daemon, "")
    assert one[:2] == other[:2] == ["NotAttached", "other-segments"]
    assert "tensor 'weight' is another" in one[2]
    assert "rank 0" in other[2] and "tensor 'weight' is another" in other[2]


FAILING = """
g._model.copy = None  # as a module that was changed meanwhile
g._is_time = lambda: True
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 3)).pow(2).mean().backward()
    optimizer.step()
"""


def test_a_look_that_fails_is_raised_in_every_process(pair, daemon):
    daemon.answers = [{}, {"flags": COPY}]
    one, other = pair.run(daemon, FAILING)
    assert one[0] == "TypeError"
    assert other[0] == "RuntimeError" and "rank 0" in other[2] and "TypeError" in other[2]


def test_while_the_leader_waits_the_others_are_told_so(pair, daemon):
    inner, ready = daemon._say, threading.Event()

    def say(sock, kind, number, content, descriptors=()):
        if kind == 65:
            sock.send(notice(67, "no-cluster", "it has heard of no job yet"))
            ready.wait(4)
        inner(sock, kind, number, content, descriptors)

    daemon._say = say
    for kind, _, broadcasts in pair.run(daemon, ""):
        assert kind == "attached" and broadcasts >= 4
