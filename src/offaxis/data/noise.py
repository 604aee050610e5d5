"""Noise as image sets: image i of seed s is always the same, in whatever order and batches it is read."""

from abc import abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offaxis.data.image_set import ImageSet
from offaxis.errors import ArgumentError


class Noise(ImageSet):
    """``count`` images of noise: float32 in [0, 1], never rounded to bytes.

    Each image has a counter-based generator of its own, keyed by (seed, index). What it gives therefore depends on
    nothing else: not on batch size, order, number of workers or what was drawn before.
    """

    def __init__(self, name: str, count: int, shape: tuple[int, int, int], seed: int) -> None:
        if count < 1 or min(shape) < 1 or not 0 <= seed < 2**64:
            raise ArgumentError(
                f"Expected a positive count and shape and a seed from 0 to 2**64 - 1 but got {count}, {shape} and {seed}."
            )
        super().__init__(name)
        self.count = count
        self.seed = seed
        self._shape = shape

    def __len__(self) -> int:
        return self.count

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        return self._shape

    def batch(self, indices: Tensor) -> Tensor:
        """Draw the images at these indices: (B, c, h, w), float32 in [0, 1]."""
        numbers = torch.arange(self.count)[indices].tolist()  # as a tensor would: negative ones count from the end
        pixels = int(np.prod(self._shape))
        bits = np.empty((len(numbers), (pixels + 1) // 2), np.uint64)
        for row, index in enumerate(numbers):
            bits[row] = np.random.Philox(key=np.array([self.seed, index], np.uint64)).random_raw(bits.shape[1])
        words = bits.astype("<u8", copy=False).view("<u4")[:, :pixels]
        return torch.from_numpy(self._pixels(words)).view(len(numbers), *self._shape)

    @abstractmethod
    def _pixels(self, words: NDArray[np.uint32]) -> NDArray[np.float32]:
        """Turn random 32-bit words into pixels, element by element."""


class GaussianNoise(Noise):
    """Every pixel from N(0.5, std²), clipped to [0, 1].

    ``std=1.0`` is the paper's; ``std=0.25`` that of the less-biased evaluation (Shafaei et al.).
    """

    def __init__(self, count: int, shape: tuple[int, int, int], std: float = 1.0, seed: int = 0) -> None:
        if not std > 0:
            raise ArgumentError(f"Expected a positive std but got {std}.")
        super().__init__("gaussian" if std == 1 else f"gaussian-{str(std).replace('.', '')}", count, shape, seed)
        self.std = std

    def _pixels(self, words: NDArray[np.uint32]) -> NDArray[np.float32]:
        from scipy.special import ndtri

        standard = ndtri((words + 0.5) / 2**32)  # the inverse of the normal distribution, never at 0 or 1
        pixels: NDArray[np.float32] = np.clip(0.5 + self.std * standard, 0, 1).astype(np.float32)
        return pixels


class UniformNoise(Noise):
    """Every pixel from U[0, 1)."""

    def __init__(self, count: int, shape: tuple[int, int, int], seed: int = 0) -> None:
        super().__init__("uniform", count, shape, seed)

    def _pixels(self, words: NDArray[np.uint32]) -> NDArray[np.float32]:
        return (words >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)
