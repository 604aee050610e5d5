"""The study's store -> the tables of docs/results.md."""

import json
from collections.abc import Callable, Sequence

import numpy as np

from offaxis.protocols import Result, Store
from offaxis.protocols.summary import Summary, View, summarise
from offaxis.recipes.chain import Run
from offaxis.recipes.found import results_of
from offaxis.recipes.items import ablation_rows, sweep
from offaxis.reports.beside_paper import paper_rows
from offaxis.reports.contents import networks_table, pairs_table, ranking_table, set_title, sets_table
from offaxis.reports.tables import Entry, Table, Value, percent
from study.sets import CONTROLS, DEVELOPMENT, REPORTED
from study.steps import DENSE, FIXED, FOLDS, KEPT, NETWORKS, RIVALS, SEEDS, chain_for, main_runs

SHIFT = KEPT / "shift.json"


def of(id_name: str, runs: Sequence[Run], ood: Sequence[str], together: bool = False) -> list[Result]:
    """Results of some networks on some sets; the sets that they were tuned on may be others."""
    found = results_of(chain_for(id_name, KEPT), runs, None, together)
    return [r for r in found if r.ood in ood]


def mains(id_name: str) -> list[Run]:
    """The networks of all seeds, standard and cosine."""
    return [run for seed in SEEDS for run in main_runs(id_name, seed)]


def accuracy(id_name: str) -> Table:
    """Accuracy, calibration and risk of both networks."""
    names = {run.name for run in mains(id_name)}
    return networks_table(
        [r for r in Store.existing(chain_for(id_name, KEPT).store).networks() if r.origin in names], id_name
    )


def untuned(id_name: str, ood: Sequence[str]) -> list[Summary]:
    """Both networks with every score that needs no OOD image, best first."""
    return summarise([r for r in of(id_name, mains(id_name), ood) if r.state != "tuned" and r.detector != "odin"])


def ranking(id_name: str) -> Table:
    """Means over the reported sets."""
    return ranking_table(untuned(id_name, REPORTED[id_name]), "one-vs-one")


def development(id_name: str) -> Table:
    """The same over the development sets."""
    return ranking_table(untuned(id_name, DEVELOPMENT), "one-vs-one")


def differences(id_name: str) -> Table:
    """The cosine minus every other."""
    return pairs_table(untuned(id_name, REPORTED[id_name]), "one-vs-one")


def by_set(id_name: str) -> Table:
    """Every reported set by itself."""
    return sets_table(untuned(id_name, REPORTED[id_name]), "one-vs-one")


def papers_methods(id_name: str, view: View) -> Table:
    """The paper's four methods under one of its protocols."""
    found = summarise(of(id_name, mains(id_name), REPORTED[id_name]), view)
    return sets_table(paper_rows(found), view)


def control(id_name: str) -> Table:
    """The same images cropped, cropped inside a black frame, and resized."""
    names = ("tin-crop-free", *CONTROLS, "tin-resize")
    return sets_table(untuned(id_name, names), "one-vs-one")


def _mean_row(name: str, results: Sequence[Result]) -> list[Entry]:
    """Near, far, noise and all of one method, in percent."""
    groups = summarise(results)[0].groups
    return [name, *(Value(groups[g].mean, percent(groups[g].mean)) if g in groups else "-" for g in _GROUPS)]


_GROUPS = ("near", "far", "noise", "all")


def _rows(id_name: str, title: str, name: str, rows: Sequence[list[Entry]], note: str) -> Table:
    columns = ("variant", *_GROUPS, "accuracy")
    return Table(f"{name}-{id_name}", title, columns, rows, note)


def _with_accuracy(id_name: str, label: str, run: Run, detector: str) -> list[Entry]:
    found = [r for r in of(id_name, [run], REPORTED[id_name]) if r.detector == detector]
    return [*_mean_row(label, found), _accuracy(id_name, run.name)]


def _accuracy(id_name: str, origin: str) -> Value:
    found = [r.accuracy for r in Store.existing(chain_for(id_name, KEPT).store).networks() if r.origin == origin]
    return Value(found[0], percent(found[0]))


def there(id_name: str, runs: Sequence[Run]) -> bool:
    """Whether the study has come to these networks yet."""
    known = {record.origin for record in Store.existing(chain_for(id_name, KEPT).store).networks()}
    return {run.name for run in runs} <= known


