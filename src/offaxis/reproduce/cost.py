"""Computing time on this machine: the paper's table of times, and how long a reproduction would take."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from offaxis.data import CATALOGUE
from offaxis.detectors.base import Detector
from offaxis.detectors.checks import at_least_one
from offaxis.detectors.cosine import Cosine
from offaxis.detectors.mahalanobis import Mahalanobis
from offaxis.detectors.odin import ODIN
from offaxis.networks import by_name
from offaxis.networks.classifier import Classifier
from offaxis.networks.inference import resolve_device, to_network
from offaxis.reproduce.commands import Command

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
    for i in range(rounds + 1):
        for what, run in runs.items():
            progress(f"{name}: {what}")
            seconds = _time(run)
            if i:
                times[what].append(seconds)
    medians = {what: statistics.median(values) for what, values in times.items()}
    return Cost(network=name, batch=batch, rounds=rounds, **medians)


def _time(run: Callable[[], Tensor]) -> float:
    """Return the seconds that a function takes, with the device's work at an end."""
    start = time.perf_counter()
    run().cpu()
    return time.perf_counter() - start


FEW, MANY = 4, 64  # images of a trial; small networks are timed on as many as they are trained with
SLOW = 0.02  # seconds for an image, above which a few have to do


@cache
def seconds_per_image(network: str, id_name: str) -> tuple[float, float]:
    """Measure the (forward, backward) seconds of an image on this machine's CPU, with some noise images."""
    channels, height, width = CATALOGUE[id_name].shape if id_name in CATALOGUE else (3, 32, 32)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        classifier = by_name(network)(num_classes=10, in_channels=channels, head="cosine")
        images = torch.randn(MANY, channels, height, width)
    _trial(classifier, images[:FEW])  # warms up
    first = _trial(classifier, images[:FEW])
    if sum(first) > SLOW:
        return first
    return min((_trial(classifier, images) for _ in range(2)), key=sum)


def _trial(network: Classifier, images: Tensor) -> tuple[float, float]:
    start = time.perf_counter()
    total = network(images).sum()
    middle = time.perf_counter()
    total.backward()
    return (middle - start) / len(images), (time.perf_counter() - middle) / len(images)


def total_seconds(steps: Iterable[Command]) -> float:
    """Estimate the time of commands one after the other, without the time to read images."""
    total = 0.0
    for step in steps:
        forward, backward = seconds_per_image(step.cost.network, step.cost.id)
        total += forward * step.cost.forward + backward * step.cost.backward
    return total


def duration_text(duration: float) -> str:
    """Return a time in words.

    Example:
        >>> duration_text(90), duration_text(4000), duration_text(200_000)
        ('2 minutes', '1.1 hours', '2.3 days')
    """
    if duration < 60:
        return f"{duration:.0f} seconds"
    for unit, length, most in (("minutes", 60, 60), ("hours", 3600, 24), ("days", 86400, 1000)):
        if duration / length < most:
            return f"{duration / length:.{0 if unit == 'minutes' else 1}f} {unit}"
    return f"{duration / 86400 / 365:.0f} years"
