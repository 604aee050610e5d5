"""(confidence, was it right) -> what a network's own confidence is worth on ID images."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offaxis.errors import ArgumentError


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
    sure, right = _checked(confidence, correct)
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
    sure, right = _checked(confidence, correct)
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


def _checked(confidence: ArrayLike, correct: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    sure, right = np.asarray(confidence, np.float64), np.asarray(correct)
    if sure.ndim != 1 or sure.size == 0 or right.shape != sure.shape:
        raise ArgumentError(
            f"Expected a confidence and a right or wrong for each image but got shapes {sure.shape} and {right.shape}."
        )
    if not (np.isfinite(sure).all() and sure.min() >= 0 and sure.max() <= 1 + 1e-6):
        raise ArgumentError("Expected confidences in [0, 1] but some are not.")
    return sure, right.astype(bool).astype(np.float64)
