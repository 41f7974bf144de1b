"""Models from outside and the ends of a job: a TorchScript file that travels, text for a gpt, more
samples, an early stop, the best model.
"""

import os
import subprocess
import unittest

from cluster import DEADLINE_S, ClusterTest, gossipctl, settled, wait_for
from tensors import distance, read_tensors

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
EXPORT = os.path.join(ROOT, "tools/export/export_model.py")
EXIT_CONFIG = 78
TEXTS = "/usr/share/common-licenses"  # of Debian's base-files

CLASSIFIER = """
import torch

class Classifier(torch.nn.Module):
    def __init__(self, classes: int = 10):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 8, 5, stride=2)
        self.norm = torch.nn.BatchNorm2d(8)
        self.dropout = torch.nn.Dropout(0.1)
        self.head = torch.nn.Linear(8 * 12 * 12, classes)

    def forward(self, x):
        return self.head(self.dropout(torch.relu(self.norm(self.conv(x))).flatten(1)))

class OwnLoss(Classifier):
    def loss(self, outputs, targets):
        return torch.nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)
"""


def python_with_torch():
    """An interpreter that can export; Debian's python3-torch works only with Debian's own."""
    for python in ("python3", "/usr/bin/python3"):
        if (
            subprocess.run(
                [python, "-c", "import torch"], capture_output=True, check=False
            ).returncode
            == 0
        ):
            return python
    raise RuntimeError("no python3 here imports torch: apt-get install python3-torch")


class TorchScript(ClusterTest):
    def export(self, name, file="model.pt", **arguments):
        with open(os.path.join(self.cluster.directory, "nets.py"), "w", encoding="utf-8") as out:
            out.write(CLASSIFIER)
        words = str(arguments).replace("'", '"')
        subprocess.run(
            [
                python_with_torch(),
                EXPORT,
                f"nets:{name}",
                file,
                "--input",
                "1,28,28",
                "--arguments",
                words,
            ],
            cwd=self.cluster.directory,
            check=True,
            capture_output=True,
            timeout=DEADLINE_S,
        )
        return os.path.join(self.cluster.directory, file)

    def job(self, file="model.pt", **values):
        return self.cluster.job(model=f'kind = "torchscript"\nfile = "{file}"', **values)

    def assert_refused(self, job, *words):
        node = self.cluster.founder(
            job,
            shard="1/1",
            name=f"box{len(self.cluster.nodes) + 1}",
            key=os.path.join(self.cluster.directory, f"{len(self.cluster.nodes)}.key"),
        ).start()
        self.assertEqual(EXIT_CONFIG, node.exit_code(), node.log())
        for word in words:
            self.assertIn(word, node.log())

    def test_an_exported_model_reaches_joiners_through_the_cluster_and_learns(self):
        path = self.export("Classifier")
        nodes = self.cluster.three(self.job(budget_samples=120_000, evaluate_every_samples=40_000))
        os.remove(path)  # later nodes get it from the cluster
        with open(self.kept(nodes[0]), "rb") as file:
            content = file.read()
        for node in nodes[1:]:
            self.assertRegex(node.log(), r"event=file-arrived")
            with open(self.kept(node), "rb") as file:
                self.assertEqual(content, file.read())
            self.assertEqual(nodes[0].status()["job_hash"], node.status()["job_hash"])
        for node in nodes:
            status = node.wait(
                "the final checkpoint and its evaluation",
                lambda s: s["checkpoints"].get("final", {}).get("accuracy") is not None,
                200,
            )
            self.assertGreater(status["accuracy"], 0.75)
            self.assertGreater(status["evaluation"]["top5_accuracy"], status["accuracy"])
        finals = [read_tensors(node.checkpoint_path("final"))[1] for node in nodes]
        self.assertIn("norm.running_mean", finals[0])
        for tensors in finals:
            tensors.pop("norm.num_batches_tracked")  # a counter that differs between nodes
        self.assertLess(distance(finals[1], finals[0]), 0.02)

        late = self.cluster.joiner("box4", nodes[2]).start()  # its donor was a joiner itself
        late.wait_log(r"event=file-arrived .*")
        late.wait_phase("finished", 120)

    def kept(self, node):
        folder = os.path.join(node.state_dir, "files")
        (name,) = os.listdir(folder)
        return os.path.join(folder, name)

    def test_a_model_with_its_own_loss_and_a_restart_without_the_founders_file(self):
        path = self.export("OwnLoss")
        node = self.cluster.found(self.job(rest='[loss]\nkind = "model"'), shard="1/1")
        node.wait_step(50)
        self.assertEqual(0, node.terminate())
        os.remove(path)
        del node.arguments[node.arguments.index("--job") : node.arguments.index("--job") + 2]
        node.start()
        node.wait_step(80)
        self.assertLess(node.status()["loss"], 2.3)

    def test_a_checkpoint_of_a_job_before_is_exported_with_its_model(self):
        self.export("Classifier")
        node = self.cluster.found(self.job(), shard="1/1")
        node.wait_step(20)
        self.assertEqual(0, node.terminate())
        former = os.path.join(node.state_dir, "jobs", "1-0123456789abcdef")  # as a next job does
        os.makedirs(former)
        os.rename(os.path.join(node.state_dir, "checkpoints"), os.path.join(former, "checkpoints"))
        checkpoint = os.path.join(former, "checkpoints", "current.safetensors")
        done = gossipctl("checkpoint", "export", checkpoint, os.path.join(former, "model.pt"))
        self.assertEqual(0, done.returncode, done.stderr)

    def test_models_that_do_not_fit_end_with_one_error_and_disturb_no_other_node(self):
        first = self.cluster.found(
            self.cluster.job("mlp.toml"), shard="1/1", trainer__min_step_ms=20
        )
        step = first.status()["step"]
        self.assert_refused(self.job("absent.pt"), "absent.pt", "no such file")
        with open(os.path.join(self.cluster.directory, "text.pt"), "w", encoding="utf-8") as out:
            out.write("not a model")
        self.assert_refused(self.job("text.pt"), "is no TorchScript file")
        self.export("Classifier", "five.pt", classes=5)
        self.assert_refused(self.job("five.pt"), "10 classes, the model has 5 outputs")
        self.assert_refused(self.job("five.pt", rest='[loss]\nkind = "model"'), "no method loss")
        first.wait_step(step + 20)
        self.assertEqual([], first.status()["refusals"])


