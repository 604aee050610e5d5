"""The image sets of an evaluation, which pairs of them a tuned detector is evaluated on, and the pools of the paper.

*One-vs-one*: hyperparameters are chosen on validation images of the very set that is tested. This is how most of the field
evaluates, and it is optimistic for methods that have hyperparameters: in use, the OOD images are not known beforehand.

*Less-biased* (Shafaei et al. 2019, https://arxiv.org/abs/1809.04729): tuned on one set, tested on the others. There are two
ways of looking at the same results, and the paper uses both:

- *by assumed set* (its figure): for each assumed set the mean over all tested sets but that one;
- *by tested set* (its tables, though the text says otherwise): for each tested set the mean over all assumed sets but
  that one.

A detector without hyperparameters, or with published ones, does not depend on the assumed set: by tested set its row is
that of one-vs-one.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from offaxis.data import CATALOGUE, PUBLISHED, ImageSet, Normalise, OpenOOD, load_images, relation
from offaxis.data.adapt import as_batches, as_image_set, is_loader
from offaxis.data.catalogue import Group, data_root
from offaxis.data.images import VALIDATION_IMAGES, ValidationSplit, is_sorted, split_count, split_validation
from offaxis.data.transforms import match
from offaxis.errors import ArgumentError, DataError, EvaluationError
from offaxis.evaluation.records import SetRecord
from offaxis.files import digest
from offaxis.networks.opened import OpenedNetwork

Protocol = Literal["one-vs-one", "less-biased"]
LabelledBatches = Iterable[tuple[Tensor, Tensor]]
Shape = tuple[int, int, int]


def tuning_pairs(protocol: Protocol, sets: Sequence[str]) -> list[tuple[str, str]]:
    """Return the (assumed, tested) sets on which a tuned detector is evaluated.

    Examples:
        >>> tuning_pairs("one-vs-one", ["a", "b"]), tuning_pairs("less-biased", ["a", "b"])
        ([('a', 'a'), ('b', 'b')], [('a', 'b'), ('b', 'a')])
    """
    if protocol not in get_args(Protocol):
        raise ArgumentError(f"Expected protocols out of {', '.join(get_args(Protocol))} but got {protocol!r}.")
    same = protocol == "one-vs-one"
    return [(assumed, tested) for assumed in sets for tested in sets if (assumed == tested) == same]


_CROPS = ("tin-crop", "tin-crop-free", "tin-resize", "lsun-crop", "lsun-crop-free", "lsun-resize")
_REST = ("isun", "svhn", "food101", "stl10", "mnist", "fashion-mnist", "notmnist", "gaussian", "uniform")
ONE_VS_ONE = (*_CROPS, "isun", "svhn", "food101")
FRAME_FREE = ("tin-crop-free", "tin-resize", "lsun-crop-free", "lsun-resize", *_REST)
FRAMED = ("tin-crop", "tin-resize", "lsun-crop", "lsun-resize", *_REST)
EMBEDDED = ("letters", "photographs", "scans", "terrain", "gaussian", "uniform")

POOLS: dict[str, tuple[str, ...]] = {
    "paper-one-vs-one": ONE_VS_ONE,
    "paper-frame-free": FRAME_FREE,
    "paper-framed": FRAMED,
    "embedded": EMBEDDED,
    "here": tuple(CATALOGUE),
}
"""Names for many sets at once; ``here`` is every set on this machine."""


def sets_for(id_name: str, names: Sequence[str], root: Path | str | None = None) -> tuple[list[str], dict[str, str]]:
    """Return the OOD sets for an ID set and, by name, the reasons why others of a pool are left out.

    Sets that are named must be there, which ``load_images`` checks; of a pool, those that are not on this machine or share
    classes with the ID set (STL-10 and CIFAR-10) are left out.

    Args:
        id_name: the ID set.
        names: of sets, of folders, or of POOLS.
        root: where the catalogue's sets are kept.
    """
    chosen: list[str] = []
    left_out: dict[str, str] = {}
    for name in names:
        for member in POOLS.get(name, (name,)):
            related = relation(id_name, member)
            absent = name in POOLS and "test" not in CATALOGUE[member].available(data_root(root))
            if name not in POOLS or not (related.refused or absent):
                chosen.append(member)
            elif name != "here":
                left_out[member] = related.note if related.refused else "it is not on this machine"
    if not chosen:
        raise ArgumentError(f"Expected at least one OOD set but none of {', '.join(names) or 'no sets'} can be used.")
    return list(dict.fromkeys(chosen)), left_out


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """An image set as it is evaluated.

    Attributes:
        name: what tables call it.
        record: what a store keeps of it: number of images, shape, fingerprint and the rule of the split, with the indices of
            the validation images, which hyperparameters may be chosen on, and of the test images.
        batches: normalised images and labels, batch by batch; the same at every iteration.
        group: how it relates to the ID set, where a benchmark says so; None goes by the catalogue.
        labelled: whether labels are those of the ID classes.
    """

    name: str
    record: SetRecord
    batches: LabelledBatches = ()
    group: Group | None = None
    labelled: bool = False

    @cached_property
    def key(self) -> str:
        """Return the name of the images and their split in a store."""
        return digest([self.name, self.record.about["fingerprint"], self.record.about["rule"]])


@dataclass(frozen=True, kw_only=True)
class Sets:
    """The sets of an evaluation.

    Attributes:
        id: the ID set.
        ood: the OOD sets by name.
        shifted: sets of the ID classes under other conditions, by name.
        benchmark: the name of the benchmark whose lists these sets are; empty for none.
    """

    id: EvaluationSet
    ood: Mapping[str, EvaluationSet]
    shifted: Mapping[str, EvaluationSet] = field(default_factory=dict)
    benchmark: str = ""

    def every(self) -> tuple[EvaluationSet, ...]:
        """Return all sets, beginning with the ID set."""
        return (self.id, *self.shifted.values(), *self.ood.values())

    def tested(self) -> list[str]:
        """Return the names of the OOD sets that have test images."""
        return [name for name, images in self.ood.items() if len(images.record.test)]

    def pairs(self, protocols: Iterable[Protocol]) -> list[tuple[str, str]]:
        """Return the (assumed, tested) sets of tuned detectors: a benchmark tunes on its validation list."""
        if self.benchmark:
            alone = [name for name, images in self.ood.items() if not len(images.record.test)]
            return [(assumed, tested) for assumed in alone for tested in self.ood if tested != assumed]
        return [pair for protocol in protocols for pair in tuning_pairs(protocol, list(self.ood))]


class TrainingImages:
    """The ID training images, opened when they are first needed.

    Args:
        data: whatever ``evaluate`` takes as ``train``.
        described: what they are, by which a store tells results apart; None makes a description.
    """

    def __init__(self, data: Any, described: str | None = None) -> None:
        self.data, self.described = data, described

    @cached_property
    def images(self) -> ImageSet | None:
        """Return the images; None for a DataLoader, whose batches are used unchanged."""
        if is_loader(self.data):
            return None
        data = self.data() if callable(self.data) and not isinstance(self.data, ImageSet) else self.data
        return open_images(data, "train", split="train")

    def batches(self, normalise: Normalise | None, batch_size: int, num_classes: int) -> LabelledBatches:
        """Return normalised batches with labels."""
        data, by = (self.data, None) if self.images is None else (self.images, normalise)
        return as_batches(data, by, batch_size, labels=True, num_classes=num_classes)

    def description(self, id_name: str, *, stored: bool) -> str:
        """Return what they are, in words that tell other images apart.

        Args:
            id_name: what the ID images are called.
            stored: whether results are kept: then a DataLoader is iterated once to count and to fingerprint its images. One
                that gives other images each time, shuffled or augmented, is known by their number alone.
        """
        if self.described:
            return self.described
        if self.images is not None:
            return f"{len(self.images)} training images of {self.images.name} ({self.images.fingerprint[:12]})"
        return f"{self._counted if stored else 'a DataLoader of training images'} of {id_name}"

    @cached_property
    def _counted(self) -> str:
        """The number of images of a DataLoader and, where they are the same each time, their checksum."""
        batches, data = as_batches(self.data, None, 1), getattr(self.data, "dataset", None)
        found = _read_loader(batches)
        if found is None:
            count = len(data) if isinstance(data, Sized) else sum(len(images) for images, _ in batches)
            return f"{count} training images in a DataLoader"
        about, labels = found
        checksum = digest([about["fingerprint"], labels.tolist()])[:12]
        return f"{about['images']} training images in a DataLoader ({checksum})"


def open_sets(
    opened: OpenedNetwork, id: Any, ood: Any, training: TrainingImages | None, options: Mapping[str, Any]
) -> tuple[OpenedNetwork, Sets]:
    """Return the network with its normalisation, and the sets that it is evaluated on; see ``evaluate``."""
    normalise, validation, batch_size = (options[name] for name in ("normalise", "validation", "batch_size"))
    classes = opened.network.num_classes
    if isinstance(id, OpenOOD) != (ood is None):
        raise ArgumentError(
            "Expected OOD sets, or as `id` a benchmark, openood(root, 'cifar10'), which brings its own."
        )
    if isinstance(id, OpenOOD):
        normalise = normalise or opened.normalise or id.normalise
        return replace(opened, normalise=normalise), _benchmark_sets(id, normalise, batch_size, classes)
    images = id if is_loader(id) else open_images(id, opened.id or "id")
    id_name = images.name if isinstance(images, ImageSet) else opened.id or "id"
    normalise = normalise or opened.normalise or PUBLISHED.get(id_name)
    if normalise is None and isinstance(images, ImageSet) and training is not None and training.images is not None:
        normalise = Normalise.from_images(training.images)

    def evaluated(
        data: Any, name: str, *, like: Shape | None = None, labels: bool = False, validation: int = validation
    ) -> EvaluationSet:
        if is_loader(data):
            return _loader_set(data, name, validation, classes if labels else None)
        images = open_images(data, name, like=like)
        if normalise is None:
            raise ArgumentError(
                f"Expected to know how images are normalised for {opened.label}: pass normalise=Normalise(mean, std), the "
                "training images, or DataLoaders of normalised images."
            )
        batches = as_batches(images, normalise, batch_size, labels=labels, num_classes=classes if labels else None)
        return EvaluationSet(name, split_images(images, validation), batches, labelled=labels)

    id_set = evaluated(images, id_name, labels=True)
    shape: Any = tuple(id_set.record.about["shape"])  # of images (c, h, w)
    named = named_sets(ood, id_set.name)
    for name in options["near"]:
        if name not in named:
            raise ArgumentError(f"Expected near sets out of {', '.join(named)} but got {name!r}.")
    ood_sets = {name: evaluated(data, name, like=shape) for name, data in named.items()}
    more = named_sets(options["shifted"], id_set.name) if options["shifted"] else {}
    shifted = {n: evaluated(d, n, like=shape, labels=True, validation=0) for n, d in more.items()}
    return replace(opened, normalise=normalise), Sets(id=id_set, ood=ood_sets, shifted=shifted)


def split_images(images: ImageSet, validation: int = VALIDATION_IMAGES) -> SetRecord:
    """Split the validation images off a set, at most so many, and return its record."""
    return _record(images.describe(), images.shape, split_validation(images, validation))


def _record(about: Mapping[str, Any], shape: Sequence[int], split: ValidationSplit) -> SetRecord:
    whole = {**about, "shape": list(shape), "validation": len(split.validation), "rule": split.rule}
    return SetRecord(whole, split.validation.numpy(), split.test.numpy())


def _benchmark_sets(benchmark: OpenOOD, normalise: Normalise, batch_size: int, num_classes: int) -> Sets:
    """Return the sets of a benchmark: its validation lists are for tuning, its test lists for testing."""

    def listed(images: ImageSet, name: str, validation: int = 0, group: Group | None = None) -> EvaluationSet:
        order, labels = torch.arange(len(images)), name == benchmark.name or name in benchmark.shifted
        split = ValidationSplit(order[:validation], order[validation:], f"OpenOOD's lists {images.name}")
        batches = as_batches(images, normalise, batch_size, labels=labels, num_classes=num_classes if labels else None)
        record = _record(images.describe() | {"name": name}, images.shape, split)
        return EvaluationSet(name, record, batches, group, labels)

    sets = {}
    groups: dict[Group, tuple[str, ...]] = {"near": benchmark.near, "far": benchmark.far}
    for group, names in groups.items():
        for name in names:
            title = benchmark.title(name)
            sets[title] = listed(benchmark.ood(name), title, group=group)
    validation = benchmark.ood_validation
    if validation is not None:
        sets[validation.name] = listed(validation, validation.name, len(validation))
    id_set = listed(benchmark.id_images, benchmark.name, benchmark.id_validation)
    shifted = {name: listed(benchmark.shifted_images(name), name) for name in benchmark.shifted}
    return Sets(id=id_set, ood=sets, shifted=shifted, benchmark=benchmark.name)


def _loader_set(loader: Any, name: str, validation: int, num_classes: int | None) -> EvaluationSet:
    """Split off the first images of a DataLoader, of one sorted by class those of a shuffle; its batches are used unchanged.

    Raises:
        DataError: it gives other images each time, or none.
    """
    batches = as_batches(loader, None, 1, labels=num_classes is not None, num_classes=num_classes)
    found = _read_loader(batches)
    if found is None:
        raise DataError(
            f"Expected a DataLoader that gives the same images in the same order each time but that of {name} does not: "
            "use shuffle=False and no random transforms."
        )
    about, labels = found
    if not about["images"]:
        raise DataError(f"Expected images of {name} but its DataLoader gives none.")
    shuffled = is_sorted(labels) and len(labels) == about["images"]
    split = split_count(about["images"], validation, shuffled=shuffled)
    record = _record({"name": name, **about}, about["shape"], split)
    return EvaluationSet(name, record, batches, labelled=num_classes is not None)


def _read_loader(batches: LabelledBatches) -> tuple[dict[str, Any], Tensor] | None:
    """Return number, shape and fingerprint of the images of a DataLoader, with their labels; None where they change."""
    first, again = (next((images for images, _ in batches), torch.empty(0)) for _ in range(2))
    if not torch.equal(first, again):
        return None
    checksum, count, labels = hashlib.sha256(), 0, [torch.empty(0, dtype=torch.long)]
    for images, own in batches:
        checksum.update(images.detach().cpu().float().contiguous().numpy().tobytes())
        count += len(images)
        labels.append(own.cpu())
    return {"images": count, "shape": list(first.shape[1:]), "fingerprint": checksum.hexdigest()}, torch.cat(labels)


def open_images(data: Any, name: str, *, like: Shape | None = None, split: str = "test") -> ImageSet:
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
