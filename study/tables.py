"""The study's store -> the tables of study/report/first.md."""

import json
from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np

from offaxis.evaluation.summary import Summary, View, summarise
from offaxis.options import TrainOptions
from offaxis.paper.settings import training
from offaxis.paper.tables import paper_rows
from offaxis.reports.result_tables import networks_table, pairs_table, ranking_table, set_title, sets_table
from offaxis.reports.tables import Entry, Table, Value, in_percent
from offaxis.training import RECIPES
from study.query import GROUPS, is_evaluated, main_networks, records_of, results_for
from study.regret import regrets
from study.second.answers import all_choices, from_scratch_columns
from study.sets import CONTROLS, DEVELOPMENT, REPORTED
from study.steps import DENSE, KEPT, LONGER_EPOCHS, NETWORKS, SEEDS, longer_runs, main_runs
from study.variants import ablation, axes, fixed, leave_out, rivals, scales, together

SHIFT = KEPT / "shift.json"


def accuracy(id_name: str) -> Table:
    """Make the table of accuracy, calibration and risk of both networks."""
    return _networks(id_name, main_networks(id_name))


def _networks(id_name: str, runs: Sequence[TrainOptions]) -> Table:
    return networks_table(records_of(id_name, runs), id_name)


def untuned(id_name: str, ood: Sequence[str]) -> list[Summary]:
    """Summarise both networks with every score that needs no OOD image, best first."""
    return summarise(
        [r for r in results_for(id_name, main_networks(id_name), ood) if r.state != "tuned" and r.detector != "odin"]
    )


def ranking(id_name: str) -> Table:
    """Rank the means over the reported sets."""
    return ranking_table(untuned(id_name, REPORTED[id_name]), "one-vs-one")


def development(id_name: str) -> Table:
    """Rank the means over the development sets."""
    return ranking_table(untuned(id_name, DEVELOPMENT), "one-vs-one")


def differences(id_name: str) -> Table:
    """Make the differences of the cosine to every other score."""
    return pairs_table(untuned(id_name, REPORTED[id_name]), "one-vs-one")


def differences_two(id_name: str) -> Table:
    """Make the differences of the two cosines to every other score."""
    summaries = untuned(id_name, REPORTED[id_name])
    two = next(s for s in summaries if s.detector == "two-cosines")
    return pairs_table(summaries, "one-vs-one", reference=two)


def by_set(id_name: str) -> Table:
    """Make the table by reported set."""
    return sets_table(untuned(id_name, REPORTED[id_name]), "one-vs-one")


def papers_methods(id_name: str, view: View) -> Table:
    """Make the table of the paper's four methods under one of its protocols."""
    summaries = summarise(results_for(id_name, main_networks(id_name), REPORTED[id_name]), view)
    return sets_table(paper_rows(summaries), view)


def tuned(id_name: str) -> Table:
    """Compare ODIN and Mahalanobis, tuned on the tested set or on another, on both networks of the first seed."""
    runs = [run for run in main_runs(id_name, 0) if is_evaluated(id_name, [run])]
    results = [r for r in results_for(id_name, runs, REPORTED[id_name]) if r.state == "tuned"]
    views: tuple[View, View] = ("one-vs-one", "less-biased by tested set")
    means = [{(s.detector, s.network): s.groups["all"].mean for s in summarise(results, view)} for view in views]
    rows: list[list[Entry]] = [[*key, *(in_percent(mean.get(key)) for mean in means)] for key in sorted(means[0])]
    columns = ("detector", "network", "tuned on the tested set", "tuned on another set")
    note = "Mean AUROC over the reported sets, first seed."
    title = f"Tuned on either network, {set_title(id_name)}"
    return Table(name=f"tuned-{id_name}", title=title, columns=columns, rows=rows, note=note, heads=2)


def control(id_name: str) -> Table:
    """Compare the same images cropped, cropped inside a black frame, and resized."""
    names = ("tin-crop-free", *CONTROLS, "tin-resize")
    return sets_table(untuned(id_name, names), "one-vs-one")


