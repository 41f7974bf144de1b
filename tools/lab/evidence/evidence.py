#!/usr/bin/env python3
"""tools/lab/evidence/evidence.py - runs the tables of this folder and writes the results.

    evidence.py [--tier ci|hours|full] [--out DIR] [--table NAME] [--bin DIR] [--publish] [--list]

Each tables/NAME.toml is a scenario, rows that differ from it, and claims about the rows. A tier
sets their seeds and size. `tune` lists values of keys, which are tried on other seeds than those
reported; the best mean accuracy wins. A row's `report` settings apply to the reported runs. A tier
without seeds for tuning takes the published values (results/NAME.tuned.json). `data` names a data
set that made_data.py makes first, in build/evidence/data.

DIR (by default build/evidence/TIER) keeps finished runs, so an interrupted campaign resumes. Writes
DIR/NAME.md, DIR/NAME.svg and DIR/README.md; the figures are accuracy, bytes and virtual time, which
do not depend on the machine. --publish copies them and the tuned values to results/ beside this
file.
"""

import argparse
import itertools
import json
import math
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import made_data

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TIERS = ("ci", "hours", "full")


class Lab:
    def __init__(self, program):
        self.program = program
        if not program.exists():
            sys.exit(
                f"evidence: {program} is missing; build it: cmake --preset release &&"
                " cmake --build --preset release --target gossip-lab"
            )

    def __call__(self, *arguments):
        done = subprocess.run(
            [self.program, *map(str, arguments)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            sys.exit(f"evidence: gossip-lab {' '.join(map(str, arguments))}\n{done.stderr.strip()}")
        return done.stdout

    def run(self, scenario, seeds, out, settings):
        sets = itertools.chain.from_iterable(("--set", s) for s in settings)
        self("run", scenario, "--seeds", seeds, "--json", out, *sets)


class Rows:
    """What a claim may ask of the rows; all figures are means over the seeds."""

    def __init__(self, lab, results):
        self.lab, self.results, self.against = lab, results, {}

    def compared(self, base):
        if base not in self.against:
            chosen = ("--against", base) if base else ()
            rows = json.loads(self.lab("compare", self.results, "-o", "json", *chosen))["rows"]
            self.against[base] = {row["name"]: row for row in rows}
        return self.against[base]

    def __getattr__(self, figure):
        def mean_of(name):
            row = self.compared(None)[name]
            mean = row[figure]["mean"]  # null: a run that came to no number
            unreached = figure == "seconds_to_target" and row[figure]["count"] < row["runs"]
            return float("nan") if unreached or mean is None else mean

        return mean_of

    def difference(self, name, base=None, figure="accuracy"):
        """Accuracy (or train_loss) of `name` minus that of `base` (first row), paired by seed."""
        return self.compared(base)[name][f"{figure}_difference"]["mean"]

    def bound(self, name, base=None, figure="accuracy"):
        """Half width of difference's 95 % interval; infinite for a single pair."""
        difference = self.compared(base)[name][f"{figure}_difference"]
        return difference["bound95"] if difference["count"] > 1 else float("inf")


def tuned(lab, table, row, tier, out, log):
    """The settings that did best on the tuning seeds, or the published ones."""
    grid = row.get("tune", table.get("tune", {}))
    seeds = tier.get("tune_seeds")
    if not grid:
        return []
    if not seeds:
        return table["tuned"].get(row["name"], [])
    best, best_accuracy = [], -1.0
    for values in itertools.product(*grid.values()):
        extra = [f"{key}={value}" for key, value in zip(grid, values)]
        name = f"{row['name']} [{', '.join(extra)}]"
        log(f"tuning {name}")
        lab.run(
            table["path"],
            seeds,
            out,
            tier.get("set", [])
            + tier.get("tune_set", [])
            + row.get("set", [])
            + extra
            + [f"name={name}"],
        )
        rows = json.loads(lab("compare", out, "-o", "json"))["rows"]
        accuracy = next(r["accuracy"]["mean"] for r in rows if r["name"] == name)
        if accuracy > best_accuracy:
            best, best_accuracy = extra, accuracy
    return best


def value_of(expression, rows):
    return eval(expression, {"rows": rows})  # our own files  # noqa: S307


def tuning_of(table, tier):
    if "tune_seeds" in tier:
        return f"tuned on seeds {tier['tune_seeds']}"
    return "tuned as published" if table["tuned"] else "not tuned"


def load_table(path):
    table = tomllib.loads(path.read_text())
    names = {row["name"] for row in table["rows"]}
    for claim in table.get("claims", []):
        if missing := ", ".join(name for name in claim.get("rows", []) if name not in names):
            sys.exit(f"evidence: {path}: claim '{claim['text']}' names missing rows: {missing}")
    table["path"] = (path.parent / table["scenario"]).resolve()
    published = HERE / "results" / f"{path.stem}.tuned.json"
    table["tuned"] = json.loads(published.read_text()) if published.exists() else {}
    return table


def verdict_of(claim, rows, tier_name):
    """The figures of a claim, and what became of it."""
    figures = {key: value_of(text, rows) for key, text in claim["figures"].items()}
    holds = value_of(claim["holds"], rows) is True
    undecided = not holds and value_of(claim.get("undecided", "False"), rows) is True
    if tier_name == "ci":
        return figures, "not judged: this tier only shows that it runs"
    undecided |= not holds and any(math.isnan(value) for value in figures.values())
    verdict = "reproduced" if holds else "not decided by these seeds" if undecided else "refuted"
    return figures, verdict + " on " + claim.get("on", "a substitute (Fashion-MNIST)")


def page_of(table, tier_name, chosen, comparison, claims, picture):
    """The Markdown page of a table."""
    tier = table["tiers"][tier_name]
    lines = [
        f"# {table['title']}",
        "",
        table.get("text", "").strip(),
        "",
        f"Tier `{tier_name}`, seeds {tier['seeds']}, {tuning_of(table, tier)}.",
        "",
        comparison,
        "",
        f"![{table['title']}]({picture})",
        "",
    ]
    for claim, figures, verdict in claims:
        shown = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
        lines.append(f"- **{claim['text']}** ({claim['source']}): {shown} - {verdict}.")
    lines += ["", "| row | settings |", "|---|---|"]
    for name, settings in chosen.items():
        lines.append(f"| {name} | `{' '.join(settings) or 'as in the scenario'}` |")
    return "\n".join(lines) + "\n"


def run_table(lab, path, tier_name, out):
    """Title and claims of a table, or None where it lacks the tier. Writes its page and picture."""
    table = load_table(path)
    tier = table.get("tiers", {}).get(tier_name)
    if tier is None:
        return None
    if "data" in table:
        made = made_data.make(table["data"], ROOT / "build/evidence/data")
        tier["set"] = [f"data.dir={made}"] + tier.get("set", [])
    results, tuning = out / f"{path.stem}.jsonl", out / f"{path.stem}.tuning.jsonl"
    began = time.monotonic()

    def log(text):
        seconds = time.monotonic() - began
        print(f"[{seconds:6.0f} s] {path.stem}: {text}", file=sys.stderr, flush=True)

    chosen, found = {}, {}
    for row in table["rows"]:
        name = row["name"]
        found[name] = tuned(lab, table, row, tier, tuning, log)
        settings = chosen[name] = row.get("set", []) + row.get("report", []) + found[name]
        log(name)
        seeds = row.get("seeds", {}).get(tier_name, tier["seeds"])
        lab.run(
            table["path"],
            seeds,
            results,
            tier.get("set", []) + settings + tier.get("last", []) + [f"name={name}"],
        )
    rows = Rows(lab, results)
    claims = [(claim, *verdict_of(claim, rows, tier_name)) for claim in table.get("claims", [])]
    more = ["--perplexity"] if table.get("perplexity") else []
    comparison = lab("compare", results, "-o", "markdown", *more).strip()
    page = page_of(table, tier_name, chosen, comparison, claims, f"{path.stem}.svg")
    (out / f"{path.stem}.md").write_text(page)
    if "tune_seeds" in tier:
        kept = {name: extra for name, extra in found.items() if extra}
        (out / f"{path.stem}.tuned.json").write_text(json.dumps(kept, indent=1) + "\n")
    axis, picture = table.get("plot", "bytes"), out / f"{path.stem}.svg"
    lab("plot", results, "--against", axis, "--title", table["title"], "--out", picture)
    log("done")
    return table["title"], claims


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tier", choices=TIERS, default="ci")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", action="append", help="only this one; may be repeated")
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument(
        "--publish", action="store_true", help="copy tables and pictures to results/"
    )
    parser.add_argument("--list", action="store_true", help="name the tables and their tiers")
    arguments = parser.parse_args()
    paths = sorted((HERE / "tables").glob("*.toml"))
    if arguments.list:
        for path in paths:
            table = tomllib.loads(path.read_text())
            print(
                f"{path.stem:24} {', '.join(t for t in TIERS if t in table.get('tiers', {})):16}"
                f" {table['title']}"
            )
        return
    if arguments.table:
        unknown = set(arguments.table) - {path.stem for path in paths}
        if unknown:
            sys.exit(f"evidence: there is no table {', '.join(sorted(unknown))}; --list names them")
        paths = [path for path in paths if path.stem in arguments.table]
    out = arguments.out or ROOT / "build/evidence" / arguments.tier
    out.mkdir(parents=True, exist_ok=True)
    lab = Lab(arguments.bin / "gossip-lab")
    summary = [f"# Evidence, tier `{arguments.tier}`", ""]
    for path in paths:
        done = run_table(lab, path, arguments.tier, out)
        if done is None:
            continue
        title, claims = done
        if arguments.publish:
            (HERE / "results").mkdir(exist_ok=True)
            for kind in ("md", "svg", "tuned.json"):
                if (out / f"{path.stem}.{kind}").exists():
                    shutil.copy(out / f"{path.stem}.{kind}", HERE / "results")
        summary.append(f"- [{title}]({path.stem}.md)")
        summary += [
            f"  - {claim['text']} ({claim['source']}): {verdict}" for claim, _, verdict in claims
        ]
    (out / "README.md").write_text("\n".join(summary) + "\n")
    print(f"written to {out}")


if __name__ == "__main__":
    main()
