"""A set of images as a torch Dataset, its statistics, its parts, and a short hash for every image."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from offaxis.data.decode import printable
from offaxis.errors import ArgumentError, DataError, OverlapError, at_least_one


@dataclass(frozen=True)
class Skipped:
    """A file that was left out of a set.

    Attributes:
        path: the file.
        reason: what is wrong with it.
    """

    path: str
    reason: str


MOST_LISTED = 20
COPY = "a copy of a training image"


def list_skipped(files: Sequence[Skipped]) -> list[str]:
    """Return a line for each file that was left out, for the first twenty of them; none where there are none."""
    copies = [bad for bad in files if bad.reason == COPY]
    if copies and len(copies) < len(files):
        return [*list_skipped([bad for bad in files if bad.reason != COPY]), *list_skipped(copies)]
    if not files:
        return []
    more = [f"  and {len(files) - MOST_LISTED:,} more"] if len(files) > MOST_LISTED else []
    why = "they are among the training images" if copies else "they cannot be read (--skip-bad)"
    return [
        f"Left out, as {why}: {len(files):,}.",
        *(f"  {bad.path}: {bad.reason.removeprefix(bad.path).strip()}" for bad in files[:MOST_LISTED]),
        *more,
    ]


@dataclass(frozen=True)
class PixelStatistics:
    """What one pass over the images of a set gives.

    Attributes:
        mean: of the pixels in [0, 1], by channel.
        std: standard deviation likewise.
        fingerprint: SHA-256 of the images and labels in order.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    fingerprint: str


class StatisticsPass:
    """Sums and a digest over the images of a set, batch by batch: ``add`` each batch, then ``finish``."""

    def __init__(self, count: int, shape: tuple[int, int, int]) -> None:
        self.digest = hashlib.sha256(str((count, *shape)).encode())
        self.total = torch.zeros(shape[0]).double()
        self.squares = torch.zeros(shape[0]).double()
        self.pixels = 0

    def hash(self, images: Tensor) -> None:
        """Add a batch (B, c, h, w) to the digest alone."""
        self.digest.update(images.contiguous().numpy().reshape(-1).data)

    def fingerprint(self, labels: Tensor | None) -> str:
        """Return the digest of all batches, and then of the labels."""
        if labels is not None:
            self.digest.update(labels.contiguous().numpy().data)
        return self.digest.hexdigest()

    def add(self, images: Tensor) -> None:
        """Add a batch (B, c, h, w); the sums are in float64."""
        self.hash(images)
        size = images.shape[2] * images.shape[3]
        values = torch.empty(images.shape[1], len(images) * size, dtype=torch.float64)
        for rows in torch.arange(len(images)).split(_CONVERTED):  # few at a time; the order of the sums stays
            part = images[rows[0] : rows[-1] + 1]
            values[:, rows[0] * size : (rows[-1] + 1) * size] = to_unit(part).transpose(0, 1).flatten(1)
        self.total += values.sum(1)
        self.squares += values.square_().sum(1)
        self.pixels += values.shape[1]

    def finish(self, labels: Tensor | None) -> PixelStatistics:
        """Return the statistics of all batches, with the labels in the fingerprint."""
        mean = self.total / self.pixels
        std = (self.squares / self.pixels - mean.square()).clamp_min(0).sqrt()
        return PixelStatistics(tuple(mean.tolist()), tuple(std.tolist()), self.fingerprint(labels))


def to_unit(images: Tensor) -> Tensor:
    """Scale uint8 pixels to [0, 1] in float32; return floats unchanged."""
    return images.float().div(255) if images.dtype == torch.uint8 else images


def check_unit(images: Tensor, name: str) -> None:
    """Refuse floats that are not pixels in [0, 1]; resizing in floating point may leave it by a little."""
    least, most = (float(bound) for bound in images.aminmax()) if images.numel() else (0.0, 1.0)
    if not -1e-4 <= least <= most <= 1 + 1e-4:
        raise DataError(
            f"Expected floats in [0, 1] but {name} has values from {least:.3g} to {most:.3g}: divide by 255, or leave out the "
            "normalisation (images that are normalised already come in a DataLoader)."
        )


TOKENS = ("input_ids", "attention_mask", "token_type_ids")
"""What text classifiers of transformers take, in the order in which a tensor of tokens (N, k, L) holds them."""


def stack_tokens(ids: Any, mask: Any = None, types: Any = None) -> Tensor:
    """Return a batch of texts as one tensor (N, k, L), as ``Classifier.features`` takes it."""
    parts = [ids, torch.ones_like(ids) if mask is None else mask.to(ids.dtype), *([] if types is None else [types])]
    return torch.stack(parts, 1)


def describe_tensor(tensor: Tensor) -> str:
    """Return shape and type of a tensor as text."""
    return f"{tuple(tensor.shape)} in {str(tensor.dtype).removeprefix('torch.')}"


