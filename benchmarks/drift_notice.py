"""Which shares of OOD images the drift monitor notices with how many calibration images: ``offaxis.calibration.drift.NOTICED``.

    python -m benchmarks.drift_notice

Streams of Gaussian scores, of which a share is shifted to the detector's AUROC from the first image on; about five minutes.
"""

from bisect import bisect_right, insort

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from offaxis.calibration.drift import AT_ONCE, BETS, NOTICED, reserve

SHARES = (0.5, 0.2, 0.1, 0.05)
STREAMS, LENGTH, WEALTH = 40, 3000, 100


def delays(count: int, share: float, auroc: float, streams: int = STREAMS, length: int = LENGTH) -> NDArray[np.float64]:
    """Return after how many images each stream is noticed at the level of 1 %; infinity where it is not."""
    random, shift = np.random.default_rng(0), np.sqrt(2) * norm.ppf(auroc)
    p_values = np.empty((streams, length))
    for stream in p_values:
        known = sorted(random.normal(size=count).tolist())
        scores = random.normal(size=length) + shift * (random.uniform(size=length) < share)
        for place, (score, chance) in enumerate(zip(scores.tolist(), 1 - random.uniform(size=length), strict=True)):
            insort(known, score)
            stream[place] = (len(known) - bisect_right(known, score) + chance) / len(known)
    weights, powers = (np.array(column)[:, None] for column in zip(*BETS, strict=True))
    in_play, found = np.full((len(BETS), streams), AT_ONCE / len(BETS)), np.full(streams, np.inf)
    for place, p in enumerate(p_values.T):
        in_play += (reserve(place) - reserve(place + 1)) / len(BETS)
        in_play *= 1 - weights + weights * powers * p ** (powers - 1)
        now = (reserve(place + 1) + in_play.sum(0) >= WEALTH) & np.isinf(found)
        found[now] = place + 1
    return found


if __name__ == "__main__":
    for images in NOTICED:
        for percent in (80, 90, 95, 99):
            medians = []
            for part in SHARES:
                each = delays(images, part, percent / 100)
                if np.isfinite(each).mean() < 0.75:
                    break
                medians.append(int(np.quantile(each, 0.5, method="higher")))
            print(images, percent, tuple(medians), flush=True)
