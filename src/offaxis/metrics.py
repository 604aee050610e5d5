"""(ID scores, OOD scores) -> numbers.

Everywhere **a larger score means more out-of-distribution**, and every metric takes the ID scores first. The positive
class is ID, as in the paper, unless a name or an argument says otherwise. All are exact under ties, all lie in [0, 1].
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offaxis.errors import ArgumentError

Scores = NDArray[np.floating]


def auroc(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Area under the ROC curve: the probability that an OOD score exceeds an ID score, ties counting half.

    Example:
        >>> auroc([0.1, 0.2, 0.3], [0.3, 0.4])
        0.9166666666666666
    """
    known, unknown = _checked(id_scores, ood_scores)
    known, unknown = np.sort(known), np.sort(unknown)
    below = np.searchsorted(known, unknown, "left").sum(dtype=np.int64)
    not_above = np.searchsorted(known, unknown, "right").sum(dtype=np.int64)
    return float((int(below) + int(not_above)) / (2 * len(known) * len(unknown)))


def aupr_in(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Area under the precision-recall curve with ID positive, as average precision (no interpolation)."""
    known, unknown = _checked(id_scores, ood_scores)
    return _average_precision(-known, -unknown)


def aupr_out(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Area under the precision-recall curve with OOD positive, as average precision (no interpolation)."""
    known, unknown = _checked(id_scores, ood_scores)
    return _average_precision(unknown, known)


def accuracy_at_tpr(id_scores: ArrayLike, ood_scores: ArrayLike, tpr: float = 0.95) -> float:
    """The paper's accuracy at TPR 95 %: (tpr + TNR) / 2, so at most 0.975 by default.

    The threshold is the interpolated ``tpr`` quantile of the ID scores; TNR is the share of OOD scores strictly above.
    """
    return 0.5 * (tpr + 1 - fpr_at_tpr(id_scores, ood_scores, tpr))


def fpr_at_tpr(
    id_scores: ArrayLike, ood_scores: ArrayLike, tpr: float = 0.95, positive: Literal["id", "ood"] = "id"
) -> float:
    """The share of negatives that are taken for positives where ``tpr`` of the positives are recognised.

    Args:
        id_scores: (N,).
        ood_scores: (M,).
        tpr: in (0, 1).
        positive: ``"id"`` (the paper, ODIN): the share of OOD images accepted where ``tpr`` of the ID images are.
            ``"ood"`` (OpenOOD, pytorch-ood): the share of ID images flagged where ``tpr`` of the OOD images are.
    """
    known, unknown = _checked(id_scores, ood_scores)
    if not 0 < tpr < 1:
        raise ArgumentError(f"Expected `tpr` to be between 0 and 1 but got {tpr!r}.")
    if positive == "id":
        return float(np.mean(unknown <= np.quantile(known.astype(np.float64), tpr)))
    if positive == "ood":
        return float(np.mean(known >= np.quantile(unknown.astype(np.float64), 1 - tpr)))
    raise ArgumentError(f'Expected `positive` to be "id" or "ood" but got {positive!r}.')


def detection_error(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """The smallest mean of the two error rates over all thresholds: min (P(ID flagged) + P(OOD accepted)) / 2."""
    known, unknown = _checked(id_scores, ood_scores)
    accepted_known, accepted_unknown = _counts_up_to(known, unknown)
    errors = (1 - accepted_known / len(known) + accepted_unknown / len(unknown)) / 2
    return float(min(errors.min(), 0.5))


def _checked(id_scores: ArrayLike, ood_scores: ArrayLike) -> tuple[Scores, Scores]:
    return _check("ID", id_scores), _check("OOD", ood_scores)


def _check(which: str, scores: ArrayLike) -> Scores:
    array = np.asarray(scores)
    if array.ndim != 1 or array.size == 0:
        raise ArgumentError(f"Expected a non-empty row of {which} scores but got an array of shape {array.shape}.")
    if not np.issubdtype(array.dtype, np.floating):
        array = array.astype(np.float64)
    wrong = array.size - int(np.count_nonzero(np.isfinite(array)))
    if wrong:
        raise ArgumentError(f"Expected finite {which} scores but {wrong} of {array.size} are NaN or infinite.")
    return array


def _counts_up_to(first: Scores, second: Scores) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each distinct score in rising order: how many of ``first`` and of ``second`` are not above it."""
    scores = np.concatenate([first, second])
    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    last_of_ties = np.append(ranked[1:] != ranked[:-1], True)
    of_first = np.cumsum(order < len(first))[last_of_ties]
    return of_first, np.flatnonzero(last_of_ties) + 1 - of_first


def _average_precision(positive: Scores, negative: Scores) -> float:
    """Sum of precision over the steps of recall, from the largest score down; tied scores are one step."""
    hits, false = _counts_up_to(-positive, -negative)
    steps = np.diff(hits, prepend=0)
    return float(np.sum(hits / (hits + false) * steps) / len(positive))
