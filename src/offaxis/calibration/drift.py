r"""Detect that a stream of images has drifted from the training distribution: a conformal test martingale and a detector.

Each image is compared with all scores so far, calibration images first, and then joins them; with ties broken at random
its online p-value is uniform and independent of those before, as long as the stream is exchangeable with the calibration
images (Vovk, Gammerman, Shafer 2005, chapter 7). Bets :math:`f_k(p) = (1 - w_k) + w_k a_k p^{a_k - 1}` win where small
p-values are too many. Two statistics are made of them:

.. math:: M_n = R_n + \sum_k A_{k,n}, \qquad P\bigl(\sup_n M_n \ge 1/\text{level}\bigr) \le \text{level}

over a stream of any length (Ville). :math:`A_k` is what has been wagered with the bet k: half of the money at the start, the
rest little by little out of a reserve R, so that a drift after a long quiet time still finds money to bet with. And

.. math:: S_n = \sum_k \sum_{j \le n} \frac{1}{K} \prod_{i=j}^n f_k(p_i), \qquad E[\text{images until } S_n \ge L] \ge L

the sum over all starting times (Shiryaev 1963, Roberts 1966; as an e-detector: Shin, Ramdas, Rinaldo 2024). It does not
tire: after 100,000 quiet images it needs no more to warn than after 1,000. The price is that it does warn without cause, on
average once in L images at most.

A *fixed* calibration set is not valid for this: its sampling error can be bet against for ever, and a martingale that learns
how would alarm on nearly every long ID stream (benchmarks/drift_monitor.py). Nor is a stream with memory (the frames of
a video, one user's photographs): neighbours are not exchangeable.
"""

import json
import math
import random
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offaxis.calibration.conformal import check_alpha, check_scores
from offaxis.errors import CalibrationError, at_least_one

BITS = 22
BETS = ((0.03, 0.2), (0.15, 0.4), (0.3, 0.6), (0.8, 0.5), (0.8, 0.8))
"""(w, a): from a few far OOD images among many to a shift of all. Real detectors put OOD images among the largest tenth of
the ID scores rather than beyond them all, so most bets win on p-values of a few percent (benchmarks/drift_streams.py)."""
AT_ONCE = 0.5  # of the money is in play from the first image on: a service is most often wrong from its start
RUN_LENGTH = 10_000


