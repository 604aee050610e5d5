"""Results -> the tables of a report."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, TypeVar

import numpy as np

from offaxis.data import CATALOGUE
from offaxis.evaluation.records import NetworkRecord, Result, with_arguments
from offaxis.evaluation.summary import (
    FOUND,
    GROUPS,
    MeanStd,
    Summary,
    View,
    compare_pair,
    method_names,
    reference_of,
    row_key,
    to_rows,
)
from offaxis.metrics import higher_is_better
from offaxis.reports.tables import Entry, Table, Value, csv_text, in_percent, percent

Key = TypeVar("Key", bound=Hashable)
NONE = Value(None, "-")
"""Stands where a table has no number."""
METRIC_TITLES = {
    "auroc": "AUROC",
    "aupr_in": "AUPR-In (average precision)",
    "aupr_out": "AUPR-Out (average precision)",
    "aupr_in_trapezoid": "AUPR-In (trapezoid, as OpenOOD)",
    "aupr_out_trapezoid": "AUPR-Out (trapezoid, as OpenOOD)",
    "accuracy_at_tpr95": "accuracy at TPR 95 %",
    "fpr_at_tpr95": "FPR at TPR 95 % (ID positive)",
    "fpr_at_tpr95_ood": "FPR at TPR 95 % (OOD positive, interpolated)",
    "fpr_at_tpr95_openood": "FPR at TPR 95 % (OOD positive, as OpenOOD and pytorch-ood)",
    "detection_error": "detection error",
    FOUND: "OOD images found at 5 % false alarms",
    "oscr": "OSCR (ID positive)",
    "ccr_at_fpr1": "CCR at FPR 1 % (ID positive)",
    "ccr_at_fpr10": "CCR at FPR 10 % (ID positive)",
}
METRIC_TITLES |= {f"full_spectrum_{name}": f"full-spectrum {title}" for name, title in METRIC_TITLES.items()}


_WORDS: dict[View, tuple[str, str, str]] = {
    "one-vs-one": ("one-vs-one", "tested", "seeds"),
    "less-biased by tested set": ("less-biased", "tested", "seeds and assumed sets"),
    "less-biased by assumed set": ("less-biased", "assumed", "seeds and tested sets"),
    "openood": ("OpenOOD, tuned on its validation lists", "tested", "seeds"),
}
"""View -> the protocol, which set a column is, and what a standard deviation is over."""


_NETWORK_METRICS = {
    "accuracy": ("accuracy %", max),
    "ece": ("ECE %", min),
    "classwise_ece": ("classwise ECE %", min),
    "aurc": ("AURC %", min),
    "augrc": ("AUGRC %", min),
    "nll": ("NLL (nats)", min),
    "brier": ("Brier (0 to 2)", min),
}


def set_title(name: str) -> str:
    """Return what tables call a set."""
    return CATALOGUE[name].title if name in CATALOGUE else name


def slug(*words: str) -> str:
    """Return a name for a file."""
    text = "-".join(words).lower()
    return "".join(c if c.isalnum() else "-" for c in text).strip("-").replace("--", "-")


def counted(number: int) -> Value:
    """Return a whole number."""
    return Value(number, str(number))


def mean_value(values: Sequence[float], **look: Any) -> Value:
    """Return the mean of shares in percent, with their standard deviation where there are several."""
    array = np.asarray(values, np.float64)
    return in_percent(float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else None, **look)


def mean_by(results: Iterable[Result], key: Callable[[Result], Key]) -> dict[Key, float]:
    """Return the mean AUROC in percent of the results that have a key in common, by key."""
    found: dict[Key, list[float]] = {}
    for result in results:
        found.setdefault(key(result), []).append(result.metrics["auroc"])
    return {name: 100 * float(np.mean(values)) for name, values in found.items()}


def networks_table(records: Sequence[NetworkRecord], id_name: str) -> Table:
    """Make the table of the networks' accuracy, calibration error and risk-coverage, by label."""
    labels: dict[str, list[NetworkRecord]] = {}
    for record in records:
        if record.id == id_name:
            labels.setdefault(record.label, []).append(record)
    rows: list[list[Entry]] = [[label, counted(len(members))] for label, members in labels.items()]
    columns = ["network", "seeds"]
    for name, (title, best) in _NETWORK_METRICS.items():
        values = [[getattr(record, name) for record in members] for members in labels.values()]
        if any(value is None for own in values for value in own):
            continue  # records of earlier versions lack it
        columns.append(title)
        means = [np.mean(own) for own in values]
        for row, own, mean in zip(rows, values, means, strict=True):
            value = mean_value(own, best=len(means) > 1 and _is_best(mean, best(means)))
            row.append(value if "%" in title else replace(value, text=_three_digits(own), percent=False))
    return Table(
        name=slug("networks", id_name),
        title=f"The networks, on {set_title(id_name)} itself",
        columns=columns,
        rows=rows,
        note="Mean (standard deviation over seeds). ECE: expected calibration error; AURC: area under the risk-coverage curve; "
        "AUGRC: under the generalised one; all are better when smaller."
        + (" So are NLL, the negative log-likelihood, and the Brier score." if "NLL (nats)" in columns else ""),
    )


