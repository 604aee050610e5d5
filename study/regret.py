"""Which score is least regretted: combinations of standardised readings of one forward pass.

    python -m study.regret collect --photos FEATURES --texts TEXTS --networks --weights WEIGHTS    # what is missing
    python -m study.regret search --photos FEATURES --texts TEXTS --networks      # by the largest regret over development cases
    python -m study.regret table                                                  # every score's regrets, from the rows

A case is an ID set with what stands beside it (study/cases.py). The regret of a score is how far its AUROC is below that of the
best single score there, whatever the head. Readings of every image are kept in runs/study/readings, rows in
study/second/results/regret, the table is study/report/regret.md. With --reported, collect takes the choices of unseen classes
that are only reported; what was chosen, the detector ``combined``, was committed before any of them was scored.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations, product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor
from torch.nn import functional as F

from offaxis.detectors.feature_mahalanobis import ledoit_wolf
from offaxis.files import replacing
from offaxis.heads import Head
from offaxis.metrics import auroc
from offaxis.reports.tables import Entry, Table, markdown
from study.cases import Case, is_development_place, network_cases, photo_cases, text_cases
from study.second import store
from study.second.features import WORK
from study.second.judge import DETECTORS, HEAD_FREE, Images, judge
from study.second.sets import CHOICES, DEVELOPMENT_CHOICES
from study.second.tables import SCORES

STEP = "regret"
READINGS = WORK / "readings"
BANK, REFERENCE, FOLDS, NEIGHBOURS = 50_000, 5_000, 5, 10
SEARCHED = ("axes", "means", "knn", "mahalanobis", "relative", "discriminant", "energy", "softmax")
CHOSEN = "combined"
FREE = tuple(name.replace(":shrinkage=True", " shrunk") for name in HEAD_FREE)
BESIDE = (
    *((head, CHOSEN) for head in ("cosine", "linear")),
    *(("cosine", score) for score in ("two-cosines", "cosine")),
    *(("linear", score) for score in ("mahalanobis++", "knn", "energy")),
)
"""What is shown place by place: a head and a score."""
WAYS = ("sum", "flat", "soft", "p", "normal")
Place = tuple[str, str, int | None, str]
"""ID set, features, choice of unseen classes, OOD set."""
Sets = dict[str, dict[str, NDArray[np.float64]]]
Read = Callable[[Tensor], dict[str, Tensor]]


def readings(head: Head, training: Images) -> Read:
    """Fit every reading on training features; the function gives (N,) of each, larger = more out-of-distribution."""
    labels, unit = training.labels, F.normalize(training.features.double(), dim=1)
    assert labels is not None
    classes = int(labels.max()) + 1
    means = torch.stack([unit[labels == c].mean(0) for c in range(classes)])
    inside = unit - means[labels]
    within = ledoit_wolf(inside.T @ inside / len(inside), inside)
    centre = unit.mean(0)
    values, vectors = torch.linalg.eigh(within)
    whiten = vectors / values.clamp_min(1e-12).sqrt()
    total_values, total_vectors = torch.linalg.eigh(within + (means - centre).T @ (means - centre) / classes)
    whiten_total = total_vectors / total_values.clamp_min(1e-12).sqrt()
    drawn = torch.randperm(len(unit), generator=torch.Generator().manual_seed(0))[:BANK]
    bank, weight = unit[drawn].float(), getattr(head, "weight", None)
    centres, white, white_centre = F.normalize(means, dim=1), means @ whiten, centre @ whiten

    @torch.no_grad()
    def read(features: Tensor) -> dict[str, Tensor]:
        f = F.normalize(features.double(), dim=1)
        near = torch.cat(
            [(p.float() @ bank.T).topk(min(NEIGHBOURS, len(bank)), 1).values[:, -1] for p in f.split(1000)]
        )
        distances = torch.cdist(f @ whiten, white).square()
        logits = head.outputs(features).detection_logits.double()
        found = {
            "means": -(f @ centres.T).amax(1),
            "knn": (2 - 2 * near.double()).clamp_min(0).sqrt(),
            "mahalanobis": distances.amin(1),
            "relative": distances.amin(1) - ((f - centre) @ whiten_total).square().sum(1),
            "discriminant": -(
                (f @ whiten - white_centre) @ (white - white_centre).T - (white - white_centre).square().sum(1) / 2
            ).logsumexp(1),
            "energy": -logits.logsumexp(1),
            "softmax": -logits.log_softmax(1).amax(1),
        }
        if isinstance(weight, Tensor):
            found["axes"] = -(f @ F.normalize(weight.detach().double(), dim=1).T).amax(1)
        return found

    return read


def crossed(head: Head, training: Images) -> dict[str, Tensor]:
    """Return readings of up to 5,000 training images, each by statistics of the other four folds."""
    assert training.labels is not None
    order = torch.randperm(len(training.features), generator=torch.Generator().manual_seed(1))
    parts = []
    for own in order.chunk(FOLDS):
        rest = order[~torch.isin(order, own)]
        fitted = readings(head, Images(training.features[rest], training.labels[rest]))
        parts.append(fitted(training.features[own[: REFERENCE // FOLDS]]))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def collect(case: Case, reported: bool) -> None:
    """Keep the AUROC of every single score that is missing, and the readings of a case that may guide decisions."""
    head, training, test, ood = case.make()
    key = {"id": case.id, "network": case.network, "head": case.head, "seed": 0, "unseen": case.unseen}
    rows = [row for row in store.read(STEP) if all(row[k] == v for k, v in key.items())]
    names = missing(case, rows, reported)
    new = [row for row in judge(head, training, test, ood, names).rows if "detector" in row]
    rows += [{"detector": r["detector"], "ood": r["ood"], "auroc": r["auroc"]} for r in new]
    store.replace(STEP, key, rows)
    if reported:
        return
    fitted = readings(head, training)
    drawn = torch.randperm(len(training.features), generator=torch.Generator().manual_seed(1))[:REFERENCE]
    sets = {
        "crossed": crossed(head, training),
        "trained": fitted(training.features[drawn]),
        "id": fitted(test.features),
    }
    sets |= {f"ood {name}": fitted(images.features) for name, images in ood.items()}
    READINGS.mkdir(parents=True, exist_ok=True)
    arrays = {f"{name}|{reading}": v.numpy() for name, found in sets.items() for reading, v in found.items()}
    with replacing(READINGS / f"{case.name}.npz") as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # names are free


def missing(case: Case, rows: list[store.Row], reported: bool) -> tuple[str, ...]:
    """Return the scores without a row; those of frozen features alone are the same for every head, and judged with one."""
    known = {row["detector"] for row in rows}
    shared = HEAD_FREE if case.head != "linear" and case.network.endswith("frozen") else ()
    wanted = [n for n in DETECTORS if reported or n != CHOSEN]
    return tuple(n for n in wanted if n.replace(":shrinkage=True", " shrunk") not in known and n not in shared)


def combined(found: Sets, chosen: tuple[str, ...], how: str) -> dict[str, NDArray[np.float64]]:
    """Combine readings of every set, each by those of training images.

    Args:
        found: set -> reading -> (N,).
        chosen: the readings.
        how: ``sum`` of standardised readings, the sum of their inverse hyperbolic sines (``flat``), their ``soft`` maximum, the
            sum of log p-values (``p``), as Fisher combines them, or of their normal scores (``normal``), as Stouffer does;
            beyond all training images both grow by a logarithm.
    """
    known = found["crossed"]
    result = {}
    for name in found:
        if name != "id" and not name.startswith("ood "):
            continue
        if how in ("p", "normal"):
            shares = [share_as_large(found[name][each], known[each]) for each in chosen]
            above = [(found[name][each] - known[each].max()).clip(0) / known[each].std().clip(1e-12) for each in chosen]
            parts = [
                (-np.log(share) if how == "p" else -ndtri(share)) + np.log1p(beyond)
                for share, beyond in zip(shares, above, strict=True)
            ]
        else:
            parts = [(found[name][each] - known[each].mean()) / known[each].std().clip(1e-12) for each in chosen]
        if how == "soft":
            result[name] = np.logaddexp.reduce(parts)
        else:
            result[name] = np.sum(np.arcsinh(parts) if how == "flat" else parts, 0)
    return result


def share_as_large(values: NDArray[np.float64], known: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the share (N,), above 0 and below 1, of known values that are as large as each value (N,)."""
    below = np.searchsorted(np.sort(known), values, "left")
    share: NDArray[np.float64] = (len(known) - below + 0.5) / (len(known) + 1)
    return share


