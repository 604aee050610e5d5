"""False alarms of the drift monitor on ID streams, and its delay after a change.

    python -m benchmarks.drift_monitor            # 200 streams of 20,000 images
    python -m benchmarks.drift_monitor 40 5000    # fewer and shorter streams

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
    """Return whether another martingale alarms, which bets on the histogram of the p-values so far.

    It detects any departure from uniform p-values, but later than ours.
    """
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
        monitor = DriftMonitor(calibration, LEVEL, seed)
        start = time.perf_counter()
        online = np.array([monitor.add(score) for score in quiet.tolist()])
        seconds += time.perf_counter() - start
        alarms += monitor.state().alarm
        if seed < SHOWN:
            shown["online p-values"] += adaptive_bettor_alarms(online)
            shown["p-values from a fixed calibration set"] += adaptive_bettor_alarms(
                p_values(calibration_scores=np.sort(calibration), scores=quiet)
            )
        for before, values in delays.items():
            monitor = DriftMonitor(calibration, LEVEL, seed)
            for score in quiet[:before].tolist():
                monitor.add(score)
            values.append(delay(monitor, random, 5000))
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


def delay(monitor: DriftMonitor, random: np.random.Generator, most: int) -> int | None:
    """Return the images from the change to the alarm; None without an alarm, or with one before the change."""
    if monitor.state().alarm:
        return None
    is_ood = random.random(most) < 0.1
    for number, score in enumerate((random.standard_normal(most) + 3 * is_ood).tolist()):
        monitor.add(score)
        if monitor.state().alarm:
            return number + 1
    return None


def summary(delays: list[int | None]) -> dict[str, float]:
    alarmed = np.array([d for d in delays if d is not None])
    quantiles = {f"p{q}": float(np.percentile(alarmed, q)) for q in (10, 50, 90, 99)} if len(alarmed) else {}
    return {"streams": len(delays), "without_an_alarm": sum(d is None for d in delays), **quantiles}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
