"""EmbeddingDetector against cleanlab's OutOfDistribution and pytorch-ood's KNN: AUROC on all sets, and time on 50,000 x 512.

    pip install cleanlab
    python -m benchmarks.embedding_detectors auroc FEATURES --weights resnet20-12fca82f.th --json results.json
    python -m benchmarks.embedding_detectors time FEATURES

FEATURES holds what ``benchmarks.photo_features`` wrote (1,280 features of photographs) and the last maps of a published
CIFAR-10 ResNet-20, pooled to 2 x 4 positions (512 features) or to one (64), which ``--weights`` computes where they are
missing. Every method gets the same arrays, with its defaults, on one thread.

Near, far and unseen: the OOD rows are other sets, or classes of the ID set that were left out in fitting (folds of its
classes, the mean over folds). CIFAR-10 has the features that its network was trained for; SVHN, scenes and CIFAR-100 as ID
sets have features of a network that was trained for other images. Time is the processor
time, on one thread, of fitting to 50,000 rows and scoring 10,000.
"""

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch.nn import functional as F

import offaxis
from benchmarks.paired import paired, publish
from offaxis.metrics import auroc

Array = NDArray[Any]
Score = Callable[[Array], Array]
PHOTOGRAPHS = {
    "fruit": ("vegetables", "packages", "clothing-test"),
    "clothing": ("vegetables", "packages", "fruit-test"),
}
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
            images, rows, pooled = offaxis.load_images(name, part), [], []
            for batch in images.batches(500):
                with torch.no_grad():
                    backbone(opened.normalise(batch))
                rows.append(F.adaptive_avg_pool2d(maps[-1], (2, 4)).flatten(1).numpy())
                pooled.append(maps.pop().mean((2, 3)).numpy())
            labels = np.zeros(0) if images.labels is None else images.labels.numpy()
            np.savez(target, features=np.concatenate(rows), pooled=np.concatenate(pooled), labels=labels)


def ours(detector: str) -> Callable[[Array, Array], Score]:
    """Return what fits EmbeddingDetector; those that need no labels get none."""

    def fit(rows: Array, labels: Array) -> Score:
        estimator = offaxis.EmbeddingDetector(detector, random_state=0)
        estimator.fit(rows, None if detector == "knn" else labels)
        return lambda queries: -estimator.score_samples(queries)

    return fit


def cleanlab(rows: Array, labels: Array) -> Score:  # noqa: ARG001 - it takes no labels with features
    """Fit cleanlab's OutOfDistribution, whose scores are larger for known rows."""
    from cleanlab.outlier import OutOfDistribution

    detector = OutOfDistribution()
    detector.fit(features=rows, verbose=False)
    return lambda queries: -np.asarray(detector.score(features=queries))


def pytorch_ood(rows: Array, labels: Array) -> Score:
    """Fit pytorch-ood's KNN."""
    from tests.operators import import_library

    detector = (
        import_library("pytorch_ood.detector").KNN(None).fit_features(torch.from_numpy(rows), torch.from_numpy(labels))
    )
    return lambda queries: np.asarray(detector.predict_features(torch.from_numpy(queries)))


METHODS = {
    "two-cosines": ours("two-cosines"),
    "mean-cosine": ours("mean-cosine"),
    "mahalanobis++": ours("mahalanobis++"),
    "knn": ours("knn"),
    "cleanlab": cleanlab,
    "pytorch-ood KNN": pytorch_ood,
}


class Task(NamedTuple):
    """What is fitted to and scored: rows (N, d) with labels (N,), new ID rows, and OOD rows by name."""

    rows: Array
    labels: Array
    known: Array
    ood: dict[str, Array]


def read(folder: Path, name: str, key: str = "features") -> tuple[Array, Array]:
    """Read features (N, d) in float32 and labels (N,) of a file."""
    with np.load(folder / f"{name}.npz") as file:
        return np.ascontiguousarray(file[key], np.float32), file["labels"].astype(np.int64)


def leave_out(task: Task, known_labels: Array, folds: int) -> Iterator[Task]:
    """Yield tasks in which a part of the classes is not fitted to: its new rows are the OOD rows."""
    classes = np.random.default_rng(0).permutation(np.unique(task.labels))
    for fold in range(folds):
        fitted, new = (~np.isin(labels, classes[fold::folds]) for labels in (task.labels, known_labels))
        yield Task(task.rows[fitted], task.labels[fitted], task.known[new], {"unseen classes": task.known[~new]})


