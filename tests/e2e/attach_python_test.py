"""Three PyTorch processes train Fashion-MNIST through three daemons to one model."""

import json
import os
import subprocess
import unittest

import attach_python
from cluster import DEADLINE_S, ClusterTest, clean_environment
from cluster import _die_with_the_test as die_with_the_test
from models_test import ROOT, python_with_torch
from tensors import distance, read_tensors

EXAMPLES = os.path.join(ROOT, "deploy/examples")
BUDGET = 40_000  # samples of all three, two thirds of a pass
JOB = f"""
name = "by-python"
batch = 32
budget_samples = {BUDGET}
[model]
kind = "external"
[schedule]
kind = "cosine"
warmup_samples = 2_000
"""


class AttachPython(ClusterTest):
    def trainer(self, node, seed):
        """deploy/examples/pytorch.py at the node's daemon."""
        environment = {
            **clean_environment(),
            "GOSSIPD_SOCKET": os.path.join(node.state_dir, "trainer.sock"),
            "PYTHONPATH": os.path.join(ROOT, "tools/python/src"),
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.Popen(
            [python_with_torch(), os.path.join(EXAMPLES, "pytorch.py"), "--seed", str(seed)],
            env=environment,
            stdout=subprocess.PIPE,
            preexec_fn=die_with_the_test,
        )

    def test_three_scripts_train_one_model(self):
        job = os.path.join(self.cluster.directory, "job.toml")
        with open(job, "w", encoding="utf-8") as file:
            file.write(JOB)
        first = self.cluster.node("box1", "--job", job, data=None).start()
        trainers = [self.trainer(first, 1)]
        first.wait_phase("training")
        nodes = [first]
        for name in ("box2", "box3"):
            nodes.append(self.cluster.node(name, "--join", first.address, data=None).start())
            trainers.append(self.trainer(nodes[-1], 1))
        results = [json.loads(t.communicate(timeout=5 * DEADLINE_S)[0]) for t in trainers]
        self.assertEqual([0, 0, 0], [trainer.returncode for trainer in trainers])

        status = [n.wait("its end", lambda s: s["checkpoints"].get("final")) for n in nodes]
        self.assertGreaterEqual(status[0]["cluster_samples"], BUDGET)
        for result, seen in zip(results, status):
            self.assertGreater(result["accuracy"], 0.75, results)
            self.assertGreater(result["steps"], 0)
            self.assertEqual(result["steps"], seen["step"])
        models = [read_tensors(n.checkpoint_path("final"))[1] for n in nodes]
        for other in models[1:]:
            self.assertLess(distance(other, models[0]), 0.05)


class Accuracy(ClusterTest):
    def test_attached_scripts_reach_the_built_in_trainers_accuracy(self):
        """Ten pairs, each a mean of three nodes; about ten minutes of two cores.

        Fails where the 95 % interval of the mean difference is all beyond 0.3 points, or so wide
        that it says nothing.
        """
        line = [python_with_torch(), attach_python.__file__, "accuracy"]
        done = subprocess.run(line, stdout=subprocess.PIPE, check=True)
        found = json.loads(done.stdout)
        self.assertEqual(10, len(found["rows"]))
        self.assertLess(found["within"], 0.005, found)
        self.assertLess(abs(found["difference"]) - found["within"], 0.003, found)


if __name__ == "__main__":
    unittest.main()