def stored(case: Case) -> Sets:
    """Read the readings of a case: set -> reading -> (N,)."""
    found: Sets = defaultdict(dict)
    with np.load(READINGS / f"{case.name}.npz") as file:
        for key in file.files:
            name, reading = key.split("|")
            found[name][reading] = file[key]
    return found


def search(chosen: Iterable[Case]) -> None:
    """Print candidates by their largest regret over development cases, for each kind of head."""
    singles: dict[tuple[object, ...], float] = defaultdict(float)
    for row in store.read(STEP):
        place = (row["id"], row["network"], row["unseen"], row["ood"])
        singles[place] = max(singles[place], row["auroc"])
    regrets: dict[tuple[str, str], list[float]] = defaultdict(list)
    for case in chosen:
        found = stored(case)
        beside = [name for name in found if name.startswith("ood ") and case.is_development(name[4:])]
        for size in range(1, 6):
            for columns, how in product(combinations(SEARCHED, size), WAYS):
                able = tuple(each for each in columns if each in found["id"])
                if not able:
                    continue
                values = combined({name: found[name] for name in ("crossed", "id", *beside)}, able, how)
                for name in beside:
                    best = singles[case.id, case.network, case.unseen, name[4:]]
                    kind = "linear" if case.head == "keep" else case.head
                    regret = 100 * (best - auroc(values["id"], values[name]))
                    regrets[kind, f"{'+'.join(columns)} {how}"].append(regret)
    for kind in sorted({kind for kind, _ in regrets}):
        table = sorted((max(v), float(np.mean(v)), len(v), name) for (k, name), v in regrets.items() if k == kind)
        print(f"\n{kind} head: largest and mean regret, cases")
        for largest, mean, count, name in table[:25]:
            print(f"{largest:6.1f} {mean:6.1f} {count:3d}  {name}")


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yield the cases whose features are at hand."""
    kinds = ("linear", "cosine")
    choices = (*DEVELOPMENT_CHOICES, *(CHOICES["fruit"] if options.reported else ()))
    if options.photos:
        yield from photo_cases(options.photos, {"fruit": (None, *choices), "clothing": (None, *choices)}, kinds)
    if options.texts:
        yield from text_cases(options.texts, choices, kinds)
    if options.networks:
        yield from network_cases(options.weights)


def regrets(reported: bool) -> dict[tuple[str, str], dict[Place, float]]:
    """Return the regret in points of every head and score at every place: (ID set, network, unseen classes, OOD set)."""
    auroc_of: dict[Place, dict[tuple[str, str], float]] = defaultdict(dict)
    for row in store.read(STEP):
        place = (row["id"], row["network"], row["unseen"], row["ood"])
        if reported != is_development_place(row["id"], row["ood"]):
            auroc_of[place][row["head"], row["detector"]] = row["auroc"]
    found: dict[tuple[str, str], dict[Place, float]] = defaultdict(dict)
    for place, own in auroc_of.items():
        best = max(value for (_, score), value in own.items() if score != CHOSEN)
        for (head, score), value in own.items():
            shared = score in FREE and str(place[1]).endswith("frozen")
            for kind in ("linear", "cosine") if shared else ("linear" if head == "keep" else head,):
                found[kind, score][place] = 100 * (best - value)
    return found


def regret_table(part: str) -> Table:
    """Return the table of every score's regrets over ``reported`` or ``development`` places, the smallest largest first."""
    found = {k: v for k, v in regrets(part == "reported").items() if k[0] in ("linear", "cosine")}
    most = {kind: max(len(v) for (k, _), v in found.items() if k == kind) for kind in ("linear", "cosine")}
    lines: list[tuple[float, list[Entry]]] = []
    for (kind, score), own in found.items():
        if len(own) < most[kind]:
            continue
        values = np.array(list(own.values()))
        worst = max(own, key=lambda place: own[place])
        low, high = interval(own)
        where = f"{worst[0]}, {worst[1]}: {worst[3]}"
        mean = f"{values.mean():.1f} [{low:.1f}, {high:.1f}]"
        share = f"{100 * (values <= 2).mean():.0f} %"
        row: list[Entry] = [kind, SCORES.get(score, score), f"{values.max():.1f}", mean, share, where]
        lines.append((float(values.max()), row))
    columns = (
        "head",
        "score",
        "largest regret",
        "mean, 95 % interval over cases",
        "places with at most 2",
        "largest at",
    )
    counts = ", ".join(f"{kind} {count}" for kind, count in most.items())
    title = f"Regret of every score in points of AUROC, {part} places ({counts})"
    return Table(
        name=f"regrets-{part}",
        title=title,
        columns=columns,
        rows=[row for _, row in sorted(lines, key=lambda line: line[0])],
        heads=2,
    )


