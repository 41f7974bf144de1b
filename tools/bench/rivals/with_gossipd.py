"""with_nothing.py as a peer of gossipd's; started by `gossipd run`."""

import torch
from task import BATCH, Ledger, batches, network

import gossipd  # +

model = network()
optimizer = torch.optim.SGD(model.parameters(), 0.05)
ledger = Ledger(model)
g = gossipd.attach(model, optimizer, samples_per_step=BATCH)  # +
for x, y in batches():
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    g.log(loss=loss)  # +
    ledger.step()
    if g.finished:  # +
        break  # +
