r"""Has the stream as a whole left the training distribution? A conformal test martingale on online p-values.

Each image is compared with the bag of all scores so far, calibration images first, and then joins it; with ties broken at
random its p-value is uniform and independent of those before, as long as the stream is exchangeable with the calibration
images (Vovk, Gammerman, Shafer 2005, chapter 7). Against that the watch bets, and

.. math:: M_n = R_n + \sum_k A_{k,n}, \qquad P\bigl(\sup_n M_n \ge 1/\text{level}\bigr) \le \text{level}

holds over a stream of any length (Ville). A :math:`A_k` is what has been wagered with the bet
:math:`f_k(p) = (1 - w_k) + w_k a_k p^{a_k - 1}`, which wins where small p-values are too many; R is a reserve out of which
a little goes into play at every step, so that a change after a long quiet time still finds money to bet with.

A *fixed* calibration set is not valid for this: its own luck can be bet against for ever, and a martingale that learns how
would alarm on nearly every long ID stream (benchmarks/stream_watch.py). Nor is a stream with memory (the frames of a
video, one user's photographs): neighbours are not exchangeable.
"""

import math
import random
import struct
from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offaxis.errors import ArgumentError

BITS = 22
BETS = ((0.03, 0.2), (0.1, 0.2), (0.3, 0.3), (0.8, 0.5))
"""(w, a): from a few very strange images among many to a shift of all."""


class ScoreCounts:
    """Scores and how many of them are above a given one, in O(log) time and constant memory, however many come.

    Scores are kept to their first 22 bits (a relative step of 2^-13), a rule that is fixed beforehand, so that p-values
    stay exact: scores that fall together are ties. The counts are a Fenwick tree.
    """

    def __init__(self) -> None:
        self.tree = array("i", bytes(4 * ((1 << BITS) + 1)))
        self.count = 0

    def add(self, score: float) -> tuple[int, int]:
        """Put a score in; (how many others are larger, how many are equal, itself among them)."""
        place = slot(score)
        below, upto = self._below(place), self._below(place + 1)
        larger, equal = self.count - upto, upto - below + 1
        node, tree = place + 1, self.tree
        while node <= 1 << BITS:
            tree[node] += 1
            node += node & -node
        self.count += 1
        return larger, equal

    def _below(self, place: int) -> int:
        """How many scores are in slots before this one."""
        total, tree = 0, self.tree
        while place:
            total += tree[place]
            place &= place - 1
        return total


def slot(score: float) -> int:
    """The first 22 bits of a score as float32, in an order that follows that of the scores."""
    try:
        bits: int = struct.unpack("<I", struct.pack("<f", score))[0]
    except OverflowError:  # beyond float32: the last slot on its side
        bits = 0xFF800000 if score < 0 else 0x7F800000
    ordered = bits ^ (0xFFFFFFFF if bits >> 31 else 0x80000000)
    return ordered >> (32 - BITS)


@dataclass(frozen=True)
class DriftState:
    """What the watch says.

    Attributes:
        images: how many it has seen since it began.
        log10_wealth: log10 of the martingale now; about 0 or below while nothing has changed.
        log10_largest: the largest that it has been.
        level: the chance of ever alarming on a stream that does not change.
        alarm: whether the martingale has reached 1 / level.
        alarmed_at: the number of the image at which it did; None where it has not.
    """

    images: int
    log10_wealth: float
    log10_largest: float
    level: float
    alarm: bool
    alarmed_at: int | None


class Martingale:
    """Money that is bet against p-values being uniform.

    Args:
        level: the chance of ever reaching 1 / level while they are.
    """

    def __init__(self, level: float = 0.01) -> None:
        if not 0 < level < 1:
            raise ArgumentError(f"Expected the level to be between 0 and 1 but got {level!r}.")
        self.level = level
        self.images = 0
        self.alarmed_at: int | None = None
        self.log_wealth = self.log_largest = 0.0
        self._logs = [-math.inf] * len(BETS)  # logarithms of what is in play, bet by bet

    def bet(self, p: float) -> None:
        """Bet on one p-value in (0, 1]."""
        before, after = _reserve(self.images), _reserve(self.images + 1)
        fresh = math.log((before - after) / len(BETS))
        log_p = math.log(p)
        for i, (w, a) in enumerate(BETS):
            gain = math.log(1 - w + w * a * math.exp((a - 1) * log_p))
            self._logs[i] = _log_sum(self._logs[i], fresh) + gain
        self.images += 1
        wealth = math.log(after)
        for value in self._logs:
            wealth = _log_sum(wealth, value)
        self.log_wealth = wealth
        self.log_largest = max(self.log_largest, wealth)
        if self.alarmed_at is None and wealth >= -math.log(self.level):
            self.alarmed_at = self.images

    def state(self) -> DriftState:
        """Where it stands."""
        ten = math.log(10)
        alarm = self.alarmed_at is not None
        return DriftState(
            self.images, self.log_wealth / ten, self.log_largest / ten, self.level, alarm, self.alarmed_at
        )


class DriftMonitor:
    """Looks at one score after another and says when the stream has left the distribution of the calibration images.

    Args:
        calibration: scores (n,) of ID images; larger = more out-of-distribution.
        level: the chance of ever alarming on a stream that does not change.
        seed: of the random numbers that break ties.

    Example:
        >>> watch = Watch(np.random.default_rng(0).normal(size=500), level=0.01)
        >>> for score in np.random.default_rng(1).normal(3, 1, size=50):
        ...     _ = watch.add(float(score))
        >>> watch.state().alarm
        True
    """

    def __init__(self, calibration: NDArray[np.float64], level: float = 0.01, seed: int = 0) -> None:
        self.calibration, self.level, self.seed = calibration, level, seed
        self.reset()

    def reset(self) -> None:
        """Forget the stream and begin anew with the calibration images."""
        self._random = random.Random(self.seed)
        self._martingale = Martingale(self.level)
        self._bag = ScoreCounts()
        for score in self.calibration.tolist():
            self._bag.add(score)

    def add(self, score: float) -> float:
        """See one image: its score -> its online p-value in (0, 1], uniform while nothing changes."""
        larger, equal = self._bag.add(score)
        p = (larger + (1 - self._random.random()) * equal) / self._bag.count
        self._martingale.bet(p)
        return p

    def state(self) -> DriftState:
        """Where it stands."""
        return self._martingale.state()


def _reserve(step: int) -> float:
    """What is not yet in play after so many steps: it falls slowly, so that no change comes too late to be bet on."""
    return 1 / math.sqrt(1 + step / 100)


def _log_sum(first: float, second: float) -> float:
    """log(exp(first) + exp(second))."""
    high, low = max(first, second), min(first, second)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
