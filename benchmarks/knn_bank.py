"""What does a bounded bank cost KNN? AUROC by the number of training images that it keeps, and the memory of a fit.

    python -m benchmarks.knn_bank --weights WEIGHTS --data DATA

WEIGHTS holds the published CIFAR-10 ResNet ``resnet20-12fca82f.th``, DATA the image sets. The detector keeps at most 50,000
training images, all of CIFAR-10; smaller samples of these show what a sample of a larger set would lose. The memory is that of
fits on streams of random features, each in a process of its own (Linux: VmHWM).
"""

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from benchmarks.mahalanobis_memory import peak_mb
from offaxis import load_images, open_network
from offaxis.data import limit_images
from offaxis.data.adapt import as_batches
from offaxis.data.catalogue import Split
from offaxis.detectors.knn import KNN
from offaxis.detectors.statistics import Reservoir
from offaxis.heads import Outputs
from offaxis.metrics import auroc
from offaxis.networks.run import run

OOD = ("cifar100", "tin-resize", "svhn", "dtd", "scenes")
KEPT, NEIGHBOURS = (50_000, 25_000, 12_500, 5_000), (10, 50)
WIDTH = 512


def fit(detector: KNN, rows: Tensor, kept: int) -> KNN:
    """Return the detector with a sample of these unit features as its bank."""
    sample = Reservoir(kept)
    sample.add(rows)
    detector.bank = sample.rows()
    return detector


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--images", type=int, default=2000, help="test images of each set")
    parser.add_argument("--measure", type=int, help="the memory of one fit in this process (used by the comparison)")
    options = parser.parse_args()
    if options.measure is not None:
        before = peak_mb()
        detector = KNN()
        detector.begin(None)  # type: ignore[arg-type]  # it needs nothing of a network
        for _ in range(options.measure // 1000):
            rows = torch.randn(1000, WIDTH)
            detector.update(Outputs(rows, rows[:, :2]), rows[:, 0])
        detector.finish()
        print(f"{options.measure:>9,} images: bank of {len(detector.bank):,}, {peak_mb() - before:,.0f} MB at the peak")
        return
    opened = open_network("resnet20-cifar", weights=options.weights / "resnet20-12fca82f.th", head="keep")

    def features(name: str, split: Split, count: int | None) -> Outputs:
        images = load_images(name, split, root=options.data, like=None if name == "cifar10" else known)
        images = images if count is None else limit_images(images, count)
        parts = [(o.features, o.logits) for o, _, _ in run(opened.network, as_batches(images, opened.normalise, 256))]
        return Outputs(torch.cat([f for f, _ in parts]), torch.cat([z for _, z in parts]))

    known = load_images("cifar10", "test", root=options.data)
    training = KNN().rows(features("cifar10", "train", None))
    own = features("cifar10", "test", options.images)
    others = {name: features(name, "test", options.images) for name in OOD}
    print(f"| training images kept | k | {' | '.join(OOD)} | mean |\n|---|---|{'---:|' * (len(OOD) + 1)}")
    for k in NEIGHBOURS:
        for kept in KEPT:
            detector = fit(KNN(k), training, kept)
            scores = detector.score(own).double().numpy()
            found = [100 * auroc(scores, detector.score(other).double().numpy()) for other in others.values()]
            print(f"| {kept:,} | {k} | {' | '.join(f'{value:.2f}' for value in [*found, fmean(found)])} |")
    for count in (50_000, 400_000):
        subprocess.run([sys.executable, "-m", "benchmarks.knn_bank", "--measure", str(count)], check=True)


if __name__ == "__main__":
    main()
