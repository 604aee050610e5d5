"""Metrics: (ID scores, OOD scores) -> numbers, (confidence, correct) -> calibration error and risk. Pure functions.

Everywhere **a larger score means more out-of-distribution**, and every metric takes the ID scores first. The positive
class is ID, as in the paper, unless a name or an argument says otherwise. All are exact under ties, all lie in [0, 1].
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offaxis.errors import ArgumentError
from offaxis.names import METRICS

Scores = NDArray[np.floating]
Counts = NDArray[np.int64]


def auroc(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Compute the area under the ROC curve: the probability that an OOD score exceeds an ID score, ties counting half.

    Examples:
        >>> auroc([0.1, 0.2, 0.3], [0.3, 0.4])
        0.9166666666666666
    """
    # two sorts of numbers take a tenth of the time of the one that keeps their order, which all metrics share
    known, strange = map(np.sort, _checked(id_scores, ood_scores))
    sides: tuple[Literal["left", "right"], ...] = ("left", "right")  # below, and not above
    twice = sum(int(known.searchsorted(strange, side).sum(dtype=np.int64)) for side in sides)
    return twice / (2 * len(known) * len(strange))


def aupr_in(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Compute the area under the precision-recall curve with ID positive, as average precision (no interpolation)."""
    return _precision_of(*_counts_up_to(*_checked(id_scores, ood_scores)))


def aupr_out(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Compute the area under the precision-recall curve with OOD positive, as average precision (no interpolation)."""
    id_counts, ood_counts = _counts_up_to(*_checked(id_scores, ood_scores))
    return _precision_of(*_from_above(ood_counts, id_counts))


def aupr_in_trapezoid(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Compute the area under the precision-recall curve with ID positive, by trapezoids, as OpenOOD and pytorch-ood do.

    Straight lines between the points of this curve are optimistic (Davis and Goadrich 2006): see ``aupr_in`` for the other
    definition.
    """
    return _trapezoid_of(*_counts_up_to(*_checked(id_scores, ood_scores)))


def aupr_out_trapezoid(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Compute the area under the precision-recall curve with OOD positive, by trapezoids, as OpenOOD and pytorch-ood do."""
    id_counts, ood_counts = _counts_up_to(*_checked(id_scores, ood_scores))
    return _trapezoid_of(*_from_above(ood_counts, id_counts))


def accuracy_at_tpr(id_scores: ArrayLike, ood_scores: ArrayLike, tpr: float = 0.95) -> float:
    """Compute the paper's accuracy at TPR 95 %: (tpr + TNR) / 2, so at most 0.975 by default.

    The threshold is the interpolated ``tpr`` quantile of the ID scores; TNR is the share of OOD scores strictly above.
    """
    return 0.5 * (tpr + 1 - fpr_at_tpr(id_scores, ood_scores, tpr))


def fpr_at_tpr(
    id_scores: ArrayLike, ood_scores: ArrayLike, tpr: float = 0.95, positive: Literal["id", "ood"] = "id"
) -> float:
    """Compute the false positive rate at the threshold where the true positive rate is ``tpr``.

    Args:
        id_scores: (N,).
        ood_scores: (M,).
        tpr: in (0, 1).
        positive: ``"id"`` (the paper, ODIN): the share of OOD images accepted where ``tpr`` of the ID images are.
            ``"ood"``: the share of ID images flagged where ``tpr`` of the OOD images are. The threshold is interpolated
            between two scores; ``fpr_at_tpr_openood`` has OpenOOD's, which is one of the scores.
    """
    id_scores, ood_scores = _checked(id_scores, ood_scores)
    _check_rate(tpr)
    if positive == "id":
        return float(np.mean(ood_scores <= np.quantile(id_scores.astype(np.float64), tpr, overwrite_input=True)))
    if positive == "ood":  # seen from above, since 1 - 0.95 is not quite 0.05
        negated = np.negative(ood_scores, dtype=np.float64)
        return float(np.mean(id_scores >= -np.quantile(negated, tpr, overwrite_input=True)))
    raise ArgumentError(f'Expected `positive` to be "id" or "ood" but got {positive!r}.')


def fpr_at_tpr_openood(id_scores: ArrayLike, ood_scores: ArrayLike, tpr: float = 0.95) -> float:
    """Compute the false positive rate with OOD positive as OpenOOD and pytorch-ood print it.

    The threshold is the largest OOD score at which at least ``tpr`` of the OOD images are flagged; the result is the share
    of ID images that are flagged there.
    """
    _check_rate(tpr)
    return _first_fpr(*_from_above(*reversed(_counts_up_to(*_checked(id_scores, ood_scores)))), tpr)


def detection_error(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Compute the smallest mean of the two error rates over all thresholds: min (P(ID flagged) + P(OOD accepted)) / 2."""
    return _error_of(*_counts_up_to(*_checked(id_scores, ood_scores)))


def roc_curve(
    id_scores: ArrayLike, ood_scores: ArrayLike, points: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute the ROC curve with ID positive, for plots; the threshold rises along it.

    Args:
        id_scores: (N,).
        ood_scores: (M,).
        points: at most about this many, evenly spread along the curve; None returns a point for each distinct score.

    Returns:
        The share of OOD images accepted (x) and of ID images accepted (y), both rising from 0 to 1.
    """
    y, x = (np.append(0, counts) / counts[-1] for counts in _counts_up_to(*_checked(id_scores, ood_scores)))
    if points is not None and len(x) > points:
        along = x + y  # from 0 to 2: even steps along it see the steep part as well as the flat one
        kept = np.unique(np.searchsorted(along, np.linspace(0, 2, points)).clip(max=len(x) - 1))
        x, y = x[kept], y[kept]
    return x, y


def all_metrics(id_scores: ArrayLike, ood_scores: ArrayLike) -> dict[str, float]:
    """Compute every metric from one sort; each equals the result of its own function.

    Returns:
        ``auroc``, ``aupr_in``, ``aupr_out`` (average precision), ``aupr_in_trapezoid``, ``aupr_out_trapezoid``,
        ``accuracy_at_tpr95``, ``fpr_at_tpr95`` (ID positive), ``fpr_at_tpr95_ood`` (OOD positive),
        ``fpr_at_tpr95_openood`` (OOD positive, not interpolated) and ``detection_error``.
    """
    id_scores, ood_scores = _checked(id_scores, ood_scores)
    counts = _counts_up_to(id_scores, ood_scores)
    from_above = _from_above(*reversed(counts))
    fpr = fpr_at_tpr(id_scores, ood_scores)
    return {
        "auroc": _auroc_of(*counts),
        "aupr_in": _precision_of(*counts),
        "aupr_out": _precision_of(*from_above),
        "aupr_in_trapezoid": _trapezoid_of(*counts),
        "aupr_out_trapezoid": _trapezoid_of(*from_above),
        "accuracy_at_tpr95": 0.5 * (0.95 + 1 - fpr),
        "fpr_at_tpr95": fpr,
        "fpr_at_tpr95_ood": fpr_at_tpr(id_scores, ood_scores, positive="ood"),
        "fpr_at_tpr95_openood": _first_fpr(*from_above, 0.95),
        "detection_error": _error_of(*counts),
    }


def oscr(id_scores: ArrayLike, correct: ArrayLike, ood_scores: ArrayLike) -> float:
    """Compute the area under the open-set classification rate curve: correct classification rate over FPR, ID positive.

    That is the probability that an ID image is classified correctly *and* scores below an OOD image, ties counting half.

    Args:
        id_scores: (N,).
        correct: (N,), whether the class of the ID image was predicted.
        ood_scores: (M,).

    Returns:
        In [0, accuracy]; 1 is best.
    """
    known, right = _checked_row("ID", id_scores), np.asarray(correct, bool)
    return float(right.mean()) * auroc(known[right], ood_scores) if right.any() else 0.0


def ccr_at_fpr(id_scores: ArrayLike, correct: ArrayLike, ood_scores: ArrayLike, fpr: float = 0.1) -> float:
    """Compute the correct classification rate where at most ``fpr`` of the OOD images are accepted (ID positive).

    Args:
        id_scores: (N,).
        correct: (N,), whether the class of the ID image was predicted.
        ood_scores: (M,).
        fpr: in (0, 1), the share of OOD images that may be taken for ID images.

    Returns:
        The share of all ID images that are accepted and classified correctly, in [0, 1]; 1 is best.
    """
    known, strange = _checked(id_scores, ood_scores)
    _check_rate(fpr)
    bound = np.sort(strange)[int(fpr * len(strange) + 1e-9)]  # the first OOD image that must be refused
    return float(np.mean((known < bound) & np.asarray(correct, bool)))


def open_set_metrics(id_scores: ArrayLike, correct: ArrayLike, ood_scores: ArrayLike) -> dict[str, float]:
    """Compute ``oscr``, ``ccr_at_fpr1`` and ``ccr_at_fpr10``, the latter at a false positive rate of 1 % and 10 %."""
    rates = {f"ccr_at_fpr{percent}": percent / 100 for percent in (1, 10)}
    found = {name: ccr_at_fpr(id_scores, correct, ood_scores, rate) for name, rate in rates.items()}
    return {"oscr": oscr(id_scores, correct, ood_scores), **found}


LOWER_IS_BETTER = ("fpr_at_tpr95", "fpr_at_tpr95_ood", "fpr_at_tpr95_openood", "detection_error")
HIGHER_IS_BETTER = {name: name not in LOWER_IS_BETTER for name in METRICS}
"""The names that ``all_metrics`` returns, and whether higher is better."""


def higher_is_better(metric: str) -> bool:
    """Return whether a higher value of a metric that results hold is better."""
    return metric.removeprefix("full_spectrum_") not in LOWER_IS_BETTER


def bootstrap_interval(
    metric: Callable[[Scores, Scores], float],
    id_scores: ArrayLike,
    ood_scores: ArrayLike,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Compute a percentile bootstrap interval over images; ID and OOD images are resampled separately.

    The interval covers new images of the same two datasets and the same network, not other seeds or other datasets.

    Args:
        metric: any function of this module. For ``auroc`` all resamples are computed at once.
        id_scores: (N,).
        ood_scores: (M,).
        resamples: number of resamples, at least 1.
        level: of the interval, in (0, 1).
        seed: of the resampling; the same seed gives the same interval.

    Returns:
        The lower and the upper end.
    """
    id_scores, ood_scores = _checked(id_scores, ood_scores)
    if resamples < 1 or not 0 < level < 1:
        raise ArgumentError(f"Expected at least 1 resample and a level in (0, 1) but got {resamples} and {level!r}.")
    generator = np.random.default_rng(seed)
    if metric is auroc:
        values = _resampled_auroc(id_scores, ood_scores, resamples, generator)
    else:
        sets = id_scores, ood_scores
        samples = ([generator.choice(scores, len(scores)) for scores in sets] for _ in range(resamples))
        values = np.array([metric(*drawn) for drawn in samples])
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resampled_auroc(
    id_scores: Scores, ood_scores: Scores, resamples: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Compute AUROC of many resamples from how often each distinct score is drawn; a few megabytes at a time."""
    id_counts, ood_counts = _counts_up_to(id_scores, ood_scores)
    shares = [np.diff(counts, prepend=0) / counts[-1] for counts in (id_counts, ood_counts)]
    values = np.empty(resamples)
    window = max(1, 2**22 // len(id_counts))
    for begin in range(0, resamples, window):
        rows = min(window, resamples - begin)
        first, second = (
            generator.multinomial(len(scores), share, size=rows)
            for scores, share in zip((id_scores, ood_scores), shares, strict=True)
        )
        above = np.cumsum(second[:, ::-1], axis=1)[:, ::-1] - second
        values[begin : begin + rows] = (first * (above + 0.5 * second)).sum(1) / (len(id_scores) * len(ood_scores))
    return values


def _checked(id_scores: ArrayLike, ood_scores: ArrayLike) -> tuple[Scores, Scores]:
    return _checked_row("ID", id_scores), _checked_row("OOD", ood_scores)


def _checked_row(which: str, scores: ArrayLike) -> Scores:
    row = np.asarray(scores)
    if row.ndim != 1 or row.size == 0 or not np.isfinite(row).all():
        raise ArgumentError(
            f"Expected a non-empty row of finite {which} scores but got shape {row.shape} with "
            f"{np.count_nonzero(~np.isfinite(row))} that are NaN or infinite."
        )
    return row if np.issubdtype(row.dtype, np.floating) else row.astype(np.float64)


def _counts_up_to(first: Scores, second: Scores) -> tuple[Counts, Counts]:
    """Count, for each distinct score in rising order, the scores of ``first`` and of ``second`` that are not above it."""
    scores = np.concatenate([first, second])
    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    last_of_ties = np.append(ranked[1:] != ranked[:-1], True)
    of_first = np.cumsum(order < len(first))[last_of_ties]
    return of_first, np.flatnonzero(last_of_ties) + 1 - of_first


def _from_above(first: Counts, second: Counts) -> tuple[Counts, Counts]:
    """Convert counts up to each distinct score to counts of those not below it, from the largest score down."""
    of_first, of_second = (counts[-1] - np.append(counts[:-1][::-1], 0) for counts in (first, second))
    return of_first, of_second


def _auroc_of(id_counts: Counts, ood_counts: Counts) -> float:
    below, here = np.append(0, id_counts[:-1]), np.diff(ood_counts, prepend=0)
    twice = np.sum((below + id_counts) * here, dtype=np.int64)  # exact: whole numbers
    return float(int(twice) / (2 * int(id_counts[-1]) * int(ood_counts[-1])))


def _error_of(id_counts: Counts, ood_counts: Counts) -> float:
    errors = (1 - id_counts / id_counts[-1] + ood_counts / ood_counts[-1]) / 2
    return float(min(errors.min(), 0.5))


def _precision_of(hits: Counts, false: Counts) -> float:
    """Compute average precision: the sum of precision over the steps of recall; tied scores are one step."""
    steps = np.diff(hits, prepend=0)
    return float(np.sum(hits / (hits + false) * steps) / hits[-1])


def _trapezoid_of(hits: Counts, false: Counts) -> float:
    """Compute the area under precision over recall by trapezoids, from precision 1 at recall 0; ties are one point."""
    recall = np.append(0, hits) / hits[-1]
    precision = np.append(1, hits / (hits + false))
    return float(np.sum(np.diff(recall) * (precision[1:] + precision[:-1])) / 2)


def _first_fpr(hits: Counts, false: Counts, tpr: float) -> float:
    """Return the false positive rate at the first threshold, from above, whose true positive rate is at least ``tpr``."""
    place = np.searchsorted(hits / hits[-1], tpr)
    return float(false[place] / false[-1])


def _check_rate(tpr: float) -> None:
    if not 0 < tpr < 1:
        raise ArgumentError(f"Expected `tpr` to be between 0 and 1 but got {tpr!r}.")


def expected_calibration_error(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float:
    """Compute the ECE: the mean gap between confidence and accuracy over bins of equal width, weighted by their images.

    Args:
        confidence: (N,) in [0, 1], the largest probability.
        correct: (N,), whether the prediction was correct.
        bins: number of bins, 15 by convention. A confidence on a border belongs to the lower bin.

    Returns:
        In [0, 1], 0 is best.

    Examples:
        >>> round(expected_calibration_error([0.9, 0.9, 0.6, 0.6], [True, True, True, False]), 3)
        0.1
    """
    confidences, hits = _checked_confidence(confidence, correct)
    if bins < 1:
        raise ArgumentError(f"Expected `bins` to be at least 1 but got {bins}.")
    gaps = np.bincount(_bin_of(confidences, bins), hits - confidences, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidences))


def classwise_calibration_error(probabilities: ArrayLike, labels: ArrayLike, bins: int = 15) -> float:
    """Compute the classwise ECE: the ECE of the probability of each class, (N,) against being of it, mean over classes.

    Args:
        probabilities: (N, C), rows that sum to 1.
        labels: (N,), in [0, C).
        bins: number of bins of equal width. A probability on a border belongs to the lower bin.

    Returns:
        In [0, 1], 0 is best.
    """
    shares, classes = _checked_probabilities(probabilities, labels)
    columns = (expected_calibration_error(column, classes == place, bins) for place, column in enumerate(shares.T))
    return float(np.mean(list(columns)))


def negative_log_likelihood(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Compute the mean of -log(probability of the right class), in nats; 0 is best.

    Args:
        probabilities: (N, C), rows that sum to 1.
        labels: (N,), in [0, C).
    """
    shares, classes = _checked_probabilities(probabilities, labels)
    return float(-np.log(np.maximum(shares[np.arange(len(classes)), classes], np.finfo(float).tiny)).mean())


def brier_score(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Compute the Brier score: the mean squared distance of probabilities to the right answer, summed over classes.

    Args:
        probabilities: (N, C), rows that sum to 1.
        labels: (N,), in [0, C).

    Returns:
        In [0, 2], 0 is best.
    """
    shares, classes = _checked_probabilities(probabilities, labels)
    return float(((shares - np.eye(shares.shape[1])[classes]) ** 2).sum(1).mean())


def reliability_bins(
    confidence: ArrayLike, correct: ArrayLike, bins: int = 15
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Compute mean confidence, accuracy and share of images of each bin of ``expected_calibration_error`` that has images."""
    confidences, hits = _checked_confidence(confidence, correct)
    which = _bin_of(confidences, bins)
    count = np.bincount(which)
    sums = [np.bincount(which, values)[count > 0] for values in (confidences, hits)]
    count = count[count > 0]
    return sums[0] / count, sums[1] / count, count / len(confidences)


def _bin_of(confidences: NDArray[np.float64], bins: int) -> NDArray[np.int64]:
    return np.clip(np.ceil(confidences * bins).astype(np.int64) - 1, 0, bins - 1)


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute the error rate among the most confident predictions, for every share of predictions that is kept.

    Ties count with their mean over all orders, so the order of the images does not matter.

    Returns:
        Coverage (N,), rising to 1, and risk (N,) in [0, 1].
    """
    confidences, hits = _checked_confidence(confidence, correct)
    _, group, sizes = np.unique(-confidences, return_inverse=True, return_counts=True)
    wrong = np.bincount(group, 1 - hits) / sizes
    kept = np.arange(1, len(confidences) + 1)
    return kept / len(confidences), np.cumsum(np.repeat(wrong, sizes)) / kept


def area_under_risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Compute the AURC, the mean risk over all coverages; in [0, 1], 0 is best.

    Examples:
        >>> area_under_risk_coverage([0.9, 0.8], [True, False])
        0.25
    """
    return float(risk_coverage(confidence, correct)[1].mean())


def area_under_generalized_risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Compute the AUGRC (https://arxiv.org/abs/2407.01032): the mean share of silent errors; in [0, 0.5], 0 is best.

    The generalised risk at a coverage is the share of all images that are kept and wrong; AUGRC is the area under it by
    trapezoids. That is the probability that a wrong image is kept when the threshold is the confidence of a random image;
    ties count half. Unlike AURC, it does not weigh errors among the most confident images more than others.

    Examples:
        >>> area_under_generalized_risk_coverage([0.9, 0.8], [True, False])
        0.125
    """
    coverage, risk = risk_coverage(confidence, correct)
    kept = np.append(0, risk * coverage)
    return float((kept[1:] + kept[:-1]).sum() / (2 * len(coverage)))


def _checked_confidence(confidence: ArrayLike, correct: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    confidences, hits = np.asarray(confidence, np.float64), np.asarray(correct)
    if confidences.ndim != 1 or confidences.size == 0 or hits.shape != confidences.shape:
        raise ArgumentError(
            f"Expected one confidence and one correct-or-not per image but got shapes {confidences.shape} and {hits.shape}."
        )
    if not (np.isfinite(confidences).all() and confidences.min() >= 0 and confidences.max() <= 1 + 1e-6):
        raise ArgumentError("Expected confidences in [0, 1] but some are outside.")
    return confidences, hits.astype(bool).astype(np.float64)


def _checked_probabilities(
    probabilities: ArrayLike, labels: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    shares, classes = np.asarray(probabilities, np.float64), np.asarray(labels).astype(np.int64)
    if shares.ndim != 2 or not shares.size or classes.shape != shares.shape[:1]:
        raise ArgumentError(
            f"Expected a row of probabilities and a label per image but got {shares.shape}, {classes.shape}."
        )
    if not np.allclose(shares.sum(1), 1, atol=1e-4) or shares.min() < 0:
        raise ArgumentError("Expected probabilities that sum to 1 in each row but some do not.")
    if classes.min() < 0 or classes.max() >= shares.shape[1]:
        raise ArgumentError(
            f"Expected labels from 0 to {shares.shape[1] - 1} but got {classes.min()} to {classes.max()}."
        )
    return shares, classes