def short_table(part: str) -> Table:
    """Return the mean and the largest regret of a few scores with either head, the least mean first."""
    found = regrets(part == "reported")
    names = [
        CHOSEN,
        "mahalanobis++ shrunk",
        "mean-cosine",
        "vim",
        "two-cosines",
        "cosine",
        "energy",
        "knn",
        "fdbd",
        "max-softmax",
    ]

    def mean(score: str) -> float:
        return float(np.mean([v for head in ("linear", "cosine") for v in found[head, score].values()]))

    rows: list[list[Entry]] = []
    for score in sorted(names, key=mean):
        row: list[Entry] = [SCORES[score]]
        for head in ("linear", "cosine"):
            own = found[head, score]
            low, high = interval(own) if own else (0.0, 0.0)
            row += (
                [f"{np.mean(list(own.values())):.1f} [{low:.1f}, {high:.1f}]", f"{max(own.values()):.0f}"]
                if own
                else ["-", "-"]
            )
        rows.append(row)
    columns = ("score", "linear head: mean, 95 % interval over cases", "largest", "cosine head: mean", "largest")
    return Table(
        name=f"regrets-short-{part}", title=f"Regret in points of AUROC, {part} places", columns=columns, rows=rows
    )


def interval(own: Mapping[Place, float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean over places where whole cases are drawn anew: places of a case are alike."""
    by_case: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for place, value in own.items():
        by_case[place[:3]].append(value)
    sums, counts = (np.array([f(values) for values in by_case.values()]) for f in (sum, len))
    drawn = np.random.default_rng(0).integers(len(sums), size=(2000, len(sums)))
    low, high = np.percentile(sums[drawn].sum(1) / counts[drawn].sum(1), (2.5, 97.5))
    return float(low), float(high)


def place_table(part: str) -> Table:
    """Return the regrets of the combined score and of some others, place by place."""
    found = regrets(part == "reported")
    places = sorted({place for each in BESIDE for place in found[each]}, key=str)
    rows: list[list[Entry]] = []
    for place in places:
        id_name, network, unseen, ood = place
        choice = "" if unseen is None or ood.startswith("unseen") else f", choice {unseen}"
        shown = [f"{found[each][place]:.1f}" if place in found[each] else "-" for each in BESIDE]
        rows.append([f"{id_name}, {network}{choice}", ood, *shown])
    columns = ("features", "OOD images", *(f"{SCORES.get(score, score)}, {head}" for head, score in BESIDE))
    return Table(
        name=f"regrets-places-{part}", title=f"Regret at each place, {part}", columns=columns, rows=rows, heads=2
    )


def gain_table(part: str) -> Table:
    """Return how far the combined score is ahead of what a network is scored with by default, by set of features."""
    found = regrets(part == "reported")
    gains: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for head in ("cosine", "linear"):
        for place, own in found[head, CHOSEN].items():
            id_name, network, _, ood = place
            frozen = network.endswith("frozen")
            default = "mahalanobis++" if head == "linear" else "two-cosines" if frozen else "cosine"
            beside = "unseen classes" if ood.startswith("unseen") else "other sets"
            gains[f"{id_name}, {network}", head, default, beside].append(found[head, default][place] - own)
    rows: list[list[Entry]] = [
        [
            features,
            head,
            SCORES[default],
            beside,
            str(len(own)),
            f"{np.mean(own):+.1f}",
            f"{min(own):+.1f}",
            f"{max(own):+.1f}",
        ]
        for (features, head, default, beside), own in gains.items()
    ]
    columns = ("features", "head", "default", "OOD images", "places", "mean gain in points", "least", "most")
    return Table(
        name=f"regrets-gain-{part}", title=f"Combined against the default, {part}", columns=columns, rows=rows, heads=4
    )


TABLES = {
    "regrets": regret_table,
    "regrets-short": short_table,
    "regrets-gain": gain_table,
    "regrets-places": place_table,
}


def main() -> None:
    """Collect what is missing, search, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("collect", "search", "table"))
    for name in ("photos", "texts", "weights"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--networks", action="store_true")
    parser.add_argument(
        "--reported", action="store_true", help="also the choices of unseen classes that are only reported"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.command == "table":
        for make, part in product(TABLES.values(), ("reported", "development")):
            print(markdown(make(part)))
    elif options.command == "search":
        search(case for case in cases(options) if (READINGS / f"{case.name}.npz").exists())
    else:
        for case in cases(options):
            key = (case.id, case.network, case.head, 0, case.unseen)
            rows = [row for row in store.read(STEP) if tuple(row[k] for k in store.KEY) == key]
            if CHOSEN not in {row["detector"] for row in rows} if options.reported else not rows:
                print(case.name, flush=True)
                collect(case, options.reported)


if __name__ == "__main__":
    main()
