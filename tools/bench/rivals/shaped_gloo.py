"""One node of shaped.py under DDP (plain, fp16, PowerSGD), local SGD or DiLoCo, over gloo."""

import torch
import torch.distributed as distributed
from shaped_task import (
    LOCAL_WARM_UP_STEPS,
    OUTER_MOMENTUM,
    OUTER_RATE,
    WORLD,
    Task,
    flat,
    parse,
    unflatten,
)
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

LOCAL_STEPS = 8
POWER_RANK = 2
POWER_WARM_UP_STEPS = "50"  # of exact averages; a way's name may end in another number
ONE_BUCKET = 1 << 30


class Ddp:
    def __init__(self, task, hook):
        kind, _, warm_up = hook.partition("-")
        if kind == "powersgd":
            # Its callbacks for two buckets may come in another order on another node, which ends
            # in a hang or in gloo's `enforce fail ... op.preamble.length <= op.nbytes`.
            distributed._DEFAULT_FIRST_BUCKET_BYTES = ONE_BUCKET
        self.model = DistributedDataParallel(task.model)
        if kind == "fp16":
            self.model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif kind == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                None,
                matrix_approximation_rank=POWER_RANK,
                start_powerSGD_iter=int(warm_up or POWER_WARM_UP_STEPS),
            )
            self.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def after(self, _):
        return True


def average(model):
    values = flat(model)
    distributed.all_reduce(values)
    return values / WORLD


class LocalSgd:
    def __init__(self, task):
        self.model = task.model

    def after(self, steps):
        if steps > LOCAL_WARM_UP_STEPS and steps % LOCAL_STEPS:
            return False
        unflatten(self.model, average(self.model))
        return True


class DiLoCo:
    def __init__(self, task, period):
        self.model, self.period = task.model, period
        self.outer = flat(self.model)
        self.velocity = torch.zeros_like(self.outer)

    def after(self, steps):
        if steps % self.period:
            return False
        change = self.outer - average(self.model)
        momentum = OUTER_MOMENTUM[self.period]
        self.velocity.mul_(momentum).add_(change)
        self.outer -= OUTER_RATE * (change + momentum * self.velocity)
        unflatten(self.model, self.outer)
        return True


def main():
    given = parse(__doc__)
    task = Task(given)
    distributed.init_process_group(
        "gloo", init_method=f"tcp://{given.first}:29500", rank=given.node, world_size=WORLD
    )
    name, _, more = given.way.partition("-")
    if name == "ddp":
        way = Ddp(task, more)
    else:
        way = LocalSgd(task) if name == "local" else DiLoCo(task, int(more))
    optimizer = task.optimizer()
    while True:
        x, y = task.next_batch()
        task.set_rate(optimizer)
        optimizer.zero_grad()
        functional.cross_entropy(way.model(x), y).backward()
        optimizer.step()
        task.made_step(way.after(task.steps + 1))


if __name__ == "__main__":
    main()
