#!/usr/bin/env python3
"""Lightning on Fashion-MNIST.

    gossipd run --job fashion_mnist.toml -- python lightning_module.py
    gossipd run --join gossip1... -- python lightning_module.py

Needs: pip install torch lightning. What gossipd needs is the callback.
"""

import argparse
import json

import lightning
import torch
from fashion_mnist_data import read
from torch.nn import functional

from gossipd.integrations.lightning import GossipdCallback  # +


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        )

    def training_step(self, batch, _):
        return functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, _):
        scores = self.layers(batch[0])
        self.log("val_loss", functional.cross_entropy(scores, batch[1]))
        self.log("val_accuracy", (scores.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    lightning.seed_everything(given.seed)

    def loader(which, **options):
        data = torch.utils.data.TensorDataset(*map(torch.from_numpy, read(given.data, which)))
        return torch.utils.data.DataLoader(data, **options)

    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=-1,  # the cluster's budget ends it
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[GossipdCallback(samples_per_step=32)],  # +
    )
    model = Classifier()
    held_out = loader("t10k", batch_size=500)
    trainer.fit(model, loader("train", batch_size=32, shuffle=True), held_out)
    (figures,) = trainer.validate(model, held_out, verbose=False)
    print(json.dumps({"accuracy": round(figures["val_accuracy"], 4), "steps": trainer.global_step}))


if __name__ == "__main__":
    main()
