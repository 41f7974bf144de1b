"""with_nothing.py as a peer of hivemind, as its quick start has it; argument: a peer to join."""

import os
import sys

import hivemind  # +
import torch
from task import BATCH, FOLDER, PEERS, Ledger, batches, network


def main():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    ledger = Ledger(model)
    dht = hivemind.DHT(  # +
        initial_peers=sys.argv[1:], host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True  # +
    )  # +
    with open(os.path.join(FOLDER, "address.part"), "w", encoding="utf-8") as out:
        out.write(str(dht.get_visible_maddrs()[0]))
    os.rename(os.path.join(FOLDER, "address.part"), os.path.join(FOLDER, "address"))
    optimizer = hivemind.Optimizer(  # +
        dht=dht,  # +
        run_id="rivals",  # +
        optimizer=optimizer,  # +
        batch_size_per_step=BATCH,  # +
        target_batch_size=30_000,  # + about 7 s of three peers
        use_local_updates=True,  # +
        matchmaking_time=3.0,  # +
        averaging_timeout=10.0,  # +
        averager_opts={"target_group_size": PEERS},  # + or every average waits for matchmaking_time
    )  # +
    for x, y in batches():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        ledger.step()


if __name__ == "__main__":
    main()
