"""Bins that two rows of scores share."""

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float64]


def shared_edges(first: Row, second: Row, bins: int, tails: float = 0.0) -> Row:
    """Edges (bins + 1,) that cover both rows, or all but a share ``tails`` of each row at either end.

    Equal scores get one bin of a sensible width in the middle.
    """
    low = min(np.quantile(first, tails), np.quantile(second, tails))
    high = max(np.quantile(first, 1 - tails), np.quantile(second, 1 - tails))
    least = max(1.0, abs(low), abs(high)) * 1e-6
    if high - low < least:
        middle, half = (low + high) / 2, max(0.5, 0.1 * max(abs(low), abs(high)))
        low, high = middle - half, middle + half
        bins += 1 - bins % 2  # an odd number: the scores are in the middle of a bin, not on an edge
    return np.linspace(low, high, bins + 1)


def density(scores: Row, edges: Row) -> Row:
    """Heights (bins,) of a histogram of area 1; what lies beyond the edges counts in the outermost bins."""
    counts = np.histogram(np.clip(scores, edges[0], edges[-1]), edges)[0]
    heights: Row = counts / (len(scores) * np.diff(edges))
    return heights
