"""Records of an evaluation, with fields that JSON can hold: ``Result``, ``NetworkRecord``, ``SetRecord``."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from offaxis.data.catalogue import Group
from offaxis.files import digest
from offaxis.options import Kind

Cell = str | int | float | None


@dataclass(frozen=True, kw_only=True)
class NetworkFields:
    """The fields that describe a network, shared by NetworkRecord and Result.

    Attributes:
        architecture: the name that ``offaxis.networks.by_name`` takes, such as ``wrn-28-10``; empty for other networks.
        head: ``name`` and arguments of the head; empty where unknown.
        recipe: ``name`` and numbers of the training recipe; empty where unknown.
        data: the training images: name, number and fingerprint, as far as known.
        kind: one network, or how several were combined.
        members: origins of the networks that were combined, in their order; empty for a single network.
        settings: further settings of the training: dropout, loss, precision.
        versions: of offaxis, torch, numpy and Python.
    """

    architecture: str = ""
    head: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    kind: Kind = "single"
    members: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return every field, as JSON can hold it."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def facts(self) -> dict[str, Any]:
        """Return what the network is and how it was trained, flat, without its seed: ``{"recipe.epochs": 30}``.

        What is not recorded is left out.
        """
        data = {name: self.data[name] for name in ("name", "images", "fingerprint") if self.data.get(name)}
        parts = {"head": self.head, "recipe": self.recipe, "data": data, **self.settings}
        found = {"architecture": self.architecture, "kind": self.kind, "members": len(self.members)}
        for part, value in parts.items():
            found |= {f"{part}.{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {part: value}
        return {name: _frozen(value) for name, value in found.items() if not isinstance(value, Mapping)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the record that ``to_json`` described; fields of a newer version are left out."""
        names = cls.__dataclass_fields__  # fields() would look for pseudo-fields of each of thousands of records
        return cls(**{n: _frozen(v) if n in _TUPLES else v for n, v in values.items() if n in names})


_TUPLES = (
    "members",
    "command",
    "commands",
    "passes",
    "images",
    "scores",
    "shifted",
    "shifted_data",
    "shifted_scores",
)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True, kw_only=True)
class NetworkRecord(NetworkFields):
    """A network as it was evaluated, with its accuracy and calibration on the ID test images.

    Attributes:
        label: what tables call it; networks that differ by their seed alone share it.
        seed: of its training.
        weights: SHA-256 of its parameters, buffers and normalisation.
        id: the set that it was trained for.
        id_data: the key of the set of ID test images.
        accuracy: share of correct predictions on the ID test images, in [0, 1].
        ece: expected calibration error, in [0, 1], 0 is best.
        aurc: area under the risk-coverage curve, in [0, 1], 0 is best.
        augrc: area under the generalised risk-coverage curve, in [0, 0.5], 0 is best; None in records that have none.
        nll: negative log-likelihood in nats, 0 is best; None likewise.
        brier: Brier score, in [0, 2], 0 is best; None likewise.
        classwise_ece: expected calibration error of each class's probability, mean over classes, 0 is best; None likewise.
        default_detector: the name of the one that it is bundled with where none is named; empty in records that have none.
        origin: the folder or file that it came from, by name; empty for an object in memory.
        commands: the words of the command that trained it, or those of each member; empty where not recorded.
    """

    label: str
    seed: int
    weights: str
    id: str
    id_data: str
    accuracy: float
    ece: float
    aurc: float
    augrc: float | None = None
    nll: float | None = None
    brier: float | None = None
    classwise_ece: float | None = None
    default_detector: str = ""
    origin: str = ""
    commands: tuple[tuple[str, ...], ...] = ()

    @property
    def key(self) -> str:
        """Return the beginning of the checksum, which names the network in a store."""
        return self.weights[:16]

    @property
    def origins(self) -> tuple[str, ...]:
        """Return the folders or files that it came from: one, or one per member."""
        return self.members or (self.origin,)


