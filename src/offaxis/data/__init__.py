"""Name, folder, Dataset or tensor -> ImageSet: the images that a network is trained on and tested with.

Names are imported when they are first used, so that the catalogue can be listed without torch.
"""

from typing import TYPE_CHECKING

from offaxis.names import lazy

if TYPE_CHECKING:
    from offaxis.data.catalogue import CATALOGUE as CATALOGUE
    from offaxis.data.catalogue import Entry as Entry
    from offaxis.data.catalogue import Relation as Relation
    from offaxis.data.catalogue import check_pair as check_pair
    from offaxis.data.catalogue import relation as relation
    from offaxis.data.download import get_images as get_images
    from offaxis.data.embedded import GaussianNoise as GaussianNoise
    from offaxis.data.embedded import UniformNoise as UniformNoise
    from offaxis.data.image_set import ImageSet as ImageSet
    from offaxis.data.image_set import Skipped as Skipped
    from offaxis.data.image_set import TensorSet as TensorSet
    from offaxis.data.image_set import image_hashes as image_hashes
    from offaxis.data.load import load_images as load_images
    from offaxis.data.openood_lists import OpenOOD as OpenOOD
    from offaxis.data.openood_lists import openood as openood
    from offaxis.data.preprocessing import Preprocessing as Preprocessing
    from offaxis.data.sources import as_batches as as_batches
    from offaxis.data.sources import as_image_set as as_image_set
    from offaxis.data.sources import is_loader as is_loader
    from offaxis.data.splits import ValidationSplit as ValidationSplit
    from offaxis.data.splits import hold_out as hold_out
    from offaxis.data.splits import limit_images as limit_images
    from offaxis.data.splits import split_validation as split_validation
    from offaxis.data.transforms import PUBLISHED as PUBLISHED
    from offaxis.data.transforms import Normalise as Normalise
    from offaxis.data.transforms import match as match

_HOMES = {
    "CATALOGUE": "catalogue",
    "PUBLISHED": "transforms",
    "Entry": "catalogue",
    "GaussianNoise": "embedded",
    "ImageSet": "image_set",
    "Normalise": "transforms",
    "Preprocessing": "preprocessing",
    "OpenOOD": "openood_lists",
    "Relation": "catalogue",
    "Skipped": "image_set",
    "TensorSet": "image_set",
    "UniformNoise": "embedded",
    "ValidationSplit": "splits",
    "as_batches": "sources",
    "as_image_set": "sources",
    "is_loader": "sources",
    "check_pair": "catalogue",
    "get_images": "download",
    "hold_out": "splits",
    "image_hashes": "image_set",
    "limit_images": "splits",
    "load_images": "load",
    "match": "transforms",
    "openood": "openood_lists",
    "relation": "catalogue",
    "split_validation": "splits",
}

__all__ = [*_HOMES]


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__name__, {name: f"{__name__}.{home}" for name, home in _HOMES.items()})
