"""Tables with a row for each variant: the ablation, scales, axes, other heads, several networks."""

from collections.abc import Sequence

import numpy as np

from offaxis.evaluation import Result, Store
from offaxis.evaluation.summary import summarise
from offaxis.jobs import TrainingRun
from offaxis.reports.result_tables import set_title
from offaxis.reports.tables import Entry, Table, Value, percent
from offaxis.reproduce.items import ablation_rows, native_score, sweep
from study.found import GROUPS, of, there
from study.sets import REPORTED
from study.steps import (
    FIXED_SCALE,
    FOLDS,
    KEPT,
    NETWORKS,
    RIVALS,
    SEEDS,
    chain_for,
    fixed_scale_run,
    leave_out_runs,
    main_runs,
)


def _mean_row(name: str, results: Sequence[Result]) -> list[Entry]:
    """Near, far, noise and all of one method, in percent."""
    groups = summarise(results)[0].groups
    return [name, *(Value(groups[g].mean, percent(groups[g].mean)) if g in groups else "-" for g in GROUPS)]


def _rows(id_name: str, title: str, name: str, rows: Sequence[list[Entry]], note: str) -> Table:
    columns = ("variant", *GROUPS, "accuracy")
    return Table(f"{name}-{id_name}", title, columns, rows, note)


def _with_accuracy(id_name: str, label: str, run: TrainingRun, detector: str) -> list[Entry]:
    found = [r for r in of(id_name, [run], REPORTED[id_name]) if r.detector == detector]
    return [*_mean_row(label, found), _accuracy(id_name, run.name)]


def _accuracy(id_name: str, origin: str) -> Value:
    found = [r.accuracy for r in Store.existing(chain_for(id_name, KEPT).store).networks() if r.origin == origin]
    return Value(found[0], percent(found[0]))


def ablation(id_name: str) -> Table:
    """The ten variants of the head, one seed."""
    chain = chain_for(id_name, KEPT)
    rows = [
        _with_accuracy(
            id_name,
            f"{n}: {run.head} {run.variant}".strip(),
            run,
            native_score(run),
        )
        for n, run in enumerate(ablation_rows(NETWORKS[id_name], id_name, 0, chain.scale.hidden).values(), 1)
        if there(id_name, [run])
    ]
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
    runs = {"predicted": main_runs(id_name, 0)[1], f"{FIXED_SCALE:g}": fixed_scale_run(id_name)}
    rows = [_with_accuracy(id_name, name, run, "cosine") for name, run in runs.items()]
    title = f"The scale, predicted and fixed, {set_title(id_name)}"
    return _rows(id_name, title, "fixed", rows, "Mean AUROC over the reported sets, one seed.")


def rivals(id_name: str) -> Table:
    """Other heads by the same recipe, one seed; ours beside them."""
    rows = [
        _with_accuracy(id_name, f"{head}: {detector}", NETWORKS[id_name].training(id_name, 0, head), detector)
        for head, detector in {"linear": "max-softmax", "cosine": "cosine", **RIVALS}.items()
        if there(id_name, [NETWORKS[id_name].training(id_name, 0, head)])
    ]
    return _rows(
        id_name, "Heads without OOD hyperparameters", "rivals", rows, "Mean AUROC over the reported sets, one seed."
    )


def together(id_name: str) -> Table:
    """One network, three as one, and a pair."""
    cosine = [main_runs(id_name, seed)[1] for seed in SEEDS]
    single = [r for r in of(id_name, cosine, REPORTED[id_name]) if r.detector == "cosine"]
    joined = ", ".join(run.name for run in cosine)
    several = of(id_name, cosine, REPORTED[id_name], combined=True)
    rows = [
        [
            *_mean_row("one cosine network (mean of three)", single),
            _mean_accuracy(id_name, [run.name for run in cosine]),
        ],
        [*_mean_row("ensemble of the three", several), _accuracy(id_name, joined)],
    ]
    pairs = [main_runs(id_name, seed) for seed in SEEDS]
    paired = [r for pair in pairs for r in of(id_name, pair, REPORTED[id_name], combined=True)]
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
    members = leave_out_runs(id_name)
    team = of(id_name, members, REPORTED[id_name], combined=True)
    joined = ", ".join(run.name for run in members)
    standard, cosine = main_runs(id_name, 0)
    rows = [
        _with_accuracy(id_name, "max-softmax, one standard network", standard, "max-softmax"),
        _with_accuracy(id_name, "cosine, one cosine network", cosine, "cosine"),
        [*_mean_row(f"leave-out ensemble of {FOLDS}, published values", team), _accuracy(id_name, joined)],
    ]
    return _rows(id_name, "Leave-out ensemble", "leave-out", rows, "Mean AUROC over the reported sets, one seed.")


AXES = {
    "cosine": "the cosine: with the class weights",
    "mean-cosine": "with the class means",
    "two-cosines": "both, half each",
}


def axes(id_name: str) -> Table:
    """Which axes the cosine is taken with, on the cosine networks of all seeds."""
    cosine = [main_runs(id_name, seed)[1] for seed in SEEDS]
    found = of(id_name, cosine, REPORTED[id_name])
    accuracy = _mean_accuracy(id_name, [run.name for run in cosine])
    rows = [[*_mean_row(label, [r for r in found if r.detector == d]), accuracy] for d, label in AXES.items()]
    title = f"The cosine, with what? {set_title(id_name)}"
    return _rows(id_name, title, "axes", rows, "Mean AUROC over the reported sets, three seeds.")
