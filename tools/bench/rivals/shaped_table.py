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
    """Times gossipd's seconds with the same seed, so at about the same load, of each run. Where
    neither arrived, the runs say nothing.
    """
    own = {r["seed"]: r for r in ours}
    signs = {(True, True): "", (False, True): "> ", (True, False): "< "}
    found = []
    for row in mine:
        our = own.get(row["seed"])
        sign = our and signs.get((row["reached"], our["reached"]))
        found.append("-" if sign is None else f"{sign}{row['seconds'] / our['seconds']:.2f}")
    return ", ".join(found)


def reasons(rows):
    return list(dict.fromkeys(row["failed"] for row in rows if "failed" in row))


def spent(rows, key, scale=1.0, digits=0):
    """The median; in brackets where a run did not arrive, since it then ends with the run."""
    text = f"{median(rows, key) / scale:.{digits}f}"
    return text if all(row["reached"] for row in rows) else f"({text})"


def accuracy(rows):
    """A line for each way and learning rate: the seconds of each run, and medians over them."""
    ours = [r for r in rows if r["way"] == "gossipd" and "failed" not in r]
    lines = [
        "| | learning rate | seconds, each run | ÷ gossipd's | MB sent | CPU s"
        " | thousand samples | samples/s | start, s | peak RSS, PSS, own memory of a node, MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for way, rate in dict.fromkeys((r["way"], r["rate"]) for r in rows):
        mine = [r for r in rows if (r["way"], r["rate"]) == (way, rate)]
        mine.sort(key=lambda r: r["seed"])
        lines.append("| " + " | ".join(cells_of(way, rate, mine, ours)) + " |")
    return lines


def cells_of(way, rate, mine, ours):
    well = [r for r in mine if "failed" not in r]
    times = "; ".join([", ".join(seconds(r) for r in mine), *reasons(mine)])
    cells = [way, f"{rate:g}", times]
    if not well:
        return cells + [""] * 7
    cells.append(slower(well, ours))
    cells.append(spent(well, "sent_mb", digits=1))
    cells.append(spent(well, "cpu_s"))
    cells.append(spent(well, "samples", scale=1000))
    cells.append(f"{median(well, 'samples_per_s'):.0f}")
    cells.append(", ".join(f"{r['start_s']:.1f}" for r in well))
    own = f"{median(well, 'own_mb'):.0f}" if all("own_mb" in r for r in well) else "-"
    cells.append(f"{median(well, 'peak_mb'):.0f}, {median(well, 'pss_mb'):.0f}, {own}")
    return cells


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
    text = f"{median(found, 'rate'):.1f}, {median(found, 'pause_s'):.1f} s"
    sent = [r for r in found if "sent_mb" in r]
    return f"{text}, {median(sent, 'sent_mb'):.1f} MB" if sent else text


def faults(rows):
    """Steps a second of the slowest of the others, the longest standstill, and what all sent."""
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


def told(rows):
    """Of which programs and when the rows are."""
    programs = list(dict.fromkeys(row["of"] for row in rows if "of" in row))
    lines = [f"* {of}" for of in programs]
    if dates := sorted(row["when"] for row in rows if "when" in row):
        lines.append(f"* run from {dates[0]} to {dates[-1]}, nice {rows[-1]['nice']}")
    older = sum("of" not in row for row in rows)
    if older:
        lines.append(
            f"* {older} runs older than what rows say of this; [README.md](../README.md) has what"
            " is unfair in them"
        )
    return ["", *lines]


def markdown(rows):
    loads = [row["load"] for row in rows]
    steps = sorted({row["step_ms"] for row in rows})
    parts = [
        "# Four nodes on narrow lines",
        "",
        f"{len(rows)} runs of tools/bench/rivals/shaped.py at a load of {min(loads):.0f} to"
        f" {max(loads):.0f} on {os.cpu_count()} cores;",
        f"a step takes at least {' or '.join(f'{ms:g}' for ms in steps)} ms. Figures in brackets"
        " hold runs that did not arrive.",
        *told(rows),
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
