"""Calibration images beside those of training -> sentences that say why they may be the wrong ones.

A wrong folder, classes in another order, a wrong mean, training images that were augmented: each gives a calibration that
looks like any other, and verdicts that mean nothing.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offaxis.calibration.conformal import Floats
from offaxis.data import Normalise
from offaxis.data.adapt import as_batches
from offaxis.data.images import hash_batch
from offaxis.errors import DataError
from offaxis.metrics import auroc
from offaxis.networks.run import Network, run

APART = (
    0.75  # AUROC of calibration scores against those of held-out images of training's source, from which on it is said
)
FEWEST = 30  # images on each side, to compare them
FAR_BELOW = 0.2  # of accuracy, beyond what so few images explain
OFF_RANGE, OFF_GRID = 16.0, 0.05  # in steps of 8-bit pixels
MOST_COMPARED = 10_000  # training images whose features are compared
SUSPECT = 0.05  # of the calibration images are nearer to a training image than 99 of 100 training images are to another


def doubts_of_scores(
    scores: Floats, accuracy: float | None, known: Floats, known_accuracy: float | None, whose: str
) -> list[str]:
    """Compare calibration scores (n,) and accuracy with those (m,) of other ID images; ``whose`` says which."""
    found = []
    if min(len(scores), len(known)) >= FEWEST:
        larger = auroc(known, scores)
        apart = max(larger, 1 - larger)
        error = np.sqrt((len(scores) + len(known) + 1) / (12 * len(scores) * len(known)))  # where both are alike
        if apart > APART and apart - 0.5 > 4 * error:
            found.append(
                f"The scores of the {len(scores)} calibration images are far from those of {len(known)} {whose}: their median "
                f"is {np.median(scores):.3g} against {np.median(known):.3g} (AUROC {apart:.0%}, where 50 % is alike). Are they "
                "images of the same kind? If not, nothing that is unfamiliar will be found."
            )
        noise = 3 * np.sqrt(0.25 / len(scores) + 0.25 / len(known))
        if accuracy is not None and known_accuracy is not None and accuracy < known_accuracy - FAR_BELOW - noise:
            found.append(
                f"The class of {accuracy:.0%} of the calibration images is right, but of {known_accuracy:.0%} of {whose}: are "
                "they of the same classes, in the same order, and prepared as in training?"
            )
    return found


def doubts_of_accuracy(accuracy: float | None, num_classes: int) -> list[str]:
    """Say that labelled calibration images are classified hardly better than by guessing."""
    if accuracy is None or num_classes < 2 or accuracy >= min(0.5, 1.5 / num_classes):
        return []
    return [
        f"The class of {accuracy:.0%} of the calibration images is right, where guessing gives {1 / num_classes:.0%}: are they "
        "of the same classes, in the same order, and prepared (mean, std, size) as in training?"
    ]


def check_normalised(batches: Any, normalise: Normalise) -> None:
    """Refuse a DataLoader whose values cannot come of 8-bit pixels by this mean and standard deviation.

    Pixels must lie within 0 to 255 and, where a channel has at most 256 values, on whole numbers.

    Raises:
        DataError: they do not.
    """
    images = next((images for images, _ in as_batches(batches, None, 256)), torch.empty(0))
    if not images.numel():
        return
    mean, std = (torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in (normalise.mean, normalise.std))
    pixels = 255 * (images.double().cpu() * std + mean)
    low, high = float(pixels.min()), float(pixels.max())
    exact = images.dtype in (torch.float32, torch.float64)
    few = [exact and channel.unique().numel() <= 256 for channel in images.transpose(0, 1)]
    off = [float(((c - c.round()).abs() > OFF_GRID).double().mean()) for c in pixels.transpose(0, 1)]
    shifted = any(is_grid and share > 0.5 for is_grid, share in zip(few, off, strict=True))
    if shifted or low < -OFF_RANGE or high > 255 + OFF_RANGE:
        raise DataError(
            f"Expected images of the DataLoader that are normalised by mean {normalise.mean} and std {normalise.std} but these "
            f"would be pixels from {low:.1f} to {high:.1f}{', between whole numbers' if shifted else ''}: give the mean and "
            "std of its transform, offaxis.data.Preprocessing(shape, offaxis.data.Normalise(mean, std)), or images are scored "
            "otherwise than it was calibrated."
        )


def changes(loader: Any) -> bool:
    """Return whether a DataLoader gives other images each time, so that they cannot be compared with others by pixels."""
    data: Any = getattr(loader, "dataset", None)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        places = range(0, len(data), max(1, len(data) // 8))
        return any(_bytes_of(data[place]) != _bytes_of(data[place]) for place in places)
    first, again = ([h for x, _ in islice(as_batches(loader, None, 0), 2) for h in hash_batch(x)] for _ in range(2))
    return first != again


def _bytes_of(item: Any) -> bytes:
    """Return the bytes of the image of an item: (image, label, ...), a dict, or the image alone."""
    parts = item.values() if isinstance(item, dict) else item if isinstance(item, tuple | list) else [item]
    return b"".join(np.asarray(part).tobytes() for part in parts if np.ndim(part) > 1)


def doubt_of_features(network: Network, images: Any, used: Sequence[Any]) -> list[str]:
    """Say that many calibration images have nearly the features of a training image, as augmented copies have."""
    known = torch.cat([*islice(_unit_features(network, used), 1 + MOST_COMPARED // 64)])[:MOST_COMPARED]
    own = torch.cat([*_unit_features(network, [images])])
    if min(len(known), len(own)) < FEWEST:
        return []
    sample = torch.arange(0, len(known), max(1, len(known) // 1000))
    among = known[sample] @ known.T
    among[torch.arange(len(sample)), sample] = -1
    limit = among.amax(1).quantile(0.99)
    share = float(torch.cat([(part @ known.T).amax(1) for part in own.split(1000)]).gt(limit).double().mean())
    if share <= SUSPECT + 3 * np.sqrt(0.01 / len(own)):
        return []
    return [
        f"{share:.0%} of the calibration images have nearly the features of a training image (1 % is expected of others): "
        "they seem to be copies of training images, and far fewer images will be flagged than should be."
    ]


def _unit_features(network: Network, loaders: Sequence[Any]) -> Iterator[Tensor]:
    for loader in loaders:
        for outputs, *_ in run(network, as_batches(loader, None, 64)):
            yield torch.nn.functional.normalize(outputs.features.float().cpu().flatten(1), dim=1)


class Watched:
    """Batches that are passed on unchanged, while it is noted which of them are among the first of other batches.

    Args:
        batches: (images, labels), normalised.
        others: batches in which copies are looked for, prepared in the same way.
    """

    def __init__(self, batches: Any, others: Any) -> None:
        self.batches = batches
        self.others = {value for images, _ in islice(others, 32) for value in hash_batch(images.float().cpu())}
        self.shared = set[bytes]()

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in self.batches:
            self.shared |= self.others.intersection(hash_batch(images.float().cpu()))
            yield images, labels

    def doubts(self) -> list[str]:
        """Say that of the other images more than one in a hundred was passed on."""
        if 100 * len(self.shared) < max(1, len(self.others)):
            return []
        return [
            f"{len(self.shared)} of the {len(self.others)} ID test images that were compared are among the training images: "
            "what detectors that are fitted to these reach on them says nothing of new images. Give test images apart."
        ]
