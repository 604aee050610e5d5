"""ID scores -> p-values and thresholds, with a guarantee for finitely many calibration images.

Scores are those of a detector: larger = more out-of-distribution. If a new ID image and the n calibration images are
exchangeable, then p = (1 + number of calibration scores that are at least as large) / (n + 1) satisfies P(p <= alpha) <= alpha
for every alpha and n (Vovk, Gammerman, Shafer 2005). Ties count against a flag: they cost power, never validity.
"""

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from offaxis.errors import ArgumentError, CalibrationError, TooFewImagesError

Floats = NDArray[np.float64]


def check_alpha(alpha: float) -> float:
    """Return a level strictly between 0 and 1, or raise ArgumentError."""
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 < alpha < 1:
        raise ArgumentError(f"Expected `alpha` to be a number between 0 and 1, such as 0.05, but got {alpha!r}.")
    return float(alpha)


def smallest_count(alpha: float) -> int:
    """Return the fewest calibration images with which anything can be flagged at level alpha: ceil(1 / alpha) - 1.

    With n images the smallest p-value is 1 / (n + 1).

    Example:
        >>> smallest_count(0.05), smallest_count(0.01)
        (19, 99)
    """
    return math.ceil(1 / _exact(alpha)) - 1


def check_count(count: int, alpha: float, whose: str = "") -> None:
    """Raise TooFewImagesError unless ``count`` calibration images are enough for level alpha."""
    least = smallest_count(alpha)
    if count < least and not count:
        raise TooFewImagesError(
            f"Expected at least {least} calibration images{whose} for alpha = {alpha:g} but got none."
        )
    if count < least:
        enough = Context(prec=3, rounding=ROUND_CEILING).divide(Decimal(1), Decimal(count + 1))
        raise TooFewImagesError(
            f"Expected at least {least} calibration images{whose} for alpha = {alpha:g} but got {count}. The smallest p-value "
            f"that {count} images can give is 1/{count + 1} = {1 / (count + 1):.3g}, so nothing could ever be flagged. Add "
            f"images, or take an alpha of at least {enough}."
        )


def p_values(scores: Floats, calibration: Floats) -> Floats:
    """Compute p-values (N,) in [1 / (n + 1), 1] of scores (N,), given sorted calibration scores (n,): small = OOD.

    Example:
        >>> p_values(np.array([0.0, 2.5, 9.0]), np.array([1.0, 2.0, 3.0]))
        array([1.  , 0.5 , 0.25])
    """
    at_least = len(calibration) - np.searchsorted(calibration, scores, side="left")
    return np.asarray((1 + at_least) / (len(calibration) + 1), np.float64)


def threshold(calibration: Floats, alpha: float) -> float:
    """Return the score above which an image is flagged: ``score > threshold`` exactly where ``p <= alpha``.

    Args:
        calibration: sorted scores (n,) of ID images.
        alpha: the share of new ID images that may be flagged.

    Raises:
        TooFewImagesError: n is below ``smallest_count(alpha)``.
        ArgumentError: the scores are not sorted.
    """
    check_count(len(calibration), alpha)
    if np.any(calibration[1:] < calibration[:-1]):
        raise ArgumentError("Expected calibration scores in rising order but these are not: sort them.")
    return float(calibration[len(calibration) - allowed(len(calibration), alpha)])


def allowed(count: int, alpha: float) -> int:
    """Return k = floor(alpha (n + 1)): an image is flagged where fewer than k calibration scores are at least as large."""
    return math.floor(_exact(alpha) * (count + 1))


@dataclass(frozen=True)
class FlagRate:
    """The false positive rate of a calibration in the long run: Beta(k, n + 1 - k) over calibration sets.

    Attributes:
        mean: over all calibration sets of this size; at most alpha.
        low, high: nine of ten calibration sets lie between.
    """

    mean: float
    low: float
    high: float


def flag_rate(count: int, alpha: float) -> FlagRate:
    """Compute the distribution of the share of ID images that is flagged, for n = ``count`` images without ties.

    The guarantee holds on average over calibration sets; a given set may flag more or less, by this much. With ties
    fewer images are flagged.

    Example:
        >>> rate = flag_rate(199, 0.05)
        >>> round(rate.mean, 3), round(rate.low, 3), round(rate.high, 3)
        (0.05, 0.028, 0.078)
    """
    from scipy.stats import beta

    check_count(count, alpha)
    law = beta(allowed(count, alpha), count + 1 - allowed(count, alpha))
    return FlagRate(mean=float(law.mean()), low=float(law.ppf(0.05)), high=float(law.ppf(0.95)))


def check_scores(scores: Floats) -> Floats:
    """Return scores (N,) in float64, or raise CalibrationError where they are not finite."""
    values = np.asarray(scores, np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise CalibrationError(
            f"Expected finite scores of shape (N,) but got shape {values.shape} with {int((~np.isfinite(values)).sum())} that "
            "are NaN or infinite. Check those images and the training."
        )
    return values


def _exact(alpha: float) -> Fraction:
    """Return 0.1 as one tenth: a product with the nearest binary fraction can fall just short of a whole number."""
    return Fraction(repr(check_alpha(alpha)))
