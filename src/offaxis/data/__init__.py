"""Name -> images: what a network is trained on and tested with."""

from offaxis.data.catalogue import CATALOGUE, Entry
from offaxis.data.download import get_images
from offaxis.data.image_set import ImageSet, Skipped, TensorSet, image_hashes
from offaxis.data.load import load_images
from offaxis.data.noise import GaussianNoise, UniformNoise
from offaxis.data.relations import Relation, check_pair, relation
from offaxis.data.splits import ValidationSplit, hold_out, limit_images, split_validation
from offaxis.data.transforms import PUBLISHED, Normalise, match

__all__ = [
    "CATALOGUE",
    "PUBLISHED",
    "Entry",
    "GaussianNoise",
    "ImageSet",
    "Normalise",
    "Relation",
    "Skipped",
    "TensorSet",
    "UniformNoise",
    "ValidationSplit",
    "check_pair",
    "get_images",
    "hold_out",
    "image_hashes",
    "limit_images",
    "load_images",
    "match",
    "relation",
    "split_validation",
]