class ScoreCounts:
    """Counts of scores above a given one, in O(log) time and constant memory, however many scores are added.

    Scores are rounded to their first 22 bits (a relative step of 2^-13), a rule that is fixed beforehand, so that
    p-values stay exact: scores that round to the same value are ties. The counts are a Fenwick tree.
    """

    def __init__(self) -> None:
        self.tree = array("i", bytes(4 * ((1 << BITS) + 1)))
        self.count = 0

    def add(self, score: float) -> tuple[int, int]:
        """Add a score and return how many others are larger and how many are equal, itself included."""
        place = slot(score)
        below, upto = self._below(place), self._below(place + 1)
        larger, equal = self.count - upto, upto - below + 1
        node, tree = place + 1, self.tree
        while node <= 1 << BITS:
            tree[node] += 1
            node += node & -node
        self.count += 1
        return larger, equal

    def used(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the slots that have scores, and how many each has."""
        counts = np.array(self.tree, np.int32)
        for bit in reversed(range(BITS)):
            counts[2 << bit :: 2 << bit] -= counts[1 << bit :: 2 << bit]
        slots = np.flatnonzero(counts)
        return slots, counts[slots]

    def fill(self, slots: NDArray[np.int64], counts: NDArray[np.int32]) -> None:
        """Count these scores alone, as ``used`` returned them."""
        tree = np.zeros((1 << BITS) + 1, np.int32)
        tree[slots] = counts
        for bit in range(BITS):
            tree[2 << bit :: 2 << bit] += tree[1 << bit :: 2 << bit]
        self.tree, self.count = array("i", tree.tobytes()), int(counts.sum())

    def _below(self, place: int) -> int:
        """Count the scores in slots before this one."""
        total, tree = 0, self.tree
        while place:
            total += tree[place]
            place &= place - 1
        return total


def slot(score: float) -> int:
    """Return the first 22 bits of a score as float32, as a number that orders as the scores do."""
    try:
        bits: int = struct.unpack("<I", struct.pack("<f", score))[0]
    except OverflowError:  # beyond float32: the last slot on its side
        bits = 0xFF800000 if score < 0 else 0x7F800000
    ordered = bits ^ (0xFFFFFFFF if bits >> 31 else 0x80000000)
    return ordered >> (32 - BITS)


@dataclass(frozen=True, kw_only=True)
class DriftState:
    """The state of a drift monitor.

    Attributes:
        images: the number of images since it began.
        log10_wealth: log10 of the martingale now; about 0 or below while nothing has changed.
        log10_largest: log10 of its largest value so far.
        level: the probability of ever alarming on a stream that does not drift.
        alarm: whether the martingale has reached 1 / level.
        alarmed_at: the number of the image at which it did; None where it has not.
        run_length: the images between two false warnings, on average at least, on a stream that does not drift.
        warnings: how many warnings there were; after each the detector starts again, while the martingale goes on.
        warned_at: the number of the image of the last warning; None where there was none.
    """

    images: int
    log10_wealth: float
    log10_largest: float
    level: float
    alarm: bool
    alarmed_at: int | None
    run_length: int
    warnings: int
    warned_at: int | None


class Bets:
    """Wealth from bets against p-values being uniform: the martingale, and the sum over starting times.

    Args:
        level: the probability that the martingale ever reaches 1 / level while they are.
        run_length: the number of p-values until the sum reaches it while they are, on average at least.
    """

    def __init__(self, level: float = 0.01, run_length: int = RUN_LENGTH) -> None:
        self.level, self.run_length = check_alpha(level, "level"), at_least_one("run_length", run_length)
        self.images = self.warnings = 0
        self.alarmed_at: int | None = None
        self.warned_at: int | None = None
        self.log_wealth = self.log_largest = 0.0
        self.sum = 0.0  # over starting times
        self._in_play = [math.log(AT_ONCE / len(BETS))] * len(BETS)  # logarithms, bet by bet: it has no bound
        self._since = [0.0] * len(BETS)  # the same for the sum over starting times, which ends at the run length

    def bet(self, p: float) -> None:
        """Bet on one p-value in (0, 1]."""
        before, after = reserve(self.images), reserve(self.images + 1)
        fresh, start = math.log((before - after) / len(BETS)), 1 / len(BETS)
        in_play, since = self._in_play, self._since
        for k, (w, a) in enumerate(BETS):
            gain = 1 - w + w * a * p ** (a - 1)
            since[k] = (since[k] + start) * gain
            high, low = (in_play[k], fresh) if in_play[k] > fresh else (fresh, in_play[k])
            in_play[k] = high + math.log1p(math.exp(low - high)) + math.log(gain)
        parts = (math.log(after), *in_play)
        most = max(parts)
        self.log_wealth, self.sum = most + math.log(sum([math.exp(part - most) for part in parts])), sum(since)
        self.images += 1
        self.log_largest = max(self.log_largest, self.log_wealth)
        if self.alarmed_at is None and self.log_wealth >= -math.log(self.level):
            self.alarmed_at = self.images
        if self.sum >= self.run_length:
            self.warnings, self.warned_at = self.warnings + 1, self.images
            self._since = [0.0] * len(BETS)

    def state(self) -> DriftState:
        """Return the state after the images so far."""
        ten = math.log(10)
        return DriftState(
            images=self.images,
            log10_wealth=self.log_wealth / ten,
            log10_largest=self.log_largest / ten,
            level=self.level,
            alarm=self.alarmed_at is not None,
            alarmed_at=self.alarmed_at,
            run_length=self.run_length,
            warnings=self.warnings,
            warned_at=self.warned_at,
        )


class DriftMonitor:
    """Takes one score after another and raises an alarm when the stream has left the calibration distribution.

    Args:
        calibration: scores (n,) of ID images, an array or a list; larger = more out-of-distribution.
        level: the probability of ever alarming on a stream that does not drift.
        seed: of the random numbers that break ties.
        run_length: the images between two false warnings, on average at least, on a stream that does not drift.

    Raises:
        CalibrationError: a score is not a finite number.

    Examples:
        >>> monitor = DriftMonitor(np.random.default_rng(0).normal(size=500), level=0.01)
        >>> for score in np.random.default_rng(1).normal(3, 1, size=50):
        ...     _ = monitor.add(float(score))
        >>> monitor.state().alarm
        True
    """

    def __init__(
        self,
        calibration: Sequence[float] | NDArray[np.float64],
        level: float = 0.01,
        seed: int = 0,
        run_length: int = RUN_LENGTH,
    ) -> None:
        self.calibration, self.level, self.seed, self.run_length = check_scores(calibration), level, seed, run_length
        self.reset()

    def reset(self) -> None:
        """Discard the stream and start again from the calibration images."""
        self._random = random.Random(self.seed)
        self._bets = Bets(self.level, self.run_length)
        self._counts = ScoreCounts()
        for score in self.calibration.tolist():
            self._counts.add(score)

    def add(self, score: float) -> float:
        """Add the score of one image and return its online p-value in (0, 1], uniform while nothing drifts."""
        if not math.isfinite(score):
            raise CalibrationError(f"Expected a finite score but got {score}: leave such an image out of the stream.")
        larger, equal = self._counts.add(score)
        p = (larger + (1 - self._random.random()) * equal) / self._counts.count
        self._bets.bet(p)
        return p

    def state(self) -> DriftState:
        """Return the state after the images so far."""
        return self._bets.state()

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what the monitor has seen, for ``restore``."""
        slots, counts = self._counts.used()
        return {"slots": slots, "counts": counts, "bets": np.array(json.dumps(vars(self._bets)))}

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Go on from what ``to_arrays`` returned; ties are broken by new random numbers."""
        self._counts.fill(arrays["slots"], arrays["counts"])
        vars(self._bets).update(json.loads(str(arrays["bets"])))
        self._random = random.Random(f"{self.seed} {self._bets.images}")


class Appearance(NamedTuple):
    """How an image looks, each in [0, 1]: mean brightness, mean step between neighbours, mean distance from grey."""

    brightness: float
    sharpness: float
    colour: float


def appearances(pixels: NDArray[np.uint8]) -> list[Appearance]:
    """Return how images (N, c, h, w) look, at the network's size."""
    values = pixels.astype(np.int16)
    grey = values.mean(1, dtype=np.float32)
    steps = np.abs(np.diff(grey, axis=1)).mean((1, 2)) + np.abs(np.diff(grey, axis=2)).mean((1, 2))
    colour = (values.max(1) - values.min(1)).mean((1, 2))
    return [Appearance(*row) for row in (np.stack([grey.mean((1, 2)), steps / 2, colour], 1) / 255).tolist()]


def usual_appearance(found: Sequence[Appearance]) -> dict[str, list[float]]:
    """Return the tenth, fiftieth and ninetieth percentile of how images look, by what is measured."""
    quantiles = np.quantile(np.array(found), (0.1, 0.5, 0.9), axis=0).round(4)
    return dict(zip(Appearance._fields, quantiles.T.tolist(), strict=True))


NOTICED: dict[int, dict[int, tuple[int, ...]]] = {
    50: {90: (55,), 95: (27,), 99: (20,)},
    100: {80: (93,), 90: (29,), 95: (18, 150), 99: (12, 56)},
    200: {80: (65,), 90: (20, 156), 95: (14, 84), 99: (9, 35, 115)},
    500: {80: (35, 160), 90: (20, 61, 246), 95: (13, 46, 127), 99: (8, 25, 56, 210)},
    1000: {80: (40, 110), 90: (15, 47, 130), 95: (10, 29, 93, 252), 99: (7, 21, 46, 116)},
    2000: {80: (30, 127, 464), 90: (13, 34, 124, 380), 95: (9, 22, 67, 204), 99: (6, 13, 29, 61)},
}
"""For so many calibration images and an AUROC in percent: after how many images a stream is noticed from its start, of which
50, 20, 10 or 5 % are OOD. Medians of 40 streams with Gaussian scores; left out is what a quarter of the streams did not notice
within 3,000 images (``benchmarks/drift_notice.py``)."""


def noticed(count: int, auroc: float) -> str:
    """Say which shares of OOD images a monitor with ``count`` calibration images notices, and after how many images.

    Args:
        count: of calibration images.
        auroc: of the detector on these OOD images, in [0, 1]; the next smaller one that was simulated counts.
    """
    rows = NOTICED[max([n for n in NOTICED if n <= count], default=50)]
    level = max([a for a in rows if a <= 100 * auroc + 0.5], default=None)
    after = () if level is None else rows[level]
    shares = ", ".join(
        f"{share} % OOD after about {n} images" for share, n in zip((50, 20, 10, 5), after, strict=False)
    )
    return (
        f"The drift monitor with {count:,} calibration images and an AUROC of {100 * auroc:.0f} notices "
        + (f"{shares}; smaller shares late or never." if shares else "hardly any share of OOD images.")
        + ("" if count >= max(NOTICED) else " More calibration images notice more.")
    )


def reserve(step: int) -> float:
    """Return the reserve after so many steps: it falls slowly, so that no drift comes too late to be bet on."""
    return (1 - AT_ONCE) / math.sqrt(1 + step / 100)
