"""Results -> the tables of a report."""

from collections.abc import Iterable, Sequence

import numpy as np

from offaxis.data import CATALOGUE
from offaxis.evaluation.results import NetworkRecord, Result
from offaxis.evaluation.summary import GROUPS, Comparison, Summary, View, compare_detectors, reference_of
from offaxis.metrics import HIGHER_IS_BETTER
from offaxis.reports.tables import Entry, Table, Value, percent

METRIC_TITLES = {
    "auroc": "AUROC",
    "aupr_in": "AUPR-In",
    "aupr_out": "AUPR-Out",
    "accuracy_at_tpr95": "accuracy at TPR 95 %",
    "fpr_at_tpr95": "FPR at TPR 95 %",
    "fpr_at_tpr95_ood": "FPR at TPR 95 % (OOD positive)",
    "detection_error": "detection error",
}


def set_title(name: str) -> str:
    """What tables call a set."""
    return CATALOGUE[name].title if name in CATALOGUE else name


def slug(*words: str) -> str:
    """A name for a file."""
    text = "-".join(words).lower()
    return "".join(c if c.isalnum() else "-" for c in text).strip("-").replace("--", "-")


def networks_table(records: Sequence[NetworkRecord], id_name: str) -> Table:
    """What the networks are worth besides detection: accuracy, calibration error, risk-coverage."""
    labels: dict[str, list[NetworkRecord]] = {}
    for record in records:
        if record.id == id_name:
            labels.setdefault(record.label, []).append(record)
    columns = {
        name: [np.array([getattr(r, name) for r in members]) for members in labels.values()]
        for name in ("accuracy", "ece", "aurc")
    }
    best = {"accuracy": max, "ece": min, "aurc": min}
    rows: list[list[Entry]] = []
    for place, (label, members) in enumerate(labels.items()):
        row: list[Entry] = [label, Value(len(members), str(len(members)))]
        for name, values in columns.items():
            means = [v.mean() for v in values]
            row.append(_value(means[place], _std(values[place]), best[name](means), len(means) > 1))
        rows.append(row)
    return Table(
        slug("networks", id_name),
        f"The networks, on {set_title(id_name)} itself",
        ("network", "seeds", "accuracy %", "ECE %", "AURC %"),
        rows,
        "Mean (standard deviation over seeds). ECE: expected calibration error; AURC: area under the risk-coverage curve; "
        "both are better when smaller.",
    )


def ranking_table(summaries: Sequence[Summary], view: View, metric: str = "auroc") -> Table:
    """Every detector on every network, the best first: over all sets and by group, with its cost."""
    groups = [g for g in GROUPS if any(g in s.groups for s in summaries)]
    pick = max if HIGHER_IS_BETTER[metric] else min
    best = {g: pick(s.groups[g].mean for s in summaries if g in s.groups) for g in groups}
    rows: list[list[Entry]] = []
    for place, s in enumerate(summaries, 1):
        whole = s.groups["all"]
        row: list[Entry] = [str(place), s.method, s.network]
        row += [_value(s.groups[g].mean, None, best[g]) if g in s.groups else Value(None, "-") for g in groups]
        row += [_number(whole.seed_std), _number(whole.set_std), Value(whole.seeds, str(whole.seeds))]
        row += [Value(whole.sets, str(whole.sets)), *(Value(p, f"{p:g}") for p in s.passes)]
        rows.append(row)
    columns = ("#", "detector", "network", *groups, "seed sd", "set sd", "seeds", "sets", "fwd", "bwd")
    title = f"Ranking by mean {METRIC_TITLES[metric]} (%), {view.removesuffix(' by tested set')}"
    note = (
        "seed sd: standard deviation over seeds of the mean over sets; set sd: over sets of the mean over seeds. fwd, bwd: "
        "forward and backward passes through the network that one image takes."
    )
    return Table(slug("ranking", summaries[0].id, view, metric), title, columns, rows, note, heads=3)


