"""The rows of the second study -> the tables of docs/results.md and study/report/answers.md.

Methods stand side by side on all that answers a question; the last column is the mean of all, which figures.py draws. ``python
-m study.page`` puts the tables into the pages; ``short`` ones are the site's.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from offaxis.reports.tables import Entry, Table
from study.second import store
from study.second.sets import CHOICES, REPORTED
from study.second.tables import (
    HEADS,
    MAIN,
    NAMES,
    PLAIN,
    SCORES,
    Maker,
    Method,
    by_method,
    groups_of,
    interval,
    mean_auroc,
    rows_from_scratch,
    seeds_of,
    unseen_values,
    value_entry,
)

Column = Mapping[Method, float]
"""The values of one column."""


def side_by_side(
    columns: Mapping[str, Column],
    *,
    name: str,
    title: str,
    only: Sequence[Method],
    beside: Mapping[str, Mapping[Method, str]] | None = None,
    note: str = "",
) -> Table:
    """Return methods with a column for each thing that they were tested on, the best of the last column first.

    Args:
        columns: title -> AUROC in percent by method; a method that is absent was not run there.
        name: of the table.
        title: above it.
        only: the methods that are shown; those without a value in the last column come last.
        beside: more columns, of text.
        note: below it.
    """
    values, beside = list(columns.values()), beside or {}
    best = [max((column[method] for method in only if method in column), default=None) for column in values]
    shown = [method for method in only if any(method in column for column in values)]
    shown.sort(key=lambda method: -values[-1].get(method, 0.0))
    several = len({head for head, _ in shown}) > 1
    rows: list[list[Entry]] = []
    for method in shown:
        own = [column.get(method) for column in values]
        cells = [value_entry(value, value == top) for value, top in zip(own, best, strict=True)]
        names = [HEADS[method[0]], SCORES[method[1]]]
        rows.append(
            [*(names if several else names[1:]), *cells, *(texts.get(method, "-") for texts in beside.values())]
        )
    heads = ("head", "score") if several else ("score",)
    return Table(name=name, title=title, columns=(*heads, *columns, *beside), rows=rows, note=note, heads=len(heads))


def means_of(rows: Iterable[store.Row], sets: Sequence[str]) -> dict[Method, float]:
    """Return the mean AUROC over sets of every method that has all of them, in percent; see ``plain``."""
    return {plain(m): v for m, own in by_method(rows).items() if (v := mean_auroc(own, sets)) is not None}


def plain(method: Method) -> Method:
    """Return a method by the name that it has where networks of several kinds stand side by side.

    A cosine head from scratch has the paper's start there. A score that reads frozen features alone is one of any head,
    so of a linear one.
    """
    head, score = method
    return {"cosine-paper": "cosine", "any": "linear"}.get(head, head), score


COMPARED: tuple[Method, ...] = (
    ("cosine", "two-cosines"),
    ("cosine", "cosine"),
    *(("linear", score) for score in ("max-softmax", "energy", "fdbd", "mean-cosine", "knn", "mahalanobis++", "vim")),
    *((head, "max-softmax") for head in ("logitnorm", "elogitnorm", "t2fnorm")),
    ("deconf-c", "generalized-odin"),
    ("isomax", "isomax"),
)
"""What the page of answers compares: scores of cosine and linear heads, the rivals with the score of their papers."""
SHORT: tuple[Method, ...] = tuple(m for m in COMPARED[:9] if m[1] != "mean-cosine")
"""What the page on the site shows: no rivals' heads."""


def compared(which: str) -> Sequence[Method]:
    """Return what a table compares: ``short``, what the site shows, or everything."""
    return SHORT if which == "short" else COMPARED


def parts(columns: Mapping[str, Column], which: str) -> Mapping[str, Column]:
    """Return the columns of a table: for ``short`` those of all sets alone, not of near and far ones."""
    return {k: v for k, v in columns.items() if which != "short" or not k.endswith((": near", ": far"))}


TWO: Method = ("cosine", "two-cosines")
"""What the others are compared with."""


def gaps_to_two(values: Mapping[Method, Sequence[float]]) -> dict[Method, str]:
    """Return the mean differences to the two cosines with their intervals, from values that are paired by place."""
    return {
        method: interval([a - b for a, b in zip(own, values[TWO], strict=True)])
        for method, own in values.items()
        if method != TWO
    }


def mean_of(columns: Sequence[Column]) -> dict[Method, float]:
    """Return the mean of columns, of the methods that have all of them."""
    return {
        method: fmean(each[method] for each in columns) for method in columns[0] if all(method in c for c in columns)
    }


def from_scratch_columns() -> dict[str, Column]:
    """Return the heads of CIFAR-10 and Fashion-MNIST beside each other; the cosine has the paper's start."""
    columns: dict[str, Column] = {}
    for id_name, groups in {"cifar10": ("near", "far", "all"), "fashion-mnist": ("all",)}.items():
        rows = _compared_rows(id_name)
        columns |= {f"{NAMES[id_name]}: {group}": means_of(rows, groups_of(id_name)[group]) for group in groups}
    return {**columns, "both: all": mean_of([columns[f"{title}: all"] for title in NAMES.values()])}


def _compared_rows(id_name: str) -> list[store.Row]:
    """Return the rows of networks from scratch but those with the default start of the scale."""
    return [row for row in rows_from_scratch(id_name, MAIN[id_name]) if row["head"] != "cosine"]


