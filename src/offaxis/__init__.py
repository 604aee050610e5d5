"""offaxis tells whether an image is one that a classifier was trained for."""

from offaxis.calibration.calibrate import Calibration, calibrate
from offaxis.deploy import Model, Prediction, Preprocessing, Verdict
from offaxis.deploy import read as load
from offaxis.errors import OffaxisError
from offaxis.heads import CosineHead, LinearHead, Outputs
from offaxis.networks.attach import attach
from offaxis.networks.classifier import Classifier, Paired
from offaxis.training import Recipe, Trained, load_run, train
from offaxis.version import __version__

__all__ = [
    "Calibration",
    "Classifier",
    "CosineHead",
    "LinearHead",
    "Model",
    "OffaxisError",
    "Outputs",
    "Paired",
    "Prediction",
    "Preprocessing",
    "Recipe",
    "Trained",
    "Verdict",
    "__version__",
    "attach",
    "calibrate",
    "load",
    "load_run",
    "train",
]
