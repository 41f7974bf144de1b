"""Results of gossip-lab as rows, and the verdicts on claims about them: expressions over `rows`, as
README.md says."""

import json
import math
import tempfile
from pathlib import Path


def results_of(file):
    """One a line; an interrupted run may have left a part of the last."""
    lines, runs = file.read_text().splitlines(), []
    for line in lines:
        try:
            runs.append(json.loads(line))
        except ValueError:
            if line is not lines[-1]:
                raise
    return runs


def write_results(file, runs):
    file.write_text("".join(json.dumps(run) + "\n" for run in runs))


PAIRS_MIN = 10


def decided(pairs):
    """True where each (margin, bound95, pairs of seeds) is at least 0 with its bound, False where
    one is below 0 with its bound, None where neither is so or the pairs are too few."""
    if any(count < PAIRS_MIN or math.isnan(margin + bound) for margin, bound, count in pairs):
        return None
    if any(margin + bound < 0 for margin, bound, _ in pairs):
        return False
    return True if all(margin - bound >= 0 for margin, bound, _ in pairs) else None


def all_of(verdicts):
    """Of True, False and None (undecided): False where one is, True where all are."""
    return False if False in verdicts else None if None in verdicts else True


def any_of(verdicts):
    """Of True, False and None (undecided): True where one is, False where all are."""
    return True if True in verdicts else None if None in verdicts else False


def number(value):
    """JSON has no NaN: null is a mean with a run that came to no number."""
    return float("nan") if value is None else value


class Rows:
    """What a claim may ask of the rows; all figures are means over the seeds, NaN where a run came
    to no number. `unknown` says whether one asked for was."""

    def __init__(self, lab, results, first):
        self.lab, self.results, self.first, self.against = lab, results, first, {}
        self.unknown = False

    def compared(self, base):
        base = base or self.first
        if base not in self.against:
            said = json.loads(self.lab("compare", self.results, "-o", "json", "--against", base))
            self.against[base] = {row["name"]: row for row in said["rows"]}
        return self.against[base]

    def __getattr__(self, figure):
        def mean_of(name):
            row = self.compared(None)[name]
            unreached = figure == "seconds_to_target" and row[figure]["count"] < row["runs"]
            mean = float("nan") if unreached else number(row[figure]["mean"])
            self.unknown |= math.isnan(mean)
            return mean

        return mean_of

    def paired(self, name, base=None, figure="accuracy"):
        """Mean of the figure of `name` minus that of `base` (first row) by seed, the half width of
        its 95 % interval, and the number of pairs."""
        found = self.compared(base)[name][f"{figure}_difference"]
        mean, bound95 = number(found["mean"]), number(found["bound95"])
        self.unknown |= math.isnan(mean)
        return mean, bound95, found["count"]

    def difference(self, name, base=None, figure="accuracy"):
        """Accuracy (or train_loss) of `name` minus that of `base` (first row), paired by seed."""
        return self.paired(name, base, figure)[0]

    def bound(self, name, base=None, figure="accuracy"):
        """Half width of difference's 95 % interval; infinite for a single pair."""
        _, bound95, count = self.paired(name, base, figure)
        return bound95 if count > 1 else float("inf")

    def above(self, name, *bases, by=0.0, figure="accuracy"):
        """Whether the accuracy (or train_loss) of `name` is above all of `bases` (the first row) by
        `by` (negative: is at most so much below them); None where these seeds do not decide it."""
        pairs = [self.paired(name, base, figure) for base in bases or (self.first,)]
        return decided([(mean - by, bound, count) for mean, bound, count in pairs])

    def each_above(self, names, base, by=0.0):
        """above() of each of `names`: refuted by one, decided by all."""
        return all_of([self.above(name, base, by=by) for name in names])

    def saves(self, share, names, others, within=0.002):
        """Whether one of `names` sends at most (1 - share) times the bytes of the one of `others`
        that sends least without being less accurate than it. What is at most `within` less
        accurate is as accurate. None: undecided."""
        return any_of([self.saves_one(share, name, others, within) for name in names])

    def saves_one(self, share, name, others, within):
        dearer = [o for o in others if self.bytes(name) <= (1 - share) * self.bytes(o)]
        saved = [self.above(name, other, by=-within) for other in dearer]
        rivals = [self.above(o, name, by=-within) for o in others if o not in dearer]
        if True in rivals or saved.count(False) == len(saved):
            return False
        return None if None in rivals or True not in saved else True

    def in_time(self, name, base, times):
        """Whether `name` takes at most `times` as long to the target as `base`, by the interval of
        times * base - name, paired by seed; None: undecided."""
        if math.isnan(self.seconds_to_target(name) + self.seconds_to_target(base)):
            return None
        runs = results_of(self.results)
        for run in runs:
            if run["name"] == base:
                run["seconds_to_target"] *= times
        with tempfile.TemporaryDirectory() as directory:
            allowed = Path(directory) / "allowed.jsonl"
            write_results(allowed, runs)
            rows = Rows(self.lab, allowed, base)
            later, bound, count = rows.paired(name, base, "seconds_to_target")
        return decided([(-later, bound, count)])


def value_of(expression, rows):
    known = {"rows": rows, "all_of": all_of, "any_of": any_of}
    return eval(expression, known)  # our own files  # noqa: S307


def verdict_of(claim, rows, tier_name):
    """The figures of a claim, and what became of it."""
    figures = {key: value_of(text, rows) for key, text in claim["figures"].items()}
    rows.unknown = False
    held = value_of(claim["holds"], rows)
    holds = held is True
    undecided = held is None or (
        not holds and value_of(claim.get("undecided", "False"), rows) is True
    )
    if tier_name == "ci":
        return figures, "not judged: this tier only shows that it runs"
    undecided |= not holds and (rows.unknown or any(math.isnan(v) for v in figures.values()))
    verdict = "reproduced" if holds else "not decided by these seeds" if undecided else "refuted"
    return figures, verdict + " on " + claim.get("on", "a substitute (Fashion-MNIST)")