def _three_digits(values: Sequence[float]) -> str:
    """Return the mean of numbers that are no shares, with their standard deviation where there are several."""
    return f"{np.mean(values):.3f}" + (f"({np.std(values, ddof=1):.3f})" if len(values) > 1 else "")


def ranking_table(summaries: Sequence[Summary], view: View, metric: str = "auroc", *, oracle: bool = False) -> Table:
    """Make the ranking of every detector on every network: over all sets and by group, with its cost.

    Args:
        summaries: the best first.
        view: their protocol.
        metric: what they are ranked by.
        oracle: they are those tuned on the tested set itself, and the table says so.
    """
    groups = [g for g in GROUPS if any(g in s.groups for s in summaries)]
    best = {g: _best_of(metric)(s.groups[g].mean for s in summaries if g in s.groups) for g in groups}
    rows: list[list[Entry]] = []
    for place, s in enumerate(summaries, 1):
        whole = s.groups["all"]
        means = {g: spread.mean for g, spread in s.groups.items()}
        rows.append(
            [
                str(place),
                s.method,
                s.network,
                *(in_percent(means[g], best=_is_best(means[g], best[g])) if g in means else NONE for g in groups),
                in_percent(whole.seed_std),
                in_percent(whole.set_std),
                counted(whole.seeds),
                counted(whole.sets),
                *(Value(p, f"{p:g}") for p in s.passes),
            ]
        )
    title = f"Ranking by mean {METRIC_TITLES[metric]} (%), {_WORDS[view][0]}"
    if oracle:
        title = f"Tuned on the tested set itself (oracle), by mean {METRIC_TITLES[metric]} (%)"
    note = (
        "seed sd: standard deviation over seeds of the mean over sets; set sd: over sets of the mean over seeds. fwd, bwd: "
        "forward and backward passes through the network that one image takes."
    )
    if any(s.detector == "mean-cosine" for s in summaries):
        note += " mean-cosine is Class Typical Matching (arXiv 2306.14920); two-cosines is its mean with the cosine."
    return Table(
        name=slug("oracle" if oracle else "ranking", summaries[0].id, view, metric),
        title=title,
        columns=("#", "detector", "network", *groups, "seed sd", "set sd", "seeds", "sets", "fwd", "bwd"),
        rows=rows,
        note=note,
        heads=3,
    )


def sets_table(summaries: Sequence[Summary], view: View, metric: str = "auroc") -> Table:
    """Make the table by set: a row for each detector, a column for each set, mean (standard deviation)."""
    most_sets = max(summaries, key=lambda s: len(s.rows))  # its order is that of every table
    names = list(dict.fromkeys([*most_sets.rows, *(row for s in summaries for row in s.rows)]))
    means = {name: [s.rows[name].mean for s in summaries if name in s.rows] for name in names}

    def entry(name: str, cell: MeanStd | None) -> Value:
        if cell is None:
            return NONE
        best = _is_best(cell.mean, _best_of(metric)(means[name]))
        return in_percent(cell.mean, cell.std, best=best, share=cell.mean)

    protocol, what, over = _WORDS[view]
    return Table(
        name=slug("sets", summaries[0].id, view, metric),
        title=f"{METRIC_TITLES[metric]} (%) by {what} set, {protocol}",
        columns=("detector", "network", *map(set_title, names)),
        rows=[[s.method, s.network, *(entry(name, s.rows.get(name)) for name in names)] for s in summaries],
        note=f"Mean (standard deviation over {over}).",
        heads=2,
    )


def hyperparameters_table(results: Sequence[Result], id_name: str) -> Table | None:
    """Make the table of what tuning chose: for each detector and assumed set the values, with the seeds that share them."""
    names = method_names(results)
    chosen: dict[tuple[str, str, str], dict[str, set[int]]] = {}
    for r in results:
        if r.state == "tuned" and r.hyperparameters:
            values = with_arguments("", r.hyperparameters)[2:]
            row = chosen.setdefault((names[row_key(r)], r.network, set_title(r.assumed or "")), {})
            row.setdefault(values, set()).add(r.seed)
    rows: list[list[Entry]] = []
    for key, by_values in chosen.items():
        seeds = {values: f" (seed {', '.join(map(str, sorted(own)))})" for values, own in by_values.items()}
        rows.append([*key, "; ".join(values + seeds[values] * (len(seeds) > 1) for values in by_values)])
    if not rows:
        return None
    columns = ("detector", "network", "tuned on", "chosen")
    name, title = slug("hyperparameters", id_name), "Hyperparameters that tuning chose"
    return Table(name=name, title=title, columns=columns, rows=rows, heads=4)


