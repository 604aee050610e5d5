"""offaxis tells whether an image is one that a classifier was trained for."""

from offaxis.attach import attach
from offaxis.classifier import Classifier, Paired
from offaxis.errors import OffaxisError
from offaxis.heads import CosineHead, LinearHead, Outputs

__version__ = "0.1.0"

__all__ = ["Classifier", "CosineHead", "LinearHead", "OffaxisError", "Outputs", "Paired", "attach"]
