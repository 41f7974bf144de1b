"""A trained model leaves gossipd: as TorchScript that runs in Python, as weights alone, and as
another cluster's start.
"""

import json
import os
import re
import shutil
import subprocess
import unittest

from cluster import DATA, DEADLINE_S, GOSSIPCTL, ClusterTest, gossipctl, settled
from models_test import python_with_torch
from tensors import distance, read_tensors

EXIT_CONFIG = 78
MEAN, DEVIATION = 0.2860, 0.3530  # of the jobs here

# Prints the accuracy on the first 2000 test images, in batches of a size that gossipd never used,
# and the file's metadata.
RUN = """
import gzip, json, sys, torch
words = {"gossipd/job_hash": "", "gossipd/step": ""}
model = torch.jit.load(sys.argv[1], _extra_files=words)
names = ("images-idx3", "labels-idx1")
pixels, labels = (gzip.open(f"{sys.argv[2]}/t10k-{name}-ubyte.gz").read() for name in names)
images = torch.frombuffer(bytearray(pixels[16:]), dtype=torch.uint8)[:2000 * 784]
images = images.reshape(-1, 1, 28, 28)
images = (images / 255 - %f) / %f
labels = torch.frombuffer(bytearray(labels[8:]), dtype=torch.uint8)[:2000]
found = torch.cat([model(part).argmax(1) for part in images.split(77)])
words = {k: v.decode() if isinstance(v, bytes) else v for k, v in words.items()}
print(json.dumps({"accuracy": (found == labels).float().mean().item(), "words": words}))
""" % (MEAN, DEVIATION)