_CONVERTED = 16  # images that are in memory as floats of both sizes
STATISTICS_BATCH = 512
"""Images that :meth:`ImageSet.statistics` sums at a time: the last bits of mean and std depend on it."""


class ImageSet(Dataset[tuple[Tensor, int] | Tensor], ABC):
    """N images of one size, with labels where they are known: a torch ``Dataset``.

    ``images[i]`` is (image, label), or the image alone where there are no labels; an image is uint8 (c, h, w), or
    float32 in [0, 1]. Whole batches are faster: ``batch``, ``batches``, ``stream``.

    Attributes:
        name: what tables and files call it.
        shape: (channels, height, width) of every image.
        classes: the classes' names in the order of the labels; empty where there are none.
        sorted_by_class: whether the first images are all of one kind, as in a folder per class; such a set is shuffled
            before a part of it is taken.
        paths: the file of each image; empty where they have none of their own.
        skipped: the files that were left out: those that could not be read, where that was allowed, and copies.
        path: the folder or archive that it was read from, absolute; None where it was not.
        options: the arguments of ``load_images``, beside name and split, that give these images again.
    """

    sorted_by_class: bool = False
    paths: tuple[Path, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    path: str | None = None
    options: Mapping[str, Any] = MappingProxyType({})
    _statistics: PixelStatistics | None = None
    _fingerprint: str | None = None

    def __init__(
        self, name: str, shape: tuple[int, int, int], labels: Tensor | None = None, classes: Sequence[str] = ()
    ) -> None:
        self.name, self.shape = name, shape
        self._labels = labels
        self.classes = tuple(classes)

    @property
    def labels(self) -> Tensor | None:
        """Labels, int64 (N,), or None."""
        return self._labels

    def describe_like(self, other: "ImageSet", **options: Any) -> None:
        """Take over what is known of another set, whose images these are, with some options changed."""
        self.sorted_by_class, self.skipped, self.path = other.sorted_by_class, other.skipped, other.path
        self.paths = other.paths
        self.options = {**other.options, **options}

    def called(self, index: int) -> str:
        """Return the file of an image, or the set and its number."""
        return printable(self.paths[index]) if self.paths else f"{self.name} {index}"

    def describe(self) -> dict[str, Any]:
        """Return what records keep of it: name, number of images, fingerprint; of a folder also its path and options."""
        about: dict[str, Any] = {"name": self.name, "images": len(self), "fingerprint": self.fingerprint}
        about |= {"path": self.path} if self.path is not None else {}
        return about | ({"options": dict(self.options)} if self.options else {})

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, indices: Tensor) -> Tensor:
        """Return the images at these indices: (B, c, h, w), uint8, or float32 in [0, 1] where they never were bytes."""

    def __getitem__(self, index: int) -> tuple[Tensor, int] | Tensor:
        """Return (image (c, h, w), label), or the image alone where there are no labels."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, int] | Tensor]:
        """Return several items at once, as a torch DataLoader reads them."""
        count = len(self)
        for index in indices:
            if not -count <= index < count:
                raise IndexError(
                    f"Expected an index below {count}, the number of images of {self.name}, but got {index}."
                )
        chosen = torch.tensor(indices, dtype=torch.long) % max(count, 1)
        images, labels = self.batch(chosen), self.labels
        if labels is None:
            return list(images)
        return list(zip(images, labels[chosen].tolist(), strict=True))

    def batches(self, size: int) -> Iterator[Tensor]:
        """Yield all images in order, ``size`` at a time."""
        return self.stream(torch.arange(len(self)).split(size))

    def stream(self, indices: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield a batch for each tensor of indices, in order; sets that read files prepare the next ones meanwhile."""
        return map(self.batch, indices)

    def subset(self, indices: Tensor, name: str | None = None) -> "ImageSet":
        """Return the images at these indices, or those where a mask (N,) is True, as a set of their own."""
        return ImageSubset(self, indices, name or self.name)

    def statistics(self) -> PixelStatistics:
        """Return mean, std and fingerprint, all from one pass over the images; they are computed once.

        Raises:
            DataError: the set is empty.
        """
        labels = self.labels  # a dataset reads them in the pass that gives the statistics too
        if self._statistics is None:
            if len(self) == 0:
                raise DataError(f"Expected images to compute mean and std of but {self.name} is empty.")
            sums = StatisticsPass(len(self), self.shape)
            for images in self.batches(STATISTICS_BATCH):
                sums.add(images)
            self._statistics = sums.finish(labels)
        return self._statistics

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the images and labels in order: the same whatever they were read from."""
        labels = self.labels  # see statistics
        if self._statistics is not None:
            return self._statistics.fingerprint
        if self._fingerprint is None:
            reading = StatisticsPass(len(self), self.shape)
            for images in self.batches(1024):
                reading.hash(images)
            self._fingerprint = reading.fingerprint(labels)
        return self._fingerprint


class TensorSet(ImageSet):
    """Images in memory: uint8 (N, c, h, w), or float32 in [0, 1]."""

    def __init__(self, name: str, images: Tensor, labels: Tensor | None = None, classes: Sequence[str] = ()) -> None:
        if images.dim() != 4 or images.dtype not in (torch.uint8, torch.float32):
            raise DataError(
                f"Expected images of shape (N, c, h, w) in uint8 or float32 but {name} has {describe_tensor(images)}."
            )
        if images.is_floating_point():
            check_unit(images, name)
        if labels is not None and (labels.shape != (len(images),) or labels.is_floating_point()):
            raise DataError(
                f"Expected whole numbers as labels but {name} has {labels.dtype} of shape {tuple(labels.shape)} for "
                f"{len(images)} images: number the classes from 0, .long()."
            )
        channels, height, width = images.shape[1:]
        super().__init__(name, (channels, height, width), None if labels is None else labels.long(), classes)
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor) -> Tensor:
        """Return the images at these indices: (B, c, h, w)."""
        return self.images[indices]


class ImageSubset(ImageSet):
    """Some images of another set."""

    def __init__(self, whole: ImageSet, indices: Tensor, name: str) -> None:
        super().__init__(name, whole.shape, classes=whole.classes)
        self.describe_like(whole)
        self.whole = whole
        if indices.dtype == torch.bool and indices.shape != (len(whole),):
            raise DataError(
                f"Expected a mask of {len(whole)} values, one for each image of {whole.name}, but got {tuple(indices.shape)}."
            )
        self.indices = indices.nonzero().flatten() if indices.dtype == torch.bool else indices
        self.paths = tuple(whole.paths[index] for index in self.indices.tolist()) if whole.paths else ()

    @property
    def labels(self) -> Tensor | None:
        """Labels, int64 (N,), or None."""
        if self._labels is None and self.whole.labels is not None:
            self._labels = self.whole.labels[self.indices]
        return self._labels

    def __len__(self) -> int:
        return len(self.indices)

    def batch(self, indices: Tensor) -> Tensor:
        """Return the images at these indices: (B, c, h, w)."""
        return self.whole.batch(self.indices[indices])

    def stream(self, indices: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield a batch for each tensor of indices, in order."""
        return self.whole.stream(self.indices[chosen] for chosen in indices)


