"""Several processes on one box under DistributedDataParallel: rank 0 is attached."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import gossipd
from fake_daemon import ADD, COPY, FINISHED, PAUSED, REPLACE, FakeDaemon

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

WORKER = """
import json, sys, torch, gossipd
import torch.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
optimizer = torch.optim.AdamW(model.parameters(), 0.1)
g = gossipd.attach(model, optimizer, samples_per_step=8)
seen = []
while not g.finished:
    optimizer.zero_grad()
    model(torch.randn(4, 3)).pow(2).mean().backward()
    optimizer.step()
    seen.append([g.replaced, len(optimizer.state), g.progress, g.steps])
g.detach()
values = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()
print(json.dumps({"seen": seen, "values": values}))
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
    source = os.path.dirname(os.path.dirname(gossipd.__file__))
    environment = {**os.environ, "GOSSIPD_SOCKET": daemon.path, "PYTHONPATH": source}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), str(tmp_path / "meet")],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    results = [json.loads(worker.communicate(timeout=60)[0]) for worker in workers]
    daemon.stop()
    assert results[0] == results[1]
    # Replaced: the moments began anew, on both.
    assert results[0]["seen"] == [[False, 2, 0.5, 1], [True, 0, 0.75, 2], [False, 2, 1.0, 3]]
    assert daemon.attaches == 1 and daemon.steps[-1][:2] == (3, 24)
