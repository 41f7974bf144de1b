#!/usr/bin/env python3
"""The evidence made with gossip-lab: tables run, resumed, judged and drawn."""

import hashlib
import json
import math
import subprocess
import sys
import tempfile
import tomllib
import unittest
import xml.etree.ElementTree
from pathlib import Path

from lab_test import BIN, LAB, ROOT, SCENARIO

EVIDENCE = ROOT / "tools/lab/evidence"
SCENARIO_FILE = ROOT / "tools/lab/scenarios/eight-boxes.toml"
sys.path.insert(0, str(EVIDENCE))
import evidence  # noqa: E402
import judging  # noqa: E402


class Evidence(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="gossip-evidence-")
        self.addCleanup(self.directory.cleanup)
        self.out = Path(self.directory.name)

    def evidence(self, *arguments, code=0):
        done = subprocess.run(
            [sys.executable, EVIDENCE / "evidence.py", "--bin", BIN, "--out", self.out, *arguments],
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_a_table_is_run_once_judged_and_drawn(self):
        table = tomllib.loads((EVIDENCE / "tables/stall.toml").read_text())
        self.evidence("--tier", "ci", "--table", "stall")
        runs = (self.out / "stall.jsonl").read_text()
        self.assertEqual(
            [json.loads(line)["name"] for line in runs.splitlines()],
            [row["name"] for row in table["rows"]],
        )
        text = (self.out / "stall.md").read_text()
        for row in table["rows"]:
            self.assertIn(f"| {row['name']} ", text)
        for claim in table["claims"]:
            self.assertIn(claim["text"], text)
        self.assertIn("not judged", (self.out / "README.md").read_text())
        xml.etree.ElementTree.parse(self.out / "stall.svg")
        self.evidence("--tier", "ci", "--table", "stall")
        self.assertEqual(
            (self.out / "stall.jsonl").read_text(), runs
        )  # results in the folder are not computed again

    def test_a_table_that_another_build_began_is_refused(self):
        self.evidence("--tier", "ci", "--table", "stall")
        (self.out / "stall.build").write_text("another")
        said = self.evidence("--tier", "ci", "--table", "stall", code=1)
        self.assertIn("stall.jsonl was begun by another build", said)

    def test_tuning_that_another_build_began_is_refused(self):
        (self.out / "stall.tuning.jsonl").touch()
        for record in ("another", None):
            if record:
                (self.out / "stall.build").write_text(record)
            else:
                (self.out / "stall.build").unlink()
            said = self.evidence("--tier", "ci", "--table", "stall", code=1)
            self.assertIn("stall.tuning.jsonl was begun by a", said)
            self.assertFalse((self.out / "stall.jsonl").exists())

    def test_a_claim_is_decided_by_its_bounds_and_ten_pairs(self):
        cases = {
            True: [[(0.3, 0.1, 10)], [(0.1, 0.1, 12), (0.2, 0.1, 10)]],
            False: [[(-0.3, 0.1, 10)], [(0.3, 0.1, 10), (-0.3, 0.1, 10)]],
            None: [[(0.3, 0.4, 10)], [(0.3, 0.1, 9)], [(math.nan, 0.1, 10)]],
        }
        for expected, claims in cases.items():
            for claim in claims:
                self.assertIs(expected, judging.decided(claim), claim)

    def test_verdicts_are_joined_as_a_claim_says(self):
        for verdicts, of_all, of_any in (
            ([True, True], True, True),
            ([True, None], None, True),
            ([True, None, False], False, True),
            ([None, False], False, None),
            ([False, False], False, False),
        ):
            rows = {"verdicts": verdicts}
            self.assertIs(of_all, judging.value_of("all_of(rows['verdicts'])", rows))
            self.assertIs(of_any, judging.value_of("any_of(rows['verdicts'])", rows))

    def test_a_run_that_came_to_no_number_leaves_a_claim_undecided(self):
        figure = {"mean": 1.0, "bound95": 0.1, "count": 10}
        no_number = {"mean": None, "bound95": None, "count": 10}
        pairs = ("train_loss_difference", "seconds_to_target_difference")
        said = {"base": [figure, figure], "diverged": [no_number, no_number]}
        rows = [
            {"name": name, "runs": 10, "train_loss": figures[0], "seconds_to_target": figure}
            | dict(zip(pairs, figures, strict=True))
            for name, figures in said.items()
        ]
        lab = lambda *_: json.dumps({"rows": rows})  # noqa: E731
        loss = "rows.difference('diverged', 'base', 'train_loss')"
        for holds, figures in (
            (f"{loss} < 0", {"loss": f"100 * {loss}"}),
            ("rows.bound('diverged', figure='train_loss') < 1", {}),
            ("rows.train_loss('diverged') > 0", {}),
            ("rows.in_time('diverged', 'base', 1)", {}),
        ):
            claim = {"holds": holds, "figures": figures}
            (self.out / "out.jsonl").touch()
            asked = judging.Rows(lab, self.out / "out.jsonl", "base")
            _, verdict = judging.verdict_of(claim, asked, "full")
            self.assertIn("not decided", verdict, holds)

    def test_the_interval_of_a_bound_on_time_is_of_what_is_bounded(self):
        names = "steps samples bytes messages dense_baseline_bytes age_mean age_max floats nodes"
        names += " state_bytes_server state_bytes_node step_time_variation wall_seconds loss"
        run = dict.fromkeys((names + " train_loss consensus_distance seconds").split(), 1)
        run |= {"id": "", "strategy": "", "knobs": {}, "finished": True, "accuracy": [0.9]}
        run |= {"target_accuracy": 0.88, "curve": []}
        # Always 15 s later than a time of 10 to 30 s: is that at most twice as long?
        times = {"base": [10, 30] * 5, "later": [25, 45] * 5, "twice": [20, 60] * 5}
        runs = [
            run | {"name": name, "seed": seed, "seconds_to_target": seconds}
            for name, column in times.items()
            for seed, seconds in enumerate(column)
        ]
        judging.write_results(self.out / "out.jsonl", runs)
        rows = judging.Rows(evidence.Lab(LAB), self.out / "out.jsonl", "base")
        self.assertIsNone(rows.in_time("later", "base", 2))
        self.assertIs(True, rows.in_time("later", "base", 3))
        self.assertIs(False, rows.in_time("later", "base", 1.2))
        self.assertIs(True, rows.in_time("twice", "base", 2))
        runs[-1]["seconds_to_target"] = 0  # not reached
        judging.write_results(self.out / "out.jsonl", runs)
        rows = judging.Rows(evidence.Lab(LAB), self.out / "out.jsonl", "base")
        self.assertIsNone(rows.in_time("twice", "base", 9))

    def test_bytes_are_saved_against_the_cheapest_that_is_as_accurate(self):
        class Rows(judging.Rows):
            """Ten pairs whose accuracies differ by a constant, with one bound for all."""

            def __init__(self, bound, **rows):
                self.rows, self.bound95 = rows, bound

            def bytes(self, name):
                return self.rows[name][0]

            def paired(self, name, base=None, figure="accuracy"):
                return self.rows[name][1] - self.rows[base][1], self.bound95, 10

        def saves(bound=0.001, **rows):
            periods = [name for name in rows if name.startswith("every")]
            return Rows(bound, **rows).saves(0.2, ["change"], periods)

        change = (10, 0.900)
        self.assertIs(True, saves(change=change, every_8=(13, 0.900)))
        self.assertIs(False, saves(change=change, every_8=(12, 0.900)))
        # one that is more accurate and dearer is another point, no comparison
        self.assertIs(False, saves(change=change, every_8=(13, 0.910)))
        self.assertIs(True, saves(change=change, every_8=(15, 0.910), every_12=(13, 0.9005)))
        # one that is as accurate and no dearer refutes it, one that is less accurate does not
        self.assertIs(False, saves(change=change, every_8=(13, 0.900), every_16=(9, 0.900)))
        self.assertIs(True, saves(change=change, every_8=(13, 0.900), every_16=(9, 0.890)))
        unclear = {"every_8": (13, 0.900), "every_16": (9, 0.899)}
        self.assertIsNone(saves(bound=0.0015, change=change, **unclear))
        unclear["every_16"] = (9, 0.8985)
        self.assertIsNone(saves(change=change, **unclear))
        self.assertIsNone(saves(bound=0.004, change=change, every_8=(13, 0.900)))
        # of several, one that saves is enough, and one that falls short refutes each_above()
        rows = Rows(0.001, change=(12, 0.9), entries=(10, 0.9), every_8=(13, 0.9))
        self.assertIs(True, rows.saves(0.2, ["change", "entries"], ["every_8"]))
        self.assertIs(False, rows.saves(0.2, ["change"], ["every_8"]))
        self.assertIs(True, rows.each_above(["change", "entries"], "every_8", by=-0.001))
        rows.rows["entries"] = (10, 0.897)
        self.assertIs(False, rows.each_above(["change", "entries"], "every_8", by=-0.001))

    def test_of_runs_of_one_name_those_of_the_present_settings_are_taken(self):
        scenario, out = self.out / "tiny.toml", self.out / "out.jsonl"
        scenario.write_text(SCENARIO)
        lab = evidence.Lab(LAB)
        rates = ["0.05", "0.1", "0.05"]
        first, changed, again = (
            lab.run(
                scenario,
                "1..2",
                out,
                ["job.budget_samples=1600", f"job.optimizer.learning_rate={rate}"],
            )
            for rate in rates
        )
        self.assertEqual(4, len(judging.results_of(out)))
        self.assertEqual([1, 2], [run["seed"] for run in again])
        self.assertEqual(first, again)
        self.assertNotEqual([run["loss"] for run in first], [run["loss"] for run in changed])

    def test_a_page_names_the_hash_of_the_data_made_for_it(self):
        made = self.out / "text"
        made.mkdir()
        for name, content in {"train.txt": b"b", "test.txt": b"a", "complete": b""}.items():
            (made / name).write_bytes(content)
        table = {
            "title": "T",
            "tiers": {"full": {"seeds": "1"}},
            "tuned": {},
            "data": "text",
            "digest": evidence.made_data.digest(evidence.made_data.make("text", self.out)),
        }
        page = evidence.page_of(table, "full", {}, "", [], "t.svg")
        self.assertIn(f"Data `text`, SHA-256 `{hashlib.sha256(b'ab').hexdigest()}`.", page)

    def test_every_row_of_every_table_is_a_scenario_and_every_claim_names_its_rows(self):
        scenarios = {}
        for path in sorted((EVIDENCE / "tables").glob("*.toml")):
            table = evidence.load_table(path)
            names = [row["name"] for row in table["rows"]]
            self.assertEqual(len(names), len(set(names)), path)
            for tier in table["tiers"].values():
                for what, scenario in evidence.scenarios_of(table, tier).items():
                    scenarios[f"{path.name}, {len(scenarios)}: {what}"] = scenario
            for claim in table.get("claims", []):
                self.assertLessEqual(
                    set(claim["rows"]), set(names), f"{path.name}: {claim['text']}"
                )
        self.assertGreater(len(scenarios), 500)
        evidence.Lab(LAB).check(scenarios)

    def test_mistakes_are_named(self):
        right, wrong = (SCENARIO_FILE, []), (SCENARIO_FILE, ["strategy.name=gosip"])
        with self.assertRaisesRegex(SystemExit, "^evidence: the second: .*gosip"):
            evidence.Lab(LAB).check({"the first": right, "the second": wrong, "a third": right})
        self.assertIn("there is no table latencie", self.evidence("--table", "latencie", code=1))
        self.assertIn("gossip-lab is missing; build it", self.evidence("--bin", "/nowhere", code=1))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
