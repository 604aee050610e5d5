"""The rows of the study at the accuracy of the field -> the tables of study/report/field.md; what has not run says so."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from scipy.stats import spearmanr

from offaxis.paper.published import paper_table
from offaxis.reports.result_tables import set_title
from offaxis.reports.tables import Entry, Table, Value
from study import field
from study.second import store
from study.second.sets import SEEDS
from study.second.store import Row
from study.second.tables import HEADS, SCORES

NEAR, FAR = ("cifar100", "tin-resize"), ("mnist", "svhn", "dtd", "scenes")
"""The leaderboard's groups with the sets that are here: Places365 has scenes in its place."""
LEADERBOARD = {
    ("linear", "max-softmax"): (88.0, 90.7),
    ("linear", "knn"): (90.6, 93.0),
    ("linear", "fdbd"): (90.4, 93.2),
    ("linear", "relative-mahalanobis"): (89.8, 92.2),
    ("logitnorm", "max-softmax"): (92.3, 96.7),
    ("t2fnorm", "max-softmax"): (92.8, 97.0),
}
"""Head and score -> near and far AUROC of OpenOOD's ResNet-18."""
METHODS = (
    ("cosine", "cosine"),
    ("cosine", "two-cosines"),
    *LEADERBOARD,
    ("linear", "mahalanobis++"),
    ("isomax", "isomax"),
    ("deconf-c", "generalized-odin"),
    *((head, "cosine") for head in field.MARGINS),
)
NOT_RUN = Value(None, "not run")


def _mean(values: Sequence[float], most: int | None = None) -> Value:
    """Return the mean of shares in percent over seeds, with their deviation, and how many seeds where some are missing."""
    if not values:
        return NOT_RUN
    text = f"{100 * fmean(values):.2f}" + (f" ({100 * stdev(values):.2f})" if len(values) > 1 else "")
    if most and len(values) < most:
        text += f", {len(values)} of {most} seeds"
    return Value(100 * fmean(values), text)


def _rows(each: field.FieldTraining | field.Evaluated, step: str) -> list[Row]:
    return list(store.select(store.read(step), **each.key))


def _over(rows: Iterable[Row], detector: str, sets: Sequence[str]) -> list[float]:
    """Return the mean AUROC over sets; nothing where one is missing."""
    found = {row["ood"]: row["auroc"] for row in rows if row.get("detector") == detector}
    return [fmean(found[name] for name in sets)] if set(sets) <= found.keys() else []


def leaderboard(id_name: str) -> Table:
    """Make the table of every head and score, with the leaderboard's beside it."""
    near = NEAR if id_name == "cifar10" else ("cifar10", "tin-resize")
    lines: list[list[Entry]] = []
    for head, score in METHODS:
        runs = [_rows(field.training(id_name, head, seed), field.STEP) for seed in SEEDS]
        means = [_mean([v for rows in runs for v in _over(rows, score, sets)], len(SEEDS)) for sets in (near, FAR)]
        accuracy = _mean([row["accuracy"] for rows in runs for row in rows if "accuracy" in row], len(SEEDS))
        theirs = LEADERBOARD.get((head, score)) if id_name == "cifar10" else None
        beside = [Value(v, f"{v:.1f}") for v in theirs] if theirs else ["-", "-"]
        lines.append([HEADS.get(head, head), SCORES.get(score, score), accuracy, *means, *beside])
    named = {group: ", ".join(map(set_title, sets)) for group, sets in (("near", near), ("far", FAR))}
    columns = ("head", "score", "accuracy %", "near %", "far %", "ResNet-18 near", "ResNet-18 far")
    note = (
        f"AUROC, mean (standard deviation over seeds). Near: {named['near']}; far: {named['far']}. The last two columns are "
        "OpenOOD's leaderboard and cannot be compared cell by cell: another network, its own TinyImageNet, and Places365."
    )
    return Table(
        name=f"field-{id_name}", title="convnet-256, recipe fast", columns=columns, rows=lines, note=note, heads=2
    )


def ablation(_: str) -> Table:
    """Make the table of the ten rows, beside the paper's."""
    papers = {c.method: c for c in paper_table("ablation") if c.id == "cifar10" and c.network == "wrn-28-10"}
    lines: list[list[Entry]] = []
    pairs = []
    for name in field.ablation(0):
        runs = [field.ablation(seed)[name] for seed in field.ABLATION_SEEDS]
        score = "max-softmax" if runs[0].run.head == "linear" else "cosine"
        values = [v for each in runs for v in _over(_rows(each, field.STEP), score, ["tin-resize"])]
        paper = papers[name].mean
        assert paper is not None
        pairs += [(100 * fmean(values), paper)] if values else []
        lines.append([papers[name].printed_method, _mean(values, len(runs)), Value(paper, f"{paper:.2f}")])
    note = "AUROC on TIN (r), mean (standard deviation over two seeds); the scale starts at our default. "
    if len(pairs) > 2:
        note += f"Spearman's correlation of the order of {len(pairs)} rows with the paper's: {spearmanr(pairs).statistic:.2f}."
    columns = ("row", "ours %", "the paper's %")
    return Table(name="field-ablation", title="The paper's ablation", columns=columns, rows=lines, note=note)


