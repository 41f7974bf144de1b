"""One node of shaped.py as a replica group of torchft: its DDP, its local SGD or its DiLoCo.

Names: torchft, torchft-local-H, torchft-diloco-H or torchft-diloco-H-M with an outer momentum of M.
Node 0 runs the lighthouse. As torchft's documentation has it, a quorum is found beside the step
under DDP and before each average under the others. DiLoCo sends all parameters in one bucket.
"""

import socket

import torch
from shaped_task import OUTER_MOMENTUM, OUTER_RATE, Task, parse
from torch.nn import functional


def manager_of(torchft, given, model, optimizer, beside):
    """`beside`: the quorum is found while the step is made."""
    store = torch.distributed.TCPStore(given.host, 0, is_master=True, wait_for_workers=False)

    def load(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    return store, torchft.Manager(
        pg=torchft.ProcessGroupGloo(),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        use_async_quorum=beside,
        store_addr=given.host,
        store_port=store.port,
        rank=0,
        world_size=1,
        hostname=given.host,
        replica_id=f"node{given.node}",
    )


def averaging(manager, task, optimizer, kind, period, momentum=OUTER_MOMENTUM):
    """LocalSGD or DiLoCo: a context whose hooks on the optimizer average in some of its steps."""
    from torchft.local_sgd import DiLoCo, LocalSGD

    if kind == "local":
        return LocalSGD(manager, task.model, optimizer, int(period))
    parameters = task.model.parameters()
    outer = torch.optim.SGD(parameters, OUTER_RATE, float(momentum), nesterov=True)
    return DiLoCo(manager, [task.model], optimizer, outer, int(period), use_bucketization=True)


def main():
    given = parse(__doc__)
    socket.gethostname = lambda: given.host  # under this name nodes ask each other for a model
    import torchft

    task = Task(given)
    optimizer = task.optimizer()
    words = given.way.split("-")[1:]
    beside = not words
    store, manager = manager_of(torchft, given, task.model, optimizer, beside)
    model, way = task.model, torchft.Optimizer(manager, optimizer)
    if beside:
        model = torchft.DistributedDataParallel(manager, model)
    else:
        way = optimizer
        method = averaging(manager, task, optimizer, *words)
        method.__enter__()
    made = manager.current_step()
    while store:
        x, y = task.next_batch()
        task.set_rate(optimizer)
        way.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        way.step()
        averaged = manager.current_step() != made
        made = manager.current_step()
        if averaged or not beside:  # DDP's step that is not committed is none
            task.made_step(averaged)


if __name__ == "__main__":
    main()