def hash_batch(images: Tensor) -> list[bytes]:
    """Hash each image of a batch (B, c, h, w): 16 bytes of its shape, type and pixels."""
    head = f"{tuple(images.shape[1:])} {images.dtype}".encode()
    return [hashlib.blake2b(head + row.tobytes(), digest_size=16).digest() for row in np.asarray(images.cpu())]


def image_hashes(images: ImageSet, batch: int = 1024) -> list[bytes]:
    """Return the hash of every image of a set, in order."""
    return [value for pixels in images.batches(batch) for value in hash_batch(pixels)]


def pack_hashes(hashes: Sequence[bytes], *, distinct: bool = True) -> Tensor:
    """Pack hashes of 16 bytes into uint8 (N, 16), sorted, each once unless copies are to be counted."""
    packed = b"".join(sorted(set(hashes) if distinct else hashes))
    return torch.from_numpy(np.frombuffer(packed, np.uint8).reshape(-1, 16).copy())


def unpack_hashes(packed: Tensor) -> list[bytes]:
    """Return the hashes that ``pack_hashes`` packed."""
    return [row.tobytes() for row in packed.numpy()]


def shared(first: Iterable[bytes], second: Iterable[bytes]) -> list[int]:
    """Return the indices in ``second`` of images that are in ``first`` too."""
    present = set(first)
    return [index for index, value in enumerate(second) if value in present]


def drop_copies(images: ImageSet, others: Iterable[bytes]) -> ImageSet:
    """Return the images that are not, pixel for pixel, among those with these hashes; the files of others are ``skipped``.

    Raises:
        OverlapError: all of them are.
    """
    copies = shared(others, image_hashes(images))
    if not copies:
        return images
    if len(copies) == len(images):
        raise OverlapError(
            f"Expected images of {images.name} that are not among the training images but got {len(copies)} copies of these: "
            "name a folder of other images."
        )
    distinct = torch.ones(len(images), dtype=torch.bool)
    distinct[copies] = False
    rest = images.subset(distinct)
    rest.skipped = (*images.skipped, *(Skipped(images.called(index), COPY) for index in copies))
    return rest


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
    if count is not None:
        at_least_one("count", count)
    if count is None or len(images) <= count:
        return images
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return images.subset(order[:count].sort().values)
