"""(ID scores, OOD scores) -> numbers, pure functions.

Everywhere **a larger score means more out-of-distribution**, and every metric takes the ID scores first. The positive
class is ID, as in the paper, unless a name or an argument says otherwise. All are exact under ties, all lie in [0, 1].
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offaxis.errors import ArgumentError

Scores = NDArray[np.floating]
Counts = NDArray[np.int64]


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
    return _precision_of(*_counts_up_to(*_checked(id_scores, ood_scores)))


def aupr_out(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Area under the precision-recall curve with OOD positive, as average precision (no interpolation)."""
    of_known, of_unknown = _counts_up_to(*_checked(id_scores, ood_scores))
    return _precision_of(*_from_above(of_unknown, of_known))


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
        return float(np.mean(unknown <= np.quantile(known.astype(np.float64), tpr, overwrite_input=True)))
    if positive == "ood":  # seen from above, since 1 - 0.95 is not quite 0.05
        turned = np.negative(unknown, dtype=np.float64)
        return float(np.mean(known >= -np.quantile(turned, tpr, overwrite_input=True)))
    raise ArgumentError(f'Expected `positive` to be "id" or "ood" but got {positive!r}.')


def detection_error(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """The smallest mean of the two error rates over all thresholds: min (P(ID flagged) + P(OOD accepted)) / 2."""
    known, unknown = _checked(id_scores, ood_scores)
    return _error_of(*_counts_up_to(known, unknown))


def roc_curve(
    id_scores: ArrayLike, ood_scores: ArrayLike, points: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The ROC curve with ID positive, for plots: as the threshold rises, more images of both kinds are accepted.

    Args:
        id_scores: (N,).
        ood_scores: (M,).
        points: at most about this many, evenly spread along the curve; None gives a point for each distinct score.

    Returns:
        The share of OOD images accepted (x) and of ID images accepted (y), both rising from 0 to 1.
    """
    known, unknown = _checked(id_scores, ood_scores)
    of_known, of_unknown = _counts_up_to(known, unknown)
    y, x = np.append(0, of_known) / len(known), np.append(0, of_unknown) / len(unknown)
    if points is not None and len(x) > points:
        along = x + y  # from 0 to 2: even steps along it see the steep part as well as the flat one
        kept = np.unique(np.searchsorted(along, np.linspace(0, 2, points)).clip(max=len(x) - 1))
        x, y = x[kept], y[kept]
    return x, y


def all_metrics(id_scores: ArrayLike, ood_scores: ArrayLike) -> dict[str, float]:
    """Every metric by name, from one sort; each is equal to what its own function gives.

    Returns:
        ``auroc``, ``aupr_in``, ``aupr_out``, ``accuracy_at_tpr95``, ``fpr_at_tpr95`` (ID positive),
        ``fpr_at_tpr95_ood`` (OOD positive) and ``detection_error``.
    """
    known, unknown = _checked(id_scores, ood_scores)
    counts = _counts_up_to(known, unknown)
    fpr = fpr_at_tpr(known, unknown)
    return {
        "auroc": _auroc_of(*counts),
        "aupr_in": _precision_of(*counts),
        "aupr_out": _precision_of(*_from_above(*reversed(counts))),
        "accuracy_at_tpr95": 0.5 * (0.95 + 1 - fpr),
        "fpr_at_tpr95": fpr,
        "fpr_at_tpr95_ood": fpr_at_tpr(known, unknown, positive="ood"),
        "detection_error": _error_of(*counts),
    }


HIGHER_IS_BETTER = {
    "auroc": True,
    "aupr_in": True,
    "aupr_out": True,
    "accuracy_at_tpr95": True,
    "fpr_at_tpr95": False,
    "fpr_at_tpr95_ood": False,
    "detection_error": False,
}
"""The names that ``all_metrics`` gives, and which way each is better."""


def bootstrap_interval(
    metric: Callable[[Scores, Scores], float],
    id_scores: ArrayLike,
    ood_scores: ArrayLike,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """A percentile bootstrap interval over images; ID and OOD images are drawn apart, each as many as there are.

    The interval is about new images of the same two sets and the same network; it knows nothing of other seeds or sets.

    Args:
        metric: any function of this module. For ``auroc`` all resamples are computed at once.
        id_scores: (N,).
        ood_scores: (M,).
        resamples: how many.
        level: of the interval, in (0, 1).
        seed: of the drawing; the same seed gives the same interval.

    Returns:
        Its lower and upper end.
    """
    known, unknown = _checked(id_scores, ood_scores)
    if resamples < 1 or not 0 < level < 1:
        raise ArgumentError(f"Expected at least 1 resample and a level in (0, 1) but got {resamples} and {level!r}.")
    draw = np.random.default_rng(seed)
    if metric is auroc:
        values = _resampled_auroc(known, unknown, resamples, draw)
    else:
        again = ((_drawn(known, draw), _drawn(unknown, draw)) for _ in range(resamples))
        values = np.array([metric(first, second) for first, second in again])
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _drawn(scores: Scores, draw: np.random.Generator) -> Scores:
    return scores[draw.integers(len(scores), size=len(scores))]


def _resampled_auroc(known: Scores, unknown: Scores, resamples: int, draw: np.random.Generator) -> NDArray[np.float64]:
    """AUROC of many resamples, from how often each distinct score is drawn; a few megabytes at a time."""
    of_known, of_unknown = _counts_up_to(known, unknown)
    shares = [np.diff(counts, prepend=0) / counts[-1] for counts in (of_known, of_unknown)]
    values = np.empty(resamples)
    window = max(1, 2**22 // len(of_known))
    for begin in range(0, resamples, window):
        rows = min(window, resamples - begin)
        first, second = (
            draw.multinomial(len(scores), share, size=rows)
            for scores, share in zip((known, unknown), shares, strict=True)
        )
        above = np.cumsum(second[:, ::-1], axis=1)[:, ::-1] - second
        values[begin : begin + rows] = (first * (above + 0.5 * second)).sum(1) / (len(known) * len(unknown))
    return values


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


def _counts_up_to(first: Scores, second: Scores) -> tuple[Counts, Counts]:
    """For each distinct score in rising order: how many of ``first`` and of ``second`` are not above it."""
    scores = np.concatenate([first, second])
    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    last_of_ties = np.append(ranked[1:] != ranked[:-1], True)
    of_first = np.cumsum(order < len(first))[last_of_ties]
    return of_first, np.flatnonzero(last_of_ties) + 1 - of_first


def _from_above(first: Counts, second: Counts) -> tuple[Counts, Counts]:
    """Counts up to each distinct score -> counts of those not below it, from the largest score down."""
    return _turned(first), _turned(second)


def _turned(counts: Counts) -> Counts:
    turned: Counts = counts[-1] - np.append(counts[:-1][::-1], 0)
    return turned


def _auroc_of(of_known: Counts, of_unknown: Counts) -> float:
    below, here = np.append(0, of_known[:-1]), np.diff(of_unknown, prepend=0)
    twice = np.sum((below + of_known) * here, dtype=np.int64)  # exact: whole numbers
    return float(int(twice) / (2 * int(of_known[-1]) * int(of_unknown[-1])))


def _error_of(of_known: Counts, of_unknown: Counts) -> float:
    errors = (1 - of_known / of_known[-1] + of_unknown / of_unknown[-1]) / 2
    return float(min(errors.min(), 0.5))


def _precision_of(hits: Counts, false: Counts) -> float:
    """Average precision: the sum of precision over the steps of recall; tied scores are one step."""
    steps = np.diff(hits, prepend=0)
    return float(np.sum(hits / (hits + false) * steps) / hits[-1])


def expected_calibration_error(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float:
    """ECE: the mean gap between confidence and accuracy over bins of equal width, weighted by their images.

    Args:
        confidence: (N,) in [0, 1], the largest probability.
        correct: (N,), whether the answer was right.
        bins: how many; 15 as is usual. A confidence on a border belongs to the lower bin.

    Returns:
        In [0, 1], 0 is best.

    Example:
        >>> round(expected_calibration_error([0.9, 0.9, 0.6, 0.6], [True, True, True, False]), 3)
        0.1
    """
    sure, right = _checked_confidence(confidence, correct)
    if bins < 1:
        raise ArgumentError(f"Expected `bins` to be at least 1 but got {bins}.")
    which = np.clip(np.ceil(sure * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(which, right - sure, minlength=bins)
    return float(np.abs(gaps).sum() / len(sure))


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The error rate among the surest answers, for every share of answers that is kept.

    Equally sure answers are taken in a random order, of which the mean is given, so the order of the images is nothing.

    Returns:
        Coverage (N,), rising to 1, and risk (N,) in [0, 1].
    """
    sure, right = _checked_confidence(confidence, correct)
    _, group, sizes = np.unique(-sure, return_inverse=True, return_counts=True)
    wrong = np.bincount(group, 1 - right) / sizes
    kept = np.arange(1, len(sure) + 1)
    return kept / len(sure), np.cumsum(np.repeat(wrong, sizes)) / kept


def area_under_risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> float:
    """AURC: the mean risk over all coverages; in [0, 1], 0 is best.

    Example:
        >>> area_under_risk_coverage([0.9, 0.8], [True, False])
        0.25
    """
    return float(risk_coverage(confidence, correct)[1].mean())


def _checked_confidence(confidence: ArrayLike, correct: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    sure, right = np.asarray(confidence, np.float64), np.asarray(correct)
    if sure.ndim != 1 or sure.size == 0 or right.shape != sure.shape:
        raise ArgumentError(
            f"Expected a confidence and a right or wrong for each image but got shapes {sure.shape} and {right.shape}."
        )
    if not (np.isfinite(sure).all() and sure.min() >= 0 and sure.max() <= 1 + 1e-6):
        raise ArgumentError("Expected confidences in [0, 1] but some are not.")
    return sure, right.astype(bool).astype(np.float64)