def scales(_: str) -> Table:
    """Make the table of fixed scales."""
    lines: list[list[Entry]] = []
    for scale in field.scales(0):
        runs = [field.scales(seed)[scale] for seed in field.ABLATION_SEEDS]
        values = [v for each in runs for v in _over(_rows(each, field.STEP), "cosine", ["tin-resize"])]
        lines.append(["predicted" if scale is None else f"{scale:g}", _mean(values, len(runs))])
    title, note = "Fixed scales", "AUROC of the cosine on TIN (r), mean (standard deviation over two seeds)."
    return Table(name="field-scales", title=title, columns=("scale", "AUROC %"), rows=lines, note=note)


def tuned(id_name: str, less_biased: bool = False) -> Table:
    """Make the one-vs-one table or, by tested set, that of the less-biased protocol."""
    lines: list[list[Entry]] = []
    sets = field.PAPERS_SETS
    for evaluated in [one for one in field.evaluations() if one.key["id"] == id_name and one.key["seed"] == SEEDS[0]]:
        if evaluated.protocol is None:
            continue
        for detector in evaluated.detectors:
            by_set: dict[str, list[float]] = {}
            for seed in SEEDS:
                for name in sets:
                    rows = store.select(store.read(field.TUNED_STEP), **{**evaluated.key, "seed": seed})
                    own = [r["auroc"] for r in rows if _counts(r, detector, name, less_biased)]
                    by_set.setdefault(name, []).extend([fmean(own)] if own else [])
            lines.append([detector, HEADS[evaluated.head], *(_mean(by_set[name], len(SEEDS)) for name in sets)])
    title = "Tuned on another set (less-biased)" if less_biased else "Tuned on the tested set (one-vs-one)"
    titles = [field.STAND_INS.get(name, set_title(name)) for name in sets]
    name = f"field-{'less-biased' if less_biased else 'one-vs-one'}-{id_name}"
    note = "AUROC, mean (standard deviation over seeds)." + (" A column is the tested set." if less_biased else "")
    return Table(name=name, title=title, columns=("detector", "head", *titles), rows=lines, note=note, heads=2)


def _counts(row: Row, detector: str, ood: str, less_biased: bool) -> bool:
    if row.get("detector") != detector or row["ood"] != ood:
        return False
    if detector in ("odin", "mahalanobis"):
        return row["assumed"] is not None and (row["assumed"] != ood) is less_biased
    return row["assumed"] is None


def ensembles(_: str) -> Table:
    """Make the table of the leave-out ensemble and the ensemble of cosines."""
    lines: list[list[Entry]] = []
    for team in field.teams():
        rows = _rows(team, field.TUNED_STEP)
        cells = [_mean(_over(rows, team.detectors[0], [name])) for name in field.PAPERS_SETS]
        lines.append([team.head, _mean([row["accuracy"] for row in rows if "accuracy" in row]), *cells])
    columns = ("ensemble", "accuracy %", *(field.STAND_INS.get(n, set_title(n)) for n in field.PAPERS_SETS))
    return Table(name="field-ensembles", title="Five networks", columns=columns, rows=lines, note="AUROC.")


def cost(_: str) -> Table:
    """Make the table of accuracy against core-minutes and peak memory."""
    runs = [field.FieldTraining(replace(run, id="cifar10", head="linear", seed=0)) for run in field.COMPARED]
    lines: list[list[Entry]] = []
    for each in (*runs, *(field.training("cifar10", "linear", seed) for seed in SEEDS)):
        row: Mapping[str, float] = next((r for r in _rows(each, field.STEP) if "accuracy" in r), {})
        missing = Value(None, "not measured") if row else NOT_RUN
        numbers = [Value(row[k], f"{row[k]:.0f}") if k in row else missing for k in ("core_minutes", "peak_mb")]
        accuracy = _mean([row["accuracy"]] if row else [])
        lines.append([str(each.run.recipe), each.run.architecture, str(each.run.seed), accuracy, *numbers])
    columns = ("recipe", "network", "seed", "accuracy %", "core-minutes", "peak memory MB")
    note = "A linear head on CIFAR-10, one thread, bf16."
    return Table(name="field-cost", title="Accuracy against time", columns=columns, rows=lines, note=note, heads=3)


TABLES: dict[str, Callable[[str], Table]] = {
    "field": leaderboard,
    "field-ablation": ablation,
    "field-scales": scales,
    "field-one-vs-one": tuned,
    "field-less-biased": lambda id_name: tuned(id_name, less_biased=True),
    "field-ensembles": ensembles,
    "field-cost": cost,
}
