"""The image sets of an evaluation: their validation and test images, in normalised batches."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import RandomSampler

from offaxis.data import ImageSet, Normalise, OpenOOD, load_images
from offaxis.data.adapt import as_batches, as_image_set, is_loader
from offaxis.data.catalogue import Group
from offaxis.data.splits import LARGEST_SHARE, ValidationSplit, split_validation
from offaxis.data.transforms import match
from offaxis.errors import DataError, EvaluationError
from offaxis.evaluation.protocols import sets_for
from offaxis.evaluation.records import SetRecord
from offaxis.files import digest

LabelledBatches = Iterable[tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class EvaluationSet:
    """An image set as it is evaluated.

    Attributes:
        name: what tables call it.
        shape: (channels, height, width) of every image.
        batches: normalised images and labels, batch by batch; the same at every iteration.
        validation: int64 (V,), the images that hyperparameters may be chosen on.
        test: int64 (T,), the others, on which every detector is tested.
        about: name, number of images, shape, fingerprint and the rule of the split.
        group: how it relates to the ID set, where a benchmark says so; None goes by the catalogue.
    """

    name: str
    shape: tuple[int, int, int]
    batches: LabelledBatches
    validation: Tensor
    test: Tensor
    about: Mapping[str, Any]
    group: Group | None = None

    @cached_property
    def key(self) -> str:
        """Return the name of the images and their split in a store."""
        return digest([self.name, self.about["fingerprint"], self.about["rule"]])

    @property
    def batch_count(self) -> int:
        """Return the number of batches, for progress bars."""
        return len(self.batches)  # type: ignore[arg-type]

    def record(self) -> SetRecord:
        """Return what a store keeps of it."""
        return SetRecord(self.about, self.validation.numpy(), self.test.numpy())


def from_images(
    images: ImageSet, normalise: Normalise, *, validation: int, batch_size: int, num_classes: int | None = None
) -> EvaluationSet:
    """Split off the validation images of an ImageSet.

    Args:
        images: the set.
        normalise: what the network's images go through.
        validation: at most so many images are split off.
        batch_size: images at a time.
        num_classes: of the network, for ID images, which must have labels; None for OOD images.
    """
    split = split_validation(images, validation)
    return EvaluationSet(
        name=images.name,
        shape=images.shape,
        batches=as_batches(images, normalise, batch_size, labels=num_classes is not None, num_classes=num_classes),
        validation=split.validation,
        test=split.test,
        about=split.about(),
    )


def from_openood(
    benchmark: OpenOOD, normalise: Normalise, *, batch_size: int, num_classes: int
) -> tuple[EvaluationSet, dict[str, EvaluationSet]]:
    """Return the ID set of a benchmark and its OOD sets by name: validation lists are for tuning, test lists for testing.

    Args:
        benchmark: the benchmark.
        normalise: what the network's images go through.
        batch_size: images at a time.
        num_classes: of the network.

    Returns:
        The ID set; near- and far-OOD sets, which are tested, and the OOD set of the validation list, which is not.
    """

    def listed(
        images: ImageSet, name: str, validation: int, *, group: Group | None = None, classes: int | None = None
    ) -> EvaluationSet:
        split = ValidationSplit(
            images, torch.arange(validation), torch.arange(validation, len(images)), f"OpenOOD's lists {images.name}"
        )
        return EvaluationSet(
            name=name,
            shape=images.shape,
            batches=as_batches(images, normalise, batch_size, labels=classes is not None, num_classes=classes),
            validation=split.validation,
            test=split.test,
            about={**split.about(), "name": name},
            group=group,
        )

    id_set = listed(benchmark.id_images, benchmark.name, benchmark.id_validation, classes=num_classes)
    sets: dict[str, EvaluationSet] = {}
    groups: dict[Group, tuple[str, ...]] = {"near": benchmark.near, "far": benchmark.far}
    for group, names in groups.items():
        for name in names:
            sets[benchmark.title(name)] = listed(benchmark.ood(name), benchmark.title(name), 0, group=group)
    validation = benchmark.ood_validation
    if validation is not None:
        sets[validation.name] = listed(validation, validation.name, len(validation))
    return id_set, sets


def from_loader(loader: Any, name: str, *, validation: int, num_classes: int | None = None) -> EvaluationSet:
    """Split off the first images of a DataLoader, of one sorted by class those of a shuffle; its batches are used unchanged.

    The loader is iterated once to count and to fingerprint its images, so that a loader whose images or order change is
    recognised.

    Args:
        loader: a DataLoader of (normalised images, labels), or anything else that can be iterated again.
        name: what tables call the set.
        validation: at most so many images are split off.
        num_classes: of the network, for ID images, which must have labels; None for OOD images.

    Raises:
        DataError: it shuffles, or gives no images.
    """
    if isinstance(getattr(loader, "sampler", None), RandomSampler):
        raise DataError(
            f"Expected a DataLoader that gives the same images in the same order each time but that of {name} shuffles: "
            "make it with shuffle=False."
        )
    checked = as_batches(loader, None, 1, labels=num_classes is not None, num_classes=num_classes)
    batches = _Fingerprinted(checked, name)
    for _ in batches:
        pass
    if batches.shape is None:
        raise DataError(f"Expected images of {name} but its DataLoader gives none.")
    taken = min(validation, int(LARGEST_SHARE * batches.count))
    if _sorted_by_class(batches.labels, batches.count):  # the first images would be those of the first classes
        order = torch.randperm(batches.count, generator=torch.Generator().manual_seed(0))
        rule = f"the first {taken} of a shuffle with seed 0 of {batches.count} images"
    else:
        order = torch.arange(batches.count)
        rule = f"the first {taken} of {batches.count} images"
    about = {
        "name": name,
        "images": batches.count,
        "shape": list(batches.shape),
        "fingerprint": batches.fingerprint,
        "validation": taken,
        "rule": rule,
    }
    test = order[taken:].sort().values
    return EvaluationSet(
        name=name, shape=batches.shape, batches=batches, validation=order[:taken], test=test, about=about
    )


def _sorted_by_class(labels: Tensor, count: int) -> bool:
    """Return whether all images have labels, of several classes, and those of each class follow one another."""
    runs = labels.unique_consecutive()
    return len(labels) == count and 1 < len(runs) == len(labels.unique()) < count


class _Fingerprinted:
    """Batches of a loader, whose images are hashed at every iteration and must be those of the first."""

    def __init__(self, batches: LabelledBatches, name: str) -> None:
        self.batches, self.name = batches, name
        self.shape: tuple[int, int, int] | None = None
        self.count = 0
        self.labels = torch.empty(0, dtype=torch.long)
        self.fingerprint = ""

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        checksum, count, every = hashlib.sha256(), 0, []
        for images, labels in self.batches:
            checksum.update(images.detach().cpu().float().contiguous().numpy().tobytes())
            count += len(images)
            every.append(labels.cpu())
            channels, height, width = images.shape[1:]
            self.shape = self.shape or (channels, height, width)
            yield images, labels
        if self.fingerprint and checksum.hexdigest() != self.fingerprint:
            raise DataError(
                f"Expected a DataLoader that gives the same images in the same order each time but that of {self.name} does "
                "not: use shuffle=False and no random transforms."
            )
        self.fingerprint, self.count = checksum.hexdigest(), count
        self.labels = torch.cat(every) if every else self.labels


def open_images(data: Any, name: str, *, like: tuple[int, int, int] | None = None, split: str = "test") -> ImageSet:
    """Return a set as an ImageSet: a name of the catalogue, a folder, or whatever ``as_image_set`` takes.

    Args:
        data: the set.
        name: what to call it where it has no name of its own.
        like: the shape that its images are matched to; None leaves them as they are.
        split: the split of a set that is named.
    """
    if isinstance(data, (str, Path)):
        images = load_images(data, split)  # type: ignore[arg-type]
    else:
        images = data if isinstance(data, ImageSet) else as_image_set(data, name=name)
    return images if like is None else match(images, like)


def named_sets(ood: Any, id_name: str) -> dict[str, Any]:
    """Return OOD sets by name.

    Args:
        ood: a dict name -> set; or one or several sets, names of the catalogue, folders or pools.
        id_name: the ID set's name, on which the members of a pool depend.

    Raises:
        EvaluationError: there is no set, or two have one name.
    """
    if isinstance(ood, Mapping):
        sets = list(ood.items())
    else:
        several = isinstance(ood, Sequence) and not isinstance(ood, str) and not _is_pair(ood)
        sets = []
        for number, data in enumerate(ood if several else [ood], 1):
            if isinstance(data, (str, Path)):
                sets += [(name, name) for name in sets_for(id_name, [str(data)])[0]]
            else:
                sets.append((getattr(data, "name", None) or f"ood-{number}", data))
    if not sets or len({name for name, _ in sets}) < len(sets):
        raise EvaluationError("Expected at least one OOD set, each with a name of its own.")
    return dict(sets)


def _is_pair(data: Sequence[Any]) -> bool:
    """Return whether this is one set, (images, labels), rather than a list of sets."""
    return (
        isinstance(data, tuple) and len(data) == 2 and not any(isinstance(part, (str, Path, ImageSet)) for part in data)
    )


class TrainingImages:
    """The ID training images, opened when they are first needed.

    Args:
        data: whatever ``evaluate`` takes as ``train``.
    """

    def __init__(self, data: Any) -> None:
        self.data = data

    @property
    def is_loader(self) -> bool:
        """Return whether these are batches that are used unchanged."""
        return is_loader(self.data)

    @cached_property
    def images(self) -> ImageSet:
        """Return the images, unless they come in batches."""
        data = self.data() if callable(self.data) and not isinstance(self.data, ImageSet) else self.data
        return open_images(data, "train", split="train")

    def batches(self, normalise: Normalise | None, batch_size: int, num_classes: int) -> LabelledBatches:
        """Return normalised batches with labels."""
        if self.is_loader:
            return as_batches(self.data, None, batch_size, labels=True, num_classes=num_classes)
        return as_batches(self.images, normalise, batch_size, labels=True, num_classes=num_classes)

    def description(self, id_name: str, *, stored: bool = False) -> str:
        """Return what they are, in words that tell other images apart.

        Args:
            id_name: what the ID images are called.
            stored: whether results are kept: then a DataLoader is iterated once to count and to fingerprint its images. One
                that gives other images each time, shuffled or augmented, is known by their number alone.
        """
        if self.is_loader:
            return f"{self._counted if stored else 'a DataLoader of training images'} of {id_name}"
        return f"{len(self.images)} training images of {self.images.name} ({self.images.fingerprint[:12]})"

    @cached_property
    def _counted(self) -> str:
        """The number of images of a DataLoader and, where they are the same each time, their checksum."""
        batches = _Fingerprinted(as_batches(self.data, None, 1), "the training images")
        first, again = (next((images for images, _ in batches.batches), torch.empty(0)) for _ in range(2))
        data = getattr(self.data, "dataset", None)
        known = isinstance(data, Sized) and not torch.equal(first, again)  # a checksum would be another each time
        if not known:
            for _ in batches:
                pass
        about = f"{len(data) if isinstance(data, Sized) and known else batches.count} training images in a DataLoader"
        if not torch.equal(first, again):
            return about
        return f"{about} ({digest([batches.fingerprint, batches.labels.tolist()])[:12]})"
