"""offaxis tells whether an image is one that a classifier was trained for."""

from offaxis.attach import attach
from offaxis.classifier import Classifier, Paired
from offaxis.errors import OffaxisError
from offaxis.heads import CosineHead, LinearHead, Outputs
from offaxis.training import Recipe, Trained, load_run, train
from offaxis.version import __version__

__all__ = [
    "Classifier",
    "CosineHead",
    "LinearHead",
    "OffaxisError",
    "Outputs",
    "Paired",
    "Recipe",
    "Trained",
    "__version__",
    "attach",
    "load_run",
    "train",
]
