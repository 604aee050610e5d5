"""What a researcher wants to know of a set before trusting a number made with it."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch

from offaxis.data.decode import size_of
from offaxis.data.folder import FolderSet
from offaxis.data.frame import Frame, border_widths, common_frame
from offaxis.data.hashes import hash_batch, image_hashes, repeated, shared
from offaxis.data.image_set import ImageSet, Skipped


@dataclass(frozen=True)
class Sizes:
    """The sizes of image files before they are matched to anything.

    Attributes:
        smallest: (width, height), each the least of all.
        median: (width, height).
        largest: (width, height).
        different: how many pairs of width and height there are.
    """

    smallest: tuple[int, int]
    median: tuple[int, int]
    largest: tuple[int, int]
    different: int


@dataclass(frozen=True)
class Inspection:
    """What was found in a set.

    Attributes:
        name: the set.
        count: its images.
        shape: (channels, height, width) of an image as it is given.
        classes: how many.
        per_class: (least, most) images of a class; (0, 0) without labels.
        mean: of the pixels in [0, 1], by channel.
        std: likewise.
        sizes: of the files, where it is made of files.
        frame: the black border that the images have in common.
        repeated: images that are in the set already.
        shared: for each other set by name, how many images of this one are in that one too.
        among_others: for each two of the other sets, how many images of the second are in the first too.
        skipped: files that were left out.
    """

    name: str
    count: int
    shape: tuple[int, int, int]
    classes: int
    per_class: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sizes: Sizes | None
    frame: Frame
    repeated: int
    shared: dict[str, int]
    among_others: dict[tuple[str, str], int]
    skipped: tuple[Skipped, ...]


def inspect(
    images: ImageSet,
    others: dict[str, ImageSet] | None = None,
    progress: Callable[[int], None] | None = None,
    batch: int = 512,
) -> Inspection:
    """Read a set once and tell what is in it.

    Args:
        images: the set.
        others: sets in which its images should not be, by name; their images must have the same shape to be found.
        progress: is told how many more images were read.
        batch: images at a time.
    """
    channels = images.shape[0]
    total, squares, pixels = torch.zeros(channels).double(), torch.zeros(channels).double(), 0
    hashes, widths = [], []
    for part in images.batches(batch):
        unit = part.double().div(255) if part.dtype == torch.uint8 else part.double()
        total += unit.sum((0, 2, 3))
        squares += unit.square().sum((0, 2, 3))
        pixels += unit[:, 0].numel()
        hashes += hash_batch(part)
        widths.append(border_widths(part))
        if progress:
            progress(len(part))
    elsewhere = {name: image_hashes(other) for name, other in (others or {}).items()}
    mean = total / pixels
    std = (squares / pixels - mean.square()).clamp_min(0).sqrt()
    counts = np.bincount(images.labels.numpy()) if images.labels is not None else np.zeros(1, int)
    return Inspection(
        images.name,
        len(images),
        images.shape,
        len(images.classes),
        (int(counts.min()), int(counts.max())),
        tuple(mean.tolist()),
        tuple(std.tolist()),
        file_sizes(images),
        common_frame(torch.cat(widths)),
        len(repeated(hashes)),
        {name: len(shared(there, hashes)) for name, there in elsewhere.items()},
        {(a, b): len(shared(elsewhere[a], elsewhere[b])) for a, b in combinations(elsewhere, 2)},
        images.skipped,
    )


def file_sizes(images: ImageSet) -> Sizes | None:
    """The sizes of a set's files from their headers, or None where it is not made of files."""
    if not isinstance(images, FolderSet):
        return None
    sizes = np.array([size_of(path) for path in images.files.paths])  # (N, 2): width, height
    smallest, median, largest = ((int(w), int(h)) for w, h in (sizes.min(0), np.median(sizes, 0), sizes.max(0)))
    return Sizes(smallest, median, largest, len(np.unique(sizes, axis=0)))
