"""Which pairs of sets a tuned detector is evaluated on, and the pools of sets that the paper's protocols use.

*One-vs-one*: hyperparameters are chosen on validation images of the very set that is tested. This is how most of the field
evaluates, and it is optimistic for methods that have hyperparameters: in use, the OOD images are not known beforehand.

*Less-biased* (Shafaei et al. 2019, https://arxiv.org/abs/1809.04729): tuned on one set, tested on the others. There are two
ways of looking at the same results, and the paper uses both:

- *by assumed set* (its figure): for each assumed set the mean over all tested sets but that one;
- *by tested set* (its tables, though the text says otherwise): for each tested set the mean over all assumed sets but
  that one.

A detector without hyperparameters, or with published ones, does not depend on the assumed set: by tested set its row is
that of one-vs-one.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from offaxis.data import CATALOGUE, relation
from offaxis.data.catalogue import data_root
from offaxis.errors import ArgumentError
from offaxis.evaluation.records import Result

Protocol = Literal["one-vs-one", "less-biased"]


def one_vs_one_pairs(sets: Sequence[str]) -> list[tuple[str, str]]:
    """Return the (assumed, tested) sets of one-vs-one evaluation.

    Examples:
        >>> one_vs_one_pairs(["a", "b"])
        [('a', 'a'), ('b', 'b')]
    """
    return [(name, name) for name in sets]


def less_biased_pairs(sets: Sequence[str]) -> list[tuple[str, str]]:
    """Return the (assumed, tested) sets of less-biased evaluation.

    Examples:
        >>> less_biased_pairs(["a", "b"])
        [('a', 'b'), ('b', 'a')]
    """
    return [(assumed, tested) for assumed in sets for tested in sets if assumed != tested]


PROTOCOLS: dict[Protocol, Callable[[Sequence[str]], list[tuple[str, str]]]] = {
    "one-vs-one": one_vs_one_pairs,
    "less-biased": less_biased_pairs,
}
"""Name -> the pairs on which a tuned detector is evaluated."""


def one_vs_one_results(results: Iterable[Result]) -> list[Result]:
    """Select the results of one-vs-one evaluation: nothing assumed, or the tested set itself."""
    return [r for r in results if r.assumed is None or r.assumed_data == r.ood_data]


def less_biased_results(results: Iterable[Result]) -> list[Result]:
    """Select the results of less-biased evaluation: nothing assumed, or another set than the tested one."""
    return [r for r in results if r.assumed is None or r.assumed_data != r.ood_data]


def less_biased_rows(
    results: Iterable[Result], view: Literal["tested", "assumed"] = "tested"
) -> list[tuple[str, Result]]:
    """Return (row, result) for each result of this protocol; a row is averaged over the results in it.

    Args:
        results: any; those of other protocols are left out.
        view: "tested": a row is a tested set. "assumed": a row is an assumed set; results without an assumed set count in
            every row but that of their own tested set, of the sets that their network and ID set were tested on.
    """
    chosen = less_biased_results(results)
    if view == "tested":
        return [(r.ood, r) for r in chosen]
    names: dict[tuple[str, str], dict[str, None]] = {}
    for r in chosen:
        names.setdefault((r.id, r.network), {})[r.ood] = None
    rows = [(r.assumed, r) for r in chosen if r.assumed is not None]
    rows += [(name, r) for r in chosen if r.assumed is None for name in names[r.id, r.network] if name != r.ood]
    return rows


ONE_VS_ONE = (
    "tin-crop",
    "tin-crop-free",
    "tin-resize",
    "lsun-crop",
    "lsun-crop-free",
    "lsun-resize",
    "isun",
    "svhn",
    "food101",
)
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


def sets_for(id_name: str, names: Sequence[str], root: Path | str | None = None) -> tuple[list[str], dict[str, str]]:
    """Return the OOD sets for an ID set and, by name, the reasons why others of a pool are left out.

    Sets that are named must be there, which ``load_images`` checks; of a pool, those that are not on this machine or share
    classes with the ID set (STL-10 and CIFAR-10) are left out.

    Args:
        id_name: the ID set.
        names: of sets, of folders, or of POOLS.
        root: where the catalogue's sets are kept.
    """
    chosen: list[str] = []
    left_out: dict[str, str] = {}
    for name in names:
        for member in POOLS.get(name, (name,)):
            reason = _why_left_out(id_name, member, root) if name in POOLS else ""
            if not reason:
                chosen.append(member)
            elif name != "here":
                left_out[member] = reason
    if not chosen:
        raise ArgumentError(f"Expected at least one OOD set but none of {', '.join(names) or 'no sets'} can be used.")
    return list(dict.fromkeys(chosen)), left_out


def _why_left_out(id_name: str, name: str, root: Path | str | None) -> str:
    if name == id_name:
        return "it is the ID set"
    related = relation(id_name, name)
    if related.refused:
        return related.note
    if "test" not in CATALOGUE[name].available(data_root(root)):
        return "it is not on this machine"
    return ""
