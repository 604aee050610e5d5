"""Detectors by name: made for a network, saved to a file, read again."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from offaxis.detectors.base import Detector
from offaxis.detectors.cosine import Cosine, CosineEnsemble
from offaxis.detectors.leave_out import LeaveOut
from offaxis.errors import DetectorError, DetectorFileError, OffaxisError
from offaxis.files import replacing
from offaxis.networks.ensemble import Ensemble, LeaveOutEnsemble
from offaxis.networks.inference import Network

FORMAT = "offaxis-detector"
VERSION = 1


def describe_detector(detector: Detector) -> dict[str, Any]:
    """What a detector is besides its buffers, in types that JSON has: name, arguments, what it was tuned on."""
    return {"detector": detector.name, "arguments": detector.arguments, "tuned_on": detector.tuned_on}


def rebuild_detector(
    description: Mapping[str, Any], tensors: Mapping[str, Tensor], kinds: Mapping[str, Any]
) -> Detector:
    """The detector that ``describe`` and ``state_dict`` were taken from.

    Args:
        description: what ``describe`` gave.
        tensors: its state_dict.
        kinds: name -> class, such as DETECTORS.
    """
    name = description["detector"]
    if name not in kinds:
        raise DetectorFileError(f"Expected one of the detectors {', '.join(kinds)} but got {name!r}.")
    arguments = {key: tuple(v) if isinstance(v, list) else v for key, v in description["arguments"].items()}
    detector: Detector = kinds[name](**arguments)
    detector.load_state_dict(dict(tensors))
    detector.tuned_on = description["tuned_on"]
    return detector


def save_detector(detector: Detector, path: Path) -> None:
    """Write a fitted detector, whole or not at all."""
    detector.check_fitted()
    if not detector.savable:
        raise DetectorError(
            f"Expected a detector whose statistics are tensors of ours but {detector.name} keeps them elsewhere: fit it again "
            "in the process that needs it."
        )
    header = {"format": FORMAT, "version": str(VERSION), "description": json.dumps(describe_detector(detector))}
    tensors = {name: tensor.contiguous() for name, tensor in detector.state_dict().items()}
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata=header)


def read_detector(path: Path, kinds: Mapping[str, Any]) -> Detector:
    """Read a detector: it scores as the saved one did, bit for bit.

    Args:
        path: what ``save`` wrote.
        kinds: name -> class, such as DETECTORS.

    Raises:
        DetectorFileError: the file is absent, damaged, of another program or of a newer version.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError) as error:
        raise DetectorFileError(
            f"{path} cannot be read as a detector ({error}): is it a file that save() wrote?"
        ) from None
    if header.get("format") != FORMAT:
        raise DetectorFileError(f"Expected a detector in {path} but it was written by something else.")
    if int(header.get("version", 0)) > VERSION:
        raise DetectorFileError(
            f"{path} has version {header['version']} but this offaxis reads up to {VERSION}: install a newer one."
        )
    try:
        return rebuild_detector(json.loads(header["description"]), tensors, kinds)
    except DetectorError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError, OffaxisError) as error:
        raise DetectorFileError(f"{path} does not hold a whole detector ({error}).") from None


def arguments_for(options: Sequence[str], network: Network, std: Sequence[float] | None) -> dict[str, Any]:
    """Those constructor arguments of a detector that follow from the network.

    Args:
        options: the arguments that the detector takes besides hyperparameters (``Detector.options``).
        network: what it will judge images with.
        std: what each channel is divided by in normalisation, so that perturbations are in units of pixels; None where
            that is not known.
    """
    found: dict[str, Any] = {}
    if "std" in options and std is not None:
        found["std"] = tuple(std)
    if "networks" in options and isinstance(network, Ensemble):
        found["networks"] = len(network.networks)
    if "selected_on" in options and isinstance(network, LeaveOutEnsemble):
        found["selected_on"] = network.selected_on
    return found


def default_detector(network: Network, std: Sequence[float] | None = None) -> Detector:
    """The detector that a network is judged with where none is named: the cosine, or that of its kind of ensemble."""
    kind: type[Detector] = Cosine
    if isinstance(network, Ensemble):
        kind = LeaveOut if isinstance(network, LeaveOutEnsemble) else CosineEnsemble
    return kind(**arguments_for(kind.options, network, std))
