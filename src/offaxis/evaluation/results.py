"""What an evaluation leaves behind: records with named fields, which JSON can hold."""

from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Self

from offaxis.data.catalogue import Group
from offaxis.files import digest


@dataclass(frozen=True)
class NetworkRecord:
    """A network as it was evaluated, with what it costs and gives besides detection.

    Attributes:
        label: what tables call it; networks that differ by their seed alone share it.
        seed: of its training.
        weights: SHA-256 of its parameters, buffers and normalisation.
        id: the set that it was trained for.
        id_data: the key of the set of ID test images.
        accuracy: share of right answers on the ID test images, in [0, 1].
        ece: expected calibration error, in [0, 1], 0 is best.
        aurc: area under the risk-coverage curve, in [0, 1], 0 is best.
        origin: the folder or file that it came from, by name.
        settings: how it was trained, as far as that is known; of several as one also ``together``, as --as calls it.
    """

    label: str
    seed: int
    weights: str
    id: str
    id_data: str
    accuracy: float
    ece: float
    aurc: float
    origin: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Short and unique."""
        return self.weights[:16]

    def to_json(self) -> dict[str, Any]:
        """Every field, as JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """What ``to_json`` gave; fields of a newer version are left out."""
        return cls(**_known(cls, values))


@dataclass(frozen=True)
class Result:
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
        id_data: the key of the ID set's images and their parts.
        ood_data: the same of the tested OOD set.
        assumed_data: the same of the assumed set, or None.
        group: how the OOD set stands to the ID set: near, far or noise.
        detector: the detector's name.
        setup: a digest of all arguments that the detector was made with, grids included, and of what it was fitted on.
        hyperparameters: their values, with learned weights where there are some.
        state: where these values come from: none, published default or tuned.
        passes: forward and backward passes through the network that scoring one image takes.
        metrics: by name, each in [0, 1].
        images: how many ID and OOD test images were scored.
        scores: references to the arrays of the ID and of the OOD images' scores, in the order of the test indices.
        versions: of offaxis, torch, numpy and Python.
        fitted_on: the training images that the detector was fitted on; empty where it needs none.
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
    hyperparameters: dict[str, Any]
    state: str
    passes: tuple[float, float]
    metrics: dict[str, float]
    images: tuple[int, int]
    scores: tuple[str, str]
    versions: dict[str, str]
    fitted_on: str = ""

    @cached_property
    def key(self) -> str:
        """What makes this result one of its kind: equal keys, equal numbers."""
        return result_key(self.weights, self.id_data, self.ood_data, self.assumed_data, self.detector, self.setup)

    @property
    def method(self) -> str:
        """The detector with the state of its hyperparameters, as tables call it: "odin (tuned)"."""
        return self.detector if self.state == "none" else f"{self.detector} ({_SHORT.get(self.state, self.state)})"

    def to_json(self) -> dict[str, Any]:
        """Every field, as JSON can hold it."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """What ``to_json`` gave; fields of a newer version are left out."""
        known = _known(cls, values)
        for name in ("passes", "images", "scores"):
            known[name] = tuple(known[name])
        return cls(**known)


_SHORT = {"published default": "default"}


def result_key(weights: str, id_data: str, ood_data: str, assumed_data: str | None, detector: str, setup: str) -> str:
    """The key of a result that may not have been made yet."""
    return digest([weights, id_data, ood_data, assumed_data, detector, setup])


def _known(cls: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(cls)}
    return {name: value for name, value in values.items() if name in names}
