"""Less-biased evaluation (Shafaei et al. 2019, https://arxiv.org/abs/1809.04729): tuned on one set, tested on the others.

There are two ways of looking at the same results, and the paper uses both:

- *by assumed set* (its figure): for each assumed set the mean over all tested sets but that one;
- *by tested set* (its tables, though the text says otherwise): for each tested set the mean over all assumed sets but
  that one.

A detector without hyperparameters, or with published ones, does not depend on the assumed set: by tested set its row is
that of one-vs-one.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from offaxis.evaluation.results import Result

NAME = "less-biased"
View = Literal["tested", "assumed"]


def pairs(sets: Sequence[str]) -> list[tuple[str, str]]:
    """(assumed, tested) sets for which a tuned detector is evaluated.

    Example:
        >>> pairs(["a", "b"])
        [('a', 'b'), ('b', 'a')]
    """
    return [(assumed, tested) for assumed in sets for tested in sets if assumed != tested]


def select(results: Iterable[Result]) -> list[Result]:
    """The results that belong to this protocol: nothing assumed, or another set than the tested one."""
    return [r for r in results if r.assumed is None or r.assumed_data != r.ood_data]


def rows(results: Iterable[Result], view: View = "tested") -> list[tuple[str, Result]]:
    """(row, result) for each result of this protocol; a row is averaged over the results in it.

    Args:
        results: any; those of other protocols are left out.
        view: "tested": a row is a tested set. "assumed": a row is an assumed set; what assumes nothing counts in every
            row but that of its own tested set.
    """
    chosen = select(results)
    if view == "tested":
        return [(r.ood, r) for r in chosen]
    names = list(dict.fromkeys(r.ood for r in chosen))
    found = [(r.assumed, r) for r in chosen if r.assumed is not None]
    found += [(name, r) for r in chosen if r.assumed is None for name in names if name != r.ood]
    return found
