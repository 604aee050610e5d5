"""offaxis tells whether an image is one that a classifier was trained for."""

from typing import TYPE_CHECKING

from offaxis.names import lazy

__version__ = "0.2.0"

if TYPE_CHECKING:
    from offaxis.bundle import load as load
    from offaxis.calibration.calibration import Calibration as Calibration
    from offaxis.calibration.calibration import calibrate as calibrate
    from offaxis.data.image_set import ImageSet as ImageSet
    from offaxis.data.load import load_images as load_images
    from offaxis.detectors.base import Detector as Detector
    from offaxis.detectors.registry import register_detector as register_detector
    from offaxis.embeddings import EmbeddingDetector as EmbeddingDetector
    from offaxis.errors import OffaxisError as OffaxisError
    from offaxis.evaluation.evaluating import evaluate as evaluate
    from offaxis.evaluation.results import Results as Results
    from offaxis.heads.base import Outputs as Outputs
    from offaxis.heads.cosine import CosineHead as CosineHead
    from offaxis.heads.linear import LinearHead as LinearHead
    from offaxis.model import Model as Model
    from offaxis.networks.attaching import attach as attach
    from offaxis.networks.classifier import Classifier as Classifier
    from offaxis.networks.combine import Ensemble as Ensemble
    from offaxis.networks.combine import Paired as Paired
    from offaxis.networks.open import open_network as open_network
    from offaxis.prediction import Prediction as Prediction
    from offaxis.prediction import Verdict as Verdict
    from offaxis.training.loop import train as train
    from offaxis.training.recipe import Recipe as Recipe

# Where each public name lives: imported when it is first asked for, so that the command line starts at once.
_HOMES = {
    "Calibration": "offaxis.calibration.calibration",
    "Classifier": "offaxis.networks.classifier",
    "CosineHead": "offaxis.heads.cosine",
    "Detector": "offaxis.detectors.base",
    "EmbeddingDetector": "offaxis.embeddings",
    "Ensemble": "offaxis.networks.combine",
    "ImageSet": "offaxis.data.image_set",
    "LinearHead": "offaxis.heads.linear",
    "Model": "offaxis.model",
    "OffaxisError": "offaxis.errors",
    "Outputs": "offaxis.heads.base",
    "Paired": "offaxis.networks.combine",
    "Prediction": "offaxis.prediction",
    "Recipe": "offaxis.training.recipe",
    "Results": "offaxis.evaluation.results",
    "Verdict": "offaxis.prediction",
    "attach": "offaxis.networks.attaching",
    "calibrate": "offaxis.calibration.calibration",
    "evaluate": "offaxis.evaluation.evaluating",
    "load": "offaxis.bundle",
    "load_images": "offaxis.data.load",
    "open_network": "offaxis.networks.open",
    "register_detector": "offaxis.detectors.registry",
    "train": "offaxis.training.loop",
}

__all__ = [*_HOMES, "__version__"]


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__name__, _HOMES)