class Export(ClusterTest):
    def path(self, name):
        return os.path.join(self.cluster.directory, name)

    def trained(self, **values):
        """A stopped node that has finished its job, and its last status."""
        node = self.cluster.founder(self.cluster.job(**values), shard="1/1").start()
        status = node.wait(
            "the final checkpoint and its evaluation",
            lambda s: (s["checkpoints"].get("final") or {}).get("accuracy"),
            120,
        )
        self.assertEqual(0, node.terminate())
        return node, status

    def exported(self, node, name):
        done = gossipctl("checkpoint", "export", node.state_dir, self.path(name))
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertEqual(self.path(name) + "\n", done.stdout)
        return self.path(name)

    def test_of_a_job_that_was_extended_the_newer_model_is_taken(self):
        node, status = self.trained(budget_samples=6_000)
        node.start().wait_phase("finished")
        self.assertEqual(0, node.ctl("job", "extend", "6000000").returncode)
        node.wait_step(status["step"] + 20)
        self.assertEqual(0, node.ctl("checkpoint").returncode)
        node.kill()
        shown = json.loads(gossipctl("checkpoint", "show", node.state_dir, "-o", "json").stdout)
        self.assertEqual(node.checkpoint_path("current"), shown["path"])
        self.assertGreaterEqual(int(shown["metadata"]["step"]), status["step"] + 20)

    def test_a_checkpoint_is_shown_and_runs_in_python(self):
        node, status = self.trained(model='kind = "cnn"', budget_samples=30_000)
        shown = json.loads(gossipctl("checkpoint", "show", node.state_dir, "-o", "json").stdout)
        self.assertEqual(
            (status["job_hash"], str(status["step"])),
            (shown["metadata"]["job_hash"], shown["metadata"]["step"]),
        )
        self.assertEqual(63_466, shown["floats"])
        self.assertIn(
            'kind = "cnn"', gossipctl("checkpoint", "show", node.checkpoint_path("final")).stdout
        )

        ran = subprocess.run(
            [python_with_torch(), "-c", RUN, self.exported(node, "model.pt"), DATA],
            capture_output=True,
            text=True,
            check=True,
            timeout=DEADLINE_S,
        )
        result = json.loads(ran.stdout)
        self.assertEqual(
            {"gossipd/job_hash": status["job_hash"], "gossipd/step": str(status["step"])},
            result["words"],
        )
        self.assertGreater(result["accuracy"], 0.7)
        self.assertAlmostEqual(
            status["accuracy"], result["accuracy"], delta=0.05
        )  # of 10,000 images

    def test_weights_travel_into_another_cluster(self):
        node, _ = self.trained(budget_samples=10_000)
        weights = self.exported(node, "weights.safetensors")
        metadata, tensors = read_tensors(weights)
        _, whole = read_tensors(node.checkpoint_path("final"))
        self.assertEqual(
            {name: values for name, values in whole.items() if not name.startswith("momentum.")},
            tensors,
        )
        self.assertGreaterEqual(int(metadata["samples"]), 10_000)

        # With a rate of 0 the model stays as it began.
        job = self.cluster.job("again.toml", name="again", budget_samples=10_000, learning_rate=0.0)
        self.add(job, 'start_from = "weights.safetensors"')
        first = self.cluster.found(
            job, shard="1/1", name="a1", key=self.path("again.key"), trainer__min_step_ms=20
        )
        second = self.cluster.joiner(
            "a2", first, key=self.path("again.key"), trainer__min_step_ms=20
        ).start()
        os.remove(weights)  # the model came with the cluster
        settled([first, second], "finished")
        for box in (first, second):
            box.wait("its final checkpoint", lambda s: s["checkpoints"].get("final"))
            self.assertLess(distance(read_tensors(box.checkpoint_path("final"))[1], tensors), 0.01)

    def test_an_export_never_replaces_what_a_node_may_resume_from(self):
        job = self.cluster.job(budget_samples=2_000, warmup_samples=100)
        node = self.cluster.founder(job).start()
        node.wait_phase("finished")
        self.assertEqual(0, node.terminate())
        current, final = node.checkpoint_path("current"), node.checkpoint_path("final")
        with open(current, "rb") as file:
            before = file.read()
        for source, target in ((current, current), (final, current)):
            done = gossipctl("checkpoint", "export", source, target)
            self.assertEqual(2, done.returncode, done.stderr)
            self.assertIn("a node may resume from", done.stderr)
            self.assertIn("name a new file", done.stderr)
        with open(current, "rb") as file:
            self.assertEqual(before, file.read())

    def test_a_missing_checkpoint_ends_alike_whatever_was_to_be_done_with_it(self):
        missing = self.path("missing")
        shown = gossipctl("checkpoint", "show", missing)
        self.assertNotEqual(0, shown.returncode)
        for name in ("model.pt", "weights.safetensors"):
            done = gossipctl("checkpoint", "export", missing, self.path(name))
            self.assertEqual((shown.returncode, shown.stderr), (done.returncode, done.stderr))
            self.assertFalse(os.path.exists(self.path(name)))

    def test_an_export_that_is_killed_says_so_and_leaves_no_part(self):
        os.mkdir(self.path("bin"))
        shutil.copy(GOSSIPCTL, self.path("bin/gossipctl"))
        with open(self.path("bin/gossip-export"), "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\ntouch "$2.part"\nkill -KILL $$\n')
        os.chmod(self.path("bin/gossip-export"), 0o755)
        with open(self.path("a.safetensors"), "w", encoding="utf-8"):
            pass
        line = [self.path("bin/gossipctl"), "checkpoint", "export"]
        line += [self.path("a.safetensors"), self.path("a.pt")]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60)
        self.assertEqual((1, ""), (done.returncode, done.stdout))
        self.assertIn("gossip-export was ended by SIGKILL", done.stderr)
        self.assertIn("not enough memory", done.stderr)
        self.assertFalse(os.path.exists(self.path("a.pt.part")))

    def test_weights_that_do_not_fit_are_refused_with_the_difference(self):
        node, _ = self.trained(budget_samples=6_000, hidden=16)
        self.exported(node, "weights.safetensors")
        job = self.cluster.job("same.toml", hidden=16)
        untrained = self.tried_loss(job)
        self.add(job, 'start_from = "weights.safetensors"')
        self.assertLess(self.tried_loss(job), 0.7 * untrained)
        job = self.cluster.job("other.toml", hidden=24)
        self.add(job, 'start_from = "weights.safetensors"')
        self.refused(
            job, "head.linear1.bias is [16] but the model's is [24]", "bring weights of this model"
        )
        with open(self.path("weights.safetensors"), "r+b") as file:
            file.truncate(20_000)
        self.refused(job, "weights.safetensors", "bytes of data, but its header names")
        os.remove(self.path("weights.safetensors"))
        self.refused(job, "weights.safetensors", "there is no such file")

    def add(self, job, line):
        with open(job, encoding="utf-8") as file:
            text = file.read()
        with open(job, "w", encoding="utf-8") as file:
            file.write(line + "\n" + text)

    def refused(self, job, *words):
        number = len(self.cluster.nodes)
        key = self.path(f"{number}.key")
        node = self.cluster.founder(job, shard="1/1", name=f"other{number}", key=key)
        for extra in (["--check-config"], []):
            node.start(extra)
            self.assertEqual(EXIT_CONFIG, node.exit_code(), node.log())
            for word in words:
                self.assertIn(word, node.log())
            self.assertFalse(os.path.exists(node.state_dir))
            self.assertFalse(os.path.exists(key))

    def tried_loss(self, job):
        node = self.cluster.founder(job, shard="1/1", name=f"tries{len(self.cluster.nodes)}")
        self.assertEqual(0, node.start(["--check-config"]).exit_code(), node.log())
        return float(re.search(r"# step: .* loss ([0-9.]+)", node.log()).group(1))


if __name__ == "__main__":
    unittest.main()
