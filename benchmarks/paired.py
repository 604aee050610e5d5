"""The ratio of two times, measured side by side: the only kind of timing that is published.

    from benchmarks.paired import paired

Both are run in turn, many times, so that other load of the machine affects both alike; each round gives one ratio.
"""

import json
import math
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch


class Ratio(NamedTuple):
    """Time of a over time of b: the median over rounds, with a 95 % confidence interval of the median.

    The interval consists of order statistics of the ratios (the inverted sign test), so it assumes nothing about the
    distribution of times.
    """

    median: float
    low: float
    high: float
    seconds_a: float
    seconds_b: float
    rounds: int

    def __str__(self) -> str:
        return (
            f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}] over {self.rounds} rounds "
            f"({self.seconds_a:.4g} s against {self.seconds_b:.4g} s)"
        )


def paired(
    a: Callable[[], object],
    b: Callable[[], object],
    rounds: int = 30,
    warm_up: int = 2,
    *,
    measure: Callable[[Callable[[], object]], float] | None = None,
) -> Ratio:
    """Measure the ratio time(a) / time(b) over alternating runs; which goes first alternates too.

    Args:
        a: the numerator.
        b: the denominator.
        rounds: number of ratios.
        warm_up: runs of both beforehand that are not counted.
        measure: how long one run takes; by default ``seconds``, the elapsed time.
    """
    measure = measure or seconds
    for _ in range(warm_up):
        a()
        b()
    times_a, times_b = [], []
    for i in range(rounds):
        if i % 2:
            times_b.append(measure(b))
            times_a.append(measure(a))
        else:
            times_a.append(measure(a))
            times_b.append(measure(b))
    return ratio_of(list(zip(times_a, times_b, strict=True)))


def ratio_of(times: Sequence[tuple[float, float]]) -> Ratio:
    """Compute the ratio of times (a, b) that were measured side by side, a pair each round."""
    ratios = sorted(a / b for a, b in times)
    low, high = interval(ratios)
    return Ratio(
        median=statistics.median(ratios),
        low=low,
        high=high,
        seconds_a=statistics.median(a for a, _ in times),
        seconds_b=statistics.median(b for _, b in times),
        rounds=len(times),
    )


def seconds(run: Callable[[], object]) -> float:
    """Return the seconds of one run, with the GPU's work done."""
    start = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def interval(ordered: list[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the order statistics between which the true median lies with at least this confidence."""
    count = len(ordered)
    below, place = 0.0, 0
    while place < count // 2:
        below += math.comb(count, place) / 2**count
        if 2 * below > 1 - confidence:
            break
        place += 1
    place = max(place - 1, 0)
    return ordered[place], ordered[count - 1 - place]


def publish(name: str, ratio: Ratio, bound: str, holds: bool, **facts: Any) -> None:
    """Print a result for people, and as a line of JSON with commit and versions."""
    print(f"{name}: {ratio}; expected {bound}: {'yes' if holds else 'NO'}")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    record = {
        "name": name,
        **ratio._asdict(),
        "bound": bound,
        "holds": holds,
        **facts,
        "commit": commit.stdout.strip(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    print(json.dumps(record), flush=True)
