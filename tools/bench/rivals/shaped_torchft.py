"""One node of shaped.py as a replica group of torchft: its DDP, its local SGD or its DiLoCo.

Node 0 runs the lighthouse. As torchft's documentation has it, a quorum is found beside the step
under DDP and before each average under the others. Local SGD averages at every step for the first
50, as that over gloo does; DiLoCo sends all parameters in one bucket.
"""

import socket

import torch
from shaped_task import LOCAL_WARM_UP_STEPS, OUTER_MOMENTUM, OUTER_RATE, Task, parse
from torch.nn import functional

MOMENTUM = OUTER_MOMENTUM[16]


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


class Averager:
    """LocalSGD or DiLoCo, whose hooks on the optimizer average in some of its steps."""

    def __init__(self, manager, task, optimizer, kind, period):
        self.manager, self.task, self.optimizer = manager, task, optimizer
        self.kind, self.period = kind, period
        self.method = self.begin(1 if kind == "local" else period)
        self.method.__enter__()

    def begin(self, period):
        from torchft.local_sgd import DiLoCo, LocalSGD

        if self.kind == "local":
            return LocalSGD(self.manager, self.task.model, self.optimizer, period)
        parameters = self.task.model.parameters()
        outer = torch.optim.SGD(parameters, OUTER_RATE, MOMENTUM, nesterov=True)
        fragments = [self.task.model]
        return DiLoCo(
            self.manager, fragments, self.optimizer, outer, period, use_bucketization=True
        )

    def step(self):
        if self.kind == "local" and self.task.steps == LOCAL_WARM_UP_STEPS:
            self.method.__exit__(None, None, None)
            self.method = self.begin(self.period)
            self.method.__enter__()
        self.optimizer.step()


def main():
    given = parse(__doc__)
    socket.gethostname = lambda: given.host  # under this name nodes ask each other for a model
    import torchft

    task = Task(given)
    optimizer = task.optimizer()
    _, kind, period = f"{given.way}-ddp-1".split("-")[:3]
    beside = kind == "ddp"
    store, manager = manager_of(torchft, given, task.model, optimizer, beside)
    model, way = task.model, torchft.Optimizer(manager, optimizer)
    if beside:
        model = torchft.DistributedDataParallel(manager, model)
    else:
        way = Averager(manager, task, optimizer, kind, int(period))
    made = manager.current_step()
    while store:
        x, y = task.next_batch()
        task.set_rate(optimizer)
        (way if beside else optimizer).zero_grad()
        functional.cross_entropy(model(x), y).backward()
        way.step()
        averaged = manager.current_step() != made
        made = manager.current_step()
        if averaged or not beside:  # DDP's step that is not committed is none
            task.made_step(averaged)


if __name__ == "__main__":
    main()
