"""The rows of the second study -> the tables of study/report/second.md, without training; answers.py has those of results.md.

``python -m study.second.tables NAME[:ID] ...`` prints them; ``python -m study.page`` puts them into the pages. A row is a head
with a score; means are over sets of means over seeds, so seeds and sets vary apart.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

import numpy as np
from scipy import stats

from offaxis.reports.tables import Entry, Table, Value, markdown
from study.second import store
from study.second.sets import CHOICES, NEAR, NOISE, REPORTED

Method = tuple[str, str]
"""A head and a score."""
Groups = Mapping[str, Sequence[str]]
"""Title of a column -> the OOD sets that it is the mean of."""

HEADS = {
    "cosine": "cosine",
    "cosine-paper": "cosine, the paper's start",
    "linear": "linear",
    "keep": "as published",
    "logitnorm": "LogitNorm",
    "t2fnorm": "T2FNorm",
    "elogitnorm": "ELogitNorm",
    "deconf-c": "DeConf-C",
    "isomax": "IsoMax+",
    "any": "any (features alone)",
}
SCORES = {
    "cosine": "cosine",
    "two-cosines": "two cosines",
    "mean-cosine": "mean-cosine (CTM)",
    "combined": "combined",
    "max-softmax": "max-softmax",
    "max-logit": "max-logit",
    "energy": "energy",
    "gen": "GEN",
    "knn": "KNN",
    "vim": "ViM",
    "relative-mahalanobis": "relative Mahalanobis",
    "mahalanobis++": "Mahalanobis++",
    "mahalanobis++ shrunk": "Mahalanobis++, shrunk covariance",
    "relative-mahalanobis++": "relative Mahalanobis++",
    "relative-mahalanobis++ shrunk": "relative Mahalanobis++, shrunk covariance",
    "react": "ReAct",
    "ash": "ASH",
    "scale": "SCALE",
    "fdbd": "fDBD",
    "nci": "NCI",
    "nnguide": "NNGuide",
    "neco": "NECO",
    "weiper-kld": "WeiPer+KLD",
    "core": "CORE",
    "ora": "ORA",
    "isomax": "IsoMax+",
    "generalized-odin": "DeConf-C without perturbation",
}
PLAIN = ("max-softmax", "energy", "knn", "mean-cosine", "fdbd", "mahalanobis++", "relative-mahalanobis++")
"""The scores of an ordinary classifier that short tables show."""
STARTS: tuple[Method, ...] = tuple(
    (head, score) for head in ("cosine", "cosine-paper") for score in ("two-cosines", "cosine")
)
"""Both starts of the scale with both scores of a cosine head."""
SHORT: tuple[Method, ...] = (
    *STARTS,
    *((head, score) for score in PLAIN for head in ("linear", "any")),
    *((head, "max-softmax") for head in ("logitnorm", "t2fnorm", "elogitnorm")),
    ("isomax", "isomax"),
    ("deconf-c", "generalized-odin"),
)
"""The methods that short tables show; those of the rivals with the score of their papers."""


def groups_of(id_name: str) -> dict[str, tuple[str, ...]]:
    """Return near, far, noise and all reported sets."""
    near, reported = NEAR[id_name], REPORTED[id_name]
    far = tuple(name for name in reported if name not in (*near, *NOISE))
    noise = tuple(name for name in reported if name in NOISE)
    found = {"near": near, "far": far, "noise": noise, "all": reported}
    return {title: sets for title, sets in found.items() if sets}


def mean_auroc(rows: Iterable[store.Row], sets: Sequence[str]) -> float | None:
    """Return the mean over sets of the mean over seeds, in percent; None where a set is missing."""
    values: dict[str, list[float]] = {name: [] for name in sets}
    for row in rows:
        if row["ood"] in values:
            values[row["ood"]].append(row["auroc"])
    return 100 * fmean(fmean(own) for own in values.values()) if all(values.values()) else None


def by_method(rows: Iterable[store.Row]) -> dict[Method, list[store.Row]]:
    """Return the rows of every head and score; scores that read frozen features alone have the head ``any``."""
    found: dict[Method, list[store.Row]] = {}
    for row in rows:
        if "detector" in row:
            found.setdefault((row["head"], row["detector"]), []).append(row)
    return found


def accuracy_of(rows: Iterable[store.Row], head: str) -> float | None:
    """Return the mean accuracy of a head over seeds, in percent."""
    values = [row["accuracy"] for row in rows if row["head"] == head != "any" and row.get("accuracy") is not None]
    return 100 * fmean(values) if values else None


def seeds_of(rows: Iterable[store.Row]) -> int:
    """Return how many seeds there are."""
    return len({row["seed"] for row in rows})


def by_seed(rows: Iterable[store.Row], sets: Sequence[str]) -> dict[int, float]:
    """Return the mean AUROC over sets by seed, in percent; seeds with all of the sets."""
    found: dict[int, list[store.Row]] = {}
    for row in rows:
        found.setdefault(row["seed"], []).append(row)
    means = {seed: mean_auroc(own, sets) for seed, own in sorted(found.items())}
    return {seed: mean for seed, mean in means.items() if mean is not None}


def gap_over_seeds(values: Mapping[int, float], reference: Mapping[int, float]) -> str:
    """Return the mean difference over the seeds that both have, with its interval; a dash where there are none.

    Example:
        >>> gap_over_seeds({0: 91.0, 1: 92.0, 2: 93.0}, {0: 90.0, 1: 90.0, 2: 90.0})
        '+2.0 [-0.5, +4.5]'
    """
    differences = [value - reference[seed] for seed, value in values.items() if seed in reference]
    return interval(differences) if differences else "-"


def ranking(
    rows: Sequence[store.Row],
    columns: Groups,
    *,
    name: str,
    title: str,
    only: Sequence[Method] = (),
    note: str = "",
    reference: Method | None = None,
) -> Table:
    """Return a table with a row for each head and score, the best of the last column first.

    Args:
        rows: of networks that were trained alike.
        columns: what is averaged.
        name: of the table.
        title: above it.
        only: the methods that are shown; all without.
        note: below it.
        reference: the method whose last column the others are compared with, seed by seed; None for no such columns. What
            reads frozen features alone, without a head, has no seeds and is compared with each of the reference.
    """
    lines: list[tuple[Method, list[float], int]] = []
    methods, last = by_method(rows), list(columns.values())[-1]
    for method, own in methods.items():
        means = [value for sets in columns.values() if (value := mean_auroc(own, sets)) is not None]
        if len(means) == len(columns) and (not only or method in only):
            seeds = seeds_of(row for row in rows if row["head"] == method[0])
            lines.append((method, means, seeds))
    lines.sort(key=lambda line: -line[1][-1])
    best = [max(means[place] for _, means, _ in lines) for place in range(len(columns))] if lines else []
    made: list[list[Entry]] = [
        [HEADS[head], SCORES[score], *_values(means, best), value_entry(accuracy_of(rows, head)), str(seeds)]
        for (head, score), means, seeds in lines
    ]
    beside: tuple[str, ...] = ("accuracy", "seeds")
    if reference is not None:
        beside = ("accuracy", "by seed", f"to {SCORES[reference[1]]}, 95 % interval over seeds")
        compared = by_seed(methods.get(reference, ()), last)
        for entries, (method, means, _) in zip(made, lines, strict=True):
            values = by_seed(methods[method], last)
            of_each = dict.fromkeys(compared, means[-1]) if method[0] == "any" else values
            gap = "-" if method == reference else gap_over_seeds(of_each, compared)
            entries[-1:] = [", ".join(f"{value:.1f}" for value in values.values()), gap]
    return Table(name=name, title=title, columns=("head", "score", *columns, *beside), rows=made, note=note, heads=2)


def value_entry(value: float | None, best: bool = False) -> Entry:
    """Return a number in percent as a table shows it; a dash where there is none."""
    return "-" if value is None else Value(value, f"{value:.1f}", best, percent=True)


def _values(values: Sequence[float], best: Sequence[float]) -> list[Entry]:
    return [value_entry(value, value == top) for value, top in zip(values, best, strict=True)]


def unseen_values(id_name: str) -> dict[Method, dict[int, float]]:
    """Return the AUROC in percent by method and choice of unseen classes, means over seeds; methods with every choice."""
    step = "scratch" if id_name == "cifar10" else "photos"
    rows = [row for row in store.read(step) if row["id"] == id_name and row["unseen"] in CHOICES[id_name]]
    found: dict[Method, dict[int, float]] = {}
    for method, every in by_method(rows).items():
        own = [row for row in every if row["ood"].startswith("unseen-")]
        by_choice: dict[int, list[float]] = {}
        for row in own:
            by_choice.setdefault(row["unseen"], []).append(100 * row["auroc"])
        if len(by_choice) == len(CHOICES[id_name]):
            found[method] = {choice: fmean(values) for choice, values in sorted(by_choice.items())}
    return found


def interval(differences: Sequence[float]) -> str:
    """Return a mean difference with its 95 % interval by Student's t; without it where there are less than three.

    Example:
        >>> interval([1.0, 2.0, 3.0])
        '+2.0 [-0.5, +4.5]'
        >>> interval([1.0, 2.0])
        '+1.5'
    """
    mean = fmean(differences)
    if len(differences) < 3 or not any(differences):
        return f"{mean:+.1f}"
    spread = float(np.std(differences, ddof=1)) / len(differences) ** 0.5
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * spread
    return f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"


def unseen(id_name: str) -> Table:
    """Return the table of unseen classes: means over choices and seeds, and the difference to the two cosines."""
    values = unseen_values(id_name)
    two = ("cosine-paper" if id_name == "cifar10" else "cosine", "two-cosines")
    reference = values.get(two, {})
    lines = sorted(values, key=lambda method: -fmean(values[method].values()))
    rows: list[list[Entry]] = []
    for method in lines:
        own = values[method]
        gap = interval([own[c] - reference[c] for c in own]) if reference and method != two else "-"
        rows.append([HEADS[method[0]], SCORES[method[1]], value_entry(fmean(own.values()), method == lines[0]), gap])
    count = len(CHOICES[id_name])
    return Table(
        name=f"unseen-{id_name}",
        title=f"Unseen classes of {id_name}, AUROC in percent, mean over {count} choices",
        columns=("head", "score", "AUROC", "to two cosines, 95 % interval over choices"),
        rows=rows,
        heads=2,
    )


def photographs(id_name: str, *, fine_tuned: bool = False) -> Table:
    """Return the table of other photographs beside fruit or clothing, frozen or with the last block fine-tuned."""
    columns = {**{name: (name,) for name in REPORTED[id_name]}, "mean": REPORTED[id_name]}
    step = "photo-finetune" if fine_tuned else "photos"
    network = "EfficientNet-lite0, last block fine-tuned" if fine_tuned else "frozen EfficientNet-lite0"
    rows = list(store.select(store.read(step), id=id_name, unseen=None))
    title = f"Other photographs beside {id_name}, {network}, AUROC in percent"
    return ranking(rows, columns, name=f"{step}-{id_name}", title=title, reference=("cosine", "two-cosines"))


def published(network: str) -> Table:
    """Return the table of a published network, kept as it is."""
    rows = list(store.select(store.read("published"), network=network))
    title = f"{network}, kept as published, AUROC in percent"
    return ranking(rows, groups_of("cifar10"), name=network, title=title)


NAMES = {"cifar10": "CIFAR-10", "fashion-mnist": "Fashion-MNIST"}
"""ID set -> what columns call it."""
MAIN = {"cifar10": "wrn-10-4-half", "cifar100": "wrn-10-4-half", "fashion-mnist": "wrn-10-2-half"}
"""ID set -> the network that is trained from scratch."""


def rows_from_scratch(id_name: str, network: str) -> list[store.Row]:
    """Return the rows of networks that were trained on all classes."""
    return list(store.select(store.read("scratch"), id=id_name, network=network, unseen=None, head=tuple(HEADS)))


def scratch(id_name: str, only: Sequence[Method] = (), *, network: str | None = None) -> Table:
    """Return the table of networks from scratch, of the ID set's main network or of another one."""
    network = network or MAIN[id_name]
    rows = rows_from_scratch(id_name, network)
    title = f"{id_name} from scratch, {network}, AUROC in percent"
    shown = {head for head, _ in only} or set(HEADS)
    note = precisions([row for row in rows if "precision" in row and row["head"] in shown])
    groups, two = groups_of(id_name), ("cosine-paper", "two-cosines")
    return ranking(rows, groups, name=f"scratch-{id_name}", title=title, only=only, note=note, reference=two)


