"""Parts of a set: what tuning may see, and what is held out of a folder."""

from dataclasses import dataclass

import torch
from torch import Tensor

from offaxis.data.image_set import ImageSet
from offaxis.errors import ArgumentError, DataError

VALIDATION_IMAGES = 1000
LARGEST_SHARE = 0.2


@dataclass(frozen=True)
class Parts:
    """The validation images of a set and the rest, on which every detector is tested.

    Attributes:
        validation: int64 (V,), indices that tuning may see.
        test: int64 (T,), all the others, in ascending order.
        rule: how they were chosen, for the results.
    """

    validation: Tensor
    test: Tensor
    rule: str


def validation_parts(images: ImageSet, count: int = VALIDATION_IMAGES, seed: int = 0) -> Parts:
    """The first ``count`` images are for validation; where a set is sorted by class, those of a seeded shuffle.

    Never more than a fifth of a set goes to validation.
    """
    if count < 0:
        raise ArgumentError(f"Expected a count of at least 0 but got {count}.")
    taken = min(count, int(LARGEST_SHARE * len(images)))
    if images.sorted_by_class:
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        rule = f"the first {taken} of a shuffle with seed {seed}"
    else:
        order = torch.arange(len(images))
        rule = f"the first {taken}"
    return Parts(order[:taken], order[taken:].sort().values, f"{rule} of {len(images)} images")


def hold_out(images: ImageSet, share: float, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """(the rest, the held-out share) of a set, with the same share of every class; always the same for one seed.

    Raises:
        ArgumentError: the share is not between 0 and 1.
        DataError: a class has too few images to give one and keep one.
    """
    if not 0 < share < 1:
        raise ArgumentError(f"Expected a share between 0 and 1 but got {share}.")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    labels = torch.zeros(len(images), dtype=torch.long) if images.labels is None else images.labels
    kept, held = [], []
    for label in labels.unique().tolist():
        members = order[labels[order] == label]
        cut = round(share * len(members))
        if not 0 < cut < len(members):
            name = images.classes[label] if images.classes else images.name
            raise DataError(
                f"{share:.0%} of the {len(members)} images of {name} leave one side empty: add images or change the share."
            )
        held.append(members[:cut])
        kept.append(members[cut:])
    return images.subset(torch.cat(kept).sort().values), images.subset(torch.cat(held).sort().values)