class Text(ClusterTest):
    def job(self, **values):
        return self.cluster.job(
            batch=16,
            model='kind = "gpt"\ndim = 48\ndepth = 2\nheads = 4',
            data=(
                'kind = "text"\nlength = 32\ntrain_files = ["GPL-3", "LGPL-2.1", "Apache-2.0"]\n'
                'validation_fraction = 0.05'
            ),
            optimizer='kind = "adamw"\nlearning_rate = 0.005',
            rest="[training]\nclip_norm = 1.0",
            **values,
        )

    def final_loss(self, node):
        status = node.wait(
            "the final checkpoint and its evaluation",
            lambda s: s["checkpoints"].get("final", {}).get("evaluation_loss") is not None,
            300,
        )
        self.assertAlmostEqual(
            status["evaluation"]["perplexity"],
            2.718281828 ** status["evaluation"]["loss"],
            delta=0.01,
        )
        return status["evaluation"]["loss"]

    def test_a_gpt_learns_text_by_character_better_on_three_nodes_than_without_exchange(self):
        apart = [
            self.cluster.founder(
                self.job(budget_samples=16_000),
                shard=f"{i}/3",
                name=f"apart{i}",
                key=os.path.join(self.cluster.directory, f"apart{i}.key"),
                data=TEXTS,
            ).start()
            for i in (1, 2, 3)
        ]
        losses = [self.final_loss(node) for node in apart]
        self.assertLess(max(losses), 2.3)  # of 5.5 at the start
        # As many steps a node: 0.08 to 0.10 less.
        nodes = self.cluster.three(self.job(budget_samples=48_000), data=TEXTS)
        for node in nodes:
            self.assertLess(self.final_loss(node), min(losses))
            applied = [link["deltas_applied"] for link in node.links().values()]
            self.assertEqual(2, len(applied))
            self.assertGreater(min(applied), 0)
        finals = [read_tensors(node.checkpoint_path("final"))[1] for node in nodes]
        for final in finals[1:]:
            self.assertLess(distance(final, finals[0]), 0.02)


class Budget(ClusterTest):
    def test_more_samples_for_a_job_that_has_ended(self):
        nodes = self.cluster.three(self.cluster.job(budget_samples=100_000), trainer__min_step_ms=8)
        settled(nodes, "finished")
        asked = nodes[1].ctl("job", "extend", "20000")
        self.assertEqual(0, asked.returncode, asked.stderr)
        budget = nodes[1].status()["budget_samples"]
        self.assertGreaterEqual(budget, 120_000)
        for status in settled(nodes, "finished"):
            self.assertEqual(budget, status["budget_samples"])
            self.assertGreaterEqual(status["cluster_samples"], budget)
        self.assertEqual(0, nodes[2].terminate())
        nodes[2].start()
        self.assertEqual(budget, nodes[2].wait_phase("finished")["budget_samples"])
        self.assertEqual(2, nodes[0].ctl("job", "extend", "0").returncode)

    def test_a_job_that_gets_no_better_ends_early(self):
        job = self.cluster.job(
            budget_samples=100_000_000,
            evaluate_every_samples=40_000,
            learning_rate=0.0,
            rest="[training]\npatience = 2",
        )
        nodes = self.cluster.three(job, trainer__min_step_ms=8)
        for status in settled(nodes, "finished"):
            self.assertLess(status["cluster_samples"], 10_000_000)
        self.assertTrue(any("evaluations without a better one" in node.log() for node in nodes))


class Best(ClusterTest):
    def accuracies(self, node):
        return [p["accuracy"] for p in node.get("/v1/history")["points"] if "accuracy" in p]

    def test_the_best_checkpoint_is_of_the_best_evaluation_and_stays_over_a_restart(self):
        # At such a rate the accuracy jumps up and down.
        node = self.cluster.found(
            self.cluster.job(learning_rate=0.3, evaluate_every_samples=6_400),
            shard="1/1",
            trainer__min_step_ms=5,
        )

        def has_been_better():
            seen = self.accuracies(node)
            return len(seen) >= 6 and seen[-1] < max(seen)

        wait_for("an evaluation that is worse than an earlier one", has_been_better, 120)
        self.assertEqual(0, node.ctl("pause").returncode)
        settled([node], "paused")
        wait_for(
            "the best model on disk",
            lambda: node.status()["checkpoints"]["best"]["accuracy"] == max(self.accuracies(node)),
        )
        best = max(self.accuracies(node))
        self.assertEqual(best, node.status()["best_accuracy"])
        metadata, _ = read_tensors(node.checkpoint_path("best"))
        self.assertAlmostEqual(best, float(metadata["accuracy"]), places=5)

        self.assertEqual(0, node.terminate())
        node.settings["trainer.min_step_ms"] = 60_000  # so that it evaluates nothing more
        node.start()
        status = node.wait("its model", lambda s: s["phase"] in ("paused", "training"))
        self.assertAlmostEqual(best, status["best_accuracy"], places=5)
        self.assertAlmostEqual(best, status["checkpoints"]["best"]["accuracy"], places=5)


if __name__ == "__main__":
    unittest.main()
