"""Tables with a row for each variant: the ablation, scales, axes, other heads, several networks."""

from collections.abc import Sequence

import numpy as np

from offaxis.evaluation import Result
from offaxis.evaluation.summary import summarise
from offaxis.options import TrainOptions
from offaxis.paper.commands import variant_of
from offaxis.paper.settings import ablation_rows, native_score, sweep, training
from offaxis.reports.result_tables import set_title
from offaxis.reports.tables import Entry, Table, Value, percent
from study.query import GROUPS, is_evaluated, records_of, results_for
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
    """Return near, far, noise and all of one method, in percent."""
    groups = summarise(results)[0].groups
    return [name, *(Value(groups[g].mean, percent(groups[g].mean)) if g in groups else "-" for g in GROUPS)]


def _table(id_name: str, name: str, *, title: str, rows: Sequence[list[Entry]], note: str) -> Table:
    return Table(name=f"{name}-{id_name}", title=title, columns=("variant", *GROUPS, "accuracy"), rows=rows, note=note)


def _with_accuracy(id_name: str, label: str, run: TrainOptions, detector: str) -> list[Entry]:
    results = [r for r in results_for(id_name, [run], REPORTED[id_name]) if r.detector == detector]
    return [*_mean_row(label, results), _accuracy(id_name, [run])]


def _accuracy(id_name: str, runs: Sequence[TrainOptions], combined: bool = False) -> Value:
    """Return the mean accuracy of some networks; with ``combined``, of the one network that they were combined into."""
    return _mean([record.accuracy for record in records_of(id_name, runs, combined)])


def _mean(values: Sequence[float]) -> Value:
    mean = float(np.mean(values))
    return Value(mean, percent(mean))


ONE_SEED = "Mean AUROC over the reported sets, one seed."


def ablation(id_name: str) -> Table:
    """Make the table of the ten variants of the head, one seed."""
    chain = chain_for(id_name, KEPT)
    rows = [
        _with_accuracy(id_name, f"{n}: {run.head} {variant_of(run)}".strip(), run, native_score(run))
        for n, run in enumerate(ablation_rows(NETWORKS[id_name], id_name, 0, chain.scale.hidden).values(), 1)
        if is_evaluated(id_name, [run])
    ]
    return _table(id_name, "ablation", title="Ten variants of the head", rows=rows, note=ONE_SEED)


def scales(id_name: str) -> Table:
    """Make the table of fixed scales and the predicted one, one seed."""
    rows = [
        _with_accuracy(id_name, "predicted" if scale is None else f"{scale:g}", runs[0], "cosine")
        for (_, scale), runs in sweep(chain_for(id_name, KEPT).scale).items()
        if is_evaluated(id_name, runs)
    ]
    return _table(id_name, "scales", title="The scale, fixed and predicted", rows=rows, note=ONE_SEED)


def fixed(id_name: str) -> Table:
    """Compare the predicted scale with the fixed one that the development sets choose, one seed."""
    runs = {"predicted": main_runs(id_name, 0)[1], f"{FIXED_SCALE:g}": fixed_scale_run(id_name)}
    rows = [_with_accuracy(id_name, name, run, "cosine") for name, run in runs.items()]
    title = f"The scale, predicted and fixed, {set_title(id_name)}"
    return _table(id_name, "fixed", title=title, rows=rows, note=ONE_SEED)


def rivals(id_name: str) -> Table:
    """Compare our head with other heads by the same recipe, one seed."""
    rows = [
        _with_accuracy(id_name, f"{head}: {detector}", training(NETWORKS[id_name], id_name, 0, head), detector)
        for head, detector in {"linear": "max-softmax", "cosine": "cosine", **RIVALS}.items()
        if is_evaluated(id_name, [training(NETWORKS[id_name], id_name, 0, head)])
    ]
    return _table(id_name, "rivals", title="Heads without OOD hyperparameters", rows=rows, note=ONE_SEED)


def together(id_name: str) -> Table:
    """Compare one network, an ensemble of three, and a pair."""
    cosine = [main_runs(id_name, seed)[1] for seed in SEEDS]
    single = [r for r in results_for(id_name, cosine, REPORTED[id_name]) if r.detector == "cosine"]
    ensemble = results_for(id_name, cosine, REPORTED[id_name], combined=True)
    pairs = [main_runs(id_name, seed) for seed in SEEDS]
    paired = [r for pair in pairs for r in results_for(id_name, pair, REPORTED[id_name], combined=True)]
    paired_accuracy = _mean([r.accuracy for pair in pairs for r in records_of(id_name, pair, combined=True)])
    rows = [
        [*_mean_row("one cosine network (mean of three)", single), _accuracy(id_name, cosine)],
        [*_mean_row("ensemble of the three", ensemble), _accuracy(id_name, cosine, combined=True)],
        [*_mean_row("Paired: standard classes, cosine score (mean of three)", paired), paired_accuracy],
    ]
    note = "Mean AUROC over the reported sets."
    return _table(id_name, "together", title="Several networks", rows=rows, note=note)


def leave_out(id_name: str) -> Table:
    """Compare the leave-out ensemble with one network of each kind."""
    members = leave_out_runs(id_name)
    ensemble = results_for(id_name, members, REPORTED[id_name], combined=True)
    standard, cosine = main_runs(id_name, 0)
    rows = [
        _with_accuracy(id_name, "max-softmax, one standard network", standard, "max-softmax"),
        _with_accuracy(id_name, "cosine, one cosine network", cosine, "cosine"),
        [
            *_mean_row(f"leave-out ensemble of {FOLDS}, published values", ensemble),
            _accuracy(id_name, members, combined=True),
        ],
    ]
    return _table(id_name, "leave-out", title="Leave-out ensemble", rows=rows, note=ONE_SEED)


AXES = {
    "cosine": "the cosine: with the class weights",
    "mean-cosine": "with the class means",
    "two-cosines": "both, half each",
}


def axes(id_name: str) -> Table:
    """Compare the axes that the cosine is taken with, on the cosine networks of all seeds."""
    cosine = [main_runs(id_name, seed)[1] for seed in SEEDS]
    results = results_for(id_name, cosine, REPORTED[id_name])
    accuracy = _accuracy(id_name, cosine)
    rows = [[*_mean_row(label, [r for r in results if r.detector == d]), accuracy] for d, label in AXES.items()]
    title = f"The cosine, with what? {set_title(id_name)}"
    note = "Mean AUROC over the reported sets, three seeds."
    return _table(id_name, "axes", title=title, rows=rows, note=note)