OWN_SCORES: tuple[Method, ...] = (
    ("cosine-paper", "two-cosines"),
    ("cosine-paper", "cosine"),
    ("linear", "max-softmax"),
    ("logitnorm", "max-softmax"),
    ("elogitnorm", "max-softmax"),
    ("t2fnorm", "max-softmax"),
    ("deconf-c", "generalized-odin"),
    ("isomax", "isomax"),
)
"""Heads with the scores that they were made for."""


def own_and_best(_: str = "") -> Table:
    """Return the heads from scratch on both ID sets, with the score that each was made for and with the best of all."""
    every = list(store.select(store.read("scratch"), network=("wrn-10-4-half", "wrn-10-2-half"), unseen=None))
    lines: list[list[Entry]] = [[HEADS[head], SCORES[score]] for head, score in OWN_SCORES]
    for id_name in NAMES:
        means = {
            method: mean
            for method, rows in by_method(store.select(every, id=id_name)).items()
            if not method[1].endswith(" shrunk") and (mean := mean_auroc(rows, REPORTED[id_name])) is not None
        }
        top = max(mean for method, mean in means.items() if method in OWN_SCORES)
        for line, (head, score) in zip(lines, OWN_SCORES, strict=True):
            own = means.get((head, score))
            best = max(((mean, name) for (of, name), mean in means.items() if of == head), default=None)
            line += [value_entry(own, own == top), "-" if best is None else f"{best[0]:.1f} ({SCORES[best[1]]})"]
    return Table(
        name="own-and-best",
        title="Heads trained from scratch, mean AUROC (%) over eight OOD sets",
        columns=(
            *("head", "its score"),
            *(f"{title}: {which}" for title in NAMES.values() for which in ("its score", "best of all scores")),
        ),
        rows=lines,
        heads=2,
    )


