"""The lab predicts real daemons: one scenario in virtual time and with three processes."""

import json
import os
import subprocess
import unittest

from cluster import BIN, DATA, POLICY, ClusterTest, settled

STEP_MS = 50
SAMPLES = 96_000
LAB_SEEDS = 3  # seeds alone make accuracies differ by half a point
ACCURACY_POINTS = 1.0
BYTES_SHARE = 0.15

SCENARIO = """
name = "three boxes"
[job]
file = "job.toml"
[data]
dir = "{data}"
[machine]
step_base_ms = {step_ms}
step_per_sample_ms = 0
jitter = "lognormal"   # without any, three machines would stay in lock-step, as real ones never do
jitter_scale = 0.02
[[nodes]]
count = 3
[network]
latency_ms = 0.1
"""


class Agreement(ClusterTest):
    def test_accuracy_and_bytes_of_the_lab_are_those_of_three_daemons(self):
        job = self.cluster.job(
            budget_samples=SAMPLES,
            warmup_samples=8_000,
            model='kind = "cnn"\nwidth = 8\nhidden = [32]',
        )
        scenario = os.path.join(self.cluster.directory, "scenario.toml")
        with open(scenario, "w", encoding="utf-8") as file:
            file.write(SCENARIO.format(data=DATA, step_ms=STEP_MS))
        out = os.path.join(self.cluster.directory, "lab.jsonl")
        settings = [
            f"--set={key}={value}"
            for key, value in POLICY.items()
            if not key.startswith("trainer.")
        ]
        subprocess.run(
            [
                os.path.join(BIN, "gossip-lab"),
                "run",
                scenario,
                "--json",
                out,
                "--seeds",
                f"1..{LAB_SEEDS}",
                *settings,
            ],
            check=True,
            timeout=300,
            capture_output=True,
            cwd=self.cluster.directory,
        )
        with open(out, encoding="utf-8") as file:
            runs = [json.loads(line) for line in file]
        lab = {key: sum(run[key] for run in runs) / LAB_SEEDS for key in ("accuracy_mean", "bytes")}

        nodes = self.cluster.three(job, trainer__min_step_ms=STEP_MS)
        for node in nodes:
            node.wait(
                "the final checkpoint and its evaluation",
                lambda s: "final" in s["checkpoints"] and s["accuracy"],
                300,
            )
        statuses = settled(nodes, "finished")
        accuracy = sum(s["accuracy"] for s in statuses) / len(statuses)
        sent = sum(s["bytes_sent_total"] for s in statuses)
        print(
            f"accuracy: lab {lab['accuracy_mean']:.4f}, daemons {accuracy:.4f}; bytes: lab"
            f" {lab['bytes']:.0f}, daemons {sent} ({100 * (sent / lab['bytes'] - 1):+.1f} %)",
            flush=True,
        )
        self.assertLessEqual(abs(accuracy - lab["accuracy_mean"]), ACCURACY_POINTS / 100)
        self.assertLessEqual(abs(sent / lab["bytes"] - 1), BYTES_SHARE)


if __name__ == "__main__":
    unittest.main()