def ablation(id_name: str) -> Table:
    """The ten variants of the head, one seed."""
    chain = chain_for(id_name, KEPT)
    rows = [
        _with_accuracy(
            id_name, f"{n}: {run.head} {' '.join(w.lstrip('-') for w in run.variant)}".strip(), run,
            "max-softmax" if run.head == "linear" else "cosine",
        )
        for n, run in enumerate(ablation_rows(NETWORKS[id_name], id_name, 0, chain.scale.hidden).values(), 1)
        if there(id_name, [run])
    ]  # fmt: skip
    return _rows(id_name, "Ten variants of the head", "ablation", rows, "Mean AUROC over the reported sets, one seed.")


def scales(id_name: str) -> Table:
    """Fixed scales and the predicted one, one seed."""
    rows = [
        _with_accuracy(id_name, "predicted" if scale is None else f"{scale:g}", runs[0], "cosine")
        for (_, scale), runs in sweep(chain_for(id_name, KEPT)).items()
        if there(id_name, runs)
    ]
    return _rows(
        id_name, "The scale, fixed and predicted", "scales", rows, "Mean AUROC over the reported sets, one seed."
    )


def fixed(id_name: str) -> Table:
    """The predicted scale beside the fixed one that the development sets choose, one seed."""
    runs = {"predicted": main_runs(id_name, 0)[1], FIXED[1]: Run(NETWORKS[id_name], id_name, 0, "cosine", FIXED)}
    rows = [_with_accuracy(id_name, name, run, "cosine") for name, run in runs.items()]
    title = f"The scale, predicted and fixed, {set_title(id_name)}"
    return _rows(id_name, title, "fixed", rows, "Mean AUROC over the reported sets, one seed.")


def rivals(id_name: str) -> Table:
    """Other heads by the same recipe, one seed; ours beside them."""
    rows = [
        _with_accuracy(id_name, f"{head}: {detector}", Run(NETWORKS[id_name], id_name, 0, head), detector)
        for head, detector in {"linear": "max-softmax", "cosine": "cosine", **RIVALS}.items()
        if there(id_name, [Run(NETWORKS[id_name], id_name, 0, head)])
    ]
    return _rows(
        id_name, "Heads without OOD hyperparameters", "rivals", rows, "Mean AUROC over the reported sets, one seed."
    )


def together(id_name: str) -> Table:
    """One network, three as one, and a pair."""
    cosine = [main_runs(id_name, seed)[1] for seed in SEEDS]
    single = [r for r in of(id_name, cosine, REPORTED[id_name]) if r.detector == "cosine"]
    joined = ", ".join(run.name for run in cosine)
    several = of(id_name, cosine, REPORTED[id_name], together=True)
    rows = [
        [
            *_mean_row("one cosine network (mean of three)", single),
            _mean_accuracy(id_name, [run.name for run in cosine]),
        ],
        [*_mean_row("ensemble of the three", several), _accuracy(id_name, joined)],
    ]
    pairs = [main_runs(id_name, seed) for seed in SEEDS]
    paired = [r for pair in pairs for r in of(id_name, pair, REPORTED[id_name], together=True)]
    names = [", ".join(run.name for run in pair) for pair in pairs]
    rows.append(
        [*_mean_row("Paired: standard classes, cosine score (mean of three)", paired), _mean_accuracy(id_name, names)]
    )
    return _rows(id_name, "Several networks", "together", rows, "Mean AUROC over the reported sets.")


def _mean_accuracy(id_name: str, origins: Sequence[str]) -> Value:
    values = [_accuracy(id_name, origin).number for origin in origins]
    mean = float(np.mean([v for v in values if v is not None]))
    return Value(mean, percent(mean))


def leave_out(id_name: str) -> Table:
    """The leave-out ensemble beside one network of each kind."""
    members = [Run(NETWORKS[id_name], id_name, k, "linear", ("--leave-out", f"{k}/{FOLDS}")) for k in range(FOLDS)]
    team = of(id_name, members, REPORTED[id_name], together=True)
    joined = ", ".join(run.name for run in members)
    standard, cosine = main_runs(id_name, 0)
    rows = [
        _with_accuracy(id_name, "max-softmax, one standard network", standard, "max-softmax"),
        _with_accuracy(id_name, "cosine, one cosine network", cosine, "cosine"),
        [*_mean_row(f"leave-out ensemble of {FOLDS}, published values", team), _accuracy(id_name, joined)],
    ]
    return _rows(id_name, "Leave-out ensemble", "leave-out", rows, "Mean AUROC over the reported sets, one seed.")


