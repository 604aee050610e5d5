"""One-vs-one evaluation: hyperparameters are chosen on validation images of the very set that is tested.

This is how most of the field evaluates, and it flatters methods that have hyperparameters: in use, nobody knows what the
unfamiliar images will be like.
"""

from collections.abc import Iterable, Sequence

from offaxis.evaluation.results import Result

NAME = "one-vs-one"


def pairs(sets: Sequence[str]) -> list[tuple[str, str]]:
    """(assumed, tested) sets for which a tuned detector is evaluated.

    Example:
        >>> pairs(["a", "b"])
        [('a', 'a'), ('b', 'b')]
    """
    return [(name, name) for name in sets]


def select(results: Iterable[Result]) -> list[Result]:
    """The results that belong to this protocol: nothing assumed, or the tested set itself."""
    return [r for r in results if r.assumed is None or r.assumed_data == r.ood_data]
