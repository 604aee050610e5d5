"""Checks of a set before it is used: sizes, duplicates and near-duplicates, black frames, a contact sheet."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor

from offaxis.data.decode import size_of
from offaxis.data.folder import FolderSet
from offaxis.data.images import ImageSet, Skipped, StatisticsPass, TensorSet, hash_batch, shared
from offaxis.data.transforms import CROP_ABOVE
from offaxis.errors import ArgumentError
from offaxis.files import replacing

ALMOST_ALL = 0.99


@dataclass(frozen=True)
class Frame:
    """The black border that the images of a set have in common.

    Attributes:
        width: pixels that are black on all four sides of nearly all images; 0 where there is no such border.
        share: the part of the images that have it.
        sharp: the part of the images whose black border is exactly that wide. Near 1 it is a frame around pictures;
            well below, the pictures merely have dark margins, as centred digits do.
    """

    width: int
    share: float
    sharp: float

    @property
    def is_frame(self) -> bool:
        """Whether this is a frame: a border of one width around nearly all images."""
        return self.width > 0 and self.sharp >= 0.9


def border_widths(images: Tensor) -> Tensor:
    """Count the black rings of pixels from outside: (B, c, h, w) uint8, or float32 in [0, 1] -> int64 (B,).

    A ring is black where every channel is 0. An image that is black all over counts as -1.
    """
    height, width = images.shape[2:]
    rows, columns = torch.arange(height), torch.arange(width)
    to_edge = torch.minimum(
        torch.minimum(rows, rows.flip(0))[:, None], torch.minimum(columns, columns.flip(0))[None, :]
    )
    nowhere = max(height, width)
    lit = (images > 0).any(dim=1)
    nearest = torch.where(lit, to_edge, nowhere).flatten(1).amin(1)
    return torch.where(nearest == nowhere, -1, nearest)


def common_frame(widths: Tensor) -> Frame:
    """Compute the frame of a set from the border widths (N,) of its images; entirely black images do not count."""
    widths = widths[widths >= 0]
    if not len(widths):
        return Frame(0, 0.0, 0.0)
    # the widest border that almost all images have
    width = int(widths.sort().values[int((1 - ALMOST_ALL) * len(widths))])
    share = (widths >= width).double().mean().item()
    return Frame(width, share, (widths == width).double().mean().item())


_GAP, _CAPTION = 6, 13
_BACKGROUND = (120, 140, 170)  # neither black nor grey, so that frames and margins show


def contact_sheet(images: ImageSet, count: int = 100, tile: int = 64) -> Image.Image:
    """Draw evenly spaced images of a set as a page, row by row; small ones are enlarged without smoothing.

    Below each stand its class and the name of its file, as far as they are known and there is room.

    Args:
        images: the set.
        count: how many at most.
        tile: the least height and width of an image on the page, in pixels.
    """
    if count < 1 or tile < 1:
        raise ArgumentError(f"Expected a positive count and tile but got {count} and {tile}.")
    chosen = torch.linspace(0, len(images) - 1, min(count, len(images))).round().long().unique()
    pixels = images.batch(chosen)
    if pixels.dtype != torch.uint8:
        pixels = pixels.mul(255).round().to(torch.uint8)
    pixels = pixels.expand(-1, 3, -1, -1)
    scale = max(1, math.ceil(tile / min(pixels.shape[2:])))
    tiles = pixels.permute(0, 2, 3, 1).repeat_interleave(scale, 1).repeat_interleave(scale, 2).numpy()
    columns = math.ceil(math.sqrt(len(tiles)))
    rows = math.ceil(len(tiles) / columns)
    captions = [_caption(images, index) for index in chosen.tolist()]
    height, width = tiles.shape[1] + _GAP + _CAPTION * any(captions), tiles.shape[2] + _GAP
    page = np.empty((rows * height + _GAP, columns * width + _GAP, 3), np.uint8)
    page[:] = _BACKGROUND
    for number, image in enumerate(tiles):
        top, left = number // columns * height + _GAP, number % columns * width + _GAP
        page[top : top + image.shape[0], left : left + image.shape[1]] = image
    sheet = Image.fromarray(page)
    drawing = ImageDraw.Draw(sheet)
    for number, caption in enumerate(captions):
        top, left = number // columns * height + _GAP + tiles.shape[1], number % columns * width + _GAP
        drawing.text((left, top), caption[: (width - _GAP) // 6], "black", font_size=10)
    return sheet


def _caption(images: ImageSet, index: int) -> str:
    """Return what stands below an image: its class and the name of its file, as far as they are known."""
    name = images.classes[images.labels[index]] if images.classes and images.labels is not None else ""
    return f"{name} {Path(images.paths[index]).name if images.paths else ''}".strip()


def write_contact_sheet(images: ImageSet, path: Path, count: int = 100, tile: int = 64) -> None:
    """Write the page as a PNG file, whole or not at all."""
    page = contact_sheet(images, count, tile)
    with replacing(path) as temporary:
        page.save(temporary, format="PNG")


NEAR = 0.95
"""Images whose thumbnails correlate more than this are nearly the same."""
_MOST_WITHIN = 20_000  # images of a set that are compared with each other: the time grows with the square


@dataclass(frozen=True)
class NearPair:
    """Two images that are nearly the same.

    Attributes:
        similarity: correlation of their thumbnails, above ``NEAR``.
        first: index of the image in the set that was inspected.
        second: index of the other image, in the same set or in another.
    """

    similarity: float
    first: int
    second: int


def thumbnail_vectors(images: Tensor) -> Tensor:
    """Shrink images (B, c, h, w) to 16x16, without their mean and with length 1: float (B, 256 c)."""
    small = F.interpolate(images.float(), (16, 16), mode="bilinear", antialias=True)
    return F.normalize((small - small.mean((1, 2, 3), keepdim=True)).flatten(1), dim=1)


def near_pairs(first: Tensor, second: Tensor | None = None) -> tuple[NearPair, ...]:
    """Find near-duplicates by the vectors of thumbnails, the most similar first.

    Args:
        first: (N, d), of the set that is inspected.
        second: (M, d), of another set; None to compare the set with itself.

    Returns:
        For each image of the first set its most similar one of the other, where they are nearly the same.
    """
    others, pairs = first if second is None else second, list[NearPair]()
    for rows in torch.arange(len(first)).split(1024):
        similarity = first[rows] @ others.T
        if second is None:
            similarity.masked_fill_(torch.arange(len(first)) >= rows[:, None], -1)  # each pair once
        best = similarity.max(1)
        pairs += [
            NearPair(float(best.values[row]), int(rows[row]), int(best.indices[row]))
            for row in (best.values > NEAR).nonzero().flatten().tolist()
        ]
    return tuple(sorted(pairs, key=lambda pair: -pair.similarity))


def near_copies(images: ImageSet, others: ImageSet) -> tuple[NearPair, ...]:
    """Find the photographs that are nearly the same as one of another set of this size; none in sets that are too large."""
    if min(images.shape[1:]) <= CROP_ABOVE or len(images) + len(others) > _MOST_WITHIN:
        return ()
    first, second = (torch.cat([*map(thumbnail_vectors, each.batches(256))]) for each in (images, others))
    return near_pairs(first, second)


def pair_sheet(images: ImageSet, other: ImageSet, pairs: Sequence[NearPair]) -> ImageSet:
    """Return each pair as one image, side by side, for a contact sheet."""
    left, right = (torch.tensor([getattr(pair, side) for pair in pairs]) for side in ("first", "second"))
    sheet = TensorSet("pairs", torch.cat([images.batch(left), other.batch(right)], dim=3))
    names = [(images.called(pair.first), other.called(pair.second)) for pair in pairs]
    sheet.paths = tuple(Path(" | ".join(Path(name).name for name in both)) for both in names)
    return sheet


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


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Counts, statistics, frame and duplicates of a set.

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
        near: photographs of the set that are nearly the same as others of it (the name ``""``), or as those of another set.
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
    near: dict[str, tuple[NearPair, ...]]
    among_others: dict[tuple[str, str], int]
    skipped: tuple[Skipped, ...]


def inspect(
    images: ImageSet,
    others: dict[str, ImageSet] | None = None,
    progress: Callable[[int], None] | None = None,
    batch: int = 512,
) -> Inspection:
    """Inspect a set in one pass over its images.

    Args:
        images: the set.
        others: sets in which its images should not be, by name; their images must have the same shape to be found.
        progress: called with the number of images after each batch.
        batch: images at a time.
    """
    sums = StatisticsPass(len(images), images.shape)
    hashes, widths, vectors = [], [], []
    photographs = min(images.shape[1:]) > CROP_ABOVE
    for part in images.batches(batch):
        sums.add(part)
        hashes += hash_batch(part)
        widths.append(border_widths(part))
        if photographs:
            vectors.append(thumbnail_vectors(part))
        if progress:
            progress(len(part))
    near = {"": near_pairs(torch.cat(vectors))} if photographs and len(images) <= _MOST_WITHIN else {}
    others_hashes: dict[str, list[bytes]] = {}
    for name, other in (others or {}).items():
        others_hashes[name] = their_hashes = []
        their_vectors = []
        comparable = photographs and other.shape[0] == images.shape[0]
        for part in other.batches(batch):
            their_hashes += hash_batch(part)
            if comparable:
                their_vectors.append(thumbnail_vectors(part))
        if comparable:
            near[name] = near_pairs(torch.cat(vectors), torch.cat(their_vectors))
    labels, statistics = images.labels, sums.finish(None)
    counts = np.zeros(1, int) if labels is None else np.bincount(labels.numpy(), minlength=len(images.classes))
    return Inspection(
        name=images.name,
        count=len(images),
        shape=images.shape,
        classes=len(images.classes),
        per_class=(int(counts.min()), int(counts.max())),
        mean=statistics.mean,
        std=statistics.std,
        sizes=file_sizes(images),
        frame=common_frame(torch.cat(widths)),
        repeated=len(hashes) - len(set(hashes)),
        shared={name: len(shared(their_hashes, hashes)) for name, their_hashes in others_hashes.items()},
        near=near,
        among_others={
            (a, b): len(shared(others_hashes[a], others_hashes[b])) for a, b in combinations(others_hashes, 2)
        },
        skipped=images.skipped,
    )


def file_sizes(images: ImageSet) -> Sizes | None:
    """Read the sizes of a set's files from their headers; None where it is not made of files."""
    if not isinstance(images, FolderSet):
        return None
    sizes = np.array([size_of(path) for path in images.files.paths])  # (N, 2): width, height
    smallest, median, largest = ((int(w), int(h)) for w, h in (sizes.min(0), np.median(sizes, 0), sizes.max(0)))
    return Sizes(smallest, median, largest, len(np.unique(sizes, axis=0)))
