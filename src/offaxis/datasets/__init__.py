"""Name -> images: what a network is trained on and tested with."""

from offaxis.datasets.image_set import ImageSet, TensorSet
from offaxis.datasets.normalise import Normalise

__all__ = ["ImageSet", "Normalise", "TensorSet"]
