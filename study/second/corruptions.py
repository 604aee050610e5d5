"""False alarms under harmless corruptions at 5 %, and what recalibrating on a mix of clean and corrupted images does.

    python -m study.second.corruptions cifar10 NETWORK [--weights FILE]    # a run of study.second.scratch, or resnet20-cifar
    python -m study.second.corruptions fruit PHOTOS --features FEATURES    # heads on frozen EfficientNet-lite0, three seeds

Half of the ID test images calibrate, clean or as a mix in which every eighth image is clean and the others have one corruption
each; of the other half it is counted what is flagged, unchanged and after each corruption. AUROC does not depend on the
threshold, so recalibrating cannot change it; it is given with clean ID images and with the mix, beside the development sets.
What recalibrating costs is the share of OOD images that is still flagged. Rows are in study/second/results/corruptions.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from benchmarks.photo_features import MEAN, STD, efficientnet_lite0, load_image
from offaxis import open_network
from offaxis.calibration.conformal import threshold
from offaxis.data import TensorSet, limit_images, load_images
from offaxis.detectors import Detector
from offaxis.files import replacing
from offaxis.heads import Head
from offaxis.metrics import auroc
from study.second import store
from study.second.features import OOD_IMAGES, WORK, features, head_of
from study.second.judge import Images, fitted, scores_of
from study.second.photos import chosen_rates, load, ood_images, trained_head
from study.second.scratch import trainings
from study.second.sets import CLASSES, DEVELOPMENT, SEEDS
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
    """Return a row for each detector and calibration: the share flagged of each corruption and each OOD set, and AUROC."""
    scored = {name: scores_of(head, detectors, images) for name, images in test.items()}
    outside = {name: scores_of(head, detectors, images) for name, images in ood.items()}
    count = len(test["clean"].features)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(3)).numpy()
    calibration, others = order[: count // 2], order[count // 2 :]
    rows: list[store.Row] = []
    for detector in scored["clean"]:
        own = {name: values[detector] for name, values in scored.items()}
        every = np.stack(list(own.values()))

        def mix(images: NDArray[np.int64], every: NDArray[np.float64] = every) -> NDArray[np.float64]:
            return np.asarray(every[np.arange(len(images)) % len(every), images])

        halves = {"clean": [own["clean"][calibration], own["clean"][others]], "mixed": [mix(calibration), mix(others)]}
        for how, (values, tested) in halves.items():
            limit = threshold(np.sort(values), ALPHA)

            def share(scores: NDArray[np.float64], limit: float = limit) -> float:
                return round(float((scores > limit).mean()), 4)

            flagged = {name: share(values[others]) for name, values in own.items()}
            found = {name: share(values[detector]) for name, values in outside.items()}
            areas = {name: round(auroc(tested, values[detector]), 5) for name, values in outside.items()}
            rows.append({"detector": detector, "ood": how, "flagged": flagged, "found": found, "auroc": areas})
    return rows


def cifar(name: str, weights: Path | None) -> None:
    """Compute the rows of a network on CIFAR-10."""
    if weights is None:
        subject = open_network(WORK / "networks" / name)
        network = next(each.key for each in trainings() if each.name == name)
    else:
        subject = open_network(name, weights=weights, head="keep")
        network = {"id": "cifar10", "network": name, "head": "keep", "seed": 0, "unseen": None}
    test = load_images("cifar10", "test")
    pixels = test.batch(torch.arange(len(test)))
    folder = WORK / "features" / name
    corrupted = {
        kind: features(subject, TensorSet(kind, change(pixels), test.labels), folder / f"corrupted-{kind}.npy")
        for kind, change in CORRUPTIONS.items()
    }
    training = features(subject, load_images("cifar10", "train"), folder / "cifar10-train.npy")
    ood = {}
    for each in DEVELOPMENT["cifar10"]:
        images = limit_images(load_images(each, "test", like=test), OOD_IMAGES)
        ood[each] = Images(features(subject, images, folder / f"{each}.npy").features)
    head = head_of(subject)
    detectors = fitted(head, training, MAIN)
    store.replace(STEP, network, [{"accuracy": None}, *rates(head, detectors, corrupted, ood)])


PHOTO_CORRUPTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: CORRUPTIONS[name] for name in ("clean", "JPEG 50", "30 % brighter", "30 % darker", "noise", "resized")},
    "blur": lambda images: blur(blur(blur(blur(images)))),
    "moved by eight pixels": lambda images: moved(moved(moved(moved(moved(moved(moved(moved(images)))))))),
}
"""The same for 224x224 pixels, where one pixel is little."""


def photographs(id_name: str, photos: Path, folder: Path) -> None:
    """Compute the rows of linear and cosine heads on frozen features of photographs, three seeds."""
    chosen = chosen_rates(folder)
    training, plain = load(folder, f"{id_name}-train"), load(folder, f"{id_name}-test")
    test = photo_features(photos / id_name / "test", WORK / "features" / f"{id_name}-corrupted.npz", plain.labels)
    ood = {name: ood_images(folder, name) for name in DEVELOPMENT[id_name]}
    for kind in ("linear", "cosine"):
        for seed in SEEDS:
            rate = chosen[f"{id_name} {kind}"]
            head = trained_head(kind, training, classes=CLASSES[id_name], seed=seed, rate=rate)
            network = {
                "id": id_name,
                "network": "efficientnet-lite0 frozen",
                "head": kind,
                "seed": seed,
                "unseen": None,
            }
            rows = rates(head, fitted(head, training, MAIN), test, ood)
            store.replace(STEP, network, [{"accuracy": None}, *rows])
            print(network, flush=True)


def photo_features(folder: Path, kept: Path, labels: Tensor | None) -> dict[str, Images]:
    """Compute the features of the photographs of a folder after each corruption, or read them where they are kept."""
    if not kept.exists():
        network, found = efficientnet_lite0(), dict[str, list[Tensor]]()
        mean, std = (torch.tensor(values, dtype=torch.float32)[:, None, None] for values in (MEAN, STD))
        paths = sorted(path for path in folder.glob("*/*") if path.is_file())
        for first in range(0, len(paths), 32):
            normalised = torch.from_numpy(np.stack([load_image(path) for path in paths[first : first + 32]]))
            pixels = ((normalised * std + mean) * 255).round().to(torch.uint8)
            for kind, change in PHOTO_CORRUPTIONS.items():
                with torch.no_grad():
                    maps = network.extract_features((change(pixels) / 255 - mean) / std)  # type: ignore[operator]
                found.setdefault(kind, []).append(maps.mean((2, 3)))
            print(f"{folder}: {first + len(normalised)} of {len(paths)}", flush=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        with replacing(kept) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **{kind: torch.cat(parts).numpy() for kind, parts in found.items()})
    with np.load(kept) as file:
        return {kind: Images(torch.from_numpy(file[kind]), labels) for kind in PHOTO_CORRUPTIONS}


def main() -> None:
    """Compute the rows of one network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("id", choices=("cifar10", "fruit", "clothing"))
    parser.add_argument("network", help="a network, or the folder of the photographs")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--features", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.id == "cifar10":
        cifar(options.network, options.weights)
    else:
        photographs(options.id, Path(options.network), options.features)


if __name__ == "__main__":
    main()
