"""How often the stream watch alarms without cause, and how soon it does with cause.

    python benchmarks/stream_watch.py            200 streams of 20,000 images
    python benchmarks/stream_watch.py 40 5000    a shorter look

Scores are drawn: ID from N(0, 1), OOD from N(3, 1), which a detector with an AUROC of 0.983 gives. Prints JSON.
"""

import json
import math
import sys
import time

import numpy as np
from numpy.typing import NDArray

from offaxis.calibration.conformal import p_values
from offaxis.calibration.drift import DriftMonitor

LEVEL = 0.01
CALIBRATION = 1000
SHOWN = 50


def adaptive_bettor_alarms(ps: NDArray[np.float64], bins: int = 10) -> bool:
    """Another martingale: bets on the histogram of the p-values so far. It finds any departure, but later than ours."""
    counts, wealth = [1.0] * bins, 0.0
    for number, p in enumerate(ps.tolist()):
        place = min(int(p * bins), bins - 1)
        wealth += math.log(bins * counts[place] / (bins + number))
        if wealth >= -math.log(LEVEL):
            return True
        counts[place] += 1
    return False


def main(streams: int = 200, length: int = 20_000) -> None:
    began = time.perf_counter()
    alarms, seconds = 0, 0.0
    shown = {"online p-values": 0, "p-values from a fixed calibration set": 0}
    delays: dict[int, list[int | None]] = {0: [], length // 4: []}
    for seed in range(streams):
        random = np.random.default_rng(seed)
        calibration = random.standard_normal(CALIBRATION)
        quiet = random.standard_normal(length)
        watch = DriftMonitor(calibration, LEVEL, seed)
        start = time.perf_counter()
        online = np.array([watch.add(score) for score in quiet.tolist()])
        seconds += time.perf_counter() - start
        alarms += watch.state().alarm
        if seed < SHOWN:
            shown["online p-values"] += adaptive_bettor_alarms(online)
            shown["p-values from a fixed calibration set"] += adaptive_bettor_alarms(
                p_values(quiet, np.sort(calibration))
            )
        for before, found in delays.items():
            watch = DriftMonitor(calibration, LEVEL, seed)
            for score in quiet[:before].tolist():
                watch.add(score)
            found.append(delay(watch, random, 5000))
    result = {
        "level": LEVEL,
        "streams": streams,
        "images_a_stream": length,
        "streams_that_ever_alarmed": alarms,
        "fraction": alarms / streams,
        "an_adaptive_bettor_on_the_first_streams": {"streams": min(streams, SHOWN), **shown},
        "microseconds_an_image": 1e6 * seconds / (streams * length),
        "delay_after_a_tenth_is_OOD": {f"after {before} quiet images": summary(d) for before, d in delays.items()},
        "seconds": time.perf_counter() - began,
    }
    print(json.dumps(result, indent=2))


def delay(watch: DriftMonitor, random: np.random.Generator, most: int) -> int | None:
    """Images from the change to the alarm; None where there was none, or one before."""
    if watch.state().alarm:
        return None
    strange = random.random(most) < 0.1
    for number, score in enumerate((random.standard_normal(most) + 3 * strange).tolist()):
        watch.add(score)
        if watch.state().alarm:
            return number + 1
    return None


def summary(found: list[int | None]) -> dict[str, float]:
    seen = np.array([d for d in found if d is not None])
    quantiles = {f"p{q}": float(np.percentile(seen, q)) for q in (10, 50, 90, 99)} if len(seen) else {}
    return {"streams": len(found), "without_an_alarm": sum(d is None for d in found), **quantiles}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
