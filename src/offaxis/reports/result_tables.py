"""Results -> the tables of a report."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from offaxis.data import CATALOGUE
from offaxis.evaluation.records import NetworkRecord, Result, with_arguments
from offaxis.evaluation.summary import (
    GROUPS,
    Comparison,
    Summary,
    View,
    compare_pairs,
    method_names,
    reference_of,
    row_key,
)
from offaxis.metrics import HIGHER_IS_BETTER
from offaxis.reports.tables import Entry, Table, Value, csv_text, in_percent, percent

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
}


_WORDS: dict[View, tuple[str, str, str]] = {
    "one-vs-one": ("one-vs-one", "tested", "seeds"),
    "less-biased by tested set": ("less-biased", "tested", "seeds and assumed sets"),
    "less-biased by assumed set": ("less-biased", "assumed", "seeds and tested sets"),
    "openood": ("OpenOOD, tuned on its validation lists", "tested", "seeds"),
}
"""View -> the protocol, which set a column is, and what a standard deviation is over."""


_NETWORK_TITLES = {"accuracy": "accuracy %", "ece": "ECE %", "aurc": "AURC %", "augrc": "AUGRC %"}


def set_title(name: str) -> str:
    """Return what tables call a set."""
    return CATALOGUE[name].title if name in CATALOGUE else name


def slug(*words: str) -> str:
    """Return a name for a file."""
    text = "-".join(words).lower()
    return "".join(c if c.isalnum() else "-" for c in text).strip("-").replace("--", "-")


def networks_table(records: Sequence[NetworkRecord], id_name: str) -> Table:
    """Make the table of the networks' accuracy, calibration error and risk-coverage, by label."""
    labels: dict[str, list[NetworkRecord]] = {}
    for record in records:
        if record.id == id_name:
            labels.setdefault(record.label, []).append(record)
    columns = {
        name: [np.array([getattr(r, name) for r in members], np.float64) for members in labels.values()]
        for name in ("accuracy", "ece", "aurc", "augrc")
    }
    if np.isnan(np.concatenate(columns["augrc"])).any():  # records of earlier versions have none
        del columns["augrc"]
    best = {"accuracy": max, "ece": min, "aurc": min, "augrc": min}
    rows: list[list[Entry]] = []
    for place, (label, members) in enumerate(labels.items()):
        row: list[Entry] = [label, Value(len(members), str(len(members)))]
        for name, values in columns.items():
            means = [v.mean() for v in values]
            row.append(_value(means[place], _std(values[place]), best[name](means), len(means) > 1))
        rows.append(row)
    return Table(
        name=slug("networks", id_name),
        title=f"The networks, on {set_title(id_name)} itself",
        columns=("network", "seeds", *(_NETWORK_TITLES[name] for name in columns)),
        rows=rows,
        note="Mean (standard deviation over seeds). ECE: expected calibration error; AURC: area under the risk-coverage curve; "
        "AUGRC: under the generalised one; all are better when smaller.",
    )


def ranking_table(summaries: Sequence[Summary], view: View, metric: str = "auroc", *, oracle: bool = False) -> Table:
    """Make the ranking of every detector on every network: over all sets and by group, with its cost.

    Args:
        summaries: the best first.
        view: their protocol.
        metric: what they are ranked by.
        oracle: they are those tuned on the tested set itself, and the table says so.
    """
    groups = [g for g in GROUPS if any(g in s.groups for s in summaries)]
    pick = max if HIGHER_IS_BETTER[metric] else min
    best = {g: pick(s.groups[g].mean for s in summaries if g in s.groups) for g in groups}
    rows: list[list[Entry]] = []
    for place, s in enumerate(summaries, 1):
        whole = s.groups["all"]
        row: list[Entry] = [str(place), s.method, s.network]
        row += [_value(s.groups[g].mean, None, best[g]) if g in s.groups else Value(None, "-") for g in groups]
        row += [in_percent(whole.seed_std), in_percent(whole.set_std), Value(whole.seeds, str(whole.seeds))]
        row += [Value(whole.sets, str(whole.sets)), *(Value(p, f"{p:g}") for p in s.passes)]
        rows.append(row)
    columns = ("#", "detector", "network", *groups, "seed sd", "set sd", "seeds", "sets", "fwd", "bwd")
    title = f"Ranking by mean {METRIC_TITLES[metric]} (%), {_WORDS[view][0]}"
    if oracle:
        title = f"Tuned on the tested set itself (oracle), by mean {METRIC_TITLES[metric]} (%)"
    note = (
        "seed sd: standard deviation over seeds of the mean over sets; set sd: over sets of the mean over seeds. fwd, bwd: "
        "forward and backward passes through the network that one image takes."
    )
    if any(s.detector == "mean-cosine" for s in summaries):
        note += " mean-cosine is Class Typical Matching (arXiv 2306.14920); two-cosines is its mean with the cosine."
    name = slug("oracle" if oracle else "ranking", summaries[0].id, view, metric)
    return Table(name=name, title=title, columns=columns, rows=rows, note=note, heads=3)