ABLATION = {
    "linear": "linear",
    "linear scale predicted": "linear with a predicted scale",
    **{f"cosine scale {n} decay-head": f"cosine, scale fixed at {n}" for n in (16, 32, 64, 128)},
    "cosine-paper decay-head": "cosine, predicted scale, weight decay on its weight",
    "cosine-paper": "cosine, predicted scale",
    "cosine-paper hidden 128 decay-head": "the same with a hidden layer and weight decay",
    "cosine-paper hidden 128": "the same with a hidden layer",
}
"""Head of an ablation's row in the store -> what the row is."""


def ablation(id_name: str) -> Table:
    """Return the ablation's rows that have run: max-softmax for linear heads, else the cosine."""
    columns = groups_of(id_name)
    every = [row for row in store.read("scratch") if row["id"] == id_name and row["network"] == "wrn-10-4-half"]
    made: list[list[Entry]] = []
    for head, title in ABLATION.items():
        own = list(store.select(every, head=head, seed=0, unseen=None))
        score = "max-softmax" if head.startswith("linear") else "cosine"
        means = [mean_auroc(store.select(own, detector=score), sets) for sets in columns.values()]
        if own:
            made.append([title, *(value_entry(mean) for mean in means), value_entry(accuracy_of(own, head))])
    return Table(
        name=f"ablation-{id_name}",
        title=f"What the parts are for: {id_name} from scratch, one seed, AUROC in percent",
        columns=("head", *columns, "accuracy"),
        rows=made,
        note=precisions([row for row in every if row["head"] in ABLATION and "precision" in row]),
    )


