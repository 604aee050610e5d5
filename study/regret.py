"""Which score is least regretted: combinations of standardised readings of one forward pass.

    python -m study.regret collect --photos FEATURES --texts TEXTS --networks --weights WEIGHTS    # what is missing
    python -m study.regret search --photos FEATURES --texts TEXTS --networks      # by the largest regret over development cases

A case is an ID set with what stands beside it (study/cases.py). The regret of a score is how far its AUROC is below that of the
best single score there, whatever the head. Readings of every image are kept in runs/study/readings, rows in
study/second/results/regret.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
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
from study.cases import Case, network_cases, photo_cases, text_cases
from study.second import store
from study.second.features import WORK
from study.second.judge import DETECTORS, Images, judge
from study.second.sets import DEVELOPMENT_CHOICES

STEP = "regret"
READINGS = WORK / "readings"
BANK, REFERENCE, FOLDS, NEIGHBOURS = 50_000, 5_000, 5, (5, 10, 20, 50)
SEARCHED = ("axes", "means", "knn10", "mahalanobis", "relative", "discriminant", "energy", "softmax", "logit")
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
        most = min(max(NEIGHBOURS), len(bank))
        near = torch.cat([(p.float() @ bank.T).topk(most, 1).values.double() for p in f.split(1000)])
        distances = torch.cdist(f @ whiten, white).square()
        logits = head.outputs(features).detection_logits.double()
        found = {
            "means": -(f @ centres.T).amax(1),
            "mahalanobis": distances.amin(1),
            "relative": distances.amin(1) - ((f - centre) @ whiten_total).square().sum(1),
            "discriminant": -(
                (f @ whiten - white_centre) @ (white - white_centre).T - (white - white_centre).square().sum(1) / 2
            ).logsumexp(1),
            "energy": -logits.logsumexp(1),
            "logit": -logits.amax(1),
            "softmax": -logits.log_softmax(1).amax(1),
        }
        for k in NEIGHBOURS:
            found[f"knn{k}"] = (2 - 2 * near[:, min(k, most) - 1]).clamp_min(0).sqrt()
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


def collect(case: Case) -> None:
    """Keep the readings of a case and the AUROC of every single score."""
    material = case.make()
    head, training, test, ood = material
    fitted = readings(head, training)
    drawn = torch.randperm(len(training.features), generator=torch.Generator().manual_seed(1))[:REFERENCE]
    sets = {
        "crossed": crossed(head, training),
        "trained": fitted(training.features[drawn]),
        "id": fitted(test.features),
    }
    sets |= {f"ood {name}": fitted(images.features) for name, images in ood.items()}
    rows = [row for row in judge(head, training, test, ood, DETECTORS).rows if "detector" in row]
    singles = [{"detector": r["detector"], "ood": r["ood"], "auroc": r["auroc"]} for r in rows]
    READINGS.mkdir(parents=True, exist_ok=True)
    key = {"id": case.id, "network": case.network, "head": case.head, "seed": 0, "unseen": case.unseen}
    store.replace(STEP, key, singles)
    arrays = {f"{name}|{reading}": v.numpy() for name, found in sets.items() for reading, v in found.items()}
    with replacing(READINGS / f"{case.name}.npz") as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # names are free


def combined(found: Sets, chosen: tuple[str, ...], how: str) -> dict[str, NDArray[np.float64]]:
    """Combine readings of every set, each by those of training images.

    Args:
        found: set -> reading -> (N,).
        chosen: the readings.
        how: ``sum`` of standardised readings, their ``soft`` maximum, the sum of log p-values (``p``), or of their normal
            scores (``normal``), as Stouffer combines p-values.
    """
    known = found["crossed"]
    result = {}
    for name in found:
        if name != "id" and not name.startswith("ood "):
            continue
        if how in ("p", "normal"):
            shares = [share_as_large(found[name][each], known[each]) for each in chosen]
            parts = [-np.log(share) if how == "p" else -ndtri(share) for share in shares]
        else:
            parts = [(found[name][each] - known[each].mean()) / known[each].std().clip(1e-12) for each in chosen]
        result[name] = np.logaddexp.reduce(parts) if how == "soft" else np.sum(parts, 0)
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
        able = [name for name in SEARCHED if name in found["id"]]
        for size in range(1, 6):
            for columns, how in product(combinations(able, size), ("sum", "soft", "p", "normal")):
                values = combined({name: found[name] for name in ("crossed", "id", *beside)}, columns, how)
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
    if options.photos:
        choices = (None, *DEVELOPMENT_CHOICES, *(range(5) if options.reported else ()))
        yield from photo_cases(options.photos, {"fruit": choices, "clothing": choices}, kinds)
    if options.texts:
        yield from text_cases(options.texts, (*DEVELOPMENT_CHOICES, *(range(5) if options.reported else ())), kinds)
    if options.networks:
        yield from network_cases(options.weights)


def main() -> None:
    """Collect what is missing, or search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("collect", "search"))
    for name in ("photos", "texts", "weights"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--networks", action="store_true")
    parser.add_argument(
        "--reported", action="store_true", help="also the choices of unseen classes that are only reported"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.command == "collect":
        for case in cases(options):
            if not (READINGS / f"{case.name}.npz").exists():
                print(case.name, flush=True)
                collect(case)
    else:
        search(case for case in cases(options) if (READINGS / f"{case.name}.npz").exists())


if __name__ == "__main__":
    main()