def one_seed(id_name: str) -> Table:
    """Both networks of one seed with every score that needs no OOD image."""
    return ranking_table(summarise(of(id_name, main_runs(id_name, 0), REPORTED[id_name])), "one-vs-one")


def dense(id_name: str) -> Table:
    """The same of the small DenseNet-BC."""
    runs = [Run(DENSE, id_name, 0, head) for head in ("linear", "cosine")]
    return ranking_table(summarise(of(id_name, runs, REPORTED[id_name])), "one-vs-one")


def shift(id_name: str) -> Table:
    """How often changed ID images are flagged at 5 %, mean over seeds."""
    records = [r for r in json.loads(SHIFT.read_text()) if r["id"] == id_name]
    kinds = list(records[0]["flagged"])
    groups: dict[tuple[str, str], list[list[float]]] = {}
    for r in records:
        groups.setdefault((r["detector"], r["head"]), []).append([r["flagged"][kind] for kind in kinds])
    means = {key: np.mean(values, 0) for key, values in groups.items()}
    rows: list[list[Entry]] = [
        [detector, head, *(Value(float(v), f"{100 * v:.1f}") for v in values)]
        for (detector, head), values in sorted(means.items(), key=lambda item: float(item[1][1:].mean()))
    ]
    title = f"ID images of {set_title(id_name)} flagged at 5 %, after changes that keep the class"
    note = f"Percent, mean over {len(SEEDS)} seeds, the calmest first."
    return Table(f"shift-{id_name}", title, ("detector", "network", *kinds), rows, note, 2)


SHOWN = (
    ("max-softmax, standard network", "linear", "max-softmax", False),
    ("energy, standard network", "linear", "energy", False),
    ("KNN, standard network", "linear", "knn", False),
    ("ViM, standard network", "linear", "vim", False),
    ("Mahalanobis, untuned, standard network", "linear", "mahalanobis", False),
    ("ODIN, tuned on another set", "linear", "odin", True),
    ("Mahalanobis, tuned on another set", "linear", "mahalanobis", True),
    ("cosine, cosine network", "cosine", "cosine", False),
)
"""What it is called; head, detector, and whether it is tuned on OOD images."""


def headline(ids: str) -> Table:
    """The methods that people ask about first, on the ID sets that are named with commas."""
    names = ids.split(",")
    numbers: dict[str, list[float]] = {label: [] for label, *_ in SHOWN}
    for id_name in names:
        results = of(id_name, mains(id_name), REPORTED[id_name])
        for label, head, detector, tuned in SHOWN:
            own = [r for r in results if r.network.endswith(head) and r.detector == detector]
            view: View = "less-biased by tested set" if tuned else "one-vs-one"
            groups = summarise([r for r in own if (r.state == "tuned") == tuned], view)[0].groups
            numbers[label] += [groups[g].mean for g in _GROUPS]
    best = np.array(list(numbers.values())).max(0)
    rows: list[list[Entry]] = [
        [label, *(Value(v, f"{100 * v:.1f}", v == b) for v, b in zip(values, best, strict=True))]
        for label, values in numbers.items()
    ]
    columns = ("method", *(f"{set_title(name)}: {group}" for name in names for group in _GROUPS))
    title = "Mean AUROC (%) over eight OOD sets, three seeds"
    return Table("headline", title, columns, rows)


Maker = Callable[[str], Table]
TABLES: dict[str, Maker] = {
    "accuracy": accuracy, "ranking": ranking, "development": development, "differences": differences, "by-set": by_set,
    "one-vs-one": lambda id_name: papers_methods(id_name, "one-vs-one"),
    "less-biased": lambda id_name: papers_methods(id_name, "less-biased by tested set"),
    "control": control, "ablation": ablation, "scales": scales, "fixed": fixed, "rivals": rivals, "together": together,
    "leave-out": leave_out, "headline": headline, "one-seed": one_seed, "dense": dense, "shift": shift,
}  # fmt: skip
"""What docs/results.md calls ``NAME ID``."""
