#!/usr/bin/env python3
"""tools/lab/evidence/evidence.py - runs the tables of this folder and writes the results.

    evidence.py [--tier ci|hours|full] [--out DIR] [--table NAME] [--bin DIR] [--jobs N]
                [--as-tuned] [--publish] [--list]

Each tables/NAME.toml is a scenario, rows that differ from it, and claims about the rows. A tier
sets their seeds and size. `tune` lists values of keys, which are tried on other seeds than those
reported; the best mean accuracy wins. A row's `report` settings apply to the reported runs. A tier
without seeds for tuning takes the published values (results/NAME.tuned.json). `data` names a data
set that made_data.py makes first, in build/evidence/data. --as-tuned takes the published values in
every tier: after a change that moves no rate it saves a third to a half of the runs.

N tables run at once, by default as many as there are cores. DIR (by default build/evidence/TIER)
keeps finished runs, so an interrupted campaign resumes; a table that another build of gossip-lab
began is refused. Writes DIR/NAME.md, DIR/NAME.svg and
DIR/README.md; the figures are accuracy, bytes and virtual time, which do not depend on the machine.
--publish copies them and the tuned values to results/ beside this file.
"""

import argparse
import concurrent.futures
import hashlib
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import made_data
from judging import Rows, results_of, verdict_of, write_results

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TIERS = ("ci", "hours", "full")
MAKING_DATA = threading.Lock()


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
        """The results with these settings, by seed; `out` may have the same name with others."""
        sets = [word for setting in settings for word in ("--set", setting)]
        self("run", scenario, "--seeds", seeds, "--json", out, *sets)
        text = self("run", scenario, "--check", *sets).removesuffix("\n")
        runs = {run["id"]: run for run in results_of(out)}
        return [runs[run_id(text, seed)] for seed in sorted(seeds_of(seeds))]

    def check(self, scenarios):
        """Ends with the mistakes, if any, of scenarios: by what they are, file and settings."""
        lines = "".join(
            json.dumps([str(file), *settings]) + "\n" for file, settings in scenarios.values()
        )
        done = subprocess.run(
            [self.program, "check"], input=lines, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            names = list(scenarios)
            said = re.sub(
                r"^gossip-lab: line (\d+)", lambda m: names[int(m[1]) - 1], done.stderr, flags=re.M
            )
            sys.exit(f"evidence: {said.strip()}")


def run_id(text, seed):
    """As Scenario::run_id() has it: FNV-1a of the whole scenario and the seed."""
    found = 0xCBF29CE484222325 ^ seed
    for byte in text.encode():
        found = (found ^ byte) * 0x100000001B3 % 2**64
    return f"{found:016x}"


def seeds_of(text):
    """{21, 22, 25} of "21..22,25"."""
    spans = (part.partition("..") for part in str(text).split(","))
    return {s for a, _, b in spans for s in range(int(a), int(b or a) + 1)}


def values_of(grid):
    """All combinations of a grid's values, as settings."""
    for values in itertools.product(*grid.values()):
        yield [f"{key}={value}" for key, value in zip(grid, values)]


def tuning_settings(tier, row, values):
    return tier.get("set", []) + tier.get("tune_set", []) + row.get("set", []) + values


def own_settings(row, values):
    return row.get("set", []) + row.get("report", []) + values


def reported_settings(tier, row, values):
    return tier.get("set", []) + own_settings(row, values) + tier.get("last", [])


def tuned(lab, table, row, tier, out, log):
    """The settings that did best on the tuning seeds, or the published ones; and all that were
    tried, with their accuracy."""
    grid = row.get("tune", table.get("tune", {}))
    seeds = tier.get("tune_seeds")
    if not grid:
        return [], []
    if not seeds:
        return table["tuned"].get(row["name"], []), []
    tried = []
    for extra in values_of(grid):
        name = f"{row['name']} [{', '.join(extra)}]"
        log(f"tuning {name}")
        runs = lab.run(
            table["path"],
            seeds,
            out,
            tuning_settings(tier, row, extra) + [f"name={name}"],
        )
        # One that was stopped says nothing of where it would have ended.
        known = all(run["finished"] for run in runs)
        mean = statistics.fmean(run["accuracy_mean"] for run in runs) if known else float("-inf")
        tried.append((mean, extra))
    return max(tried, key=lambda one: one[0])[1], tried


def tried_text(tried, chosen):
    """Values and accuracies as a cell of a table; the best one bold, and said to be at an edge."""
    all_values = [[setting.partition("=")[2] for setting in extra] for _, extra in tried]
    grid = [set(column) for column in zip(*all_values, strict=True)]
    edges = [{min(v, key=float), max(v, key=float)} if len(v) > 1 else set() for v in grid]
    cells = []
    for (accuracy, extra), values in zip(tried, all_values, strict=True):
        text = f"{', '.join(values)}: {100 * accuracy:.2f}"
        if extra == chosen:
            edge = any(value in ends for value, ends in zip(values, edges, strict=True))
            text = f"**{text}**" + (" (an edge)" if edge else "")
        cells.append(text)
    return "; ".join(cells)


def keep_build(lab, results, tuning):
    """Refuses to add to what another build has begun: a table has one build."""
    build = hashlib.sha256(lab.program.read_bytes()).hexdigest()
    record = results.with_suffix(".build")
    begun = [file for file in (tuning, results) if file.exists()]
    if begun and not (record.exists() and record.read_text() == build):
        who = "another build" if record.exists() else f"a build that {record.name} does not name"
        sys.exit(
            f"evidence: {begun[0]} was begun by {who} of {lab.program}; remove"
            f" {results.parent}/{results.stem}.* or give another --out"
        )
    record.write_text(build)


def tuning_of(table, tier):
    if "tune_seeds" in tier:
        return f"tuned on seeds {tier['tune_seeds']}"
    if "tuned_on" in tier:
        return f"tuned on seeds {tier['tuned_on']} by an earlier build"
    return "tuned as published" if table["tuned"] else "not tuned"


def load_table(path, as_tuned=False):
    table = tomllib.loads(path.read_text())
    names = {row["name"] for row in table["rows"]}
    for claim in table.get("claims", []):
        if missing := ", ".join(name for name in claim.get("rows", []) if name not in names):
            sys.exit(f"evidence: {path}: claim '{claim['text']}' names missing rows: {missing}")
    table["path"] = (path.parent / table["scenario"]).resolve()
    for tier in table.get("tiers", {}).values():
        tier["set"] = table.get("set", []) + tier.get("set", [])
    published = HERE / "results" / f"{path.stem}.tuned.json"
    table["tuned"] = json.loads(published.read_text()) if published.exists() else {}
    if as_tuned:
        for tier in table.get("tiers", {}).values():
            if "tune_seeds" in tier:
                tier["tuned_on"] = tier.pop("tune_seeds")
        missing = [
            row["name"]
            for row in table["rows"]
            if row.get("tune", table.get("tune"))
            and "tuned_as" not in row
            and row["name"] not in table["tuned"]
        ]
        if missing:
            sys.exit(f"evidence: {published} has no value for {', '.join(missing)}; tune it first")
    return table


def page_of(table, tier_name, chosen, comparison, claims, picture):
    """The Markdown page of a table."""
    tier = table["tiers"][tier_name]
    lines = [
        f"# {table['title']}",
        "",
        table.get("text", "").strip(),
        "",
        f"Tier `{tier_name}`, seeds {tier['seeds']}, {tuning_of(table, tier)}."
        + (f" Data `{table['data']}`, SHA-256 `{table['digest']}`." if "data" in table else ""),
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


def tuning_page(table, tried, found):
    """What was tried, of the rows that were tuned."""
    rows = [f"| {name} | {tried_text(runs, found[name])} |" for name, runs in tried.items() if runs]
    if not rows:
        return ""
    keys = ", ".join(table.get("tune") or next(r["tune"] for r in table["rows"] if "tune" in r))
    head = ["", f"Accuracy % of the values tried, {keys} where a row has no other:", ""]
    return "\n".join([*head, "| row | value: accuracy |", "|---|---|", *rows]) + "\n"


def scenarios_of(table, tier):
    """What a tier may run of each row, as Lab.check() takes it."""
    scenarios = {}
    for row in table["rows"]:
        grid = row.get("tune", table.get("tune", {}))
        for values in values_of(grid):
            where = f"{table['path'].name}, row '{row['name']}' {' '.join(values)}".rstrip()
            scenarios[where] = (table["path"], reported_settings(tier, row, values))
            if values and "tune_set" in tier:
                scenarios[where + ", tuning"] = (table["path"], tuning_settings(tier, row, values))
    return scenarios


def run_table(lab, path, tier_name, out, as_tuned):
    """Title and claims of a table, or None where it lacks the tier. Writes its page and picture."""
    table = load_table(path, as_tuned)
    tier = table.get("tiers", {}).get(tier_name)
    if tier is None:
        return None
    if "data" in table:
        with MAKING_DATA:  # two tables may want the same
            made = made_data.make(table["data"], ROOT / "build/evidence/data")
            table["digest"] = made_data.digest(made)
        tier["set"] = [f"data.dir={made}"] + tier.get("set", [])
    results, tuning = out / f"{path.stem}.jsonl", out / f"{path.stem}.tuning.jsonl"
    lab.check(scenarios_of(table, tier))
    keep_build(lab, results, tuning)
    began = time.monotonic()

    def log(text):
        seconds = time.monotonic() - began
        print(f"[{seconds:6.0f} s] {path.stem}: {text}", file=sys.stderr, flush=True)

    chosen, found, tried, runs = {}, {}, {}, []
    for row in table["rows"]:
        name = row["name"]
        if "tuned_as" in row:
            found[name], tried[name] = found[row["tuned_as"]], []
        else:
            found[name], tried[name] = tuned(lab, table, row, tier, tuning, log)
        chosen[name] = own_settings(row, found[name])
        log(name)
        seeds = row.get("seeds", {}).get(tier_name, tier["seeds"])
        runs += lab.run(
            table["path"],
            seeds,
            results,
            reported_settings(tier, row, found[name]) + [f"name={name}"],
        )
    results = results.with_suffix(".reported.jsonl")
    write_results(results, runs)
    rows = Rows(lab, results, table["rows"][0]["name"])
    claims = [(claim, *verdict_of(claim, rows, tier_name)) for claim in table.get("claims", [])]
    more = ["--perplexity"] if table.get("perplexity") else []
    comparison = lab("compare", results, "-o", "markdown", *more).strip()
    page = page_of(table, tier_name, chosen, comparison, claims, f"{path.stem}.svg")
    page += tuning_page(table, tried, found)
    (out / f"{path.stem}.md").write_text(page)
    if "tune_seeds" in tier:
        kept = {name: extra for name, extra in found.items() if extra}
        (out / f"{path.stem}.tuned.json").write_text(json.dumps(kept, indent=1) + "\n")
    axis, picture = table.get("plot", "bytes"), out / f"{path.stem}.svg"
    lab("plot", results, "--against", axis, "--title", table["title"], "--out", picture)
    log("done")
    return table["title"], claims


def run_tables(lab, paths, tier_name, out, jobs, as_tuned=False):
    """What run_table returns, by path, each once it and all before it are done."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(run_table, lab, path, tier_name, out, as_tuned) for path in paths]
        try:
            for path, future in zip(paths, running, strict=True):
                yield path, future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def at_least_one(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of tables of at least 1")
    return int(text)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tier", choices=TIERS, default="ci")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", action="append", help="only this one; may be repeated")
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument(
        "--jobs",
        type=at_least_one,
        metavar="N",
        default=len(os.sched_getaffinity(0)),
        help="run so many tables at once (default: as many as there are cores)",
    )
    parser.add_argument(
        "--publish", action="store_true", help="copy tables and pictures to results/"
    )
    parser.add_argument(
        "--as-tuned", action="store_true", help="tune nothing: take the published values"
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
    for path, done in run_tables(
        lab, paths, arguments.tier, out, arguments.jobs, arguments.as_tuned
    ):
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
