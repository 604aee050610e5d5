"""False alarms under harmless corruptions at 5 %, and what recalibrating on a mix of clean and corrupted images does.

    python -m study.second.corruptions cifar10 NETWORK [--weights FILE]    # a run of study.second.scratch, or resnet20-cifar

Half of the ID test images calibrate, clean or as a mix in which every sixth image is clean and the others have one corruption
each; of the other half it is counted what is flagged, unchanged and after each corruption. AUROC on the development sets
does not depend on the threshold; what recalibrating costs is the share of OOD images that is still flagged. Rows are in
study/second/results/corruptions.jsonl.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from offaxis import open_network
from offaxis.calibration.conformal import threshold
from offaxis.data import TensorSet, load_images
from offaxis.detectors import Detector
from offaxis.heads import Head
from study.second import store
from study.second.features import WORK, features, head_of
from study.second.judge import Images, fitted, scores_of
from study.second.sets import DEVELOPMENT
from study.shift import blur, brighter, darker, jpeg, moved

STEP = "corruptions"
ALPHA = 0.05
MAIN = ("cosine", "two-cosines", "max-softmax", "energy", "knn", "mean-cosine", "mahalanobis++")


def noise(images: Tensor) -> Tensor:
    """Add Gaussian noise of 2 % of the range, the same for the same image number."""
    random = torch.Generator().manual_seed(0)
    return (images.float() + 5.1 * torch.randn(images.shape, generator=random)).clamp(0, 255).round().to(torch.uint8)


def resized(images: Tensor) -> Tensor:
    """Shrink images to three quarters and enlarge them again."""
    small = F.interpolate(images.float(), scale_factor=0.75, mode="bilinear", antialias=True)
    again = F.interpolate(small, size=images.shape[-2:], mode="bilinear")
    return again.clamp(0, 255).round().to(torch.uint8)


CORRUPTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "clean": lambda images: images,
    "JPEG 50": jpeg,
    "blur": blur,
    "30 % brighter": brighter,
    "30 % darker": darker,
    "moved by one pixel": moved,
    "noise": noise,
    "resized": resized,
}


def rates(
    head: Head, detectors: list[Detector], test: Mapping[str, Images], ood: Mapping[str, Images]
) -> list[store.Row]:
    """Return a row for each detector and calibration: the share flagged of each corruption and each OOD set."""
    scored = {name: scores_of(head, detectors, images) for name, images in test.items()}
    outside = {name: scores_of(head, detectors, images) for name, images in ood.items()}
    count = len(test["clean"].features)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(3)).numpy()
    calibration, others = order[: count // 2], order[count // 2 :]
    kinds = list(test)
    rows: list[store.Row] = []
    for detector in scored["clean"]:
        own = {name: values[detector] for name, values in scored.items()}
        mixed = np.array([own[kinds[i % len(kinds)]][image] for i, image in enumerate(calibration)])
        for how, values in (("clean", own["clean"][calibration]), ("mixed", mixed)):
            limit = threshold(np.sort(values), ALPHA)

            def share(scores: NDArray[np.float64], limit: float = limit) -> float:
                return round(float((scores > limit).mean()), 4)

            flagged = {name: share(values[others]) for name, values in own.items()}
            found = {name: share(values[detector]) for name, values in outside.items()}
            rows.append({"detector": detector, "ood": how, "flagged": flagged, "found": found})
    return rows


def cifar(name: str, weights: Path | None) -> None:
    """Compute the rows of a network on CIFAR-10."""
    if weights is None:
        subject = open_network(WORK / "networks" / name)
        record = json.loads((WORK / "networks" / name / "run.json").read_text(encoding="utf-8"))["settings"]
        key = {"network": "wrn-10-4-half", "head": record["head"]["name"], "seed": record["seed"]}
    else:
        subject, key = open_network(name, weights=weights, head="keep"), {"network": name, "head": "keep", "seed": 0}
    test = load_images("cifar10", "test")
    pixels = test.batch(torch.arange(len(test)))
    folder = WORK / "features" / name
    corrupted = {
        kind: features(subject, TensorSet(kind, change(pixels), test.labels), folder / f"corrupted-{kind}.npy")
        for kind, change in CORRUPTIONS.items()
    }
    training = features(subject, load_images("cifar10", "train"), folder / "cifar10-train.npy")
    ood = {each: Images(torch.from_numpy(np.load(folder / f"{each}.npy"))) for each in DEVELOPMENT["cifar10"]}
    head = head_of(subject)
    detectors = fitted(head, training, MAIN)
    network = {"id": "cifar10", **key, "unseen": None}
    store.replace(STEP, network, [{"accuracy": None}, *rates(head, detectors, corrupted, ood)])


def main() -> None:
    """Compute the rows of one network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("id", choices=("cifar10",))
    parser.add_argument("network")
    parser.add_argument("--weights", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cifar(options.network, options.weights)


if __name__ == "__main__":
    main()
