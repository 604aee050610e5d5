"""Photographs, frozen: heads on the features of EfficientNet-lite0, beside other photographs and beside unseen classes.

    python -m study.second.photos FEATURES

FEATURES is what ``benchmarks.photo_features`` wrote. The recipe of each head is chosen on a fifth of the training images that
is held out, by accuracy alone. It resumes; the rows are in study/second/results/photos.jsonl.
"""

import argparse
import json
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from offaxis.heads import Head, make_head
from study.second import store
from study.second.judge import DETECTORS, HEAD_FREE, Images, accuracy, judge
from study.second.sets import CHOICES, CLASSES, DEVELOPMENT, DEVELOPMENT_CHOICES, REPORTED, SEEDS, unseen_classes

STEP = "photos"
HEADS = ("linear", "cosine", "logitnorm", "t2fnorm", "elogitnorm")
ANY = "any"
"""In place of a head: scores that read the frozen features alone, the same for every head and seed."""
RATES, DECAYS = (1e-3, 3e-3, 1e-2), (1e-4, 1e-2)
EPOCHS, BATCH, LEAST_STEPS = 30, 256, 300
RECIPES = store.RESULTS / "photos-recipes.json"


@cache
def load(folder: Path, name: str) -> Images:
    """Read the features of a folder of photographs."""
    with np.load(folder / f"{name}.npz") as file:
        return Images(torch.from_numpy(file["features"]), torch.from_numpy(file["labels"]))


def ood_images(folder: Path, name: str) -> Images:
    """Return the features of an OOD set: the test images of those that have a training set."""
    return load(folder, f"{name}-test" if (folder / f"{name}-test.npz").exists() else name)


def train_head(kind: str, images: Images, *, classes: int, seed: int, rate: float, decay: float) -> Head:
    """Train a head with AdamW: the learning rate rises over a tenth of the steps and falls to nothing as a cosine."""
    assert images.labels is not None
    torch.manual_seed(seed)
    head = make_head(kind, images.features.shape[1], classes)
    count = len(images.features)
    per_epoch = max(1, count // BATCH)
    steps = max(EPOCHS * per_epoch, LEAST_STEPS)
    spared = [p for n, p in head.named_parameters() if n in head.undecayed]
    decayed = [p for n, p in head.named_parameters() if n not in head.undecayed]
    groups = [{"params": decayed, "weight_decay": decay}, {"params": spared, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW([g for g in groups if g["params"]], lr=rate)
    wave = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, steps, pct_start=0.1, cycle_momentum=False)
    generator, order = torch.Generator().manual_seed(seed), torch.empty(0, dtype=torch.long)
    head.train()
    for step in range(steps):
        place = step % per_epoch
        if place == 0:
            order = torch.randperm(count, generator=generator)
        rows = order[place * BATCH : (place + 1) * BATCH]
        optimiser.zero_grad()
        F.cross_entropy(head(images.features[rows]), images.labels[rows]).backward()
        optimiser.step()
        wave.step()
    return head.eval()


def chosen_recipes(folder: Path) -> dict[str, dict[str, float]]:
    """Return the rate and decay of each ID set and head, with the held-out accuracies of all; computed once."""
    if RECIPES.exists():
        known: dict[str, dict[str, float]] = json.loads(RECIPES.read_text(encoding="utf-8"))["chosen"]
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
            found = {}
            for rate, decay in product(RATES, DECAYS):
                head = train_head(kind, part, classes=CLASSES[id_name], seed=100, rate=rate, decay=decay)
                found[rate, decay] = accuracy(head, aside)
            best = max(found, key=lambda setting: found[setting])
            chosen[f"{id_name} {kind}"] = {"rate": best[0], "decay": best[1], "held_out": round(found[best], 4)}
            tried[f"{id_name} {kind}"] = {f"{r:g} {d:g}": round(v, 4) for (r, d), v in found.items()}
            print(id_name, kind, chosen[f"{id_name} {kind}"], flush=True)
    store.RESULTS.mkdir(exist_ok=True)
    RECIPES.write_text(json.dumps({"chosen": chosen, "tried": tried}, indent=1) + "\n", encoding="utf-8")
    return chosen


def main() -> None:
    """Train and judge what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    folder = parser.parse_args().features
    torch.set_num_threads(1)
    recipes = chosen_recipes(folder)
    done = store.networks(STEP)
    everything = [
        (id_name, choice, kind, seed)
        for id_name in ("fruit", "clothing")
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
        recipe = recipes[f"{id_name} {'linear' if kind == ANY else kind}"]
        made = "linear" if kind == ANY else kind  # the accuracy of the first row is that of a linear head
        head = train_head(made, training, classes=classes, seed=seed, rate=recipe["rate"], decay=recipe["decay"])
        names = HEAD_FREE if kind == ANY else tuple(name for name in DETECTORS if name not in HEAD_FREE)
        store.replace(STEP, network, judge(head, training, test, ood, names))
        print(network, flush=True)


if __name__ == "__main__":
    main()
