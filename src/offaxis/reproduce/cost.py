"""What computing costs on this machine: the paper's table of times, and how long a reproduction would take."""

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
from offaxis.networks.inference import to_network
from offaxis.reproduce.commands import Command

PAPER = ("densenet-100-12", "wrn-28-10")
"""The networks of the paper's table."""


@dataclass(frozen=True)
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
    told: Callable[[str], object] = lambda _: None,
) -> Cost:
    """Time the three methods on noise images of 32 x 32 pixels; what is computed does not depend on the weights.

    Args:
        name: of the network.
        batch: images in a batch; 128 in the paper.
        rounds: the methods are run in turn this often, after one run that does not count.
        device: where to run.
        told: called with what is being timed, for a progress line.
    """
    at_least_one("batch", batch)
    at_least_one("rounds", rounds)
    linear, cosine = (by_name(name)(head=head).eval().to(device) for head in ("linear", "cosine"))
    images = to_network(
        linear, torch.randn(batch, 3, 32, 32)
    )  # in the layout that detectors use, for the plain pass too
    few = images[:20] if batch >= 20 else images.repeat(20, 1, 1, 1)[:20]
    told(f"{name}: fitting")
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
            told(f"{name}: {what}")
            taken = _seconds(run, device)
            if i:
                times[what].append(taken)
    return Cost(name, batch, rounds, **{what: statistics.median(found) for what, found in times.items()})


def _seconds(run: Callable[[], Tensor], device: str) -> float:
    start = time.perf_counter()
    run()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


FEW, MANY = 4, 64  # images of a trial; small networks are timed on as many as they are trained with
SLOW = 0.02  # seconds for an image, above which a few have to do


@cache
def seconds_per_image(network: str, id_name: str) -> tuple[float, float]:
    """(forward, backward) seconds an image takes here, measured on some noise images."""
    channels, height, width = CATALOGUE[id_name].shape if id_name in CATALOGUE else (3, 32, 32)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        made = by_name(network)(num_classes=10, in_channels=channels, head="cosine")
        images = torch.randn(MANY, channels, height, width)
    _trial(made, images[:FEW])  # warms up
    first = _trial(made, images[:FEW])
    if sum(first) > SLOW:
        return first
    return min((_trial(made, images) for _ in range(2)), key=sum)


def _trial(network: Classifier, images: Tensor) -> tuple[float, float]:
    begun = time.perf_counter()
    total = network(images).sum()
    middle = time.perf_counter()
    total.backward()
    return (middle - begun) / len(images), (time.perf_counter() - middle) / len(images)


def seconds(steps: Iterable[Command]) -> float:
    """The time that steps would take one after the other, without reading images and without waiting for others."""
    total = 0.0
    for step in steps:
        forward, backward = seconds_per_image(step.work.network, step.work.id)
        total += forward * step.work.forward + backward * step.work.backward
    return total


def spoken(duration: float) -> str:
    """A time in words.

    Example:
        >>> spoken(90), spoken(4000), spoken(200_000)
        ('2 minutes', '1.1 hours', '2.3 days')
    """
    if duration < 60:
        return f"{duration:.0f} seconds"
    for unit, length, most in (("minutes", 60, 60), ("hours", 3600, 24), ("days", 86400, 1000)):
        if duration / length < most:
            return f"{duration / length:.{0 if unit == 'minutes' else 1}f} {unit}"
    return f"{duration / 86400 / 365:.0f} years"
