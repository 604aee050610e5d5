"""What the steps of a training see: batches of an ImageSet, shuffled and augmented, or of a DataLoader, unchanged.

Images, learning rate and random numbers of a step are a function of the seed and its number alone. Nothing random is carried
from one step to the next, so that a training that is cut off anywhere ends as if it had never stopped.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sized
from dataclasses import replace
from itertools import tee
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from offaxis.data import ImageSet, Normalise
from offaxis.data.adapt import LoaderBatches, as_batches, as_image_set, check_labels_in_range, is_loader
from offaxis.data.images import to_unit
from offaxis.data.transforms import Batches
from offaxis.errors import ArgumentError, DataError
from offaxis.heads.batch_norm import SyncedBatchNorm
from offaxis.networks.classifier import Classifier
from offaxis.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Share(NamedTuple):
    """One process's share of a batch.

    Attributes:
        images: (B, c, h, w), as they were read.
        labels: (B,).
        start: where the share begins in the global batch.
        total: the size of the global batch.
    """

    images: Tensor
    labels: Tensor
    start: int
    total: int


class TrainingBatches(ABC):
    """The batches of a training, with the learning rate and the random numbers of each step.

    Attributes:
        normalise: mean and std; None where the batches are normalised already.
        classes: names of the classes; empty where they are not known.
        whole_epochs: whether a training can be resumed at the end of an epoch only.

    Args:
        recipe: epochs, batch size, learning rates, augmentation.
        seed: of everything random but the network's initial weights.
        steps_per_epoch: the number of batches per epoch.
        processes: how many processes share each batch.
        rank: which of them this is, from 0.
    """

    normalise: Normalise | None = None
    classes: tuple[str, ...] = ()
    whole_epochs = False

    def __init__(self, recipe: Recipe, seed: int, steps_per_epoch: int, processes: int = 1, rank: int = 0) -> None:
        self.recipe, self.seed, self.processes, self.rank = recipe, seed, processes, rank
        self.steps_per_epoch, self.steps = steps_per_epoch, steps_per_epoch * recipe.epochs

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.recipe.learning_rate_at(step, self.steps)

    def generator(self, purpose: str, number: int) -> Generator:
        """Return a CPU generator for one purpose at one epoch or step."""
        return Generator().manual_seed(self.derived_seed(purpose, number))

    def derived_seed(self, purpose: str, number: int) -> int:
        """Return a 63-bit seed that depends on nothing but the training's seed, the purpose and the number."""
        digest = hashlib.blake2b(f"{self.seed}/{purpose}/{number}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    @abstractmethod
    def read(self, first: int, last: int) -> Iterator[Share]:
        """Iterate over the batches of the steps from ``first`` to before ``last``."""

    @abstractmethod
    def prepare(self, step: int, share: Share, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the images as the network takes them, and their labels, both on the device."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Describe the data for run.json: name, number of images, checksum."""


class ImageSetBatches(TrainingBatches):
    """The batches of a labelled ImageSet, in a new random order each epoch, cropped and flipped at random."""

    normalise: Normalise

    def __init__(
        self,
        data: ImageSet,
        labels: Tensor,
        normalise: Normalise | None,
        recipe: Recipe,
        *,
        seed: int,
        processes: int = 1,
        rank: int = 0,
    ) -> None:
        size = recipe.batch_size
        if size % processes or size // processes < 2 or len(data) < size:
            raise DataError(
                f"Expected at least as many training images as a batch has and the same number for each of {processes} "
                f"processes, at least 2, but got {len(data)} images and batches of {size}: use a smaller batch size."
            )
        rest = len(data) % size
        self.remainder = rest - rest % processes if rest // processes >= 2 else 0
        super().__init__(recipe, seed, len(data) // size + bool(self.remainder), processes, rank)
        self.data, self.labels, self.classes = data, labels, data.classes
        self.normalise = normalise or Normalise.from_images(data)

    def order(self, epoch: int) -> Tensor:
        """Return the order (N,) in which an epoch visits the images."""
        return torch.randperm(len(self.data), generator=self.generator("order", epoch))

    def batch(self, order: Tensor, step: int) -> tuple[Tensor, int, int]:
        """Return this process's indices at a step, where they begin in the global batch, and that batch's size.

        An epoch's last batch has what is left over; nothing where a process would get fewer than two images.
        """
        begin = (step % self.steps_per_epoch) * self.recipe.batch_size
        indices = order[begin : begin + self.recipe.batch_size]
        if len(indices) < self.recipe.batch_size:
            indices = indices[: self.remainder]
        share = len(indices) // self.processes
        return indices[self.rank * share : (self.rank + 1) * share], self.rank * share, len(indices)

    def _indices(self, first: int, last: int) -> Iterator[tuple[Tensor, int, int]]:
        order, of_epoch = torch.empty(0), -1
        for step in range(first, last):
            if of_epoch != step // self.steps_per_epoch:
                of_epoch = step // self.steps_per_epoch
                order = self.order(of_epoch)
            yield self.batch(order, step)

    def read(self, first: int, last: int) -> Iterator[Share]:
        """Iterate over the batches of the steps from ``first`` to before ``last``."""
        shares, ahead = tee(self._indices(first, last))  # sets that decode files read a few batches ahead
        images = self.data.stream(indices for indices, _, _ in ahead)
        for (indices, start, total), pixels in zip(shares, images, strict=True):
            yield Share(pixels, self.labels[indices], start, total)

    def prepare(self, step: int, share: Share, device: torch.device) -> tuple[Tensor, Tensor]:
        """Augment and normalise the images; the random numbers depend on seed, step and place in the batch alone."""
        recipe, generator = self.recipe, self.generator("augment", step)
        images = share.images.to(device, non_blocking=True)
        place = {"start": share.start, "total": share.total}
        if recipe.min_area is not None and recipe.min_area < 1:
            images = zoom_and_flip(images, recipe.min_area, recipe.flip, generator, **place)
        else:
            images = crop_and_flip(images, recipe.crop, recipe.flip, generator, **place)
        if recipe.jitter:
            images = jitter_colours(images, recipe.jitter, self.generator("colours", step), **place)
        images = self.normalise(images).contiguous(memory_format=torch.channels_last)
        return images, share.labels.to(device, non_blocking=True)

    def describe(self) -> dict[str, Any]:
        """Describe the set by its name, its number of images and their SHA-256; a folder also by path and options."""
        return self.data.describe()


class DataLoaderBatches(TrainingBatches):
    """The batches of a DataLoader, unchanged: it shuffles, augments and normalises itself.

    The global random number generator is seeded before each epoch, so that in one process a loader without a generator
    of its own shuffles the same way for the same seed, resumed or not.
    """

    whole_epochs = True

    def __init__(self, loader: LoaderBatches, recipe: Recipe, *, seed: int, processes: int, rank: int) -> None:
        super().__init__(recipe, seed, len(loader), processes, rank)
        self.loader = loader
        self.dataset = getattr(loader.loader, "dataset", loader.loader)
        classes = getattr(self.dataset, "classes", None)
        self.classes = () if classes is None else tuple(map(str, classes))

    def read(self, first: int, last: int) -> Iterator[Share]:
        """Iterate over the batches of the steps from ``first``, which begins an epoch, to before ``last``."""
        per_epoch = self.steps_per_epoch
        for epoch in range(first // per_epoch, -(-last // per_epoch)):
            torch.manual_seed(self.derived_seed("order", epoch))
            count = 0
            for count, (images, labels) in enumerate(self.loader, 1):
                if count > per_epoch:
                    break
                yield Share(images, labels, 0, len(images))
            if count != per_epoch:
                raise DataError(
                    f"Expected {per_epoch} batches in every epoch, the length of the DataLoader, but epoch {epoch + 1} had "
                    f"{'more' if count > per_epoch else count}."
                )

    def prepare(self, step: int, share: Share, device: torch.device) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Move images and labels to the device; they stay as the loader gave them."""
        images = share.images.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)
        return images, share.labels.to(device, non_blocking=True)

    def describe(self) -> dict[str, Any]:
        """Describe the loader by its dataset; it is not read for a checksum, as it may give other images each time."""
        images = len(self.dataset) if isinstance(self.dataset, Sized) else None
        return {"name": self.loader.name, "images": images, "fingerprint": None}


def make_training_batches(
    classifier: Classifier, data: Any, recipe: Recipe, *, seed: int, normalise: Normalise | None, fabric: "Fabric"
) -> TrainingBatches:
    """Make the batches of a training from an ImageSet, a Dataset, a pair of tensors or a DataLoader.

    Args:
        classifier: the network, whose number of classes bounds the labels.
        data: what ``offaxis.data.adapt.as_image_set`` takes, or a DataLoader of (images, labels).
        recipe: batch size and augmentation; those of a DataLoader are its own.
        seed: of the order and the augmentation.
        normalise: mean and std; those of the data if None. Must be None for a DataLoader.
        fabric: how many processes share a batch.

    Raises:
        DataError: there are too few images, no labels, or labels outside 0..C-1.
        ArgumentError: ``normalise`` was given for a DataLoader; or it, or the recipe, is something else.
    """
    if not isinstance(recipe, Recipe):
        raise ArgumentError(
            f"Expected a Recipe but got {recipe!r:.60}: offaxis.training.RECIPES has them by name, as in RECIPES['finetune']()."
        )
    if normalise is not None and not isinstance(normalise, Normalise):
        raise ArgumentError(f"Expected offaxis.data.Normalise(mean, std) to normalise by but got {normalise!r:.60}.")
    share = {"seed": seed, "processes": fabric.world_size, "rank": fabric.global_rank}
    if not is_loader(data):
        images = as_image_set(data)
        labels = check_labels_in_range(images.labels, classifier.num_classes, images.name)
        return ImageSetBatches(images, labels, normalise, recipe, **share)
    _check_last_batch(classifier, data)
    size = getattr(data, "batch_size", None) or recipe.batch_size
    own = replace(recipe, batch_size=size, crop=0, flip=False, min_area=None, jitter=None)
    if fabric.world_size > 1:
        data = fabric.setup_dataloaders(data, move_to_device=False)  # each process gets its own share
    return DataLoaderBatches(_loader_batches(data, normalise, classifier.num_classes), own, **share)


def _check_last_batch(classifier: Classifier, loader: Any) -> None:
    """Raise DataError where the last batch of each epoch would be a single image that the head cannot normalise."""
    if not isinstance(loader, DataLoader) or loader.drop_last or not isinstance(loader.sampler, Sized):
        return
    size, drawn = loader.batch_size, len(loader.sampler)
    if not size or drawn % size != 1:
        return
    if any(isinstance(part, SyncedBatchNorm) for part in classifier.head.modules()):
        raise DataError(
            f"Expected batches of at least 2 images but the last of {drawn} images in batches of {size} has 1, and "
            "the head normalises over the batch. Make the DataLoader with drop_last=True, or with another batch size."
        )


def _loader_batches(loader: Any, normalise: Normalise | None, num_classes: int) -> LoaderBatches:
    batches = as_batches(loader, normalise, 0, labels=True, num_classes=num_classes)
    assert isinstance(batches, LoaderBatches)
    if not len(batches):
        raise DataError("Expected a DataLoader that gives at least one batch but it has none: is drop_last=True set?")
    return batches


def make_validation_batches(
    classifier: Classifier, validation: Any, training: TrainingBatches
) -> Batches | LoaderBatches:
    """Make the batches that accuracy is measured on, normalised like the training images.

    Raises:
        DataError: there are no images, no labels, or labels of other classes than those that are trained.
    """
    if is_loader(validation):
        return _loader_batches(validation, None, classifier.num_classes)
    images = as_image_set(validation)
    if training.normalise is None:
        raise DataError(
            f"Expected a DataLoader to validate on, as the training images come from one, but got {images.name}: how its "
            "images are normalised is not known."
        )
    if training.classes and images.classes and training.classes != images.classes:
        raise DataError(
            f"Expected validation images of the classes that are trained ({', '.join(training.classes[:10])}) but "
            f"{images.name} has {', '.join(images.classes[:10])}: their numbers would not mean the same."
        )
    return as_batches(images, training.normalise, 512, labels=True, num_classes=classifier.num_classes)


def crop_and_flip(
    images: Tensor, padding: int, flip: bool, generator: Generator, *, start: int = 0, total: int | None = None
) -> Tensor:
    """Shift each image by up to ``padding`` pixels, filling with black, and mirror half of them, at random.

    One gather does both, whatever the dtype and the device of the images.

    Args:
        images: (B, c, h, w), uint8 or float in [0, 1].
        padding: width of the black border that the crop may reach into, on each side. Images that are no larger than it,
            such as features (N, d, 1, 1), are not shifted: nothing could be left of them.
        flip: mirror half of the images.
        generator: where the random numbers come from, on the CPU.
        start: where these images begin in the global batch.
        total: the size of the global batch; None where this is all of it. Numbers are drawn for the whole, so that each
            image gets the same ones however many processes share it.
    """
    batch, channels, height, width = images.shape
    padding = padding if padding < min(height, width) else 0
    if not padding and not flip:
        return images
    draws = batch if total is None else total
    ours = slice(start, start + batch)
    offsets = torch.randint(0, 2 * padding + 1, (draws, 2), generator=generator)[ours]
    mirrored = (torch.rand(draws, generator=generator)[ours] < 0.5) & flip
    rows = offsets[:, :1] + torch.arange(height)
    columns = torch.arange(width).expand(batch, width)
    columns = offsets[:, 1:] + torch.where(mirrored[:, None], width - 1 - columns, columns)
    flat = rows[:, :, None] * (width + 2 * padding) + columns[:, None, :]
    index = flat.view(batch, 1, -1).to(images.device).expand(-1, channels, -1)
    padded = F.pad(images, (padding, padding, padding, padding))
    return padded.flatten(2).gather(2, index).view_as(images)


def zoom_and_flip(
    images: Tensor, min_area: float, flip: bool, generator: Generator, *, start: int = 0, total: int | None = None
) -> Tensor:
    """Enlarge a random part of each image to the whole (random resized crop), bilinear, and mirror half of them.

    Args:
        images: (B, c, h, w), uint8 or float in [0, 1].
        min_area: the least share of the area that a part has; its sides have a ratio of 3:4 to 4:3.
        flip: mirror half of the images.
        generator: where the random numbers come from, on the CPU.
        start: where these images begin in the global batch.
        total: the size of the global batch; see ``crop_and_flip``.

    Returns:
        Float (B, c, h, w) in [0, 1].
    """
    pixels = to_unit(images)
    batch = len(images)
    area, ratio, top, left, mirror = torch.rand(total or batch, 5, generator=generator)[start : start + batch].unbind(1)
    area = min_area + (1 - min_area) * area
    ratio = (4 / 3) ** (2 * ratio - 1)
    height, width = (area / ratio).sqrt().clamp_max(1), (area * ratio).sqrt().clamp_max(1)
    sign = torch.where((mirror < 0.5) & flip, -1.0, 1.0)
    parts = torch.zeros(batch, 2, 3)  # from places in the result to places in the image, both from -1 to 1
    parts[:, 0, 0], parts[:, 0, 2] = sign * width, (2 * left - 1) * (1 - width)
    parts[:, 1, 1], parts[:, 1, 2] = height, (2 * top - 1) * (1 - height)
    grid = F.affine_grid(parts.to(pixels.device), list(pixels.shape), align_corners=False)
    return F.grid_sample(pixels, grid, mode="bilinear", padding_mode="border", align_corners=False)


def jitter_colours(
    images: Tensor, most: float, generator: Generator, *, start: int = 0, total: int | None = None
) -> Tensor:
    """Change brightness, contrast and saturation of each image by random factors from 1 - most to 1 + most.

    Args:
        images: (B, c, h, w), uint8 or float in [0, 1]; grey images have no saturation.
        most: the largest change.
        generator: where the random numbers come from, on the CPU.
        start: where these images begin in the global batch.
        total: the size of the global batch; see ``crop_and_flip``.

    Returns:
        Float (B, c, h, w) in [0, 1].
    """
    pixels, batch = to_unit(images), len(images)
    factors = 1 + most * (2 * torch.rand(total or batch, 3, generator=generator)[start : start + batch] - 1)
    brightness, contrast, saturation = factors.to(pixels.device).view(batch, 3, 1, 1, 1).unbind(1)
    pixels = pixels * brightness
    mean = pixels.mean((1, 2, 3), keepdim=True)
    pixels = mean + (pixels - mean) * contrast
    grey = pixels.mean(1, keepdim=True)
    return (grey + (pixels - grey) * saturation).clamp(0, 1)
