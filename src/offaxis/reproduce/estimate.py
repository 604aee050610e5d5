"""How long steps would take on this machine: passes, times what a pass takes here."""

import time
from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

from offaxis.data import CATALOGUE
from offaxis.networks import by_name
from offaxis.networks.classifier import Classifier
from offaxis.reproduce.step import Step

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


def seconds(steps: Iterable[Step]) -> float:
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
