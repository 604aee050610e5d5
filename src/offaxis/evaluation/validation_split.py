"""What tuning may see of a set, and what every detector is tested on."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from offaxis.data import ImageSet, validation_parts
from offaxis.data.splits import VALIDATION_IMAGES
from offaxis.errors import ArgumentError
from offaxis.evaluation.results import digest


@dataclass(frozen=True)
class Divided:
    """A set of test images, divided once and for all.

    Attributes:
        images: the whole set.
        validation: int64 (V,), the images that hyperparameters may be chosen on.
        test: int64 (T,), the others, on which every detector is tested.
        rule: how they were chosen.
    """

    images: ImageSet
    validation: Tensor
    test: Tensor
    rule: str

    @property
    def name(self) -> str:
        """The set's name."""
        return self.images.name

    @cached_property
    def key(self) -> str:
        """Names the images and their parts in a store."""
        return digest([self.name, self.images.fingerprint, self.rule])

    def about(self) -> dict[str, Any]:
        """For the results: what the images are, with their checksum."""
        return {
            "name": self.name,
            "images": len(self.images),
            "shape": list(self.images.shape),
            "fingerprint": self.images.fingerprint,
            "validation": len(self.validation),
            "rule": self.rule,
        }


def divide(images: ImageSet, validation: int = VALIDATION_IMAGES) -> Divided:
    """The first ``validation`` images (a shuffle's, where a set is sorted by class; at most a fifth) and the rest."""
    parts = validation_parts(images, validation)
    return Divided(images, parts.validation, parts.test, parts.rule)


def at_most(images: ImageSet, count: int | None, seed: int = 0) -> ImageSet:
    """The set, or a random part of it, in its own order and always the same for one seed, where it is larger.

    Raises:
        ArgumentError: the count is below 1.
    """
    if count is not None and count < 1:
        raise ArgumentError(f"Expected a count of at least 1 image but got {count}.")
    if count is None or len(images) <= count:
        return images
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return images.subset(order[:count].sort().values)
