"""Computing time on this machine: the paper's table of times, and how long a reproduction would take."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offaxis.data import CATALOGUE
from offaxis.detectors.base import Detector
from offaxis.detectors.cosine import Cosine
from offaxis.detectors.mahalanobis import Mahalanobis
from offaxis.detectors.odin import ODIN
from offaxis.errors import at_least_one
from offaxis.networks import by_name
from offaxis.networks.classifier import Classifier
from offaxis.networks.run import resolve_device, to_network
from offaxis.paper.commands import Command

PAPER = ("densenet-100-12", "wrn-28-10")
"""The networks of the paper's table."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds per batch, the median over rounds.

    Attributes:
        network: its name, such as ``wrn-28-10``.
        batch: images in a batch.
        rounds: over how many batches the median goes.
        forward: the plain forward pass with a linear layer.
        mahalanobis: with the input perturbation of each of four layers.
        odin: with its perturbation.
        cosine: of the same network with a cosine head.
    """

    network: str
    batch: int
    rounds: int
    forward: float
    mahalanobis: float
    odin: float
    cosine: float


def measure_cost(
    name: str,
    batch: int = 128,
    rounds: int = 5,
    device: str = "cpu",
    progress: Callable[[str], object] = lambda _: None,
) -> Cost:
    """Time the three methods on noise images of 32 x 32 pixels, with random weights: the time does not depend on them.

    Args:
        name: of the network.
        batch: images in a batch; 128 in the paper.
        rounds: the methods are run in turn this often, after one run that does not count.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ... or ``mps``.
        progress: called with what is being timed.
    """
    at_least_one("batch", batch)
    at_least_one("rounds", rounds)
    where = resolve_device(device)
    make = by_name(name)
    linear, cosine = (make(num_classes=10, head=head).eval().to(where) for head in ("linear", "cosine"))
    images = to_network(linear, torch.randn(batch, 3, 32, 32))  # the layout that detectors use, for the plain pass too
    few = images[:20] if batch >= 20 else images.repeat(20, 1, 1, 1)[:20]
    progress(f"{name}: fitting")
    mahalanobis = Mahalanobis(eps=0.001).fit(linear, [(few, torch.arange(20) % 10)])

    @torch.no_grad()
    def forward() -> Tensor:
        logits: Tensor = linear(images)
        return logits

    def scoring(detector: Detector, network: Classifier) -> Callable[[], Tensor]:
        return lambda: detector.score_images(network, images)

    runs = {
        "forward": forward,
        "mahalanobis": scoring(mahalanobis, linear),
        "odin": scoring(ODIN(), linear),
        "cosine": scoring(Cosine(), cosine),
    }
    times: dict[str, list[float]] = {what: [] for what in runs}
    for _ in range(rounds + 1):
        for what, run in runs.items():
            progress(f"{name}: {what}")
            start = time.perf_counter()
            run().cpu()  # with the device's work at an end
            times[what].append(time.perf_counter() - start)
    medians = {what: statistics.median(values[1:]) for what, values in times.items()}
    return Cost(network=name, batch=batch, rounds=rounds, **medians)


PROBE = 2.0  # seconds that a network is timed for, at least
TRIALS = 3
MOST_IMAGES = 64  # of a trial; large networks are timed with fewer


class Range(NamedTuple):
    """A time in seconds: on a machine with nothing else to do, and on one that stays as busy as it is now."""

    low: float
    high: float

    @property
    def text(self) -> str:
        """Both ends in words, or one where they are the same."""
        low, high = duration_text(self.low), duration_text(self.high)
        return low if low == high else f"{low} (nothing else runs) to {high} (as busy as now)"


@cache
def seconds_per_image(network: str, id_name: str) -> tuple[Range, Range]:
    """Measure the (forward, backward) seconds of an image on this machine's CPU, over some seconds of noise images.

    The lower ends are processor time over threads, the fastest of the trials, which other programs hardly change; the
    upper ends are elapsed time, the median of the trials.
    """
    channels, height, width = CATALOGUE[id_name].shape if id_name in CATALOGUE else (3, 32, 32)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        classifier = by_name(network)(num_classes=10, in_channels=channels, head="cosine")
        images = to_network(classifier, torch.randn(MOST_IMAGES, channels, height, width))
    _trial(classifier, images[:2])  # warms up
    elapsed = _trial(classifier, images[:2])[0].sum()
    count = int(np.clip(2 * PROBE / TRIALS / elapsed, 2, MOST_IMAGES))
    end = time.perf_counter() + PROBE
    trials: list[NDArray[np.float64]] = []
    while len(trials) < TRIALS or time.perf_counter() < end:
        trials.append(_trial(classifier, images[:count]))
    high, processor = np.median(trials, 0)[0] / count, np.min(trials, 0)[1] / count
    low = processor / torch.get_num_threads()
    forward, backward = (Range(float(a), float(max(a, b))) for a, b in zip(low, high, strict=True))
    return forward, backward


def _trial(network: Classifier, images: Tensor) -> NDArray[np.float64]:
    """Return the seconds (2, 2), elapsed and of the processor, of a forward and of a backward pass."""
    clocks = [(time.perf_counter(), time.process_time())]
    total = network(images).sum()
    clocks.append((time.perf_counter(), time.process_time()))
    total.backward()
    clocks.append((time.perf_counter(), time.process_time()))
    return np.diff(clocks, axis=0).T


def total_seconds(steps: Iterable[Command]) -> Range:
    """Estimate the time of commands one after the other, without the time to read images."""
    low = high = 0.0
    for step in steps:
        for images, each in zip(
            (step.cost.forward, step.cost.backward), seconds_per_image(step.cost.network, step.cost.id), strict=True
        ):
            low, high = low + images * each.low, high + images * each.high
    return Range(low, high)


def duration_text(duration: float) -> str:
    """Return a time in words.

    Examples:
        >>> duration_text(90), duration_text(4000), duration_text(200_000)
        ('2 minutes', '1.1 hours', '2.3 days')
    """
    for unit, length, most in (("seconds", 1, 60), ("minutes", 60, 60), ("hours", 3600, 24), ("days", 86400, 1000)):
        if duration / length < most:
            return f"{duration / length:.{1 if length > 60 else 0}f} {unit}"
    return f"{duration / 86400 / 365:.0f} years"
