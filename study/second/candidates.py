"""Is there a better score without hyperparameters? Candidates, judged on the development sets alone.

    python -m study.second.candidates FEATURES

Heads on frozen photographs are those of study.second.photos; networks on CIFAR-10 those whose features are kept in
runs/study/features. The rows are in study/second/results/candidates; ``report`` in place of FEATURES prints them.

All are made of training features and the head's axes. A cosine is the largest over classes; a distance the smallest.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis import open_network
from offaxis.data import load_images
from offaxis.detectors.feature_mahalanobis import ledoit_wolf
from offaxis.heads import Head
from offaxis.metrics import auroc
from offaxis.networks.opened import OpenedNetwork
from offaxis.reports.tables import markdown
from study.second import store, tables
from study.second.features import WORK, head_of
from study.second.judge import Images
from study.second.photos import HEADS, chosen_rates, load, ood_images, trained_head
from study.second.published import NETWORKS as PUBLISHED
from study.second.scratch import NETWORKS, trainings
from study.second.sets import CLASSES, DEVELOPMENT, DEVELOPMENT_CHOICES, SEEDS, is_development, unseen_classes

STEP = "candidates"
Score = Callable[[Tensor], Tensor]


def parts_of(head: Head, training: Images) -> dict[str, Score]:
    """Return the scores that candidates are made of, larger = more in-distribution, fitted on training features."""
    assert training.labels is not None
    unit = F.normalize(training.features.double(), dim=1)
    labels, weight = training.labels, getattr(head, "weight", None)
    classes = int(labels.max()) + 1
    means = torch.stack([unit[labels == c].mean(0) for c in range(classes)])
    inside = unit - means[labels]
    covariance = ledoit_wolf(inside.T @ inside / len(inside), inside)
    values, vectors = torch.linalg.eigh(covariance)
    whiten = vectors / values.clamp_min(1e-12).sqrt()
    white_means, centre = means @ whiten, unit.mean(0) @ whiten

    def cosine_with(axes: Tensor) -> Score:
        own = F.normalize(axes.detach().double(), dim=1)
        return lambda f: F.linear(F.normalize(f.double(), dim=1), own).amax(1)

    def white(f: Tensor) -> Tensor:
        turned: Tensor = F.normalize(f.double(), dim=1) @ whiten
        return turned

    found: dict[str, Score] = {
        "means": cosine_with(means),
        "distance": lambda f: -torch.cdist(white(f), white_means).amin(1),
        "white": lambda f: F.linear(
            F.normalize(white(f) - centre, dim=1), F.normalize(white_means - centre, dim=1)
        ).amax(1),
    }
    if isinstance(weight, Tensor):
        found["axes"] = cosine_with(weight)
    return found


def candidates(parts: Mapping[str, Score], training: Tensor) -> dict[str, Score]:
    """Return every candidate by name; ``sd`` ones divide each part by its standard deviation over training images."""
    spread = {name: float(part(training).std()) for name, part in parts.items()}

    def total(*names: str, scaled: bool) -> Score:
        return lambda f: sum(
            (parts[n](f) / (spread[n] if scaled else 1.0) for n in names), torch.zeros(len(f)).double()
        )

    found = dict(parts)
    cosines = [name for name in ("axes", "means") if name in parts]
    if len(cosines) == 2:
        found["axes+means"] = total(*cosines, scaled=False)
        found["sd axes+means"] = total(*cosines, scaled=True)
    found["+".join((*cosines, "white"))] = total(*cosines, "white", scaled=False)
    found["sd " + "+".join((*cosines, "white"))] = total(*cosines, "white", scaled=True)
    found["sd " + "+".join((*cosines, "distance"))] = total(*cosines, "distance", scaled=True)
    found["sd " + "+".join((*cosines, "white", "distance"))] = total(*cosines, "white", "distance", scaled=True)
    return found


def judge(head: Head, training: Images, test: Images, ood: Mapping[str, Images], id_name: str) -> list[store.Row]:
    """Return a row for each candidate and development set."""
    assert all(is_development(id_name, name) for name in ood)
    rows: list[store.Row] = [{"accuracy": None}]
    for name, score in candidates(parts_of(head, training), training.features).items():
        known = -score(test.features).numpy()
        for other, images in ood.items():
            rows.append(
                {"detector": name, "ood": other, "auroc": round(auroc(known, -score(images.features).numpy()), 5)}
            )
    return rows


Case = tuple[dict[str, Any], Callable[[], list[store.Row]]]
"""What tells a network from others, and what computes its rows."""


def photo_cases(folder: Path) -> Iterator[Case]:
    """Yield the heads on photographs."""
    for id_name in ("fruit", "clothing"):
        for choice in (None, *DEVELOPMENT_CHOICES):
            for kind in HEADS[:2]:
                for seed in SEEDS[:2]:
                    key = {"id": id_name, "network": "efficientnet-lite0 frozen", "head": kind, "seed": seed}
                    rows = partial(_photo_rows, folder, id_name, choice, kind=kind, seed=seed)
                    yield {**key, "unseen": choice}, rows


def _photo_rows(folder: Path, id_name: str, choice: int | None, *, kind: str, seed: int) -> list[store.Row]:
    training, test = load(folder, f"{id_name}-train"), load(folder, f"{id_name}-test")
    ood = {name: ood_images(folder, name) for name in DEVELOPMENT[id_name]}
    classes = CLASSES[id_name]
    if choice is not None:
        unseen = unseen_classes(id_name, choice)
        known = [c for c in range(classes) if c not in unseen]
        classes, ood = len(known), {f"unseen-{choice}": test.of_classes(unseen)}
        training, test = training.of_classes(known), test.of_classes(known)
    rate = chosen_rates(folder)[f"{id_name} {kind}"]
    head = trained_head(kind, training, classes=classes, seed=seed, rate=rate)
    return judge(head, training, test, ood, id_name)


def cifar_cases(weights: Path | None) -> Iterator[Case]:
    """Yield the networks on CIFAR-10 whose features are kept."""
    if weights is not None:
        for name, file in PUBLISHED.items():
            key = {"id": "cifar10", "network": name, "head": "keep", "seed": 0, "unseen": None}
            yield key, partial(_cifar_rows, name, partial(open_network, name, weights=weights / file, head="keep"))
    for each in trainings():
        if each.unseen is None and each.run.id == "cifar10":
            yield each.key, partial(_cifar_rows, each.name, partial(open_network, NETWORKS / each.name))


def _cifar_rows(name: str, opened: Callable[[], OpenedNetwork]) -> list[store.Row]:
    folder = WORK / "features" / name
    if not (folder / "cifar10-train.npy").exists():
        return []

    def kept(name: str, labels: Tensor | None = None) -> Images:
        return Images(torch.from_numpy(np.load(folder / f"{name}.npy")), labels)

    ood = {name: kept(name) for name in DEVELOPMENT["cifar10"]}
    training = kept("cifar10-train", load_images("cifar10", "train").labels)
    test = kept("cifar10-test", load_images("cifar10", "test").labels)
    return judge(head_of(opened()), training, test, ood, "cifar10")


def report() -> None:
    """Print the mean AUROC of each candidate, by ID set and kind of OOD images."""
    for head in ("cosine", "linear"):
        print(markdown(tables.candidates(head)))


def main() -> None:
    """Judge what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", help="a folder, or the word report")
    parser.add_argument("--weights", type=Path, help="folder of the published weights")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.features == "report":
        report()
        return
    for key, rows in (*photo_cases(Path(options.features)), *cifar_cases(options.weights)):
        if tuple(key[k] for k in store.KEY) not in store.networks(STEP):
            found = rows()
            if found:
                store.replace(STEP, key, found)
                print(key, flush=True)


if __name__ == "__main__":
    main()
