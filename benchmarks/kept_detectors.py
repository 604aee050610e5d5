"""Which detector serves a classifier that is kept as it was trained? Mean AUROC of those without hyperparameters.

    python -m benchmarks.kept_detectors --weights WEIGHTS --data DATA --features FEATURES

WEIGHTS holds the published CIFAR-10 ResNets (``resnet20-12fca82f.th``, ``resnet56-4bfd9763.th``), DATA the image sets,
FEATURES what ``benchmarks.photo_features`` wrote. On the photographs' features a linear output layer is trained first, with
AdamW and five seeds. No detector has anything to tune; knn and max-softmax are shown beside the candidates.
"""

import argparse
import json
import statistics
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from offaxis import attach, load_images, open_network
from offaxis.data import limit_images
from offaxis.data.adapt import as_batches
from offaxis.detectors import Detector, make_detectors
from offaxis.detectors.base import fit_all
from offaxis.heads import Outputs
from offaxis.metrics import auroc
from offaxis.networks.run import Network, run

CANDIDATES = ("energy", "mean-cosine", "fdbd", "mahalanobis++", "relative-mahalanobis++")
BESIDE = ("max-softmax", "knn")
RESNETS = {"resnet20-cifar": "resnet20-12fca82f.th", "resnet56-cifar": "resnet56-4bfd9763.th"}
NEAR, FAR = ("cifar100", "tin-resize", "tin-crop-free"), ("svhn", "dtd", "scenes", "mnist", "fashion-mnist", "notmnist")


def outputs_of(network: Network, batches) -> Outputs:  # type: ignore[no-untyped-def]
    """Compute features and logits of all batches, in one tensor each."""
    parts = [(o.features, o.logits) for o, _, _ in run(network, batches)]
    return Outputs(torch.cat([f for f, _ in parts]), torch.cat([z for _, z in parts]))


def table_row(detectors: list[Detector], known: Outputs, others: dict[str, Outputs]) -> dict[str, dict[str, float]]:
    """Return the AUROC of every detector on every OOD set."""
    row: dict[str, dict[str, float]] = {}
    for detector in detectors:
        own = detector.score(known).double().numpy()
        row[detector.name] = {n: auroc(own, detector.score(o).double().numpy()) for n, o in others.items()}
    return row


def resnet_row(name: str, weights: Path, data: Path, fit: int, images: int) -> dict[str, object]:
    """Return the row of a published ResNet."""
    opened = open_network(name, weights=weights / RESNETS[name], head="keep")
    network, normalise = opened.network, opened.normalise
    train = limit_images(load_images("cifar10", "train", root=data), fit)
    detectors = make_detectors([*CANDIDATES, *BESIDE], network)
    fit_all(network, train, detectors, normalise)
    test = load_images("cifar10", "test", root=data)
    known = outputs_of(network, as_batches(limit_images(test, 2 * images), normalise, 256))
    labels = limit_images(test, 2 * images).labels
    others = {
        other: outputs_of(
            network, as_batches(limit_images(load_images(other, "test", root=data, like=test), images), normalise, 256)
        )
        for other in (*NEAR, *FAR)
    }
    accuracy = float((known.logits.argmax(1) == torch.as_tensor(labels)).double().mean())
    return {"accuracy": accuracy, "auroc": table_row(detectors, known, others)}


def trained_layer(features: Tensor, labels: Tensor, classes: int, seed: int) -> nn.Linear:
    """Train a linear output layer on features, as one would: AdamW, 40 epochs."""
    torch.manual_seed(seed)
    layer = nn.Linear(features.shape[1], classes)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    for _ in range(40):
        for chosen in torch.randperm(len(features)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(layer(features[chosen]), labels[chosen]).backward()
            optimizer.step()
    return layer


def photo_rows(folder: Path, seeds: int) -> dict[str, dict[str, object]]:
    """Return a row for fruit and one for clothing: means over the seeds."""

    def read(name: str) -> tuple[Tensor, Tensor]:
        with np.load(folder / f"{name}.npz") as file:
            return torch.from_numpy(file["features"]), torch.from_numpy(file["labels"])

    rows: dict[str, dict[str, object]] = {}
    others = {"fruit": ("clothing-test", "packages"), "clothing": ("fruit-test", "packages")}
    for name, ood in others.items():
        (features, labels), (test, test_labels) = read(f"{name}-train"), read(f"{name}-test")
        found: list[dict[str, dict[str, float]]] = []
        accuracies = []
        for seed in range(seeds):
            layer = trained_layer(features, labels, int(labels.max()) + 1, seed)
            network = attach(nn.Sequential(nn.Flatten(), layer), "keep").eval()
            detectors = make_detectors([*CANDIDATES, *BESIDE], network)
            batches = [(f[:, :, None, None], y) for f, y in zip(features.split(256), labels.split(256), strict=True)]
            fit_all(network, batches, detectors)
            known = outputs_of(network, [test[:, :, None, None]])
            outs = {other: outputs_of(network, [read(other)[0][:, :, None, None]]) for other in ood}
            found.append(table_row(detectors, known, outs))
            accuracies.append(float((known.logits.argmax(1) == test_labels).double().mean()))
        mean = {d: {o: statistics.fmean(f[d][o] for f in found) for o in ood} for d in found[0]}
        rows[f"EfficientNet-lite0, {name}"] = {"accuracy": statistics.fmean(accuracies), "auroc": mean}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--fit", type=int, default=5000, help="CIFAR-10 training images that detectors are fitted on")
    parser.add_argument("--images", type=int, default=500, help="images of each OOD set; twice as many of the ID set")
    parser.add_argument("--seeds", type=int, default=5, help="output layers on the photographs' features")
    parser.add_argument("--out", type=Path, help="write the AUROCs as JSON too")
    options = parser.parse_args()
    rows: dict[str, dict[str, object]] = photo_rows(options.features, options.seeds)
    for name in RESNETS:
        rows[name] = resnet_row(name, options.weights, options.data, options.fit, options.images)
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1))
    names = [*CANDIDATES, *BESIDE]
    print("| network | OOD | accuracy | " + " | ".join(names) + " |")
    print("|---|---|---:|" + "---:|" * len(names))
    for network, row in rows.items():
        table: dict[str, dict[str, float]] = row["auroc"]  # type: ignore[assignment]
        for group in ("near", "far", "all") if network in RESNETS else ("all",):
            chosen = {"near": NEAR, "far": FAR}.get(group, tuple(table["energy"]))
            values = [statistics.fmean(table[d][o] for o in chosen) for d in names]
            print(
                f"| {network} | {group} | {row['accuracy']:.1%} | "
                + " | ".join(f"{100 * v:.1f}" for v in values)
                + " |"
            )
    means = [statistics.fmean(statistics.fmean(row["auroc"][d].values()) for row in rows.values()) for d in names]  # type: ignore[index]
    print("| mean of the networks | | | " + " | ".join(f"**{100 * v:.1f}**" for v in means) + " |")


if __name__ == "__main__":
    main()
