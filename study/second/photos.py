"""Photographs, frozen: heads on the features of EfficientNet-lite0, beside other photographs and beside unseen classes.

    python -m study.second.photos FEATURES [--id fruit|clothing]

FEATURES is what ``benchmarks.photo_features`` wrote. Heads are trained as ``offaxis train --freeze`` does it; the learning rate
of each is chosen on a fifth of the training images that is held out, by accuracy alone. It resumes; the rows are in
study/second/results/photos.
"""

import argparse
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offaxis.heads import Head
from offaxis.training import train_head
from study.second import store
from study.second.judge import DETECTORS, HEAD_FREE, Images, accuracy, judge, record
from study.second.sets import CHOICES, CLASSES, DEVELOPMENT, DEVELOPMENT_CHOICES, REPORTED, SEEDS, unseen_classes

STEP = "photos"
HEADS = ("linear", "cosine", "logitnorm", "t2fnorm", "elogitnorm")
ANY = "any"
"""In place of a head: scores that read the frozen features alone, the same for every head and seed."""
RATES = (3e-3, 1e-2, 3e-2)
RECIPES = store.RESULTS / "photos-recipes.json"


@cache
def load(folder: Path, name: str) -> Images:
    """Read the features of a folder of photographs."""
    with np.load(folder / f"{name}.npz") as file:
        return Images(torch.from_numpy(file["features"]), torch.from_numpy(file["labels"]))


def ood_images(folder: Path, name: str) -> Images:
    """Return the features of an OOD set: the test images of those that have a training set."""
    return load(folder, f"{name}-test" if (folder / f"{name}-test.npz").exists() else name)


def trained_head(kind: Any, images: Images, *, classes: int, seed: int, rate: float) -> Head:
    """Train a head on the features of labelled images."""
    assert images.labels is not None
    return train_head(images.features, images.labels, head=kind, num_classes=classes, seed=seed, learning_rate=rate)


def chosen_rates(folder: Path) -> dict[str, float]:
    """Return the learning rate of each ID set and head; computed once, with the held-out accuracy of every rate."""
    if RECIPES.exists():
        known: dict[str, float] = json.loads(RECIPES.read_text(encoding="utf-8"))["chosen"]
        return known
    chosen, tried = {}, {}
    for id_name in CHOICES:
        if id_name not in ("fruit", "clothing"):
            continue
        images = load(folder, f"{id_name}-train")
        assert images.labels is not None
        order = torch.randperm(len(images.features), generator=torch.Generator().manual_seed(7))
        held, rest = order[: len(order) // 5], order[len(order) // 5 :]
        part, aside = (Images(images.features[i], images.labels[i]) for i in (rest, held))
        for kind in HEADS:
            found = {
                rate: accuracy(trained_head(kind, part, classes=CLASSES[id_name], seed=100, rate=rate), aside)
                for rate in RATES
            }
            name = f"{id_name} {kind}"
            chosen[name] = max(found, key=lambda rate: found[rate])
            tried[name] = {f"{rate:g}": round(value, 4) for rate, value in found.items()}
            print(name, chosen[name], tried[name], flush=True)
    store.RESULTS.mkdir(exist_ok=True)
    RECIPES.write_text(json.dumps({"chosen": chosen, "tried": tried}, indent=1) + "\n", encoding="utf-8")
    return chosen


def main() -> None:
    """Train and judge what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--id", choices=("fruit", "clothing"), help="one of them alone")
    options = parser.parse_args()
    folder = options.features
    torch.set_num_threads(1)
    rates = chosen_rates(folder)
    done = store.networks(STEP)
    everything = [
        (id_name, choice, kind, seed)
        for id_name in ("fruit", "clothing")
        if options.id in (None, id_name)
        for choice in (*DEVELOPMENT_CHOICES, *CHOICES[id_name], None)
        for kind in (ANY, *HEADS)
        for seed in (SEEDS if kind != ANY else (0,))
    ]
    everything.sort(key=lambda each: each[3])  # a whole seed first
    for id_name, choice, kind, seed in everything:
        network = {"id": id_name, "network": "efficientnet-lite0 frozen", "head": kind, "seed": seed, "unseen": choice}
        if tuple(network[k] for k in store.KEY) in done:
            continue
        training, test = load(folder, f"{id_name}-train"), load(folder, f"{id_name}-test")
        if choice is None:
            classes, beside = CLASSES[id_name], (*DEVELOPMENT[id_name], *REPORTED[id_name])
            ood = {name: ood_images(folder, name) for name in beside}
        else:
            unseen = unseen_classes(id_name, choice)
            known = [c for c in range(CLASSES[id_name]) if c not in unseen]
            classes, ood = len(known), {f"unseen-{choice}": test.of_classes(unseen)}
            training, test = training.of_classes(known), test.of_classes(known)
        made = "linear" if kind == ANY else kind  # the accuracy of the first row is that of a linear head
        head = trained_head(made, training, classes=classes, seed=seed, rate=rates[f"{id_name} {made}"])
        names = HEAD_FREE if kind == ANY else tuple(name for name in DETECTORS if name not in HEAD_FREE)
        record(STEP, network, judge(head, training, test, ood, names))
        print(network, flush=True)


if __name__ == "__main__":
    main()
