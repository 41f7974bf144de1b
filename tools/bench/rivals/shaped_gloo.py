"""One node of shaped.py under DDP (plain, fp16, PowerSGD), local SGD or DiLoCo, over gloo.

A way's name has its settings: ddp-powersgd-N begins to compress after N exact steps, local-H
averages every H steps, local-H-N after N steps with an average at each of them (post-local SGD),
diloco-H-M has an outer momentum of M.
"""

import torch
import torch.distributed as distributed
from shaped_task import OUTER_MOMENTUM, OUTER_RATE, WORLD, Task, flat, parse, unflatten
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

POWER_RANK = 2
POWER_WARM_UP_STEPS = "10"  # exact; two is the least that its error feedback allows
ONE_BUCKET = 1 << 30


class Ddp:
    def __init__(self, model, kind="", warm_up=POWER_WARM_UP_STEPS):
        if kind == "powersgd":
            # Its callbacks for two buckets may come in another order on another node, which ends
            # in a hang or in gloo's `enforce fail ... op.preamble.length <= op.nbytes`.
            distributed._DEFAULT_FIRST_BUCKET_BYTES = ONE_BUCKET
        self.model = DistributedDataParallel(model)
        if kind == "fp16":
            self.model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif kind == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=POWER_RANK, start_powerSGD_iter=int(warm_up)
            )
            self.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def is_due(self, _):
        return False


class LocalSgd:
    def __init__(self, model, period, exact_steps="0"):
        self.model = model
        self.period, self.exact_steps = int(period), int(exact_steps)

    def is_due(self, steps):
        return steps <= self.exact_steps or steps % self.period == 0

    def averaged(self, mean):
        return mean


class DiLoCo:
    def __init__(self, model, period, momentum=OUTER_MOMENTUM):
        self.model = model
        self.period, self.momentum = int(period), float(momentum)
        self.outer = flat(model)
        self.velocity = torch.zeros_like(self.outer)

    def is_due(self, steps):
        return steps % self.period == 0

    def averaged(self, mean):
        """A Nesterov step by what the nodes have changed."""
        change = self.outer - mean
        self.velocity.mul_(self.momentum).add_(change)
        self.outer -= OUTER_RATE * (change + self.momentum * self.velocity)
        return self.outer


def average(model):
    values = flat(model)
    distributed.all_reduce(values)
    return values / WORLD


def main():
    given = parse(__doc__)
    task = Task(given)
    distributed.init_process_group(
        "gloo", init_method=f"tcp://{given.first}:29500", rank=given.node, world_size=WORLD
    )
    name, *words = given.way.split("-")
    way = {"ddp": Ddp, "local": LocalSgd, "diloco": DiLoCo}[name](task.model, *words)
    optimizer = task.optimizer()
    while True:
        x, y = task.next_batch()
        task.set_rate(optimizer)
        optimizer.zero_grad()
        functional.cross_entropy(way.model(x), y).backward()
        optimizer.step()
        due = way.is_due(task.steps + 1)
        if due:
            unflatten(task.model, way.averaged(average(task.model)))
        task.made_step(averaged=due or name == "ddp")


if __name__ == "__main__":
    main()
