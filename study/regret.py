"""Which score is least regretted: sums of standardised readings of one forward pass, judged on development cases alone.

    python -m study.regret features FEATURES      # frozen photographs
    python -m study.regret networks [--weights W] # networks on CIFAR-10: those of study.field, and published ones
    python -m study.regret report                 # the largest and the mean regret of each candidate

A case is an ID set with what stands beside it. The regret of a score is how far its AUROC is below that of the best single
score there, whatever the head. Rows are in study/second/results/regret.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis import open_network
from offaxis.detectors.feature_mahalanobis import ledoit_wolf
from offaxis.heads import Head
from offaxis.metrics import auroc
from study.second import store
from study.second.features import cifar_features, head_of
from study.second.judge import DETECTORS, Images, judge
from study.second.photos import chosen_rates, load, ood_images, trained_head
from study.second.sets import CLASSES, DEVELOPMENT, DEVELOPMENT_CHOICES, unseen_classes

STEP = "regret"
NAMES = ("axes", "means", "knn", "mahalanobis", "energy")
BANK, REFERENCE, FOLDS = 50_000, 5_000, 5
Readings = Callable[[Tensor], Tensor]


def readings(head: Head, training: Images, neighbours: int = 10) -> Readings:
    """Fit the five readings on training features; the function gives (N, 5), larger = more out-of-distribution."""
    labels, unit = training.labels, F.normalize(training.features.double(), dim=1)
    assert labels is not None
    classes = int(labels.max()) + 1
    means = torch.stack([unit[labels == c].mean(0) for c in range(classes)])
    inside = unit - means[labels]
    values, vectors = torch.linalg.eigh(ledoit_wolf(inside.T @ inside / len(inside), inside))
    whiten = vectors / values.clamp_min(1e-12).sqrt()
    drawn = torch.randperm(len(unit), generator=torch.Generator().manual_seed(0))[:BANK]
    bank, weight = unit[drawn].float(), head.weight
    assert isinstance(weight, Tensor)
    axes, centres, white = F.normalize(weight.detach().double(), dim=1), F.normalize(means, dim=1), means @ whiten

    @torch.no_grad()
    def read(features: Tensor) -> Tensor:
        f = F.normalize(features.double(), dim=1)
        near = torch.cat(
            [(p.float() @ bank.T).topk(min(neighbours, len(bank)), 1).values[:, -1] for p in f.split(1000)]
        )
        logits = head.outputs(features).detection_logits.double()
        return torch.stack(
            [
                -(f @ axes.T).amax(1),
                -(f @ centres.T).amax(1),
                (2 - 2 * near.double()).clamp_min(0).sqrt(),
                torch.cdist(f @ whiten, white).amin(1).square(),
                -logits.logsumexp(1),
            ],
            1,
        )

    return read


def reference(head: Head, training: Images, *, folds: int) -> Tensor:
    """Return readings (n, 5) of training images, each by statistics of the other folds; of all images with ``folds`` 1."""
    assert training.labels is not None
    order = torch.randperm(len(training.features), generator=torch.Generator().manual_seed(1))
    if folds == 1:
        return readings(head, training)(training.features[order[:REFERENCE]])
    parts = []
    for own in order.chunk(folds):
        rest = order[~torch.isin(order, own)]
        fitted = readings(head, Images(training.features[rest], training.labels[rest]))
        parts.append(fitted(training.features[own[: REFERENCE // folds]]))
    return torch.cat(parts)


def combine(values: Tensor, known: Tensor, how: str) -> Tensor:
    """Combine readings (N, r) by those of ID images (n, r): ``sum``, ``soft`` maximum, or mean log ``p``."""
    if how == "p":
        ranks = torch.stack(
            [
                torch.searchsorted(a.contiguous(), b.contiguous())
                for a, b in zip(known.sort(0).values.T, values.T, strict=True)
            ],
            1,
        )
        return -torch.log((1 + len(known) - ranks) / (len(known) + 1)).mean(1)
    standard = (values - known.mean(0)) / known.std(0).clamp_min(1e-12)
    return standard.sum(1) if how == "sum" else standard.logsumexp(1)


def rows_of(head: Head, training: Images, test: Images, ood: Mapping[str, Images]) -> list[store.Row]:
    """Return the AUROC of every single score and of every candidate beside each OOD set."""
    fitted = readings(head, training)
    at = {"id": fitted(test.features), **{name: fitted(images.features) for name, images in ood.items()}}
    half = torch.randperm(len(test.features), generator=torch.Generator().manual_seed(2))[: len(test.features) // 2]
    references = {
        "crossed": reference(head, training, folds=FOLDS),
        "trained": reference(head, training, folds=1),
        "held": at["id"][half],
    }
    rows = [row for row in judge(head, training, test, ood, DETECTORS).rows if "detector" in row]
    singles: list[store.Row] = [
        {"detector": str(r["detector"]), "ood": r["ood"], "auroc": r["auroc"], "kind": "single"} for r in rows
    ]
    for size in (1, 2, 3, 4, 5):
        for chosen in combinations(range(5), size):
            columns = list(chosen)
            for by, known in references.items():
                for how in ("sum", "soft", "p"):
                    if size == 1 and (how, by) != ("sum", "crossed"):
                        continue
                    own = {name: combine(v[:, columns], known[:, columns], how).numpy() for name, v in at.items()}
                    label = f"{'+'.join(NAMES[c] for c in columns)} {how} {by}"
                    singles += [
                        {"detector": label, "ood": n, "auroc": round(auroc(own["id"], own[n]), 5), "kind": "candidate"}
                        for n in ood
                    ]
    return singles


def photo_cases(folder: Path) -> Iterator[tuple[dict[str, object], Callable[[], list[store.Row]]]]:
    """Yield heads on frozen photographs: packaged goods beside them, and unseen classes."""
    for id_name in ("fruit", "clothing"):
        for choice in (None, *DEVELOPMENT_CHOICES):
            for kind in ("linear", "cosine"):
                key = {"id": id_name, "network": "efficientnet-lite0 frozen", "head": kind, "seed": 0, "unseen": choice}
                yield key, lambda i=id_name, c=choice, k=kind: _photo_rows(folder, i, c, k)  # type: ignore[misc]


def _photo_rows(folder: Path, id_name: str, choice: int | None, kind: str) -> list[store.Row]:
    training, test = load(folder, f"{id_name}-train"), load(folder, f"{id_name}-test")
    ood = {name: ood_images(folder, name) for name in DEVELOPMENT[id_name]}
    classes = CLASSES[id_name]
    if choice is not None:
        unseen = unseen_classes(id_name, choice)
        known = [c for c in range(classes) if c not in unseen]
        classes, ood = len(known), {f"unseen-{choice}": test.of_classes(unseen)}
        training, test = training.of_classes(known), test.of_classes(known)
    rate = chosen_rates(folder)[f"{id_name} {kind}"]
    return rows_of(trained_head(kind, training, classes=classes, seed=0, rate=rate), training, test, ood)


def network_cases(weights: Path | None) -> Iterator[tuple[dict[str, object], Callable[[], list[store.Row]]]]:
    """Yield networks on CIFAR-10 beside the development sets."""
    from study.field import trainings
    from study.second.published import NETWORKS as PUBLISHED
    from study.second.scratch import NETWORKS

    def rows(name: str, **source: object) -> list[store.Row]:
        opened = open_network(**source)  # type: ignore[arg-type]
        training, test, ood = cifar_features(opened, name)
        return rows_of(head_of(opened), training, test, {n: ood[n] for n in DEVELOPMENT["cifar10"]})

    if weights is not None:
        for name, file in PUBLISHED.items():
            key = {"id": "cifar10", "network": name, "head": "keep", "seed": 0, "unseen": None}
            yield key, lambda n=name, f=file: rows(n, source=n, weights=weights / f, head="keep")  # type: ignore[misc]
    for each in trainings():
        if each.trained and each.run.id == "cifar10" and each.run.head in ("linear", "cosine"):
            yield each.key, lambda n=each.name: rows(n, source=NETWORKS / n)  # type: ignore[misc]


def report() -> None:
    """Print the largest and the mean regret of candidates and single scores over all cases."""
    cells: dict[tuple[object, ...], dict[tuple[str, str], float]] = defaultdict(dict)
    for row in store.read(STEP):
        case = (row["id"], row["network"], row["unseen"], row["ood"])
        if "auroc" in row:
            cells[case][str(row["head"]), str(row["detector"])] = row["auroc"]
    singles = {str(r["detector"]) for r in store.read(STEP) if r.get("kind") == "single"}
    best = {case: max(v for (_, d), v in own.items() if d in singles) for case, own in cells.items()}
    for head in ("linear", "cosine"):
        found = []
        for name in {d for own in cells.values() for _, d in own}:
            regrets = [
                best[case] - max(v for (h, d), v in own.items() if d == name and h in (head, "keep"))
                for case, own in cells.items()
                if any(d == name and h in (head, "keep") for h, d in own)
            ]
            if regrets:
                found.append((100 * max(regrets), 100 * sum(regrets) / len(regrets), len(regrets), name))
        print(f"\n{head} head")
        for largest, mean, count, name in sorted(found)[:25]:
            print(f"{largest:6.1f} {mean:6.1f} {count:3d}  {name}")
        for largest, mean, count, name in sorted(f for f in found if f[3] in singles):
            print(f"{largest:6.1f} {mean:6.1f} {count:3d}  {name}  (single)")


def main() -> None:
    """Judge what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("features", "networks", "report"))
    parser.add_argument("features", type=Path, nargs="?")
    parser.add_argument("--weights", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.command == "report":
        report()
        return
    cases = photo_cases(options.features) if options.command == "features" else network_cases(options.weights)
    done = {tuple(row[k] for k in store.KEY) for row in store.read(STEP)}
    for key, rows in cases:
        if tuple(key[k] for k in store.KEY) not in done:
            store.replace(STEP, key, rows())
            print(key, flush=True)


if __name__ == "__main__":
    main()