def one_seed(id_name: str) -> Table:
    """Rank the scores that need no OOD image on both networks of one seed."""
    return ranking_table(summarise(results_for(id_name, main_runs(id_name, 0), REPORTED[id_name])), "one-vs-one")


def one_seed_accuracy(id_name: str) -> Table:
    """Make the table of accuracy, calibration and risk of both networks of one seed."""
    return _networks(id_name, main_runs(id_name, 0))


def longer(id_name: str) -> Table:
    """Compare the mean AUROC of every score on both networks of the first seed after the default and a longer training."""
    short, long = (
        {
            (s.method, f"{s.fields.architecture} {s.fields.head['name']}"): s.groups["all"].mean
            for s in summarise(results_for(id_name, runs, REPORTED[id_name]))
            if s.state != "tuned"
        }
        for runs in (main_runs(id_name, 0), longer_runs())
    )
    rows: list[list[Entry]] = [
        [
            method,
            network,
            *(in_percent(v) for v in (short[method, network], value)),
            f"{100 * (value - short[method, network]):+.2f}",
        ]
        for (method, network), value in sorted(long.items(), key=lambda item: -item[1])
        if (method, network) in short
    ]
    epochs = RECIPES[NETWORKS[id_name].recipe or ""]().epochs
    columns = ("detector", "network", f"{epochs} epochs", f"{LONGER_EPOCHS} epochs", "change")
    title, note = "More training, one seed", "Mean AUROC over the reported sets."
    return Table(name=f"longer-{id_name}", title=title, columns=columns, rows=rows, note=note, heads=2)


def longer_accuracy(id_name: str) -> Table:
    """Make the table of accuracy, calibration and risk of the networks that were trained longer."""
    return _networks(id_name, longer_runs())


def dense(id_name: str) -> Table:
    """Rank every score on both small DenseNet-BCs."""
    return ranking_table(summarise(results_for(id_name, _dense_runs(id_name), REPORTED[id_name])), "one-vs-one")


def dense_accuracy(id_name: str) -> Table:
    """Make the table of accuracy, calibration and risk of both DenseNet-BCs."""
    return _networks(id_name, _dense_runs(id_name))


def _dense_runs(id_name: str) -> list[TrainOptions]:
    return [training(DENSE, id_name, 0, head) for head in ("linear", "cosine")]


def shift(id_name: str) -> Table:
    """Make the table of false alarms at 5 % under harmless corruptions, mean over seeds."""
    records = [r for r in json.loads(SHIFT.read_text()) if r["id"] == id_name]
    kinds = list(records[0]["flagged"])
    groups: dict[tuple[str, str], list[list[float]]] = {}
    for r in records:
        groups.setdefault((r["detector"], r["head"]), []).append([r["flagged"][kind] for kind in kinds])
    means = {key: np.mean(values, 0) for key, values in groups.items()}
    rows: list[list[Entry]] = [
        [detector, head, *(Value(100 * float(v), f"{100 * v:.1f}", percent=True) for v in values)]
        for (detector, head), values in sorted(means.items(), key=lambda item: float(item[1][1:].mean()))
    ]
    title = f"ID images of {set_title(id_name)} flagged at 5 %, after changes that keep the class"
    note = f"Percent, mean over {len(SEEDS)} seeds, the calmest first."
    columns = ("detector", "network", *kinds)
    return Table(name=f"shift-{id_name}", title=title, columns=columns, rows=rows, note=note, heads=2)


SHOWN = (
    ("max-softmax, standard network", "linear", "max-softmax", False),
    ("energy, standard network", "linear", "energy", False),
    ("KNN, standard network", "linear", "knn", False),
    ("ViM, standard network", "linear", "vim", False),
    ("Mahalanobis, untuned, standard network", "linear", "mahalanobis", False),
    ("ODIN, tuned on another set", "linear", "odin", True),
    ("Mahalanobis, tuned on another set", "linear", "mahalanobis", True),
    ("cosine, cosine network", "cosine", "cosine", False),
    ("two cosines, cosine network", "cosine", "two-cosines", False),
)
"""Row, head, detector, and whether it is tuned on OOD images."""