def _best_of(metric: str) -> Callable[..., float]:
    return max if higher_is_better(metric) else min


def _is_best(mean: float, best: float) -> bool:
    return bool(abs(mean - best) < 5e-5)  # what is equal as it is printed


def pairs_table(
    summaries: Sequence[Summary],
    view: View,
    metric: str = "auroc",
    every: bool = False,
    reference: Summary | None = None,
) -> Table:
    """Make the table of differences to a reference, with intervals; with ``every``, of all pairs on one network too.

    The reference is the cosine of the cosine network where none is given. Pairs without a set that they share for all seeds
    they share are left out.
    """
    reference = reference or reference_of(list(summaries))
    others = [s for s in summaries if s is not reference]
    pairs = [(reference, s) for s in others]
    if every:
        pairs += [(a, b) for a, b in combinations(others, 2) if a.network == b.network]
    rows: list[list[Entry]] = []
    for c in (compare_pair(a, b) for a, b in pairs if _are_comparable(a, b)):
        interval = c.interval or (None, None)
        ends = [Value(None if end is None else 100 * end, percent(end), percent=True) for end in interval]
        difference = Value(100 * c.difference, f"{100 * c.difference:+.2f}", best=c.clear, percent=True)
        rows.append([c.first, c.second, difference, *ends, *map(counted, (c.wins, c.pairs, c.seeds, c.sets))])
    first = ("first", "second") if every else ("the other",)
    return Table(
        name=slug("pairs" if every else "differences", summaries[0].id, view, metric),
        title=f"{METRIC_TITLES[metric]} points, {reference.title} minus the other" if not every else "Pairs",
        columns=(*first, "difference", "low", "high", "wins", "pairs", "seeds", "sets"),
        rows=rows if every else [row[1:] for row in rows],
        note="Differences of the same seed and set, in percentage points, with a 95 % bootstrap interval over seeds and sets; "
        "bold where it leaves out zero. With fewer than about five seeds or sets the interval is too narrow.",
        heads=len(first),
    )


def _are_comparable(first: Summary, second: Summary) -> bool:
    """Return whether two detectors share a set that all seeds they share have."""
    shared = first.cells.keys() & second.cells.keys()
    seeds = {seed for seed, _ in shared}
    counts = Counter(row for _, row in shared)
    return bool(counts) and max(counts.values()) == len(seeds)


DEPENDENT = ("odin", "mahalanobis")


def dependency_tables(results: Sequence[Result], prefix: str) -> list[Table]:
    """Make tables of how results depend on the assumed set: means over seeds, on the first network with tuned results."""
    tuned = [r for r in results if r.assumed is not None and r.assumed != r.ood and r.detector in DEPENDENT]
    names = method_names(results)
    own = [r for r in tuned if r.network == tuned[0].network]
    means = mean_by(own, lambda r: (names[row_key(r)].replace(" (tuned)", ""), r.assumed or "", r.ood))
    assumed = dict.fromkeys(name for _, name, _ in means)
    tested = dict.fromkeys([*assumed, *(name for *_, name in means)])  # in their order, so that the diagonal is empty
    least, most = min(means.values(), default=0), max(means.values(), default=0)

    def entry(mean: float | None) -> Value:
        return NONE if mean is None else Value(mean, f"{mean:.2f}", share=(mean - least) / max(most - least, 1))

    return [
        Table(
            name=slug("dependency", prefix, detector),
            title=f"AUROC (%) of {detector}, {tuned[0].network}, by the set that it was tuned on",
            columns=("tuned on", *map(set_title, tested)),
            rows=[
                [set_title(a), *(entry(means.get((detector, a, t))) for t in tested)]
                for a in assumed
                if any((detector, a, t) in means for t in tested)
            ],
            note="A column is the tested set.",
        )
        for detector in dict.fromkeys(detector for detector, *_ in means)
    ]


OPENOOD_METRICS = {
    "FPR@95": "fpr_at_tpr95_openood",
    "AUROC": "auroc",
    "AUPR_IN": "aupr_in_trapezoid",
    "AUPR_OUT": "aupr_out_trapezoid",
}
"""Columns of OpenOOD's tables -> metrics; OOD is positive for FPR, AUPR is by trapezoids."""

