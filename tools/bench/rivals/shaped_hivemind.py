"""One node of shaped.py as a peer of hivemind: hivemind.Optimizer with local updates, as its quick
start and its configuration guide have it. Name: hivemind, or hivemind-N for an average every N
samples of all nodes. Argument --join: the address that node 0 left.
"""

import os

import hivemind
from shaped_task import BATCH, WORLD, Task, parse
from torch.nn import functional

AVERAGE_SAMPLES = "10000"  # about 5 s


def main():
    given = parse(__doc__)
    samples = given.way.partition("-")[2]
    task = Task(given)
    dht = hivemind.DHT(
        initial_peers=[given.join] if given.join else [],
        host_maddrs=[f"/ip4/{given.host}/tcp/0"],
        start=True,
    )
    with open("address.part", "w", encoding="utf-8") as out:
        out.write(str(dht.get_visible_maddrs()[0]))
    os.rename("address.part", "address")
    inner = task.optimizer()
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="shaped",
        optimizer=inner,
        batch_size_per_step=BATCH,
        target_batch_size=int(samples or AVERAGE_SAMPLES),
        use_local_updates=True,
        matchmaking_time=3.0,
        averaging_timeout=10.0,
        state_averaging_compression=hivemind.compression.Float16Compression(),
        averager_opts={"target_group_size": WORLD},
        verbose=True,
    )
    is_averaging = False
    while True:
        x, y = task.next_batch()
        task.set_rate(inner)
        optimizer.zero_grad()
        functional.cross_entropy(task.model(x), y).backward()
        # Averaging begins beside training at an epoch's end; step() would wait for it, apply it and
        # make a step at once.
        if is_averaging:
            optimizer.state_averager.step(wait_for_delayed_updates=True)
            task.take_snapshot()
        epoch = optimizer.local_epoch
        optimizer.step()
        is_averaging = optimizer.local_epoch != epoch
        task.made_step(averaged=False)


if __name__ == "__main__":
    main()
