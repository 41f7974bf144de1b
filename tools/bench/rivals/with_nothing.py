"""The loop that the others change; their lines beyond it are marked with +."""

import torch
from task import Ledger, batches, network

model = network()
optimizer = torch.optim.SGD(model.parameters(), 0.05)
ledger = Ledger(model)
for x, y in batches():
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    ledger.step()
