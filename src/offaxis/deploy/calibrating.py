"""What goes into a calibrated model: a detector fitted and calibrated on images from anywhere, names of classes, hashes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offaxis.calibration.calibrate import Calibration, calibrate, check_copies, score_batches
from offaxis.data import ImageSet, match
from offaxis.data.image_set import hash_batch
from offaxis.data.sources import LoaderBatches, as_batches, as_image_set, is_loader
from offaxis.data.transforms import Shape
from offaxis.deploy.preprocessing import Preprocessing, VectorInput
from offaxis.detectors import Detector
from offaxis.errors import DataError, NotFittedError
from offaxis.networks.ensemble import AnyNetwork


def pack_hashes(hashes: Sequence[bytes], *, distinct: bool = True) -> Tensor:
    """Pack hashes of 16 bytes into uint8 (N, 16), sorted, each once unless copies are to be counted."""
    packed = b"".join(sorted(set(hashes) if distinct else hashes))
    return torch.from_numpy(np.frombuffer(packed, np.uint8).reshape(-1, 16).copy())


def unpack_hashes(packed: Tensor) -> list[bytes]:
    """Return the hashes that ``pack_hashes`` packed."""
    return [row.tobytes() for row in packed.numpy()]


def calibrate_on(
    network: AnyNetwork,
    images: Any,
    preprocessing: Preprocessing | VectorInput,
    detector: Detector,
    used: Sequence[Any],
    *,
    alpha: float,
    per_class: bool,
    confidence: float | None,
) -> tuple[Calibration, dict[str, Any]]:
    """Return the calibration and what it was made on; images that were ``used`` before are refused."""
    promise: dict[str, Any] = {"alpha": alpha, "per_class": per_class, "confidence": confidence}
    if isinstance(preprocessing, VectorInput):
        parts = list(preprocessing.batch(images))
        rows = torch.cat(parts) if parts else torch.empty(0, *preprocessing.shape)
        check_copies(hash_batch(rows), [value for hashes in used for value in hashes])
        scored = score_batches(network, rows.split(4096), detector)
        calibration = Calibration.from_scores(
            scored.scores, scored.predicted, network.num_classes, cosine=scored.cosine, **promise
        )
        return calibration, {"name": "feature vectors", "images": len(rows), "fingerprint": None}
    if is_loader(images):
        calibration = calibrate(network, images, None, detector, used=used, **promise)
        name = LoaderBatches(images).name
        return calibration, {"name": name, "images": len(calibration.scores), "fingerprint": None}
    fitted = match(as_image_set(images), preprocessing.shape, preprocessing.resize)
    calibration = calibrate(network, fitted, preprocessing.normalise, detector, used=used, **promise)
    return calibration, fitted.describe()


def fitting_images(detector: Detector, fit: Any, used: Sequence[Any]) -> Any:
    """Return the images to fit a detector on: those that were given for it, or the only set of training images."""
    if fit is not None:
        return fit
    if len(used) == 1:
        return used[0]
    alternative = "cosine" if "cosine" in detector.uses else "energy"
    raise NotFittedError(
        f"Expected training images for {detector.name}, which must be fitted, but got "
        f"{f'{len(used)} sets in `used`' if used else 'none'}: Model.calibrated(..., fit=training_images) in Python, --fit "
        f"FOLDER in the shell; labelled, and not those to calibrate on. The detector {alternative} needs none."
    )


def fit_detector(detector: Detector, network: AnyNetwork, images: Any, preprocessing: Preprocessing) -> None:
    """Fit a detector on images from anywhere; the batches of a DataLoader are used unchanged."""
    if is_loader(images):
        detector.fit(network, images)
        return
    matched = match(as_image_set(images), preprocessing.shape, preprocessing.resize)
    detector.fit(network, matched, preprocessing.normalise)


def class_names(sets: Sequence[ImageSet], count: int) -> tuple[str, ...]:
    """Return the names of the classes that the first set with as many classes has, else their numbers."""
    named = [each.classes for each in sets if len(each.classes) == count]
    return tuple(named[0]) if named else tuple(str(number) for number in range(count))


def without_other_labels(calibration: Calibration, images: Any, names: Sequence[str]) -> Calibration:
    """Leave out the accuracy where the labels of the calibration images are numbers of other classes."""
    own = tuple(getattr(images, "classes", None) or ()) if not is_loader(images) else ()
    return replace(calibration, accuracy=None) if own and own != tuple(names) else calibration


def shape_of(images: Any) -> Shape:
    """Return (channels, height, width) of images."""
    if not is_loader(images):
        return as_image_set(images).shape
    for batch, _ in as_batches(images, None, 256):
        channels, height, width = batch.shape[1:]
        return channels, height, width
    raise DataError("Expected calibration images but the DataLoader gives no batch.")


def with_contiguous_buffers(detector: Detector) -> Detector:
    """Lay the detector's buffers out as a file gives them back: the layout decides how sums are rounded."""
    for part in detector.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = buffer.contiguous()
    return detector
