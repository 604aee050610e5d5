"""Every set that offaxis knows by name."""

from offaxis.data.catalogue import cifar, colour, grey, made, odin
from offaxis.data.catalogue.entry import Download, Entry, Layout, Npm, Split

CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        cifar.CIFAR10,
        cifar.CIFAR100,
        odin.TIN_CROP,
        odin.TIN_CROP_FREE,
        odin.TIN_RESIZE,
        odin.LSUN_CROP,
        odin.LSUN_CROP_FREE,
        odin.LSUN_RESIZE,
        odin.ISUN,
        colour.SVHN,
        colour.FOOD101,
        cifar.STL10,
        grey.MNIST,
        grey.FASHION_MNIST,
        grey.NOTMNIST,
        made.GAUSSIAN,
        made.GAUSSIAN_025,
        made.UNIFORM,
        colour.DTD,
        grey.KMNIST,
        colour.GTSRB,
        colour.SCENES,
        made.DIGITS,
        made.SMALL_DIGITS,
        made.LETTERS,
        made.PHOTOGRAPHS,
        made.SCANS,
        made.TERRAIN,
    )
}

__all__ = ["CATALOGUE", "Download", "Entry", "Layout", "Npm", "Split"]