POSTPROCESSORS = {
    "max-softmax": "MSP",
    "max-logit": "MLS",
    "energy": "EBO",
    "gen": "GEN",
    "odin": "ODIN",
    "mahalanobis": "MDSEns",
    "relative-mahalanobis": "RMDS",
    "knn": "KNN",
    "vim": "VIM",
    "react": "ReAct",
    "ash": "ASH",
    "scale": "SCALE",
    "fdbd": "fDBD",
    "nci": "NCI",
    "mean-cosine": "CTM",
    "generalized-odin": "GODIN",
}
TRAININGS = {"linear": "CrossEntropy", "logitnorm": "LogitNorm", "t2fnorm": "T2FNorm", "elogitnorm": "ELogitNorm"}
"""Our names -> those of OpenOOD's leaderboard; others keep ours."""


def openood_table(results: Sequence[Result], records: Sequence[NetworkRecord]) -> Table:
    """Make OpenOOD's table, in percent: a row for each set, then ``nearood`` and ``farood``, the unweighted means over sets.

    Args:
        results: of OpenOOD's benchmarks.
        records: their networks, with the accuracy on the ID test list.
    """
    rows: list[list[Entry]] = []
    names = method_names(results)
    for members in _openood_runs(results):
        first = members[0]
        accuracy = _accuracy_of(first, records)
        for group in ("near", "far"):
            lines = {r.ood: [100 * r.metrics[m] for m in OPENOOD_METRICS.values()] for r in members if r.group == group}
            if lines:
                partial = " (partial)" if "(partial)" in first.benchmark else ""
                lines[f"{group}ood{partial}"] = np.mean(list(lines.values()), 0).tolist()
            for name, numbers in lines.items():
                words: list[Entry] = [first.benchmark, first.network, str(first.seed), names[row_key(first)], name]
                rows.append([*words, *(Value(v, f"{v:.2f}") for v in (*numbers, accuracy))])
    columns = ("benchmark", "network", "seed", "detector", "dataset", *OPENOOD_METRICS, "ACC")
    return Table(name="openood", title="OpenOOD v1.5 (%)", columns=columns, rows=rows, heads=5)


def leaderboard_table(results: Sequence[Result], records: Sequence[NetworkRecord]) -> Table:
    """Make lines of OpenOOD's leaderboard: mean and standard deviation over seeds, as it prints them.

    Args:
        results: of OpenOOD's benchmarks.
        records: their networks, with the accuracy on the ID test list.
    """
    lines: dict[tuple[str, ...], list[list[Result]]] = {}
    for members in _openood_runs(results):
        first = members[0]
        lines.setdefault((first.benchmark, first.network, first.method, first.setup), []).append(members)
    rows: list[list[Entry]] = []
    for seeds in lines.values():
        first = seeds[0][0]
        head = str(first.head.get("name", "")) or first.network
        about = [first.benchmark, f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"]
        if first.state == "tuned":
            about.append("tuned on the validation list")
        elif first.given:
            about.append(with_arguments("", first.given)[2:])
        rows.append(
            [
                TRAININGS.get(head, head),
                POSTPROCESSORS.get(first.detector, first.detector),
                *(_plus_minus([_group_auroc(members, group) for members in seeds]) for group in ("near", "far")),
                _plus_minus([_accuracy_of(members[0], records) for members in seeds]),
                "no",
                first.architecture or first.network,
                "; ".join(about),
            ]
        )
    numbers_of = ("Near-OOD_AUROC", "Far-OOD_AUROC", "ID_Accuracy")
    columns = ("Training", "Postprocessor", *numbers_of, "Outlier_Data", "Arch", "Additional_Description")
    return Table(name="leaderboard", title="OpenOOD's leaderboard", columns=columns, rows=rows, heads=2)


def _openood_runs(results: Sequence[Result]) -> list[list[Result]]:
    """Group results by benchmark, network, seed and detector."""
    runs: dict[tuple[object, ...], list[Result]] = {}
    for r in results:
        runs.setdefault((r.benchmark, r.network, r.seed, r.detector, r.setup, r.state), []).append(r)
    return list(runs.values())


def _group_auroc(members: Sequence[Result], group: str) -> float:
    return float(np.mean([100 * r.metrics["auroc"] for r in members if r.group == group] or [np.nan]))


def _accuracy_of(result: Result, records: Sequence[NetworkRecord]) -> float:
    found = (100 * r.accuracy for r in records if r.key == result.weights and r.id_data == result.id_data)
    return next(found, np.nan)


def _plus_minus(values: Sequence[float]) -> str:
    if np.isnan(values).any():
        return "-"
    return f"{np.mean(values):.2f}" + (f" ± {np.std(values):.2f}" if len(values) > 1 else "")


def results_csv(results: Iterable[Result]) -> str:
    """Return CSV with a line for each result and a column for each field and metric, for other programs."""
    lines = to_rows(results)
    columns = list(dict.fromkeys(name for line in lines for name in line))
    return csv_text(columns, [[line.get(name) for name in columns] for line in lines])