def headline(ids: str) -> Table:
    """Make the table of the best-known methods, on the ID sets that are named with commas."""
    names = ids.split(",")
    numbers: dict[str, list[float]] = {label: [] for label, *_ in SHOWN}
    for id_name in names:
        results = results_for(id_name, main_networks(id_name), REPORTED[id_name])
        for label, head, detector, tuned in SHOWN:
            own = [r for r in results if r.head["name"] == head and r.detector == detector]
            view: View = "less-biased by tested set" if tuned else "one-vs-one"
            groups = summarise([r for r in own if (r.state == "tuned") == tuned], view)[0].groups
            numbers[label] += [groups[g].mean for g in GROUPS]
    best = np.array(list(numbers.values())).max(0)
    rows: list[list[Entry]] = [
        [label, *(Value(100 * v, f"{100 * v:.1f}", v == b, percent=True) for v, b in zip(values, best, strict=True))]
        for label, values in numbers.items()
    ]
    columns = ("method", *(f"{set_title(name)}: {group}" for name in names for group in GROUPS))
    title = "Mean AUROC (%) over eight OOD sets, three seeds"
    return Table(name="headline", title=title, columns=columns, rows=rows)


FIVE = (
    ("**two cosines**, cosine network", "cosine", "two-cosines", "one pass; fitted on training images (class means)"),
    ("**cosine**, cosine network", "cosine", "cosine", "one pass"),
    ("Mahalanobis++, standard network", "linear", "mahalanobis++", "one pass; fitted (means and covariance)"),
    ("KNN, standard network", "linear", "knn", "one pass, and a search in all training features"),
    ("energy, standard network", "linear", "energy", "one pass"),
    ("max-softmax, standard network", "linear", "max-softmax", "one pass"),
)
"""Row, head, detector, and what scoring an image costs."""


def five(id_name: str) -> Table:
    """Make the README's table: near and far sets, every choice of unseen classes, and the largest regret anywhere."""
    columns, unseen, regret = from_scratch_columns(), all_choices(), regrets(reported=True)
    title = set_title(id_name)
    rows: list[list[Entry]] = []
    for label, *method, cost in FIVE:
        own = (method[0], method[1])
        numbers = [columns[f"{title}: near"][own], columns[f"{title}: far"][own], fmean(unseen[own])]
        shown = [Value(v, f"{v:.1f}", percent=True) for v in numbers]
        rows.append([label, *shown, f"{max(regret[own].values()):.0f}", cost])
    names = ("detector", "near", "far", "unseen classes", "largest regret", "cost")
    return Table(name="five", title="AUROC in percent", columns=names, rows=rows)


Maker = Callable[[str], Table]
TABLES: dict[str, Maker] = {
    "accuracy": accuracy,
    "ranking": ranking,
    "development": development,
    "differences": differences,
    "differences-two": differences_two,
    "by-set": by_set,
    "one-vs-one": lambda id_name: papers_methods(id_name, "one-vs-one"),
    "less-biased": lambda id_name: papers_methods(id_name, "less-biased by tested set"),
    "control": control,
    "ablation": ablation,
    "scales": scales,
    "fixed": fixed,
    "rivals": rivals,
    "together": together,
    "leave-out": leave_out,
    "headline": headline,
    "five": five,
    "one-seed": one_seed,
    "one-seed-accuracy": one_seed_accuracy,
    "dense": dense,
    "dense-accuracy": dense_accuracy,
    "shift": shift,
    "axes": axes,
    "longer": longer,
    "tuned": tuned,
    "longer-accuracy": longer_accuracy,
}
"""Name of a table in a page -> the function that makes it for an ID set."""