def tasks(folder: Path) -> Iterator[tuple[str, Task]]:
    """Yield the tasks; those of one name are folds."""
    for name, others in PHOTOGRAPHS.items():
        (rows, labels), (known, known_labels) = read(folder, f"{name}-train"), read(folder, f"{name}-test")
        whole = Task(rows, labels, known, {other: read(folder, other)[0] for other in others})
        yield name, whole
        yield from ((name, part) for part in leave_out(whole, known_labels, 5))
    random = np.random.default_rng(0)
    sets = {}
    for name in ("cifar10", *OOD):
        rows, labels = read(folder, f"resnet20-{name}-test", "pooled")
        order = random.permutation(len(rows))
        sets[name] = rows[order], labels[order] if len(labels) else labels
    queries = {name: rows[:2000] for name, (rows, _) in sets.items()}
    for name, fitted, folds in (("svhn", 10_000, 5), ("scenes", 2000, 3), ("cifar100", 7000, 5)):
        rows, labels = sets[name]
        ood = {other: queries[other] for other in ("cifar10", "cifar100", "svhn", "dtd", "scenes") if other != name}
        new = slice(fitted, fitted + 3000)
        whole = Task(rows[:fitted], labels[:fitted], rows[new], ood)
        yield f"{name} (64)", whole
        yield from ((f"{name} (64)", part) for part in leave_out(whole, labels[new], folds))
    rows, labels = load_digits(return_X_y=True)
    digits = Task(rows[:1200].astype(np.float32), labels[:1200], rows[1200:].astype(np.float32), {})
    yield from (("8x8 pixels of digits", part) for part in leave_out(digits, labels[1200:], 5))
    for key, width in (("pooled", 64), ("features", 512)):
        rows, labels = read(folder, "resnet20-cifar10-train", key)
        ood = {name: read(folder, f"resnet20-{name}-test", key)[0][:2000] for name in OOD}
        yield f"cifar10 ({width})", Task(rows, labels, read(folder, "resnet20-cifar10-test", key)[0][:3000], ood)


def compare(folder: Path, only: str | None) -> dict[str, dict[str, dict[str, float]]]:
    """Return AUROC in [0, 1] by task, OOD set (the mean over folds) and method."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for name, task in tasks(folder):
        if only is not None and not name.startswith(only):
            continue
        for method, fit in METHODS.items():
            score = fit(task.rows, task.labels)
            id_scores = score(task.known)
            for other, queries in task.ood.items():
                row = found.setdefault(name, {}).setdefault(other, {})
                row.setdefault(method, []).append(auroc(id_scores, score(queries)))
    return {
        name: {other: {m: statistics.fmean(v) for m, v in row.items()} for other, row in rows.items()}
        for name, rows in found.items()
    }


def report(table: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print a row for each ID and OOD set, and the means over them."""
    print("| ID rows | OOD rows | " + " | ".join(METHODS) + " |")
    print("|---|---|" + "---:|" * len(METHODS))
    groups: dict[str, list[dict[str, float]]] = {"unseen classes": [], "other sets": []}
    for name, rows in table.items():
        for other, row in rows.items():
            groups[other if other in groups else "other sets"].append(row)
            print(f"| {name} | {other} | " + " | ".join(f"{100 * row[m]:.1f}" for m in METHODS) + " |")
    for group, members in groups.items():
        if members:
            means = [100 * statistics.fmean(row[m] for row in members) for m in METHODS]
            print(f"| mean of {len(members)} | {group} | " + " | ".join(f"{value:.1f}" for value in means) + " |")


def processor_seconds(run: Callable[[], object]) -> float:
    """Measure the processor time of a run: on one thread the elapsed time, but for what other programs take."""
    begun = time.process_time()
    run()
    return time.process_time() - begun


def measure(folder: Path, rounds: int, only: str | None, count: int) -> None:
    """Publish the ratios of the times; cleanlab's, which take minutes, in one round."""
    rows, labels = (part[:count] for part in read(folder, "resnet20-cifar10-train"))
    queries = read(folder, "resnet20-cifar10-test")[0][: count // 5]
    for other, own, times in (
        ("pytorch-ood KNN", "knn", rounds),
        ("pytorch-ood KNN", "two-cosines", rounds),
        ("cleanlab", "knn", 1),
        ("cleanlab", "two-cosines", 1),
    ):
        if only is not None and not f"{other} / {own}".startswith(only):
            continue
        ratio = paired(
            lambda: METHODS[other](rows, labels)(queries),  # noqa: B023 - called at once
            lambda: METHODS[own](rows, labels)(queries),  # noqa: B023
            rounds=times,
            warm_up=0,
            measure=processor_seconds,
        )
        name = f"fit to {rows.shape} and score {len(queries)}: {other} / offaxis {own}"
        publish(name, ratio, ">= 3", ratio.median >= 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("auroc", "time"))
    parser.add_argument("features", type=Path)
    parser.add_argument("--weights", type=Path, help="the published ResNet-20; needed where features are missing")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions of the timing")
    parser.add_argument("--rows", type=int, default=50_000, help="rows of the timing; a fifth as many are scored")
    parser.add_argument("--only", help="the tasks, or pairs such as 'cleanlab / knn', whose names start so")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    options.features.mkdir(parents=True, exist_ok=True)
    if options.weights is not None:
        extract(options.features, options.weights)
    if options.what == "time":
        measure(options.features, options.rounds, options.only, options.rows)
        return
    table = compare(options.features, options.only)
    if options.json:
        known = json.loads(options.json.read_text()) if options.json.exists() else {}
        table = known | table
        options.json.write_text(json.dumps(table, indent=1) + "\n")
    report(table)


if __name__ == "__main__":
    main()
