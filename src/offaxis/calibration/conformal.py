"""ID scores -> p-values and thresholds, with a guarantee for finitely many calibration images.

Scores are those of a detector: larger = more out-of-distribution. If a new ID image and the n calibration images are
exchangeable, then p = (1 + number of calibration scores that are at least as large) / (n + 1) satisfies P(p <= alpha) <= alpha
for every alpha and n (Vovk, Gammerman, Shafer 2005). Ties count against a flag: they cost power, never validity.

Two more promises than this marginal one:

- with a *confidence*, the false positive rate of this one calibration is at most alpha with that probability over calibration
  sets: without ties it is Beta(k, n + 1 - k), and k is the largest whose quantile at that confidence is at most alpha;
- over a batch, ``control_fdr`` (Benjamini, Hochberg 1995, with the number of ID images estimated as Storey 2002) keeps the
  expected share of false alarms among the flagged images below a bound. Conformal p-values of one calibration set depend on
  each other in a way that it allows (Bates et al. 2023).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offaxis.errors import ArgumentError, CalibrationError, TooFewImagesError

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


def check_alpha(alpha: float, name: str = "alpha") -> float:
    """Return a level strictly between 0 and 1, or raise ArgumentError, which calls it ``name``."""
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 < alpha < 1:
        raise ArgumentError(f"Expected `{name}` to be a number between 0 and 1, such as 0.05, but got {alpha!r}.")
    return float(alpha)


def check_confidence(confidence: float | None) -> float | None:
    """Return a confidence strictly between 0 and 1, or None for the marginal promise alone (which 0 stands for too)."""
    number = isinstance(confidence, (int, float)) and not isinstance(confidence, bool)
    if confidence is None or (number and confidence == 0):
        return None
    if not number or not 0 < confidence < 1:
        raise ArgumentError(
            f"Expected `confidence` to be a number between 0 and 1, such as 0.95, or None but got {confidence!r}."
        )
    return float(confidence)


def smallest_count(alpha: float, confidence: float | None = None) -> int:
    """Return the fewest calibration images with which anything can be flagged at level alpha: ceil(1 / alpha) - 1.

    With n images the smallest p-value is 1 / (n + 1). With a confidence it takes more: log(1 - confidence) / log(1 - alpha).

    Examples:
        >>> smallest_count(0.05), smallest_count(0.01), smallest_count(0.05, 0.95)
        (19, 99, 59)
    """
    marginal = math.ceil(1 / _exact(alpha)) - 1
    if not confidence:
        return marginal
    count = max(marginal, math.floor(math.log1p(-confidence) / math.log1p(-alpha)) - 1, 1)
    while not allowed(count, alpha, confidence):
        count += 1
    return count


def check_count(
    count: int, alpha: float, whose: str = "", confidence: float | None = None, *, what: str = "images"
) -> None:
    """Raise TooFewImagesError unless ``count`` calibration images (or rows) are enough for level alpha."""
    least = smallest_count(alpha, confidence)
    if count < least and (not count or confidence):
        sure = f" and a confidence of {confidence:g}" if confidence else ""
        raise TooFewImagesError(
            f"Expected at least {least} calibration {what}{whose} for alpha = {alpha:g}{sure} but got {count or 'none'}."
            + (f" Add {what}, or take a larger alpha or no confidence." if count else "")
        )
    if count < least:
        enough = Context(prec=3, rounding=ROUND_CEILING).divide(Decimal(1), Decimal(count + 1))
        raise TooFewImagesError(
            f"Expected at least {least} calibration {what}{whose} for alpha = {alpha:g} but got {count}. The smallest p-value "
            f"that {count} {what} can give is 1/{count + 1} = {1 / (count + 1):.3g}, so nothing could ever be flagged. Add "
            f"{what}, or take an alpha of at least {enough}."
        )


def p_value(at_least: Any, count: Any) -> Any:
    """Compute p-values from how many of ``count`` calibration scores are at least as large: the one formula of all of them.

    Both are arrays or tensors of one shape, or numbers.
    """
    return (1 + at_least) / (count + 1)


def p_values(*, calibration_scores: Floats, scores: Floats) -> Floats:
    """Compute p-values (N,) in (0, 1] of scores (N,), each among the sorted calibration scores (n,): small = OOD.

    Args:
        calibration_scores: sorted scores (n,) of ID images.
        scores: (N,), larger = more out-of-distribution.

    Raises:
        ArgumentError: the calibration scores are not sorted.
    """
    known = check_sorted(calibration_scores)
    p: Floats = p_value(len(known) - known.searchsorted(np.asarray(scores)), len(known))
    return p


class Grouped:
    """Sorted calibration scores (n,) in groups, for p-values within a group.

    A score is found among those of its group by its rank among all of them, so that one search serves every group.

    Args:
        scores: sorted scores (n,).
        groups: the group (n,) of each, from 0 to G - 1.
        count: G.
    """

    def __init__(self, scores: Floats, groups: Counts, count: int) -> None:
        self.scores = scores
        self.counts = np.bincount(groups, minlength=count)
        self.ends = np.cumsum(self.counts)
        self._keys = np.sort(groups * (len(scores) + 1) + np.arange(len(scores)))

    def p_values(self, scores: Floats, groups: Counts) -> Floats:
        """Compute p-values (N,) of scores (N,), each within its group (N,)."""
        keys = groups * (len(self.scores) + 1) + self.scores.searchsorted(scores)
        p: Floats = p_value(self.ends[groups] - self._keys.searchsorted(keys), self.counts[groups])
        return p


def threshold(calibration: Floats, alpha: float, confidence: float | None = None) -> float:
    """Return the score above which an image is flagged: ``score > threshold`` exactly where ``p <= k / (n + 1)``.

    Args:
        calibration: sorted scores (n,) of ID images.
        alpha: the share of new ID images that may be flagged.
        confidence: see ``allowed``.

    Raises:
        TooFewImagesError: n is below ``smallest_count(alpha, confidence)``.
        ArgumentError: the scores are not sorted.
    """
    check_count(len(calibration), alpha, confidence=confidence)
    check_sorted(calibration)
    return float(calibration[len(calibration) - allowed(len(calibration), alpha, confidence)])


def allowed(count: int, alpha: float, confidence: float | None = None) -> int:
    """Return k: an image is flagged where p <= k / (n + 1), so fewer than k calibration scores are at least as large.

    Without a confidence k is floor(alpha (n + 1)). With one it is the largest such k whose Beta(k, n + 1 - k), the false
    positive rate in the long run over calibration sets, is at most alpha with that probability; 0 where there is none.

    Examples:
        >>> allowed(199, 0.05), allowed(199, 0.05, 0.95)
        (10, 5)
    """
    marginal = math.floor(_exact(alpha) * (count + 1))
    if not confidence:
        return marginal
    from scipy.special import betainc

    k = np.arange(1, count + 1)
    return min(marginal, int((betainc(k, count + 1 - k, alpha) >= confidence).sum()))  # which falls with k


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


def flag_rate(count: int, alpha: float, confidence: float | None = None) -> FlagRate:
    """Compute the distribution of the share of ID images that is flagged, for n = ``count`` images without ties.

    The guarantee holds on average over calibration sets; a given set may flag more or less, by this much. With ties
    fewer images are flagged.

    Examples:
        >>> rate = flag_rate(199, 0.05)
        >>> round(rate.mean, 3), round(rate.low, 3), round(rate.high, 3)
        (0.05, 0.028, 0.078)
    """
    from scipy.stats import beta

    check_count(count, alpha, confidence=confidence)
    k = allowed(count, alpha, confidence)
    law = beta(k, count + 1 - k)
    return FlagRate(mean=float(law.mean()), low=float(law.ppf(0.05)), high=float(law.ppf(0.95)))


@dataclass(frozen=True, eq=False, kw_only=True)
class BatchFlags:
    """The images of a batch that are flagged together, with a bound on the share of false alarms among them.

    Attributes:
        flagged: (m,) bool.
        fdr: the bound: among the flagged images this share at most is in-distribution, in expectation over calibration sets
            and batches.
        least: so many images or none are flagged: m_0 / (fdr (n + 1)), since no p-value is below 1 / (n + 1).
        calibration_images: n.
    """

    flagged: NDArray[np.bool_]
    fdr: float
    least: int
    calibration_images: int

    def explain(self) -> str:
        """Return what the flags promise, or why there are none and how many calibration images it would take."""
        count, size, bound = int(self.flagged.sum()), len(self.flagged), f"{100 * self.fdr:g} %"
        if count:
            return (
                f"{count:,} of {size:,} images are flagged together; of such lists at most {bound} are false alarms, in "
                "expectation."
            )
        needed = self.least * (self.calibration_images + 1) - 1
        return (
            f"None of {size:,} images is flagged with at most {bound} of false alarms: {self.calibration_images:,} calibration "
            f"images can flag {self.least:,} images or more together, or none. To flag a single one of so many it takes "
            f"{needed:,} calibration images; smaller batches take fewer."
        )


def control_fdr(p_values: Floats, fdr: float, *, calibration_images: int) -> BatchFlags:
    """Flag images of a batch together so that at most a share ``fdr`` of the flagged ones is false alarms, in expectation.

    The procedure of Benjamini and Hochberg: flag those with p <= k fdr / m0 for the largest k that flags k images, where
    m0 = 2 (1 + number with p > 1/2), at most all, estimates how many are ID (Storey). It holds for the marginal p-values of ID
    images that are independent of each other and of the calibration images (Bates et al. 2023): not for frames of one video,
    and not for p-values per class.

    Args:
        p_values: (m,) of one calibration set, as ``p_values`` computes them.
        fdr: the bound, such as 0.1.
        calibration_images: n, the size of that calibration set.

    Examples:
        >>> control_fdr(np.array([0.01, 0.5, 0.02, 0.9]), 0.1, calibration_images=99).flagged
        array([ True, False,  True, False])

    Raises:
        ArgumentError: ``fdr`` is not between 0 and 1, or these are not marginal p-values of so many calibration images.
    """
    exact, places = _exact(fdr, "fdr"), calibration_images + 1
    values = np.asarray(p_values, np.float64)
    ranks = np.rint(np.nan_to_num(values) * places).astype(np.int64)
    if values.ndim != 1 or np.any((ranks < 1) | (ranks > places) | (np.abs(values * places - ranks) > 0.01)):
        raise ArgumentError(
            f"Expected p-values in whole multiples of 1/{places}, as {calibration_images} calibration images give them, but "
            "got others: use the marginal p-values (p_value) of one calibration, not those per class, whose lists have no such "
            "guarantee."
        )
    size = min(len(ranks), 2 * (1 + int((2 * ranks > places).sum())))
    at_most = np.cumsum(np.bincount(ranks, minlength=places + 1))  # images with this rank or a smaller one
    passing = [r for r in np.unique(ranks).tolist() if r * size <= exact * places * int(at_most[r])]
    last = max(passing, default=0)
    least = math.ceil(size / (exact * places))
    return BatchFlags(flagged=ranks <= last, fdr=float(fdr), least=least, calibration_images=calibration_images)


def check_scores(scores: Sequence[float] | Floats) -> Floats:
    """Return scores (N,) in float64, or raise CalibrationError where they are not finite."""
    values = np.asarray(scores, np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise CalibrationError(
            f"Expected finite scores of shape (N,) but got shape {values.shape} with {int((~np.isfinite(values)).sum())} that "
            "are NaN or infinite. Check those images and the training."
        )
    return values


def check_sorted(calibration: Floats) -> Floats:
    """Return calibration scores, or raise ArgumentError where they are not in rising order."""
    if np.any(calibration[1:] < calibration[:-1]):
        raise ArgumentError("Expected calibration scores in rising order but these are not: sort them.")
    return calibration


def _exact(alpha: float, name: str = "alpha") -> Fraction:
    """Return 0.1 as one tenth: a product with the nearest binary fraction can fall just short of a whole number."""
    return Fraction(repr(check_alpha(alpha, name)))
