"""Name -> images: what a network is trained on and tested with."""

from offaxis.datasets.catalogue import CATALOGUE, Entry
from offaxis.datasets.get import get
from offaxis.datasets.hashes import image_hashes
from offaxis.datasets.image_set import ImageSet, Skipped, TensorSet
from offaxis.datasets.load import load
from offaxis.datasets.match import match
from offaxis.datasets.noise import GaussianNoise, UniformNoise
from offaxis.datasets.normalise import PUBLISHED, Normalise
from offaxis.datasets.parts import Parts, hold_out, validation_parts
from offaxis.datasets.relations import Relation, check_pair, relation

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
