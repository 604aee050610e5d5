"""Pixels -> what a network takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from offaxis.data.image_set import ImageSet
from offaxis.errors import ArgumentError


@dataclass(frozen=True)
class Normalise:
    """(pixel in [0, 1] - mean) / std, channel by channel, with the ID set's statistics for every set.

    Attributes:
        mean: one number per channel.
        std: one positive number per channel.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise ArgumentError(
                f"Expected a mean and a positive std for each channel but got {self.mean} and {self.std}."
            )

    @classmethod
    def of(cls, images: ImageSet) -> Self:
        """The mean and the standard deviation of all pixels of a set, by channel, summed in float64."""
        channels = images.shape[0]
        total, squares, count = torch.zeros(channels).double(), torch.zeros(channels).double(), 0
        for batch in images.batches(512):
            pixels = _unit(batch).double().transpose(0, 1).flatten(1)
            total += pixels.sum(1)
            squares += pixels.square().sum(1)
            count += pixels.shape[1]
        mean = total / count
        std = (squares / count - mean.square()).clamp_min(0).sqrt().clamp_min(1e-6)
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    def __call__(self, images: Tensor) -> Tensor:
        """(N, c, h, w) in uint8 or in [0, 1] -> float (N, c, h, w)."""
        if images.shape[1] != len(self.mean):
            raise ArgumentError(f"Expected images with {len(self.mean)} channels but got {images.shape[1]}.")
        pixels = _unit(images)
        return (pixels - _column(self.mean, pixels)) / _column(self.std, pixels)


# As the paper's authors ran their networks; for every other set, Normalise.of computes them.
PUBLISHED: dict[str, Normalise] = {
    "cifar10": Normalise((0.49137255, 0.48235294, 0.44666667), (0.24705882, 0.24352941, 0.26156863)),
    "cifar100": Normalise((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


def _unit(images: Tensor) -> Tensor:
    return images.float().div(255) if images.dtype == torch.uint8 else images


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).view(-1, 1, 1)