def sets_table(summaries: Sequence[Summary], view: View, metric: str = "auroc") -> Table:
    """Make the table by set: a row for each detector, a column for each set, mean (standard deviation)."""
    most_sets = max(summaries, key=lambda s: len(s.rows))  # its order is that of every table
    names = list(dict.fromkeys([*most_sets.rows, *(row for s in summaries for row in s.rows)]))
    higher = HIGHER_IS_BETTER[metric]
    pick = max if higher else min
    best = {n: pick(s.rows[n].mean for s in summaries if n in s.rows) for n in names}
    least = {n: min(s.rows[n].mean for s in summaries if n in s.rows) for n in names}
    most = {n: max(s.rows[n].mean for s in summaries if n in s.rows) for n in names}
    rows: list[list[Entry]] = []
    for s in summaries:
        row: list[Entry] = [s.method, s.network]
        for n in names:
            if n not in s.rows:
                row.append(Value(None, "-"))
                continue
            cell = s.rows[n]
            share = (cell.mean - least[n]) / max(most[n] - least[n], 1e-12)
            row.append(_value(cell.mean, cell.std, best[n], share=share if higher else 1 - share))
        rows.append(row)
    protocol, what, over = _WORDS[view]
    return Table(
        name=slug("sets", summaries[0].id, view, metric),
        title=f"{METRIC_TITLES[metric]} (%) by {what} set, {protocol}",
        columns=("detector", "network", *(set_title(n) for n in names)),
        rows=rows,
        note=f"Mean (standard deviation over {over}).",
        heads=2,
    )


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
    pairs = [(reference, s) for s in summaries if s is not reference]
    if every:
        ranked = list(enumerate(summaries))
        pairs += [
            (a, b)
            for i, a in ranked
            for j, b in ranked
            if i < j and a.network == b.network and reference is not a and reference is not b
        ]
    found = compare_pairs([(a, b) for a, b in pairs if _are_comparable(a, b)])
    rows = [_pair(c)[0 if every else 1 :] for c in found]
    first = ("first", "second") if every else ("the other",)
    return Table(
        name=slug("pairs" if every else "differences", summaries[0].id, view, metric),
        title=f"{METRIC_TITLES[metric]} points, {reference.title} minus the other" if not every else "Pairs",
        columns=(*first, "difference", "low", "high", "wins", "pairs", "seeds", "sets"),
        rows=rows,
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
        accuracy = _accuracy(first, records)
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
    lines: dict[tuple[str, str, str, str], list[tuple[Result, tuple[float, float, float]]]] = {}
    for members in _openood_runs(results):
        first = members[0]
        near, far = (
            [100 * r.metrics["auroc"] for r in members if r.group == group] or [np.nan] for group in ("near", "far")
        )
        numbers = float(np.mean(near)), float(np.mean(far)), _accuracy(first, records)
        lines.setdefault((first.benchmark, first.network, first.method, first.setup), []).append((first, numbers))
    rows: list[list[Entry]] = []
    for seeds in lines.values():
        first = seeds[0][0]
        head = str(first.head.get("name", "")) or first.network
        about = [first.benchmark, f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"]
        tuned = first.state == "tuned"
        about += (
            ["tuned on the validation list"] if tuned else [with_arguments("", first.given)[2:]] * bool(first.given)
        )
        rows.append(
            [
                TRAININGS.get(head, head),
                POSTPROCESSORS.get(first.detector, first.detector),
                *(_plus_minus(np.array(column)) for column in zip(*(numbers for _, numbers in seeds), strict=True)),
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


def _accuracy(result: Result, records: Sequence[NetworkRecord]) -> float:
    found = [r for r in records if r.key == result.weights and r.id_data == result.id_data]
    return 100 * found[0].accuracy if found else float("nan")


def _plus_minus(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> str:
    if np.isnan(values).any():
        return "-"
    return f"{values.mean():.2f}" + (f" ± {values.std():.2f}" if len(values) > 1 else "")


def results_csv(results: Iterable[Result]) -> str:
    """Return CSV with a line for each result and a column for each field and metric, for other programs."""
    lines = [r.to_row() for r in results]
    columns = list(dict.fromkeys(name for line in lines for name in line))
    return csv_text(columns, [[line.get(name) for name in columns] for line in lines])


def _pair(c: Comparison) -> list[Entry]:
    text = f"{100 * c.difference:+.2f}"
    return [
        c.first,
        c.second,
        Value(100 * c.difference, text, best=c.clear, percent=True),
        *(Value(None if v is None else 100 * v, percent(v), percent=True) for v in (c.low, c.high)),
        *(Value(n, str(n)) for n in (c.wins, c.pairs, c.seeds, c.sets)),
    ]


def _value(mean: float, std: float | None, best: float, several: bool = True, share: float | None = None) -> Value:
    return in_percent(float(mean), std, best=several and abs(mean - best) < 5e-5, share=share)


def _std(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float | None:
    return float(values.std(ddof=1)) if len(values) > 1 else None
