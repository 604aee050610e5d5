"""A short hash for every image: the same pixels, the same hash, in any set."""

import hashlib
from collections.abc import Iterable

import numpy as np
from torch import Tensor

from offaxis.data.image_set import ImageSet


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