def sets_table(summaries: Sequence[Summary], view: View, metric: str = "auroc") -> Table:
    """Every set by itself: a row a detector, a column a set, mean (standard deviation)."""
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
    what = "assumed set" if view.endswith("assumed set") else "tested set"
    over = "seeds" if view == "one-vs-one" else f"seeds and {'tested' if what == 'assumed set' else 'assumed'} sets"
    return Table(
        slug("sets", summaries[0].id, view, metric),
        f"{METRIC_TITLES[metric]} (%) by {what}, {view.split(' by ')[0]}",
        ("detector", "network", *(set_title(n) for n in names)),
        rows,
        f"Mean (standard deviation over {over}).",
        heads=2,
    )


def pairs_table(
    summaries: Sequence[Summary],
    view: View,
    metric: str = "auroc",
    every: bool = False,
    reference: Summary | None = None,
) -> Table:
    """Differences to the reference, pair by pair, with intervals; with ``every``, of all pairs on one network too.

    The reference is the cosine of the cosine network where none is given.
    """
    reference = reference or reference_of(list(summaries))
    pairs = [(reference, s) for s in summaries if s is not reference]
    if every:
        ranked = list(enumerate(summaries))
        pairs += [
            (a, b) for i, a in ranked for j, b in ranked if i < j and a.network == b.network and reference not in (a, b)
        ]
    found = [compare_detectors(a, b) for a, b in pairs if set(a.cells) & set(b.cells)]
    rows = [_pair(c)[0 if every else 1 :] for c in found]
    first = ("first", "second") if every else ("the other",)
    return Table(
        slug("pairs" if every else "differences", summaries[0].id, view, metric),
        f"{METRIC_TITLES[metric]} points, {reference.title} minus the other" if not every else "Pairs",
        (*first, "difference", "low", "high", "wins", "pairs", "seeds", "sets"),
        rows,
        "Differences of the same seed and set, in percentage points, with a 95 % bootstrap interval over seeds and sets; bold "
        "where it leaves out zero. With fewer than about five sets the interval is too narrow.",
        heads=len(first),
    )


def results_table(results: Iterable[Result]) -> Table:
    """Every result on a line, with every metric: for other programs."""
    known = list(results)
    metrics = list(dict.fromkeys(name for r in known for name in r.metrics))
    rows: list[list[Entry]] = []
    for r in known:
        row: list[Entry] = [r.id, r.network, str(r.seed), r.ood, r.assumed or "", r.group, r.detector, r.state]
        row.append("; ".join(f"{k}={v}" for k, v in r.hyperparameters.items()))
        row += [Value(p, f"{p:g}") for p in (*r.passes, *r.images)]
        row += [Value(r.metrics.get(name), percent(r.metrics.get(name))) for name in metrics]
        rows.append([*row, r.weights, r.id_data, r.ood_data])
    columns = (
        "id",
        "network",
        "seed",
        "ood",
        "assumed",
        "group",
        "detector",
        "state",
        "hyperparameters",
        "forward",
        "backward",
        "id images",
        "ood images",
        *metrics,
        "weights",
        "id data",
        "ood data",
    )
    return Table("results", "Every result", columns, rows, heads=9)


def _pair(c: Comparison) -> list[Entry]:
    text = f"{100 * c.difference:+.2f}"
    return [
        c.first,
        c.second,
        Value(c.difference, text, best=c.clear),
        _number(c.low),
        _number(c.high),
        *(Value(n, str(n)) for n in (c.wins, c.pairs, c.seeds, c.sets)),
    ]


def _value(mean: float, std: float | None, best: float, several: bool = True, share: float | None = None) -> Value:
    return Value(float(mean), percent(mean, std), several and abs(mean - best) < 5e-5, share)


def _number(value: float | None) -> Value:
    return Value(value, percent(value))


def _std(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float | None:
    return float(values.std(ddof=1)) if len(values) > 1 else None
