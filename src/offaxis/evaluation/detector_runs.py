"""Names -> detectors for a network, and which of them it can feed."""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from offaxis.deploy.open import EvaluatedNetwork
from offaxis.detectors import DETECTORS, NATIVE, Detector, Ensemble
from offaxis.detectors.registry import arguments_for
from offaxis.errors import ArgumentError, DetectorError, OffaxisError
from offaxis.files import digest
from offaxis.heads import DeConfHead, IsoMaxHead
from offaxis.networks.ensemble import AnyNetwork
from offaxis.networks.inference import eval_mode, to_network

FAMILIES = ("native", "pytorch-ood", "all")
_OF_HEADS = {
    "isomax": IsoMaxHead,
    "generalized-odin": DeConfHead,
}  # on other heads only where they are asked for by name


@dataclass(frozen=True)
class DetectorRun:
    """A detector that takes part in an evaluation.

    Attributes:
        detector: fitted or not; the evaluation fits what needs it.
        setup: a digest of the arguments that it was made with.
        tuned: whether it is reported tuned on OOD images too, beside the values that it was given.
        fitted_on: the training images that it is fitted on; empty where it needs none.
    """

    detector: Detector
    setup: str
    tuned: bool
    fitted_on: str = ""

    @property
    def name(self) -> str:
        """Names its files in a store."""
        return f"{self.detector.name}-{self.setup[:8]}"


def detector_run(detector: Detector, tune: bool = True, fitted_on: str = "") -> DetectorRun:
    """A detector as it is before it is fitted, and what it will be fitted on."""
    learned = fitted_on if detector.needs_fit else ""
    setup = digest([detector.name, detector.arguments, learned])
    return DetectorRun(detector, setup, tune and bool(detector.grid), learned)


def make_detectors(wanted: Sequence[str], subject: EvaluatedNetwork) -> list[Detector]:
    """The detectors that names stand for, made for a network.

    Args:
        wanted: names out of DETECTORS, each perhaps with arguments as in ``knn:k=10``; or ``native`` (all of ours that
            are meant for such a network), ``zoo`` (all of pytorch-ood's) or ``all``.
        subject: the network; perturbing detectors are told how its images are normalised.
    """
    names = [text for name in wanted for text in (_family(name, subject.network) if name in FAMILIES else [name])]
    return [_make(text, subject) for text in dict.fromkeys(names)]


def compatible_detectors(
    detectors: Iterable[Detector], network: AnyNetwork, sample: Tensor
) -> tuple[list[Detector], dict[str, str]]:
    """The detectors that a network can feed, and for the others why not.

    Args:
        detectors: to be looked at.
        network: the network.
        sample: some normalised images (n, c, h, w), on any device.
    """
    with eval_mode(network), torch.no_grad():
        outputs = network.outputs(to_network(network, sample))
    able, unable = [], {}
    for detector in detectors:
        missing = [name for name in detector.uses if name != "layers" and getattr(outputs, name) is None]
        if missing:
            unable[detector.name] = f"the network gives no {' and no '.join(missing)}"
            continue
        try:
            detector.check_network(network)
            if detector.needs_fit and not detector.fits_on_images:
                detector.begin(network)
        except (DetectorError, ArgumentError) as error:
            unable[detector.name] = str(error).split(": ")[0]
            continue
        able.append(detector)
    return able, unable


def _family(name: str, network: AnyNetwork) -> list[str]:
    zoo = [kind for kind in DETECTORS if kind not in NATIVE]
    if name == "pytorch-ood":
        return zoo
    ours = [kind for kind in NATIVE if _meant_for(kind, network)]
    return ours if name == "native" else [*ours, *zoo]


def _meant_for(kind: str, network: AnyNetwork) -> bool:
    if isinstance(network, Ensemble):
        return kind != "cosine" and _suits(kind, network)  # the ensemble's cosine is another detector's
    if kind in _OF_HEADS:
        return isinstance(network.head, _OF_HEADS[kind])
    return kind not in ("cosine-ensemble", "leave-out")


def _suits(kind: str, network: AnyNetwork) -> bool:
    try:
        NATIVE[kind]().check_network(network)
    except DetectorError:
        return False
    return True


def _make(text: str, subject: EvaluatedNetwork) -> Detector:
    name, *given = text.split(":")
    if name not in DETECTORS:
        raise ArgumentError(
            f"Expected detectors out of {', '.join(NATIVE)}, pytorch-ood-... or {', '.join(FAMILIES)} but got {name!r}."
        )
    options = NATIVE[name].options if name in NATIVE else ()
    std = None if subject.normalise is None else subject.normalise.std
    arguments: dict[str, Any] = arguments_for(options, subject.network, std)
    for part in given:
        key, equals, value = part.partition("=")
        if not equals:
            raise ArgumentError(f"Expected arguments of a detector as in knn:k=10 but got {text!r}.")
        try:
            arguments[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            arguments[key] = value
    try:
        return DETECTORS[name](**arguments)
    except TypeError as error:
        raise ArgumentError(f"The detector {name} does not take these arguments: {text!r} ({error}).") from None
    except OffaxisError:
        raise
