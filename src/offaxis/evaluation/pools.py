"""The sets that the paper's protocols use, and those that are on this machine."""

from collections.abc import Sequence
from pathlib import Path

from offaxis.data import CATALOGUE, relation
from offaxis.data.root import data_root
from offaxis.errors import ArgumentError

ONE_VS_ONE = (
    "tin-crop", "tin-crop-free", "tin-resize", "lsun-crop", "lsun-crop-free", "lsun-resize", "isun", "svhn", "food101"
)  # fmt: skip
_REST = ("isun", "svhn", "food101", "stl10", "mnist", "fashion-mnist", "notmnist", "gaussian", "uniform")
FRAME_FREE = ("tin-crop-free", "tin-resize", "lsun-crop-free", "lsun-resize", *_REST)
FRAMED = ("tin-crop", "tin-resize", "lsun-crop", "lsun-resize", *_REST)
EMBEDDED = ("letters", "photographs", "scans", "terrain", "gaussian", "uniform")

POOLS: dict[str, tuple[str, ...]] = {
    "paper-one-vs-one": ONE_VS_ONE,
    "paper-frame-free": FRAME_FREE,
    "paper-framed": FRAMED,
    "embedded": EMBEDDED,
    "here": tuple(CATALOGUE),
}
"""Names for many sets at once; ``here`` is every set on this machine."""


def sets_for(id_name: str, wanted: Sequence[str], root: Path | str | None = None) -> tuple[list[str], dict[str, str]]:
    """OOD sets for an ID set, and those of a pool that are left out with the reason.

    Sets that are named must be there, which ``load`` checks; of a pool, those that are not on this machine or say nothing
    beside this ID set (STL-10 beside CIFAR-10) are left out.

    Args:
        id_name: the ID set.
        wanted: names of sets, paths of folders, or names of POOLS.
        root: where the catalogue's sets are kept.
    """
    chosen: list[str] = []
    left_out: dict[str, str] = {}
    for name in wanted:
        for member in POOLS.get(name, (name,)):
            reason = _unfit(id_name, member, root) if name in POOLS else ""
            if not reason:
                chosen.append(member)
            elif name != "here":
                left_out[member] = reason
    if not chosen:
        raise ArgumentError(f"Expected at least one OOD set but none of {', '.join(wanted) or 'no sets'} can be used.")
    return list(dict.fromkeys(chosen)), left_out


def _unfit(id_name: str, name: str, root: Path | str | None) -> str:
    if name == id_name:
        return "it is the ID set"
    stands = relation(id_name, name)
    if stands.refused:
        return stands.note
    if "test" not in CATALOGUE[name].here(data_root(root)):
        return "it is not on this machine"
    return ""