@dataclass(frozen=True, kw_only=True)
class Result(NetworkFields):
    """One detector on one network, tested on one pair of sets.

    A protocol is a choice among results: *one-vs-one* takes those whose assumed set is the tested one, *less-biased*
    those whose assumed set is another; results without an assumed set belong to both.

    Attributes:
        network: the network's label; networks that differ by their seed alone share it.
        seed: of the network's training.
        weights: the network's key, the beginning of the SHA-256 of its weights.
        id: the ID set's name.
        ood: the tested OOD set's name.
        assumed: the OOD set whose validation images the hyperparameters were chosen on; None where none was needed.
        id_data: the key of the ID set's images and their split.
        ood_data: the same of the tested OOD set.
        assumed_data: the same of the assumed set, or None.
        group: how the OOD set relates to the ID set: near, far or noise.
        detector: the detector's name.
        setup: a digest of all arguments that the detector was made with, grids included, and of what it was fitted on.
        hyperparameters: their values, with learned weights where there are some.
        state: where these values come from: none, published default, given or tuned.
        shifted: names of the ID sets under other conditions whose images are ID images too in ``full_spectrum_`` metrics.
        shifted_data: their keys.
        shifted_scores: references to their scores.
        given: the detector's arguments that are not its defaults; tables show them. Hyperparameters among them were the start
            of tuning, where they were tuned.
        passes: forward and backward passes through the network that scoring one image takes.
        metrics: by name, each in [0, 1].
        images: how many ID and OOD test images were scored.
        scores: references to the arrays of the ID and of the OOD images' scores, in the order of the test indices.
        fitted_on: the training images that the detector was fitted on; empty where it needs none.
        command: the words of the command that made it; empty where it was made in Python.
        benchmark: the benchmark that it is part of, such as ``openood-cifar10``, with its own lists; empty for none.
    """

    network: str
    seed: int
    weights: str
    id: str
    ood: str
    assumed: str | None
    id_data: str
    ood_data: str
    assumed_data: str | None
    group: Group
    detector: str
    setup: str
    hyperparameters: Mapping[str, Any]
    state: str
    passes: tuple[float, float]
    metrics: Mapping[str, float]
    images: tuple[int, int]
    scores: tuple[str, str]
    fitted_on: str = ""
    command: tuple[str, ...] = ()
    benchmark: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    shifted: tuple[str, ...] = ()
    shifted_data: tuple[str, ...] = ()
    shifted_scores: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """Return what identifies this result: equal keys, equal numbers."""
        sets = (self.id_data, self.ood_data, self.assumed_data)
        return digest([self.weights, *sets, self.detector, self.setup, *self.shifted_data])

    @property
    def every_score(self) -> tuple[str, ...]:
        """Return the references to all scores that it was made from."""
        return self.scores + self.shifted_scores

    @property
    def method(self) -> str:
        """Return the detector with its given arguments and their state, as tables call it: "knn, k=10", "odin (tuned)"."""
        return self.named({})

    def named(self, also: Mapping[str, Any]) -> str:
        """Return the method with more of its arguments, such as the values that tuning tries, which are not shown else."""
        shown = {name: value for name, value in self.given.items() if not _is_grid(value)} | dict(also)
        if self.state != "tuned":
            name = with_arguments(self.detector, shown)
            return f"{name} (default)" if self.state == "published default" and not also else name
        start = with_arguments("", {name: v for name, v in also.items() if name in self.hyperparameters})[2:]
        name = with_arguments(self.detector, {name: v for name, v in shown.items() if name not in self.hyperparameters})
        return f"{name} (tuned from {start})" if start else f"{name} (tuned)"

    def to_row(self) -> dict[str, Cell]:
        """Return the result as one flat row of a table, with a column for each metric."""
        return {
            "id": self.id,
            "ood": self.ood,
            "assumed": self.assumed,
            "group": self.group,
            "network": self.network,
            "seed": self.seed,
            "architecture": self.architecture,
            "head": self.head.get("name", ""),
            "recipe": self.recipe.get("name", ""),
            "kind": self.kind,
            "detector": self.detector,
            "state": self.state,
            "given": with_arguments("", self.given)[2:],
            "hyperparameters": "; ".join(f"{name}={value}" for name, value in self.hyperparameters.items()),
            "fitted_on": self.fitted_on,
            "forward": self.passes[0],
            "backward": self.passes[1],
            "id_images": self.images[0],
            "ood_images": self.images[1],
            **self.metrics,
            "weights": self.weights,
            "id_data": self.id_data,
            "ood_data": self.ood_data,
        }


def with_arguments(name: str, given: Mapping[str, Any]) -> str:
    """Return a detector's name with arguments.

    Examples:
        >>> with_arguments("odin", {"eps": 0.002, "epsilons": (0.0, 0.1)})
        'odin, eps=0.002, epsilons=0/0.1'
        >>> with_arguments("pytorch-ood-knn", {"keywords": {"k": 5}})
        'pytorch-ood-knn, k=5'
    """
    words = [name]
    for key, value in given.items():
        words += [
            f"{k}={argument_text(v)}" for k, v in (value.items() if isinstance(value, Mapping) else [(key, value)])
        ]
    return ", ".join(words)


def _is_grid(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(v, (int, float)) for v in value)


def argument_text(value: object) -> str:
    """Return the value of an argument as tables show it: numbers with few digits, several with a slash between them."""
    if isinstance(value, (list, tuple)):
        return "/".join(map(argument_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def predictions_reference(network: str, images: str) -> str:
    """Return the reference of (T, 3) label, predicted class and its probability of the test images of a set."""
    return f"scores/{network}/{images}/predictions.npz#predictions"


class SetRecord(NamedTuple):
    """What is kept of an image set.

    Attributes:
        about: its name, number of images, shape, fingerprint and the rule of its split.
        validation: int64 (V,), the images that tuning may see.
        test: int64 (T,), the images that are tested, in the order of their scores.
    """

    about: Mapping[str, Any]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]
