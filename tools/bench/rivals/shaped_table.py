"""The rows of shaped.py as Markdown."""

import json
import os
import statistics


def read_rows(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def line_of(row):
    """What a table is about: the model and the line."""
    return row["model"], row["mbit"], row["delay_ms"]


def alike(one, other):
    return one["mode"] == other["mode"] and line_of(one) == line_of(other)


def median(rows, key):
    return statistics.median(row[key] for row in rows)


def names(rows):
    return list(dict.fromkeys(row["way"] for row in rows))


def tuning(rows):
    """Samples to the target for each learning rate."""
    rates = sorted({row["rate"] for row in rows})
    lines = ["| | " + " | ".join(f"{rate:g}" for rate in rates) + " |"]
    lines.append("|---" * (len(rates) + 1) + "|")
    for way in names(rows):
        cells = []
        for rate in rates:
            found = [r for r in rows if r["way"] == way and r["rate"] == rate]
            cells.append(", ".join(thousands(r) for r in found) or "-")
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return lines


def thousands(row):
    return outcome(row, row.get("samples", 0) / 1000)


def seconds(row):
    return outcome(row, row.get("seconds", 0))


def outcome(row, amount):
    """What the run took, or that it did not arrive within that."""
    if "failed" in row:
        return "failed"
    if not row["reached"]:
        return f"not in {amount:.0f} ({row['accuracy']:.3f})"
    return f"{amount:.0f}"


def slower(mine, ours):
    """Times gossipd's seconds with the same seed, so at about the same load, of each run."""
    own = {r["seed"]: r["seconds"] for r in ours if r.get("reached")}
    found = [(r["seconds"] / own[r["seed"]], r["reached"]) for r in mine if r["seed"] in own]
    return ", ".join(f"{'' if reached else '> '}{ratio:.2f}" for ratio, reached in found) or "-"


def accuracy(rows):
    """A line for each way and learning rate: the seconds of each run, and medians over them."""
    ours = [r for r in rows if r["way"] == "gossipd" and "failed" not in r]
    lines = [
        "| | learning rate | seconds, each run | ÷ gossipd's | MB sent | CPU s"
        " | thousand samples | samples/s | start, s | peak RSS, PSS of a node, MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for way, rate in dict.fromkeys((r["way"], r["rate"]) for r in rows):
        mine = [r for r in rows if (r["way"], r["rate"]) == (way, rate)]
        mine.sort(key=lambda r: r["seed"])
        well = [r for r in mine if "failed" not in r]
        cells = [way, f"{rate:g}", ", ".join(seconds(r) for r in mine)]
        if not well:
            lines.append(f"| {' | '.join(cells)} | {mine[0]['failed']} | | | | | | |")
            continue
        cells.append(slower(well, ours))
        cells.append(f"{median(well, 'sent_mb'):.1f}")
        cells.append(f"{median(well, 'cpu_s'):.0f}")
        cells.append(f"{median(well, 'samples') / 1000:.0f}")
        cells.append(f"{median(well, 'samples_per_s'):.0f}")
        cells.append(", ".join(f"{r['start_s']:.1f}" for r in well))
        cells.append(f"{median(well, 'peak_mb'):.0f}, {median(well, 'pss_mb'):.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def switch(rows):
    """What the switch that delays frames did, in one sentence; none without one."""
    rows = [r for r in rows if r.get("path", {}).get("late_ms") and r.get("seconds")]
    if not rows:
        return []
    paths = [r["path"] for r in rows]
    half, most = (max(path["late_ms"][i] for path in paths) for i in range(2))
    lost = sum(path["lost"] for path in paths)
    busy = max(r["path"]["cpu_s"] / (r["start_s"] + r["seconds"]) for r in rows)
    return [
        "",
        f"In no run were more than half of the frames late by {half:g} ms, or 1 % by {most:g} ms;",
        f"the switch took {100 * busy:.0f} % of a core at most. In all {lost} frames were lost in"
        " full queues.",
    ]


def pace(rows, key):
    found = [r[key] for r in rows if key in r]
    if not found:
        return "-"
    return f"{median(found, 'rate'):.1f}, {median(found, 'pause_s'):.1f} s"


def faults(rows):
    """Steps a second of the slowest of the others, and the longest standstill."""
    whens = ("before", "slowed", "stopped", "resumed", "killed")
    lines = ["| | " + " | ".join(whens) + " |", "|---" * (len(whens) + 1) + "|"]
    for way in names(rows):
        mine = [r for r in rows if r["way"] == way]
        cells = [way, *(pace(mine, when) for when in whens)]
        if ended := [r for r in mine if r.get("ended")]:
            cells[-1] = f"{ended[0]['ended']} of 3 others ended: {ended[0]['message']}"
        if broken := [r for r in mine if "failed" in r]:
            cells[-1] += f"; failed: {broken[0]['failed']}"
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def words(about):
    model, mbit, delay_ms = about
    return f"{model}, {mbit} Mbit/s" + (f", {delay_ms:g} ms of delay" if delay_ms else "")


def markdown(rows):
    loads = [row["load"] for row in rows]
    steps = sorted({row["step_ms"] for row in rows})
    parts = [
        "# Four nodes on narrow lines",
        "",
        f"{len(rows)} runs of tools/bench/rivals/shaped.py at a load of {min(loads):.0f} to"
        f" {max(loads):.0f} on {os.cpu_count()} cores;",
        f"a step takes at least {' or '.join(f'{ms:g}' for ms in steps)} ms.",
        "",
    ]
    if found := [r for r in rows if r["mode"] == "tune"]:
        title = f"## Tuning: thousands of samples to {found[0]['target']:g} by learning rate"
        parts += [title, "", *tuning(found), ""]
    for about in sorted({line_of(r) for r in rows if r["mode"] == "accuracy"}):
        found = [r for r in rows if r["mode"] == "accuracy" and line_of(r) == about]
        title = f"## Time to {found[0]['target']:g}: {words(about)}"
        parts += [title, "", *accuracy(found), *switch(found), ""]
    for about in sorted({line_of(r) for r in rows if r["mode"] in ("faults", "slowed")}):
        found = [r for r in rows if r["mode"] in ("faults", "slowed") and line_of(r) == about]
        title = f"## Steps/s of the slowest other node, longest standstill: {words(about)}"
        parts += [title, "", *faults(found), ""]
    return "\n".join(parts).rstrip()