def precisions(networks: Sequence[store.Row]) -> str:
    """Say which networks were trained in 32 bits and which in bf16, by the shorter of the two lists."""
    named: dict[str, list[str]] = {"32 bits": [], "bf16": []}
    for row in networks:
        head = HEADS.get(row["head"], row["head"])
        named["32 bits" if row["precision"] == "32-true" else "bf16"].append(f"{head} (seed {row['seed']})")
    few, most = sorted(named, key=lambda bits: len(named[bits]))
    if not named[few]:
        return f"All trained in {most}." if networks else ""
    return f"Trained in {few}: {', '.join(named[few])}; the others in {most}."


def finetuned(stage: str = "kept", depth: int = 20) -> Table:
    """Return the table of a fine-tuned ResNet whose last stage was kept, or started anew."""
    network = f"resnet{depth}-cifar fine-tuned" + (", last stage anew" if stage == "anew" else "")
    title = f"ResNet-{depth}, fine-tuned, last stage {stage}, AUROC in percent"
    rows = list(store.select(store.read("finetune"), network=network))
    two = ("cosine", "two-cosines")
    return ranking(rows, groups_of("cifar10"), name=f"fine-tuned-{depth}-{stage}", title=title, reference=two)


def corrupted(id_name: str) -> Table:
    """Return the shares of ID images that are flagged at 5 % after harmless corruptions, by calibration."""
    rows = [row for row in store.read("corruptions") if row["id"] == id_name and "flagged" in row]
    kinds = list(rows[0]["flagged"]) if rows else []
    groups: dict[tuple[str, ...], list[store.Row]] = {}
    for row in rows:
        groups.setdefault((row["head"], row["detector"], row["ood"]), []).append(row)
    made: list[list[Entry]] = []
    for (head, score, how), own in groups.items():
        flagged = [100 * fmean(row["flagged"][kind] for row in own) for kind in kinds]
        found, area = (100 * fmean(fmean(row[key].values()) for row in own) for key in ("found", "auroc"))
        shares = [*flagged, fmean(flagged[1:]), found, area]
        made.append([HEADS[head], SCORES[score], how, *map(value_entry, shares)])
    return Table(
        name=f"corruptions-{id_name}",
        title=f"Flagged at 5 %, in percent: {id_name} after harmless corruptions, and OOD images",
        columns=(
            *("head", "score", "calibrated on", *kinds, "mean of the corruptions"),
            *("OOD images (development sets)", "AUROC beside them"),
        ),
        rows=made,
        heads=3,
    )


