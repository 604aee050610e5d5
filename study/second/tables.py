"""Tables of the second study, rebuilt from the committed rows without training: ``python -m study.second.tables [NAME]``."""

import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import numpy as np
from scipy import stats

from study.second import store
from study.second.sets import CHOICES, NEAR, NOISE, REPORTED

Groups = Mapping[str, Sequence[str]]
"""Title of a column -> the OOD sets that it is the mean of."""


def groups_of(id_name: str) -> dict[str, tuple[str, ...]]:
    """Return near, far, noise and all reported sets."""
    near, reported = NEAR[id_name], REPORTED[id_name]
    far = tuple(name for name in reported if name not in (*near, *NOISE))
    noise = tuple(name for name in reported if name in NOISE)
    found = {"near": near, "far": far, "noise": noise, "all": reported}
    return {title: sets for title, sets in found.items() if sets}


def mean_auroc(rows: Sequence[store.Row], sets: Sequence[str]) -> float | None:
    """Return the mean over sets of the mean over seeds, in percent; None where a set is missing."""
    means = []
    for name in sets:
        values = [row["auroc"] for row in rows if row["ood"] == name]
        if not values:
            return None
        means.append(fmean(values))
    return 100 * fmean(means)


def methods(rows: Sequence[store.Row]) -> list[tuple[str, str]]:
    """Return every (head, detector) that has rows."""
    return list(dict.fromkeys((row["head"], row["detector"]) for row in rows if "detector" in row))


def ranking(step: str, title: str, columns: Groups, **fields: object) -> str:
    """Return a table with a row for each head and score, the best of the last column first.

    Args:
        step: whose rows.
        title: above the table.
        columns: what is averaged.
        **fields: which rows, as in ``store.select``.
    """
    rows = list(store.select(store.read(step), **fields))
    accuracy = {head: _accuracy(rows, head) for head in {row["head"] for row in rows}}
    lines: list[tuple[str, str, list[float]]] = []
    for head, detector in methods(rows):
        own = [row for row in rows if row["head"] == head and row.get("detector") == detector]
        means = [value for sets in columns.values() if (value := mean_auroc(own, sets)) is not None]
        if len(means) == len(columns):
            lines.append((head, detector, means))
    lines.sort(key=lambda line: -line[2][-1])
    text = [f"**{title}**", "", "| head | score | " + " | ".join(columns) + " | accuracy |"]
    text.append("|---|---|" + "---:|" * (len(columns) + 1))
    for head, detector, values in lines:
        cells = " | ".join(f"{value:.1f}" for value in values)
        text.append(f"| {head} | {detector} | {cells} | {accuracy[head]} |")
    return "\n".join(text) + "\n"


def _accuracy(rows: Sequence[store.Row], head: str) -> str:
    values = [row["accuracy"] for row in rows if row["head"] == head and "accuracy" in row]
    return f"{100 * fmean(values):.1f}" if values and head != "any" else "-"


def unseen(id_name: str) -> str:
    """Return the table of unseen classes: means over choices and seeds, and the difference to the first with its interval."""
    rows = [
        row for row in store.read("photos" if id_name != "cifar10" else "scratch")
        if row["id"] == id_name and row["unseen"] in CHOICES[id_name]
    ]  # fmt: skip
    by_choice: dict[tuple[str, str], dict[int, float]] = {}
    for method in methods(rows):
        own = [row for row in rows if (row["head"], row.get("detector")) == method and row["ood"].startswith("unseen-")]
        by_choice[method] = {
            choice: 100 * fmean(row["auroc"] for row in own if row["unseen"] == choice)
            for choice in {row["unseen"] for row in own}
        }
    complete = {m: v for m, v in by_choice.items() if len(v) == len(CHOICES[id_name])}
    if not complete:
        return ""
    order = sorted(complete, key=lambda m: -fmean(complete[m].values()))
    best = complete[order[0]]
    text = ["| head | score | AUROC | to the first, 95 % interval over choices |", "|---|---|---:|---:|"]
    for method in order:
        values = complete[method]
        differences = [values[choice] - best[choice] for choice in values]
        text.append(f"| {method[0]} | {method[1]} | {fmean(values.values()):.1f} | {_interval(differences)} |")
    count = len(CHOICES[id_name])
    return f"**Unseen classes, {id_name}: {count} choices, three seeds each**\n\n" + "\n".join(text) + "\n"


def _interval(differences: Sequence[float]) -> str:
    mean = fmean(differences)
    if len(differences) < 2 or not any(differences):
        return f"{mean:+.1f}"
    half = (
        float(stats.t.ppf(0.975, len(differences) - 1)) * float(np.std(differences, ddof=1)) / len(differences) ** 0.5
    )
    return f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"


def photographs(id_name: str) -> str:
    """Return the table of other photographs beside fruit or clothing."""
    columns = {**{name: (name,) for name in REPORTED[id_name]}, "mean": REPORTED[id_name]}
    return ranking("photos", f"Other photographs beside {id_name}, three seeds", columns, id=id_name, unseen=None)


def published(network: str) -> str:
    """Return the table of a published network, kept as it is."""
    return ranking("published", f"{network}, kept", groups_of("cifar10"), network=network)


def scratch() -> str:
    """Return the table of CIFAR-10 from scratch."""
    title = "CIFAR-10 from scratch, wrn-10-4-half, 14 epochs"
    return ranking("scratch", title, groups_of("cifar10"), id="cifar10", network="wrn-10-4-half", unseen=None)


TABLES: dict[str, Callable[[], str]] = {
    "published-20": lambda: published("resnet20-cifar"),
    "published-56": lambda: published("resnet56-cifar"),
    "photographs-fruit": lambda: photographs("fruit"),
    "photographs-clothing": lambda: photographs("clothing"),
    "unseen-fruit": lambda: unseen("fruit"),
    "unseen-clothing": lambda: unseen("clothing"),
    "unseen-cifar10": lambda: unseen("cifar10"),
    "scratch": scratch,
}
"""By name; empty where a step has not run."""


def main() -> None:
    """Print the tables."""
    for name in sys.argv[1:] or TABLES:
        print(TABLES[name]())


if __name__ == "__main__":
    main()
