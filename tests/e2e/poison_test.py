"""One bad value among the samples of one node of three: the others learn as if it were not there;
its own node takes the step back, reports it and trains on.
"""

import array
import os
import unittest

from cluster import ClusterTest
from data_test import fashion_mnist, write
from tensors import safetensors

TRAIN, TEST = 4000, 2000
BUDGET = 60_000  # five passes over each node's 4,000 samples
AT, PIXEL = 1234, 392
TOLERANCE = 0.015  # variation by the order of real events; a ruined model is 12 points lower
DATA = """kind = "safetensors"
shape = [784]
classes = 10
train_files = ["train.safetensors"]
test_files = ["test.safetensors"]"""


def samples_file(path, pairs, spoil=None):
    inputs = array.array("f", ((pixel - 73) / 90 for pixels, _ in pairs for pixel in pixels))
    if spoil is not None:
        inputs[AT * 784 + PIXEL] = spoil
    targets = array.array("q", (label for _, label in pairs))
    tensors = {
        "inputs": ("F32", [len(pairs), 784], inputs.tobytes()),
        "targets": ("I64", [len(pairs)], targets.tobytes()),
    }
    write(path, safetensors(tensors))


class Poison(ClusterTest):
    def directories(self, spoil):
        whole = fashion_mnist("train", 3 * TRAIN)
        test = fashion_mnist("t10k", TEST)
        paths = []
        for i in range(3):
            path = os.path.join(self.cluster.directory, f"data{i}{'-bad' if spoil else ''}")
            os.mkdir(path)
            samples_file(
                os.path.join(path, "train.safetensors"),
                whole[i * TRAIN : (i + 1) * TRAIN],
                spoil if i == 2 else None,
            )
            samples_file(os.path.join(path, "test.safetensors"), test)
            paths.append(path)
        return paths

    def train(self, spoil, name):
        paths = self.directories(spoil)
        job = self.cluster.job(
            file=name + ".toml",
            data=DATA,
            budget_samples=BUDGET,
            learning_rate=0.02,
            warmup_samples=2000,
        )
        settings = {
            "shard": "1/1",
            "trainer__min_step_ms": 10,
            "key": os.path.join(self.cluster.directory, name + ".key"),
        }
        first = self.cluster.founder(job, name=name + "1", data=paths[0], **settings).start()
        first.wait_phase("training")
        nodes = [first] + [
            self.cluster.joiner(f"{name}{i + 1}", first, data=paths[i], **settings).start()
            for i in (1, 2)
        ]
        for node in nodes:
            node.wait(
                "finished and evaluated",
                lambda s: s["phase"] == "finished"
                and (s["checkpoints"].get("final") or {}).get("accuracy"),
                200,
            )
        statuses = [node.status() for node in nodes]
        for node in nodes:
            node.terminate()
        return statuses

    def test_one_value_of_a_million_costs_the_others_nothing(self):
        clean = self.train(None, "clean")
        self.assertEqual([0, 0, 0], [s["steps_taken_back"] for s in clean])
        due = sum(s["checkpoints"]["final"]["accuracy"] for s in clean) / 3
        self.assertGreater(due, 0.75)
        spoilt = self.train(1e6, "spoilt")
        self.assertGreaterEqual(spoilt[2]["steps_taken_back"], 3)
        self.assertEqual([0, 0], [s["steps_taken_back"] for s in spoilt[:2]])
        for status in spoilt:
            self.assertGreater(status["checkpoints"]["final"]["accuracy"], due - TOLERANCE)
        with open(os.path.join(self.cluster.nodes[-1].log_path), encoding="utf-8") as log:
            self.assertRegex(log.read(), r"event=step-taken-back reason=(parameters|loss) step=\d+")


if __name__ == "__main__":
    unittest.main()
