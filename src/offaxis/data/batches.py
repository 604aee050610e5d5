"""A set's images, normalised, batch by batch."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from offaxis.data.image_set import ImageSet
from offaxis.data.transforms import Normalise
from offaxis.errors import ArgumentError


@dataclass(frozen=True)
class Batches:
    """Normalised images of a set with their labels, batch by batch, as often as wanted."""

    images: ImageSet
    normalise: Normalise
    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ArgumentError(f"Expected batches of at least 1 image but got a batch size of {self.size}.")

    def __len__(self) -> int:
        return -(-len(self.images) // self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        places = torch.arange(len(self.images)).split(self.size)
        labels = torch.zeros(len(self.images), dtype=torch.long) if self.images.labels is None else self.images.labels
        for where, pixels in zip(places, self.images.stream(places), strict=True):
            yield self.normalise(pixels), labels[where]
