"""How two sets stand to each other: near, far or noise, and what they share."""

from dataclasses import dataclass
from typing import Literal

from offaxis.data.catalogue import CATALOGUE
from offaxis.errors import DataError

Group = Literal["near", "far", "noise"]


@dataclass(frozen=True)
class Relation:
    """An OOD set as seen from an ID set.

    Attributes:
        group: near (the same kind of images), far or noise. A user's own folder counts as far.
        note: what they share, or empty.
        refused: whether the pair says nothing about OOD detection, because the OOD set holds the ID set's classes.
    """

    group: Group
    note: str = ""
    refused: bool = False


@dataclass(frozen=True)
class _Shared:
    these: frozenset[str]
    those: frozenset[str]
    note: str
    refused: bool = False


_TIN = frozenset({"tin-crop", "tin-crop-free", "tin-resize"})
_LSUN = frozenset({"lsun-crop", "lsun-crop-free", "lsun-resize"})
_DIGITS = frozenset({"mnist", "digits", "small-digits", "svhn"})
_CIFAR10, _CIFAR100, _STL10 = frozenset({"cifar10"}), frozenset({"cifar100"}), frozenset({"stl10"})

_SHARED = (
    _Shared(
        _CIFAR10,
        _STL10,
        "nine of STL-10's ten classes are CIFAR-10's (all but the monkey), so its images are not out of distribution",
        True,
    ),
    _Shared(_DIGITS, _DIGITS, "both are images of the digits 0 to 9: the classes are the same", True),
    _Shared(_TIN, _TIN, "both are made from TinyImageNet's test images", True),
    _Shared(_LSUN, _LSUN, "both are made from LSUN's test images", True),
    _Shared(_CIFAR10, _CIFAR100, "CIFAR-100 has no class of CIFAR-10, but close kin: pickup truck, bus, wolf, leopard"),
    _Shared(_CIFAR10, _TIN, "TinyImageNet shows dogs, cats, cars, trucks, birds and frogs too: partly not OOD at all"),
    _Shared(
        _CIFAR100, _TIN, "TinyImageNet shares many objects with CIFAR-100 (bottle, chair, bee, bus): partly not OOD"
    ),
    _Shared(_CIFAR100, _STL10, "STL-10's monkey, car and truck have kin among CIFAR-100's classes"),
    _Shared(_TIN, _STL10, "both are taken from ImageNet"),
)


def relation(id_name: str, ood_name: str) -> Relation:
    """How an OOD set stands to an ID set, by their names in the catalogue (other names are a user's own sets)."""
    ood, known = CATALOGUE.get(ood_name), CATALOGUE.get(id_name)
    if ood is not None and ood.kind == "noise":
        return Relation("noise")
    group: Group = "near" if ood is not None and known is not None and ood.kind == known.kind else "far"
    if id_name == ood_name:
        return Relation("near", "it is the ID set itself", True)
    for shared in _SHARED:
        if (id_name in shared.these and ood_name in shared.those) or (
            ood_name in shared.these and id_name in shared.those
        ):
            return Relation(group, shared.note, shared.refused)
    return Relation(group)


def check_pair(id_name: str, ood_name: str, force: bool = False) -> Relation:
    """The relation, unless the pair is refused.

    Raises:
        DataError: the OOD set holds the ID set's classes, and ``force`` is False.
    """
    found = relation(id_name, ood_name)
    if found.refused and not force:
        raise DataError(f"{ood_name} is refused as OOD set for {id_name}: {found.note}. It can be forced.")
    return found
