"""Name -> images: what a network is trained on and tested with."""

from offaxis.data.catalogue import CATALOGUE, Entry
from offaxis.data.get import get
from offaxis.data.hashes import image_hashes
from offaxis.data.image_set import ImageSet, Skipped, TensorSet
from offaxis.data.load import load
from offaxis.data.match import match
from offaxis.data.noise import GaussianNoise, UniformNoise
from offaxis.data.relations import Relation, check_pair, relation
from offaxis.data.splits import Parts, hold_out, validation_parts
from offaxis.data.transforms import PUBLISHED, Normalise

__all__ = [
    "CATALOGUE",
    "PUBLISHED",
    "Entry",
    "GaussianNoise",
    "ImageSet",
    "Normalise",
    "Parts",
    "Relation",
    "Skipped",
    "TensorSet",
    "UniformNoise",
    "check_pair",
    "get",
    "hold_out",
    "image_hashes",
    "load",
    "match",
    "relation",
    "validation_parts",
]
