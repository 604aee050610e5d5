"""offaxis tells whether an image is one that a classifier was trained for."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from offaxis.calibration.calibrate import Calibration as Calibration
    from offaxis.calibration.calibrate import calibrate as calibrate
    from offaxis.data.image_set import ImageSet as ImageSet
    from offaxis.data.load import load_images as load_images
    from offaxis.deploy.bundle import load as load
    from offaxis.deploy.model import Model as Model
    from offaxis.deploy.open import open_network as open_network
    from offaxis.deploy.prediction import Prediction as Prediction
    from offaxis.deploy.prediction import Verdict as Verdict
    from offaxis.detectors.base import Detector as Detector
    from offaxis.detectors.registry import register_detector as register_detector
    from offaxis.embeddings import EmbeddingDetector as EmbeddingDetector
    from offaxis.errors import OffaxisError as OffaxisError
    from offaxis.evaluation.results import Results as Results
    from offaxis.evaluation.run import evaluate as evaluate
    from offaxis.heads.base import Outputs as Outputs
    from offaxis.heads.cosine import CosineHead as CosineHead
    from offaxis.heads.linear import LinearHead as LinearHead
    from offaxis.networks.attach import attach as attach
    from offaxis.networks.classifier import Classifier as Classifier
    from offaxis.networks.classifier import Paired as Paired
    from offaxis.networks.ensemble import Ensemble as Ensemble
    from offaxis.training.loop import train as train
    from offaxis.training.recipe import Recipe as Recipe

# Where each public name lives: imported when it is first asked for, so that the command line starts at once.
_HOMES = {
    "Calibration": "offaxis.calibration.calibrate",
    "Classifier": "offaxis.networks.classifier",
    "CosineHead": "offaxis.heads.cosine",
    "Detector": "offaxis.detectors.base",
    "EmbeddingDetector": "offaxis.embeddings",
    "Ensemble": "offaxis.networks.ensemble",
    "ImageSet": "offaxis.data.image_set",
    "LinearHead": "offaxis.heads.linear",
    "Model": "offaxis.deploy.model",
    "OffaxisError": "offaxis.errors",
    "Outputs": "offaxis.heads.base",
    "Paired": "offaxis.networks.classifier",
    "Prediction": "offaxis.deploy.prediction",
    "Recipe": "offaxis.training.recipe",
    "Results": "offaxis.evaluation.results",
    "Verdict": "offaxis.deploy.prediction",
    "attach": "offaxis.networks.attach",
    "calibrate": "offaxis.calibration.calibrate",
    "evaluate": "offaxis.evaluation.run",
    "load": "offaxis.deploy.bundle",
    "load_images": "offaxis.data.load",
    "open_network": "offaxis.deploy.open",
    "register_detector": "offaxis.detectors.registry",
    "train": "offaxis.training.loop",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name from its home at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'offaxis' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *_HOMES})
