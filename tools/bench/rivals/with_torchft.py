"""with_nothing.py as a replica group of torchft's, as its README has it."""

import torch
from task import Ledger, batches, network
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo  # +

model = network()
optimizer = torch.optim.SGD(model.parameters(), 0.05)
ledger = Ledger(model)
store = torch.distributed.TCPStore(  # + torchrun would make it
    "127.0.0.1", 0, is_master=True, wait_for_workers=False  # +
)  # +
plain, inner = model, optimizer  # +


def load(state):  # +
    plain.load_state_dict(state["model"])  # +
    inner.load_state_dict(state["optimizer"])  # +


manager = Manager(  # +
    pg=ProcessGroupGloo(),  # +
    load_state_dict=load,  # +
    state_dict=lambda: {"model": plain.state_dict(), "optimizer": inner.state_dict()},  # +
    min_replica_size=1,  # +
    store_addr="127.0.0.1",  # +
    store_port=store.port,  # +
    rank=0,  # +
    world_size=1,  # +
    hostname="127.0.0.1",  # +
)  # +
model = DistributedDataParallel(manager, model)  # +
optimizer = Optimizer(manager, optimizer)  # +
made = manager.current_step()
for x, y in batches():
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if manager.current_step() != made:  # a step that is not committed is none
        made = manager.current_step()
        ledger.step()