def from_scratch_by_set() -> dict[Method, list[float]]:
    """Return the AUROC in percent by method, a mean over seeds for each OOD set of both ID sets."""
    columns = [means_of(_compared_rows(id_name), (ood,)) for id_name in NAMES for ood in REPORTED[id_name]]
    return {method: [column[method] for column in columns] for method in mean_of(columns)}


def from_scratch(which: str = "") -> Table:
    """Return the table of ``from_scratch_columns``, with differences to the two cosines and the number of seeds."""
    values = from_scratch_by_set()
    seeds = [f"{title}: {seeds_in_words(_compared_rows(id_name))}" for id_name, title in NAMES.items()]
    return side_by_side(
        parts(from_scratch_columns(), which),
        name="from-scratch",
        title="Trained from scratch, mean AUROC (%) over eight OOD sets",
        only=compared(which),
        beside={f"to two cosines, 95 % interval over {len(values[TWO])} pairs of sets": gaps_to_two(values)},
        note=f"Seeds. {'; '.join(seeds)}.",
    )


def published_columns() -> dict[str, Column]:
    """Return both published networks beside each other, near, far and all reported sets."""
    groups, titles = groups_of("cifar10"), {"resnet20-cifar": "ResNet-20", "resnet56-cifar": "ResNet-56"}
    columns = {
        f"{title}: {group}": means_of(store.select(store.read("published"), network=network), groups[group])
        for network, title in titles.items()
        for group in ("near", "far", "all")
    }
    return {**columns, "both: all": mean_of([columns[f"{title}: all"] for title in titles.values()])}


def published_both(which: str = "") -> Table:
    """Return the table of ``published_columns``."""
    only = [("keep", score) for score in (*PLAIN, "vim", "gen", "react")]
    if which == "short":
        only = [method for method in only if ("linear", method[1]) in SHORT]
    title = "Published networks, kept as they are, AUROC in percent"
    return side_by_side(parts(published_columns(), which), name="published", title=title, only=only)


def photograph_columns() -> dict[str, Column]:
    """Return fruit and clothing beside each other, every reported set and the mean over all."""
    columns: dict[str, Column] = {}
    for id_name in ("fruit", "clothing"):
        rows = list(store.select(store.read("photos"), id=id_name, unseen=None))
        columns |= {f"{id_name}: {ood}": means_of(rows, (ood,)) for ood in REPORTED[id_name]}
    return {**columns, "mean": mean_of(list(columns.values()))}


def photographs_both(which: str = "") -> Table:
    """Return the table of ``photograph_columns``."""
    title = "Other photographs beside fruit and beside clothing, frozen EfficientNet-lite0, AUROC in percent"
    return side_by_side(photograph_columns(), name="photographs-both", title=title, only=compared(which))


def unseen_by_choice() -> dict[str, dict[Method, list[float]]]:
    """Return the AUROC in percent of unseen classes by ID set and method, a value for each choice; see ``plain``."""
    found: dict[str, dict[Method, list[float]]] = {}
    for id_name in CHOICES:
        values = unseen_values(id_name)
        kept = {m: own for m, own in values.items() if (id_name, m[0]) != ("cifar10", "cosine")}
        found[id_name] = {plain(method): list(own.values()) for method, own in kept.items()}
    return found


def all_choices() -> dict[Method, list[float]]:
    """Return the AUROC in percent of unseen classes by method, a value for each choice of every ID set."""
    by_id = list(unseen_by_choice().values())
    shared = [method for method in by_id[0] if all(method in own for own in by_id)]
    return {method: [value for own in by_id for value in own[method]] for method in shared}


def unseen_columns() -> dict[str, Column]:
    """Return unseen classes of photographs and of CIFAR-10 beside each other, and the mean over all choices."""
    columns: dict[str, Column] = {
        f"{NAMES.get(id_name, id_name)}, {len(CHOICES[id_name])} choices": {m: fmean(v) for m, v in own.items()}
        for id_name, own in unseen_by_choice().items()
    }
    return {**columns, "all choices": {method: fmean(values) for method, values in all_choices().items()}}


def unseen_everywhere(which: str = "") -> Table:
    """Return the table of ``unseen_columns``, with the differences to the two cosines over all choices."""
    return side_by_side(
        unseen_columns(),
        name="unseen-everywhere",
        title="Unseen classes, AUROC in percent, mean over choices",
        only=compared(which),
        beside={"to two cosines, 95 % interval over all choices": gaps_to_two(all_choices())},
    )


def seeds_in_words(rows: Sequence[store.Row]) -> str:
    """Say how many seeds each head has: ``cosine 3, the others 1``."""
    counts = {head: seeds_of(store.select(rows, head=head)) for head in HEADS}
    usual = min(count for count in counts.values() if count)
    more = [f"{HEADS[plain((head, ''))[0]]} {count}" for head, count in counts.items() if count > usual]
    return ", ".join([*more, f"the others {usual}" if more else f"{usual} of each"])


TABLES: dict[str, Maker] = {
    "from-scratch": from_scratch,
    "published": published_both,
    "photographs-both": photographs_both,
    "unseen-everywhere": unseen_everywhere,
}
"""Name of a table in the page -> the function that makes it."""
