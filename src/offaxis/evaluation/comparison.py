"""Two detectors on the same networks and sets: how much better is one, and how sure is that?"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from offaxis.errors import ArgumentError
from offaxis.evaluation.summary import Summary, complete
from offaxis.metrics import HIGHER_IS_BETTER


@dataclass(frozen=True)
class Comparison:
    """The difference between two detectors, taken pair by pair: same seed, same set.

    Attributes:
        first: network and detector.
        second: network and detector.
        difference: mean of first minus second over all shared seeds and sets.
        low: lower end of its interval; None where there is one pair alone.
        high: upper end.
        wins: pairs in which the first is better: its value is larger, or smaller where the metric is an error.
        pairs: how many there are.
        seeds: shared seeds.
        sets: shared sets.
    """

    first: str
    second: str
    difference: float
    low: float | None
    high: float | None
    wins: int
    pairs: int
    seeds: int
    sets: int

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def compare(first: Summary, second: Summary, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Comparison:
    """Compare two detectors on what they share.

    The interval is a percentile bootstrap that draws sets *and* seeds anew, so it speaks of other sets like these and of
    other trainings, as far as a handful of each can. With fewer than about five sets it is too narrow.

    Args:
        first: of ``summarise``.
        second: of the same call.
        level: of the interval, in (0, 1).
        resamples: of the bootstrap.
        seed: of the drawing.

    Raises:
        ArgumentError: they have no seed and set in common.
    """
    shared = {key: first.cells[key] - second.cells[key] for key in first.cells if key in second.cells}
    matrix = complete(shared, dict.fromkeys(row for _, row in shared))
    if not matrix.size:
        raise ArgumentError(
            f"{first.title} and {second.title} have no seed and set in common, so they cannot be compared."
        )
    seeds, sets = matrix.shape
    low = high = None
    if matrix.size > 1:
        of_seeds, of_sets = _draws(seeds, sets, resamples, seed)
        means = ((of_seeds @ matrix) * of_sets).sum(1)
        low, high = (float(v) for v in np.quantile(means, [(1 - level) / 2, (1 + level) / 2]))
    wins = int(((matrix if HIGHER_IS_BETTER[first.metric] else -matrix) > 0).sum())
    return Comparison(first.title, second.title, float(matrix.mean()), low, high, wins, matrix.size, seeds, sets)


@lru_cache(maxsize=16)  # all pairs of a table are drawn alike
def _draws(seeds: int, sets: int, resamples: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How much each seed (resamples, seeds) and each set (resamples, sets) weighs in every resample."""
    draw = np.random.default_rng(seed)
    of_seeds = draw.multinomial(seeds, np.full(seeds, 1 / seeds), resamples) / seeds
    return of_seeds, draw.multinomial(sets, np.full(sets, 1 / sets), resamples) / sets


def reference_of(summaries: list[Summary]) -> Summary:
    """What the others are compared with: the cosine score where there is one (the best of them), else the best of all."""
    return next((s for s in summaries if s.detector in ("cosine", "cosine-ensemble")), summaries[0])
