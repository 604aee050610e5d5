"""False alarms under harmless corruptions: how often does each detector flag ID images after changes that keep the class?

``python -m study.shift cifar10 fashion-mnist`` calibrates every detector on 2,000 ID test images to flag 5 % of such
images, and counts what it flags of 2,000 others unchanged, and after each change. No OOD image is used.
"""

import io
import json
import sys
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from offaxis.calibration.conformal import threshold
from offaxis.data import limit_images, load_images
from offaxis.data.images import TensorSet
from offaxis.data.transforms import Batches
from offaxis.detectors import fit_all, make_detectors, score_all
from offaxis.files import write_text
from offaxis.networks.open import open_network
from study.steps import FREE, KEPT, SEEDS, chain_for, main_runs, name_of

ALPHA = 0.05
IMAGES = 2000
FIT_IMAGES = 10_000
OUT = KEPT / "shift.json"


def jpeg(images: Tensor) -> Tensor:
    """Write images as JPEG of quality 50 and read them again."""
    return torch.stack([_through_jpeg(image) for image in images])


def _through_jpeg(image: Tensor) -> Tensor:
    array = image.permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(array[..., 0] if array.shape[2] == 1 else array).save(file, "JPEG", quality=50)
    again = np.asarray(Image.open(file)).reshape(array.shape)
    return torch.from_numpy(again.copy()).permute(2, 0, 1)


def blur(images: Tensor) -> Tensor:
    """Mix each pixel with its neighbours: (1, 2, 1)/4 both ways."""
    kernel = torch.tensor([1.0, 2.0, 1.0]) / 4
    channels = images.shape[1]
    weight = (kernel[:, None] * kernel).expand(channels, 1, 3, 3)
    mixed = F.conv2d(F.pad(images.float(), (1, 1, 1, 1), "replicate"), weight, groups=channels)
    return mixed.round().to(torch.uint8)


def brighter(images: Tensor) -> Tensor:
    """Multiply every value by 1.3, cut off at white."""
    return (images.float() * 1.3).clamp(max=255).round().to(torch.uint8)


def darker(images: Tensor) -> Tensor:
    """Multiply every value by 0.7."""
    return (images.float() * 0.7).round().to(torch.uint8)


def moved(images: Tensor) -> Tensor:
    """Move images by one pixel to the right and down; the edge is repeated."""
    return F.pad(images.float(), (1, 0, 1, 0), "replicate")[..., :-1, :-1].to(torch.uint8)


SHIFTS: dict[str, Callable[[Tensor], Tensor]] = {
    "as they are": lambda images: images,
    "JPEG 50": jpeg,
    "blur": blur,
    "30 % brighter": brighter,
    "30 % darker": darker,
    "moved by one pixel": moved,
}


def flagged(id_name: str, seed: int) -> list[dict[str, object]]:
    """Return a record for each detector on both networks of a seed: the share flagged after each change."""
    test = load_images(id_name, "test")
    calibration = test.subset(torch.arange(IMAGES))
    others = test.batch(torch.arange(IMAGES, 2 * IMAGES))
    records = []
    for run in main_runs(id_name, seed):
        subject = open_network(chain_for(id_name).runs / name_of(run))
        assert subject.normalise is not None
        detectors = make_detectors(FREE, subject.network, subject.normalise.std)
        detectors = [d for d in detectors if "cosine" not in d.uses or run.head == "cosine"]
        fit_all(
            subject.network,
            Batches(limit_images(load_images(id_name, "train"), FIT_IMAGES), subject.normalise, 256),
            detectors,
        )
        id_scores = score_all(subject.network, Batches(calibration, subject.normalise, 256), detectors)
        limits = [threshold(np.sort(scores.double().numpy()), ALPHA) for scores in id_scores]
        shares: list[dict[str, float]] = [{} for _ in detectors]
        for name, change in SHIFTS.items():
            changed = TensorSet(name, change(others))
            for scores, limit, share in zip(
                score_all(subject.network, Batches(changed, subject.normalise, 256), detectors),
                limits,
                shares,
                strict=True,
            ):
                share[name] = float((scores.double() > limit).double().mean())
        records += [
            {"id": id_name, "seed": seed, "head": run.head, "detector": d.name, "flagged": share}
            for d, share in zip(detectors, shares, strict=True)
        ]
    return records


def main() -> None:
    """Write the records of each ID set that is named."""
    records = json.loads(OUT.read_text()) if OUT.exists() else []
    for id_name in sys.argv[1:]:
        records = [record for record in records if record["id"] != id_name]
        for seed in SEEDS:
            records += flagged(id_name, seed)
            write_text(OUT, json.dumps(records, indent=0) + "\n")


if __name__ == "__main__":
    main()
