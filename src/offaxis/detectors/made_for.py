"""What a detector is told of the network that it is made for, and which one is usual for which network."""

from collections.abc import Sequence
from typing import Any

from offaxis.detectors.base import Detector
from offaxis.detectors.cosine import Cosine
from offaxis.detectors.cosine_ensemble import CosineEnsemble
from offaxis.detectors.leave_out import LeaveOut
from offaxis.networks.ensemble import Ensemble
from offaxis.networks.inference import Network
from offaxis.networks.leave_out_ensemble import LeaveOutEnsemble


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


def usual_detector(network: Network, std: Sequence[float] | None = None) -> Detector:
    """The detector that a network is judged with where none is named: the cosine, or that of its kind of ensemble."""
    kind: type[Detector] = Cosine
    if isinstance(network, Ensemble):
        kind = LeaveOut if isinstance(network, LeaveOutEnsemble) else CosineEnsemble
    return kind(**arguments_for(kind.options, network, std))