CANDIDATES = {
    "axes": "cosine with the axes",
    "means": "cosine with the class means",
    "white": "cosine after whitening",
    "distance": "distance (Mahalanobis++, shrunk)",
}


def candidates(head: str) -> Table:
    """Return the scores that were tried, on development sets alone, for cosine heads or for linear ones."""
    rows = [row for row in store.read("candidates") if "detector" in row]
    values: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row["head"] in (("cosine", "cosine-paper") if head == "cosine" else ("linear", "keep")):
            place = "unseen classes" if row["unseen"] is not None else "packages" if row["ood"] == "packages" else ""
            column = row["network"].removesuffix("-cifar") if not place else f"{row['id']}: {place}"
            values.setdefault(row["detector"], {}).setdefault(column, []).append(100 * row["auroc"])
    columns = sorted({column for own in values.values() for column in own})
    means = {name: [fmean(own[column]) for column in columns] for name, own in values.items()}
    whole = {name: [*own, fmean(own)] for name, own in means.items()}
    best = [max(each) for each in zip(*whole.values(), strict=True)]
    made: list[list[Entry]] = [
        [_candidate(name), *_values(own, best)] for name, own in sorted(whole.items(), key=lambda item: -item[1][-1])
    ]
    return Table(
        name=f"candidates-{head}",
        title=f"Candidates on development sets, {head} heads, AUROC in percent",
        columns=("score", *columns, "mean"),
        rows=made,
    )


def _candidate(name: str) -> str:
    parts = name.removeprefix("sd ").split("+")
    if len(parts) == 1:
        return CANDIDATES[name]
    return " + ".join(parts) + (", each over its deviation" if name.startswith("sd ") else "")


Maker = Callable[[str], Table]
TABLES: dict[str, Maker] = {
    "published-all": published,
    "photographs-all": photographs,
    "photographs-fine-tuned": lambda id_name: photographs(id_name, fine_tuned=True),
    "unseen-all": unseen,
    "heads": lambda id_name: scratch(id_name, SHORT),
    "heads-all": scratch,
    "own-and-best": own_and_best,
    "starts": lambda id_name: scratch(id_name, STARTS),
    "heads-longer": lambda id_name: scratch(id_name, network="wrn-10-4-half, 30 epochs"),
    "heads-densenet": lambda id_name: scratch(id_name, network="densenet-22-12-half"),
    "ablation-whole": ablation,
    "fine-tuned": finetuned,
    "fine-tuned-56": lambda stage: finetuned(stage, 56),
    "corruptions": corrupted,
    "candidates": candidates,
}
"""Name of a table in the pages -> the function that makes it for an ID set or a network."""


def main() -> None:
    """Print tables, each given as NAME or NAME:ARGUMENT."""
    for each in sys.argv[1:]:
        name, _, argument = each.partition(":")
        print(markdown(TABLES[name](argument)))


if __name__ == "__main__":
    main()
