#!/usr/bin/env python3
"""gossip-lab as a user runs it: equal results twice, resumed campaigns, faults, clear errors."""

import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("GOSSIPD_BIN_DIR", ROOT / "build/dev/bin"))
LAB = BIN / "gossip-lab"

SCENARIO = f"""
name = "tiny"
[job]
file = "{ROOT}/deploy/jobs/fashion-mnist.toml"
budget_samples = 9_600
evaluate_every_samples = 4_800
[job.schedule]
warmup_samples = 1_000
[machine]
step_base_ms = 40
step_per_sample_ms = 1
jitter = "pareto"
jitter_scale = 2.5
[[nodes]]
count = 2
[[nodes]]
speed = 0.5
[network]
latency_ms = 20
jitter_ms = 5
loss = 0.001
"""


def event(what, at_s, node=1, **more):
    """The lines of one event of a scenario."""
    values = {"what": what, "at_s": at_s, "node": node, **more}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(["[[events]]", *lines, ""])


class Lab(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="gossip-lab-")
        self.addCleanup(self.directory.cleanup)
        self.path = Path(self.directory.name)
        self.scenario = self.path / "tiny.toml"
        self.scenario.write_text(SCENARIO)

    def lab(self, *arguments, code=0):
        done = subprocess.run(
            [LAB, *map(str, arguments)], capture_output=True, text=True, timeout=300, cwd=self.path
        )
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout if code == 0 else done.stderr

    def results(self, name):
        return [json.loads(line) for line in (self.path / name).read_text().splitlines()]

    def test_matrices_are_multiplied_by_kernels_of_this_processor(self):
        flags = Path("/proc/cpuinfo").read_text()
        if not {"avx2", "fma"} <= set(flags.split()):
            self.skipTest("this processor has no AVX2")
        environment = {**os.environ, "OPENBLAS_VERBOSE": "2"}  # names its kernels when it is loaded
        environment.pop("OPENBLAS_CORETYPE", None)
        for told in ({}, {"OPENBLAS_CORETYPE": "Nehalem"}):
            done = subprocess.run(
                [LAB, "run", "no-such.toml"],
                capture_output=True,
                text=True,
                timeout=60,
                env={**environment, **told},
            )
            self.assertEqual(done.returncode, 2, done.stderr)
            cores = re.findall(r"^Core: (\w+)", done.stdout + done.stderr, re.MULTILINE)
            if not cores:
                self.skipTest("this LibTorch multiplies by another library than OpenBLAS")
            if told:
                self.assertEqual(set(cores), {"Nehalem"}, "the user's choice was not kept")
            else:
                self.assertIn(cores[-1], ("Haswell", "Zen", "SkylakeX", "Cooperlake",
                                          "SapphireRapids"))

    def test_same_scenario_and_seed_give_the_same_result_whatever_the_number_of_threads(self):
        for threads, out in ((1, "a.jsonl"), (3, "b.jsonl")):
            self.lab("run", self.scenario, "--seeds", 7, "--threads", threads, "--json", out)
        a, b = self.results("a.jsonl")[0], self.results("b.jsonl")[0]
        for result in (a, b):
            self.assertGreater(result.pop("wall_seconds"), 0)
        self.assertEqual(a, b)
        self.assertTrue(a["finished"])
        self.assertEqual(len(a["accuracy"]), 3)
        self.assertGreater(min(a["accuracy"]), 0.6)
        self.assertLess(a["consensus_distance"], 0.01)
        self.assertGreaterEqual(a["samples"], 9600)
        self.assertGreater(a["age_mean"], 0)
        self.assertLess(a["bytes"], a["dense_baseline_bytes"])

    def test_an_interrupted_campaign_resumes_where_it_stopped(self):
        self.lab("run", self.scenario, "--seeds", 1, "--json", "out.jsonl")
        whole = (self.path / "out.jsonl").read_text()
        (self.path / "out.jsonl").write_text(
            whole + whole[: len(whole) // 2]
        )  # a crash while writing the second
        said = self.lab("run", self.scenario, "--seeds", "1..2", "--json", "out.jsonl")
        self.assertIn("seed 1", said)
        self.assertEqual(said.count("(from the file)"), 1)
        said = self.lab("run", self.scenario, "--seeds", "1..2", "--json", "out.jsonl")
        self.assertEqual(said.count("(from the file)"), 2)
        self.assertEqual(
            [1, 2],
            [run["seed"] for run in self.results("out.jsonl")],
        )
        self.lab("compare", "out.jsonl")

    def test_compare_and_plot_read_what_run_wrote(self):
        self.lab(
            "run",
            self.scenario,
            "--seeds",
            "1..2",
            "--json",
            "out.jsonl",
            "--set",
            "job.budget_samples=3200",
        )
        self.lab(
            "run",
            self.scenario,
            "--seeds",
            "1..2",
            "--json",
            "out.jsonl",
            "--set",
            "job.budget_samples=3200",
            "--set",
            "name=ring all-reduce",
            "--set",
            "strategy.name=sync-sgd",
        )
        rows = json.loads(self.lab("compare", "out.jsonl", "-o", "json"))["rows"]
        self.assertEqual([row["name"] for row in rows], ["tiny", "ring all-reduce"])
        for figure in ("accuracy", "train_loss"):
            difference = rows[1][f"{figure}_difference"]
            self.assertEqual(difference["count"], 2)
            apart = rows[1][figure]["mean"] - rows[0][figure]["mean"]
            self.assertNotEqual(apart, 0)
            self.assertAlmostEqual(difference["mean"], apart)
        table = self.lab("compare", "out.jsonl", "-o", "markdown", "--perplexity")
        self.assertIn("| ring all-reduce", table)
        runs = [run for run in self.results("out.jsonl") if run["name"] == "ring all-reduce"]
        expected = sum(math.exp(run["loss"]) for run in runs) / len(runs)
        self.assertAlmostEqual(rows[1]["perplexity"]["mean"], expected, places=6)
        self.assertIn(f"| {expected:.3f} ±", table)
        for against in ("bytes", "time", "delay"):
            self.lab(
                "plot",
                "out.jsonl",
                "--against",
                against,
                "--out",
                f"{against}.svg",
                "--title",
                "a < b & c",
            )
            drawn = xml.etree.ElementTree.parse(self.path / f"{against}.svg").getroot()
            self.assertTrue(any("ring all-reduce" in (node.text or "") for node in drawn.iter()))

    def test_what_is_not_known_is_no_figure(self):
        # The target is reached before the first evaluation, which is the only one.
        every = "job.evaluate_every_samples=9600"
        self.lab("run", self.scenario, "--json", "known.jsonl", "--set", every)
        [run] = self.results("known.jsonl")
        self.assertEqual(1, len(run["curve"]))
        target = f"run.target_accuracy={run['accuracy_mean'] / 2}"
        once = ["--set", every, "--set", target]
        self.lab("run", self.scenario, "--json", "early.jsonl", *once)
        [run] = self.results("early.jsonl")
        self.assertEqual(0, run["seconds_to_target"])
        # A run that was stopped says nothing of where it would have ended.
        said = self.lab(
            "run", self.scenario, "--json", "stopped.jsonl", "--set", "run.time_limit_s=2"
        )
        self.assertIn("NOT FINISHED", said)
        [row] = json.loads(self.lab("compare", "stopped.jsonl", "-o", "json"))["rows"]
        self.assertIsNone(row["accuracy"]["mean"])
        # And one run says nothing of how far apart others would be.
        for figure in ("train_loss", "bytes", "accuracy_difference"):
            self.assertIsNone(row[figure]["deviation"])
            self.assertIsNone(row[figure]["bound95"])
        renamed = [run | {"name": "stopped"} for run in self.results("stopped.jsonl")]
        lines = [json.dumps(run) for run in [*self.results("known.jsonl"), *renamed]]
        (self.path / "both.jsonl").write_text("\n".join(lines) + "\n")
        table = self.lab("compare", "both.jsonl", "--perplexity")
        self.assertIn("(not finished)", table)
        self.assertNotIn("nan", table)
        self.assertNotIn("±", table)

    def test_a_row_of_unlike_settings_is_refused(self):
        small = ("run", self.scenario, "--json", "out.jsonl", "--set", "job.budget_samples=1600")
        self.lab(*small, "--seeds", "1..2")
        self.lab("compare", "out.jsonl")
        for change, word in (
            ("job.optimizer.learning_rate=0.1", "a setting of the scenario"),
            ("exchange.codec=int8", "exchange.codec top_k:64 and int8"),
        ):
            before = (self.path / "out.jsonl").read_text()
            self.lab(*small, "--set", change)
            for words in (["compare", "out.jsonl"], ["plot", "out.jsonl", "--out", "p.svg"]):
                said = self.lab(*words, code=1)
                self.assertIn("row 'tiny' has runs with unlike settings", said)
                self.assertIn(f"(seeds 1 and 1: {word}", said)
            (self.path / "out.jsonl").write_text(before)
        # Builds until November 2026 wrote no settings.
        old = self.results("out.jsonl")
        for run in old:
            del run["settings"]
        lines = [json.dumps(run) for run in [*old, old[0] | {"seed": 3, "nodes": 4}]]
        (self.path / "out.jsonl").write_text("\n".join(lines[:2]))
        self.lab("compare", "out.jsonl")
        (self.path / "out.jsonl").write_text("\n".join(lines))
        self.assertIn("nodes 3 and 4", self.lab("compare", "out.jsonl", code=1))

    def test_figures_that_could_not_be_written_are_no_success(self):
        self.lab("run", self.scenario, "--json", "out.jsonl", "--set", "job.budget_samples=3200")
        for words in (["compare", "out.jsonl"], ["plot", "out.jsonl"], ["strategies"], ["--help"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run(
                    [LAB, *words], stdout=full, stderr=subprocess.PIPE, text=True, cwd=self.path
                )
            self.assertEqual(1, done.returncode, words)
            self.assertIn("standard output cannot be written", done.stderr)

    def test_nodes_die_freeze_return_and_come_late(self):
        with self.scenario.open("a") as file:
            file.write("[[nodes]]\nstarts_at_s = 4\n")
            file.write(event("kill", 3) + event("start", 6) + event("freeze", 5, node=2, for_s=2))
            file.write(event("speed", 5, node=0, speed=2))
            file.write(event("cut", 2, node=0, other=2) + event("heal", 4, node=0, other=2))
        self.lab(
            "run",
            self.scenario,
            "--json",
            "out.jsonl",
            "--set",
            "checkpoint.every_s=1",
            "--set",
            "job.budget_samples=16000",
        )
        result = self.results("out.jsonl")[0]
        self.assertTrue(result["finished"])
        self.assertEqual(len(result["accuracy"]), 4)
        self.assertLess(result["consensus_distance"], 0.01)

    def run_with(self, more, *settings):
        """The result of the scenario with these lines more."""
        self.scenario.write_text(SCENARIO + more)
        out = f"{len(list(self.path.iterdir()))}.jsonl"
        settings = ["job.budget_samples=6400", *settings]
        if "start" in more:  # from its checkpoint, of which only gossip knows
            settings.append("checkpoint.every_s=1")
        sets = itertools.chain.from_iterable(("--set", s) for s in settings)
        self.lab("run", self.scenario, "--json", out, *sets)
        [result] = self.results(out)
        self.assertTrue(result["finished"])
        return result

    def test_each_event_alone_changes_what_it_must(self):
        seconds, variation, age = "seconds", "step_time_variation", "age_max"
        calm = self.run_with("")
        self.assertEqual(3, len(calm["accuracy"]))

        def changed(figure, result, other=calm):
            return result[figure] / other[figure]

        # Node 1 makes two fifths of all steps, and without an event the job takes 7.1 s.
        killed = self.run_with(event("kill", 2))
        self.assertEqual(2, len(killed["accuracy"]))
        self.assertGreater(changed(seconds, killed), 1.2)
        back = self.run_with(event("kill", 2) + event("start", 4))
        self.assertEqual(3, len(back["accuracy"]))
        self.assertGreater(changed(seconds, back), 1.05)
        self.assertLess(changed(seconds, back, killed), 0.95)
        left = self.run_with(event("leave", 2))
        self.assertEqual(2, len(left["accuracy"]))
        self.assertGreater(changed(seconds, left), 1.15)
        frozen = self.run_with(event("freeze", 2, for_s=3))
        self.assertEqual(3, len(frozen["accuracy"]))
        self.assertGreater(changed(seconds, frozen), 1.05)
        self.assertGreater(changed(variation, frozen), 1.5, "a step of 3 s")
        slow = self.run_with(event("speed", 2, speed=0.01))
        self.assertGreater(changed(seconds, slow), 1.5)
        fast = self.run_with(event("speed", 2, speed=10))
        self.assertLess(changed(seconds, fast), 0.75)
        cuts, heals = (
            "".join(event(what, at_s, node=0, other=other) for other in (1, 2))
            for what, at_s in (("cut", 1), ("heal", 3))
        )
        cut, healed = self.run_with(cuts), self.run_with(cuts + heals)
        self.assertGreater(cut["consensus_distance"], 0.1)
        self.assertLess(healed["consensus_distance"], 0.01)
        self.assertGreater(changed(age, healed), 2)
        four, late = (self.run_with(f"[[nodes]]\nstarts_at_s = {at}\n") for at in (0, 4.5))
        self.assertEqual(4, len(late["accuracy"]))
        self.assertGreater(changed(seconds, late, four), 1.05)

    def test_adamw_trains_gossip_through_a_restart_and_a_reference_row(self):
        adamw = ("job.optimizer.kind=adamw", "job.optimizer.learning_rate=0.002")
        adamw += ("job.budget_samples=9600",)
        calm = self.run_with("", *adamw)
        gossip = self.run_with(event("kill", 3) + event("start", 5), *adamw)
        # For two seconds two fifths of the steps are missing.
        self.assertGreater(gossip["seconds"], 1.05 * calm["seconds"])
        self.assertEqual(3, len(gossip["accuracy"]))
        row = self.run_with("", *adamw, "strategy.name=sync-sgd")
        for result in (gossip, row):
            self.assertGreater(min(result["accuracy"]), 0.6)
        self.assertEqual(row["state_bytes_node"], 2 * 4 * row["floats"])

    def test_every_strategy_is_listed_with_its_knobs(self):
        listed = json.loads(self.lab("strategies", "--json"))["strategies"]
        names = [entry["name"] for entry in listed]
        self.assertEqual(names[0], "gossip")
        self.assertGreaterEqual(len(names), 18)
        self.assertIn("exchange.threshold", [knob["key"] for knob in listed[0]["knobs"]])
        self.assertTrue(all(entry["source"] for entry in listed))

    def test_mistakes_are_named_with_their_way_out(self):
        def said(*arguments, code=2):
            return self.lab("run", self.scenario, *arguments, code=code)

        self.assertIn("did you mean 'threshold'", said("--set", "exchange.treshold=0.1"))
        self.assertIn("did you mean 'sync-sgd'", said("--set", "strategy.name=sync-sdg"))
        self.assertIn(
            "set job.optimizer.kind",
            said("--set", "job.optimizer.kind=adamw", "--set", "strategy.name=dana"),
        )
        self.assertIn(
            "belongs to sgd",
            said("--set", "job.optimizer.kind=adamw", "--set", "job.optimizer.momentum=0.9"),
        )
        self.assertIn("no codec", said("--set", "exchange.codec=int9"))
        self.assertIn("1..10", said("--seeds", "3..1"))
        self.assertIn("KEY=VALUE", said("--set", "exchange"))
        self.assertIn("/nowhere", said("--set", "data.dir=/nowhere", code=1))
        self.scenario.write_text(
            SCENARIO + '[strategy]\nname = "asgd"\n[[events]]\nwhat = "kill"\nnode = 1\nat_s = 1\n'
        )
        self.assertIn("knows no failures", said())
        self.scenario.write_text(SCENARIO.replace("[machine]", "[machin]"))
        self.assertIn("did you mean 'machine'", said())
        self.scenario.write_text("name = \n")
        self.assertIn("tiny.toml:1", said())
        self.assertIn("missing.toml", self.lab("run", "missing.toml", code=2))
        (self.path / "bad.jsonl").write_text("{}\n")
        self.assertIn("bad.jsonl:1", self.lab("compare", "bad.jsonl", code=1))

    def test_a_results_file_is_no_directory_and_no_picture(self):
        (self.path / "made").mkdir()
        for arguments in (("run", self.scenario, "--json", "made"), ("compare", "made")):
            self.assertIn("made: is a directory", self.lab(*arguments, code=1))
        self.lab("run", self.scenario, "--json", "one.jsonl", "--set", "name=a\x01b")
        before = (self.path / "one.jsonl").read_bytes()
        for same in ("one.jsonl", "./one.jsonl"):
            said = self.lab("plot", "one.jsonl", "--out", same, code=1)
            self.assertIn("would replace its results", said)
        self.assertEqual(before, (self.path / "one.jsonl").read_bytes())
        self.lab("plot", "one.jsonl", "--out", "one.svg")
        xml.etree.ElementTree.parse(self.path / "one.svg")


    def test_a_rival_alone_clips_its_gradient_as_a_node_alone_does(self):
        def accuracy(*settings):
            out = f"{len(list(self.path.iterdir()))}.jsonl"
            sets = itertools.chain.from_iterable(("--set", s) for s in settings)
            self.lab("run", self.scenario, "--json", out, "--set", "nodes=[{count=1}]", *sets)
            return self.results(out)[0]["accuracy_mean"]

        tight = "job.training.clip_norm=0.05"
        node, rival = accuracy(tight), accuracy(tight, "strategy.name=local-sgd")
        self.assertLess(abs(node - rival), 0.03)
        self.assertGreater(accuracy("strategy.name=local-sgd") - rival, 0.06)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
