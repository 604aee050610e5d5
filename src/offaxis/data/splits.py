"""Parts of a set: validation and test images, a held-out share, at most so many images."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from offaxis.data.images import ImageSet
from offaxis.errors import ArgumentError, DataError

VALIDATION_IMAGES = 1000
LARGEST_SHARE = 0.2


class ValidationSplit(NamedTuple):
    """The validation images of a set, which tuning may see, and the rest, on which every detector is tested.

    Attributes:
        validation: int64 (V,), the images that hyperparameters may be chosen on.
        test: int64 (T,), the others, on which every detector is tested.
        rule: how they were chosen.
    """

    validation: Tensor
    test: Tensor
    rule: str


def split_validation(images: ImageSet, count: int = VALIDATION_IMAGES, seed: int = 0) -> ValidationSplit:
    """Split off the first ``count`` images for validation; of a set sorted by class, those of a seeded shuffle.

    A set is sorted where it says so, as folders do, and where the images of each label follow one another.

    Never more than a fifth of a set goes to validation.
    """
    shuffled = images.sorted_by_class or is_sorted(images.labels)
    return split_count(len(images), count, shuffled=shuffled, seed=seed)


def split_count(images: int, count: int, *, shuffled: bool, seed: int = 0) -> ValidationSplit:
    """Split off ``count`` of a number of images for validation, as ``split_validation`` does."""
    if count < 0:
        raise ArgumentError(f"Expected a count of at least 0 but got {count}.")
    taken = min(count, int(LARGEST_SHARE * images))
    order = torch.randperm(images, generator=torch.Generator().manual_seed(seed)) if shuffled else torch.arange(images)
    rule = f"the first {taken}{f' of a shuffle with seed {seed}' if shuffled else ''} of {images} images"
    return ValidationSplit(order[:taken], order[taken:].sort().values, rule)


def is_sorted(labels: Tensor | None) -> bool:
    """Tell whether there are labels (N,), at least two of them, and all images of one come before those of the next."""
    if labels is None or len(labels) < 2:
        return False
    changes = int((labels[1:] != labels[:-1]).sum())
    return 0 < changes == len(labels.unique()) - 1


def hold_out(images: ImageSet, share: float, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Split a set into (the rest, the held-out share), with the same share of every class; the same for one seed.

    Raises:
        ArgumentError: the share is not between 0 and 1.
        DataError: a class has too few images to give one and keep one.
    """
    labels = torch.zeros(len(images), dtype=torch.long) if images.labels is None else images.labels
    kept, held = held_out_indices(labels, images.classes or (images.name,), share, seed)
    return images.subset(kept), images.subset(held)


def held_out_indices(labels: Tensor, classes: Sequence[str], share: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return the indices of (the rest, the held-out share) of images with these labels (N,), as ``hold_out`` does."""
    if not 0 < share < 1:
        raise ArgumentError(f"Expected a share between 0 and 1 but got {share}.")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    kept, held = [], []
    for label in labels.unique().tolist():
        members = order[labels[order] == label]
        cut = round(share * len(members))
        if not 0 < cut < len(members):
            named = classes[label] if label < len(classes) else f"the label {label}"
            raise DataError(
                f"{share:.0%} of the {len(members)} images of {named} leave one side empty: add images or change "
                "the share."
            )
        held.append(members[:cut])
        kept.append(members[cut:])
    return torch.cat(kept).sort().values, torch.cat(held).sort().values


def limit_images(images: ImageSet, count: int | None, seed: int = 0) -> ImageSet:
    """Return the set, or, where it is larger, ``count`` random images of it in their order, the same for one seed.

    Raises:
        ArgumentError: the count is below 1.
    """
    if count is not None and count < 1:
        raise ArgumentError(f"Expected a count of at least 1 image but got {count}.")
    if count is None or len(images) <= count:
        return images
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return images.subset(order[:count].sort().values)
