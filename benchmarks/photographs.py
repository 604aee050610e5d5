"""Frozen EfficientNet-lite0 features of photographs: heads, detectors, false alarms, and how many images are enough.

    python -m benchmarks.photo_features PHOTOS FEATURES       # once: features of every folder
    python -m benchmarks.photographs FEATURES --json photographs.json
    python -m benchmarks.photographs FEATURES --axes          # where the axes of a cosine head on fruit end, and what it costs

Fruit and clothing are ID in turn, the other folders OOD. Each head is trained by ``offaxis.training.train_head``, as
``offaxis train --freeze`` does, and compared with logistic regression on the same features. A random half of the ID test images
calibrates (alpha 5 %), the other half gives accuracy and the share that is flagged.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis import Classifier
from offaxis.calibration.conformal import threshold
from offaxis.detectors import make_detector
from offaxis.heads import CosineHead, Head
from offaxis.metrics import auroc
from offaxis.training import train_head

OOD = {
    "fruit": ("vegetables", "packages", "clothing-test"),
    "clothing": ("fruit-test", "vegetables", "packages"),
}
DETECTORS = ("two-cosines", "cosine", "knn", "fdbd", "energy", "max-softmax")
ENOUGH = (5, 10, 20, 50)


def load(folder: Path, name: str) -> tuple[Tensor, Tensor]:
    """Load features (N, 1280) and labels (N,)."""
    data = np.load(folder / f"{name}.npz")
    return torch.from_numpy(data["features"]), torch.from_numpy(data["labels"]).long()


@torch.no_grad()
def scores(head: Head, name: str, train: tuple[Tensor, Tensor], sets: list[Tensor]) -> list[Any]:
    """Fit a detector on training features and score each set."""
    network = Classifier(nn.Identity(), head)
    detector = make_detector(name, network, None)
    if detector.needs_fit:
        detector.begin(network)
        detector.update(head.outputs(train[0]), train[1])
        detector.finish()
    return [detector.score(head.outputs(rows)).double().numpy() for rows in sets]


def halves(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Split the test images at random: one half calibrates, the other reports."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[: count // 2], order[count // 2 :]


def few(train: tuple[Tensor, Tensor], per_class: int, seed: int) -> tuple[Tensor, Tensor]:
    """Take at most ``per_class`` images of each class at random."""
    order = torch.randperm(len(train[0]), generator=torch.Generator().manual_seed(seed))
    labels = train[1][order]
    chosen = torch.cat([order[labels == c][:per_class] for c in labels.unique().tolist()])
    return train[0][chosen], train[1][chosen]


def judge(head: Head, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], ood: dict[str, Tensor], seed: int,
          detectors: tuple[str, ...]) -> dict[str, Any]:  # fmt: skip
    """Measure accuracy, AUROC by set and detector, and the shares flagged at 5 %."""
    first, rest = halves(len(test[0]), seed)
    row: dict[str, Any] = {
        "accuracy": float((head(test[0]).argmax(1) == test[1]).float().mean()),
        "auroc": {},
        "flagged": {},
    }
    for name in detectors:
        known, *unknown = scores(head, name, train, [test[0], *ood.values()])
        limit = threshold(np.sort(known[first]), 0.05)
        row["auroc"][name] = {set_name: auroc(known, s) for set_name, s in zip(ood, unknown, strict=True)}
        row["flagged"][name] = {
            "ID": float((known[rest] > limit).mean()),
            **{set_name: float((s > limit).mean()) for set_name, s in zip(ood, unknown, strict=True)},
        }
    return row


def compare_axes(folder: Path) -> None:
    """Print accuracy and AUROC of vegetables for cosine heads on fruit whose axes start, and end, in different places."""
    train, test = load(folder, "fruit-train"), load(folder, "fruit-test")
    ood = load(folder, "vegetables")[0]
    centre, deviation = train[0].mean(0), train[0].std(0) + 1e-6

    def at_means(in_features: int, num_classes: int) -> Head:
        head = CosineHead(in_features, num_classes)
        unit = F.normalize(train[0], dim=1)
        means = torch.stack([unit[train[1] == label].mean(0) for label in range(num_classes)])
        with torch.no_grad():
            head.weight.copy_(F.normalize(means, dim=1) * head.weight.norm(dim=1, keepdim=True))
        return head

    kinds: dict[str, tuple[Any, int | None, float, Any]] = {
        "axes at the class means, not trained": (at_means, 1, 1e-9, None),
        "the same, 52 steps": (at_means, 13, 1e-2, None),
        "the same, 1,000 steps": (at_means, None, 1e-2, None),
        "random axes, 52 steps": ("cosine", 13, 1e-2, None),
        "200 steps": ("cosine", 50, 1e-2, None),
        "1,000 steps: the recipe": ("cosine", None, 1e-2, None),
        "1,000 steps, the paper's start": (partial(CosineHead, start="paper"), None, 1e-2, None),
        "scale 16": (partial(CosineHead, scale=16.0), None, 1e-2, None),
        "features centred": ("cosine", None, 1e-2, lambda rows: rows - centre),
        "features standardised": ("cosine", None, 1e-2, lambda rows: (rows - centre) / deviation),
    }
    for title, (kind, epochs, rate, change) in kinds.items():
        fitted, tested, others = ((change or nn.Identity())(rows) for rows in (train[0], test[0], ood))
        head = train_head(fitted, train[1], head=kind, epochs=epochs, learning_rate=rate)
        found = [
            scores(head, name, (fitted, train[1]), [tested, others]) for name in ("cosine", "two-cosines", "knn:k=10")
        ]
        hits = (head(tested).argmax(1) == test[1]).float().mean()
        areas = ", ".join(f"{100 * auroc(*pair):.1f}" for pair in found)
        print(f"{title}: accuracy {100 * hits:.1f}; cosine, two-cosines, knn of k = 10: {areas}", flush=True)


def main() -> None:
    from sklearn.linear_model import LogisticRegression

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--axes", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.axes:
        compare_axes(options.features)
        return
    results: list[dict[str, Any]] = []
    for id_name, others in OOD.items():
        train, test = load(options.features, f"{id_name}-train"), load(options.features, f"{id_name}-test")
        ood = {name.removesuffix("-test"): load(options.features, name)[0] for name in others}
        regression = LogisticRegression(max_iter=3000).fit(train[0].numpy(), train[1].numpy())
        results.append({"id": id_name, "head": "logistic regression",
                        "accuracy": regression.score(test[0].numpy(), test[1].numpy())})  # fmt: skip
        print(results[-1], flush=True)
        for kind in ("cosine", "linear"):
            names = DETECTORS if kind == "cosine" else ("knn", "fdbd", "energy", "max-softmax")
            for seed in range(options.seeds):
                head = train_head(*train, head=kind, seed=seed)
                results.append(
                    {"id": id_name, "head": kind, "seed": seed, **judge(head, train, test, ood, seed, names)}
                )
                print(results[-1], flush=True)
        for per_class in ENOUGH:
            for seed in range(options.seeds):
                part = few(train, per_class, seed)
                head = train_head(*part, seed=seed, num_classes=int(train[1].max()) + 1)
                measured = judge(head, part, test, ood, seed, ("two-cosines",))
                results.append({"id": id_name, "head": "cosine", "per_class": per_class, "seed": seed, **measured})
                print(results[-1], flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
