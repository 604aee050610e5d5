"""EmbeddingDetector against cleanlab's OutOfDistribution and pytorch-ood's KNN on 50,000 x 512 features: time and AUROC.

    pip install cleanlab
    python -m benchmarks.embedding_detectors FEATURES --weights resnet20-12fca82f.th --json results.json

The features are real: the last maps of a published CIFAR-10 ResNet-20, pooled to 2 x 4 positions, of CIFAR-10's training
images (50,000 x 512), of its test images and of OOD sets. They are computed once and kept in FEATURES. ``.npz`` files of
``benchmarks.photo_features`` in the same folder (1,280 features of photographs) are compared by AUROC too. Every method gets
the same arrays, with its defaults, on one thread; time is that of fitting to 50,000 rows and scoring 10,000.
"""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

import offaxis
from benchmarks.paired import paired, publish
from offaxis.metrics import auroc

Array = NDArray[Any]
Score = Callable[[Array], Array]
PHOTOGRAPHS = {"fruit": ["clothing-test", "packages"], "clothing": ["fruit-test", "packages"]}
OOD = ("cifar100", "svhn", "tin-resize", "tin-crop", "dtd", "scenes", "gaussian", "uniform")


def extract(folder: Path, weights: Path) -> None:
    """Compute the features of every set that is not there yet."""
    opened = offaxis.open_network("resnet20-cifar", weights=weights)
    assert isinstance(opened.network, offaxis.Classifier)
    assert opened.normalise is not None
    backbone, maps = opened.network.backbone.eval(), list[torch.Tensor]()
    backbone.get_submodule("layer3").register_forward_hook(lambda _module, _inputs, out: maps.append(out))
    for name in ("cifar10", *OOD):
        for part in ("train", "test") if name == "cifar10" else ("test",):
            target = folder / f"resnet20-{name}-{part}.npz"
            if target.exists():
                continue
            images, rows = offaxis.load_images(name, part), []
            for batch in images.batches(500):
                with torch.no_grad():
                    backbone(opened.normalise(batch))
                rows.append(F.adaptive_avg_pool2d(maps.pop(), (2, 4)).flatten(1).numpy())
            labels = np.zeros(0) if images.labels is None else images.labels.numpy()
            np.savez(target, features=np.concatenate(rows), labels=labels)


def two_cosines(rows: Array, labels: Array) -> Score:
    """Fit EmbeddingDetector with its default detector, which uses the labels."""
    detector = offaxis.EmbeddingDetector(random_state=0).fit(rows, labels)
    return lambda queries: -detector.score_samples(queries)


def knn(rows: Array, labels: Array) -> Score:  # noqa: ARG001 - it needs none
    """Fit EmbeddingDetector without labels."""
    detector = offaxis.EmbeddingDetector("knn", random_state=0).fit(rows)
    return lambda queries: -detector.score_samples(queries)


def cleanlab(rows: Array, labels: Array) -> Score:  # noqa: ARG001 - it takes no labels with features
    """Fit cleanlab's OutOfDistribution, whose scores are larger for known rows."""
    from cleanlab.outlier import OutOfDistribution

    detector = OutOfDistribution()
    detector.fit(features=rows, verbose=False)
    return lambda queries: -np.asarray(detector.score(features=queries))


def pytorch_ood(rows: Array, labels: Array) -> Score:
    """Fit pytorch-ood's KNN."""
    from tests.conftest import declare_torchvision_operators

    declare_torchvision_operators()  # pytorch-ood imports torchvision
    from pytorch_ood.detector import KNN

    detector = KNN(None).fit_features(torch.from_numpy(rows), torch.from_numpy(labels))
    return lambda queries: np.asarray(detector.predict_features(torch.from_numpy(queries)))


OURS = {"two-cosines": two_cosines, "knn": knn}
METHODS = {**OURS, "cleanlab": cleanlab, "pytorch-ood KNN": pytorch_ood}


def read(folder: Path, name: str) -> tuple[Array, Array]:
    """Read features (N, d) in float32 and labels (N,) of a file."""
    with np.load(folder / f"{name}.npz") as file:
        return np.ascontiguousarray(file["features"], np.float32), file["labels"].astype(np.int64)


def compare(folder: Path, train: str, test: str, ood: list[str], most: int) -> dict[str, dict[str, float]]:
    """Return AUROC by method and OOD set, in [0, 1]."""
    rows, labels = read(folder, train)
    known = read(folder, test)[0][:most]
    others = {name: read(folder, name)[0][:most] for name in ood}
    table: dict[str, dict[str, float]] = {}
    for method, fit in METHODS.items():
        score = fit(rows, labels)
        id_scores = score(known)
        table[method] = {name: auroc(id_scores, score(queries)) for name, queries in others.items()}
        table[method]["mean"] = float(np.mean(list(table[method].values())))
        print(train, method, json.dumps({key: round(value, 4) for key, value in table[method].items()}), flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--weights", type=Path, help="the published ResNet-20; needed where features are missing")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions of the timing")
    parser.add_argument("--most", type=int, default=10_000, help="rows of each set that are scored")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.features.mkdir(parents=True, exist_ok=True)
    if options.weights is not None:
        extract(options.features, options.weights)
    folder = options.features
    tables = {}
    for name, ood in PHOTOGRAPHS.items():
        if (folder / f"{name}-train.npz").exists():
            tables[name] = compare(folder, f"{name}-train", f"{name}-test", ood, options.most)
    rows, labels = read(folder, "resnet20-cifar10-train")
    queries = read(folder, "resnet20-cifar10-test")[0]
    for method, own in (("pytorch-ood KNN", "knn"), ("pytorch-ood KNN", "two-cosines"), ("cleanlab", "knn")):
        ratio = paired(
            lambda: METHODS[method](rows, labels)(queries),  # noqa: B023 - called at once
            lambda: OURS[own](rows, labels)(queries),  # noqa: B023
            rounds=options.rounds,
            warm_up=0,
        )
        name = f"fit to {rows.shape} and score {len(queries)}: {method} / offaxis {own}"
        publish(name, ratio, ">= 3", ratio.median >= 3)
    sets = [f"resnet20-{name}-test" for name in OOD]
    tables["cifar10"] = compare(folder, "resnet20-cifar10-train", "resnet20-cifar10-test", sets, options.most)
    if options.json:
        options.json.write_text(json.dumps(tables, indent=1) + "\n")


if __name__ == "__main__":
    main()
