"""A set of images, whatever it was read from, and a short hash for every image."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from offaxis.errors import DataError


@dataclass(frozen=True)
class Skipped:
    """A file that was left out of a set.

    Attributes:
        path: the file.
        reason: what is wrong with it.
    """

    path: str
    reason: str


class ImageSet(ABC):
    """N images of one size, with labels where they are known.

    Attributes:
        name: what tables and files call it.
        classes: the classes' names in the order of the labels; empty where there are none.
        labels: int64 (N,), or None.
        sorted_by_class: whether the first images are all of one kind, as in a folder per class; such a set is shuffled
            before a part of it is taken.
        skipped: the files that could not be read and were left out, where that was allowed.
    """

    sorted_by_class: bool = False
    skipped: tuple[Skipped, ...] = ()

    def __init__(self, name: str, labels: Tensor | None = None, classes: Sequence[str] = ()) -> None:
        self.name = name
        self.labels = labels
        self.classes = tuple(classes)

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of every image."""

    @abstractmethod
    def batch(self, indices: Tensor) -> Tensor:
        """The images at these indices: (B, c, h, w), uint8, or float32 in [0, 1] where they never were bytes."""

    def batches(self, size: int) -> Iterator[Tensor]:
        """All images in order, ``size`` at a time."""
        return self.stream(torch.arange(len(self)).split(size))

    def stream(self, indices: Iterable[Tensor]) -> Iterator[Tensor]:
        """A batch for each tensor of indices, in order; sets that read files have the next ones ready beforehand."""
        return map(self.batch, indices)

    def subset(self, indices: Tensor, name: str | None = None) -> "ImageSet":
        """The images at these indices as a set of their own."""
        return Subset(self, indices, name or self.name)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the images and labels in order: the same whatever they were read from."""
        digest = hashlib.sha256(str((len(self), *self.shape)).encode())
        for images in self.batches(1024):
            digest.update(images.contiguous().numpy().tobytes())
        if self.labels is not None:
            digest.update(self.labels.numpy().tobytes())
        return digest.hexdigest()


class TensorSet(ImageSet):
    """Images in memory: uint8 (N, c, h, w), or float32 in [0, 1]."""

    def __init__(self, name: str, images: Tensor, labels: Tensor | None = None, classes: Sequence[str] = ()) -> None:
        if images.dim() != 4 or images.dtype not in (torch.uint8, torch.float32):
            raise DataError(
                f"Expected images of shape (N, c, h, w) in uint8 or float32 but {name} has "
                f"{tuple(images.shape)} in {str(images.dtype).removeprefix('torch.')}."
            )
        if labels is not None and labels.shape != (len(images),):
            raise DataError(f"Expected {len(images)} labels for {name} but got shape {tuple(labels.shape)}.")
        super().__init__(name, None if labels is None else labels.long(), classes)
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def batch(self, indices: Tensor) -> Tensor:
        """(B,) -> (B, c, h, w)."""
        return self.images[indices]


class Subset(ImageSet):
    """Some images of another set."""

    def __init__(self, whole: ImageSet, indices: Tensor, name: str) -> None:
        super().__init__(name, None if whole.labels is None else whole.labels[indices], whole.classes)
        self.sorted_by_class = whole.sorted_by_class
        self.skipped = whole.skipped
        self.whole = whole
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        return self.whole.shape

    def batch(self, indices: Tensor) -> Tensor:
        """(B,) -> (B, c, h, w)."""
        return self.whole.batch(self.indices[indices])

    def stream(self, indices: Iterable[Tensor]) -> Iterator[Tensor]:
        """A batch for each tensor of indices, in order."""
        return self.whole.stream(self.indices[chosen] for chosen in indices)


def hash_batch(images: Tensor) -> list[bytes]:
    """(B, c, h, w) -> 16 bytes for each image, of its shape, type and pixels."""
    head = f"{tuple(images.shape[1:])} {images.dtype}".encode()
    return [hashlib.blake2b(head + row.tobytes(), digest_size=16).digest() for row in np.asarray(images)]


def image_hashes(images: ImageSet, batch: int = 1024) -> list[bytes]:
    """The hash of every image of a set, in order."""
    return [value for pixels in images.batches(batch) for value in hash_batch(pixels)]


def shared(first: Iterable[bytes], second: Iterable[bytes]) -> list[int]:
    """The indices in ``second`` of images that are in ``first`` too."""
    there = set(first)
    return [index for index, value in enumerate(second) if value in there]


def repeated(hashes: Iterable[bytes]) -> list[int]:
    """The indices of images that came before in the same set."""
    seen: set[bytes] = set()
    again = []
    for index, value in enumerate(hashes):
        if value in seen:
            again.append(index)
        seen.add(value)
    return again
