"""A small world for evaluations: stripes that a small network is trained on, and noise that is OOD."""

import functools
from collections.abc import Callable
from typing import TypedDict

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.data import ImageSet, Normalise, TensorSet
from offaxis.heads import make_head
from offaxis.networks.classifier import Classifier
from offaxis.networks.opened import OpenedNetwork

CLASSES = 3


def stripes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    grid = torch.arange(8.0)
    angle = labels * torch.pi / CLASSES
    along = grid.view(1, 1, 8) * angle.cos().view(-1, 1, 1) + grid.view(1, 8, 1) * angle.sin().view(-1, 1, 1)
    waves = torch.sin(1.6 * along + 6.28 * torch.rand(count, 1, 1, generator=generator))
    noisy = waves + 0.3 * torch.randn(count, 8, 8, generator=generator)
    return (noisy * 50 + 128).clamp(0, 255).to(torch.uint8).unsqueeze(1), labels


def noise(count: int, seed: int, low: int, high: int) -> Tensor:
    return torch.randint(low, high, (count, 1, 8, 8), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


@functools.cache
def trained(head: str, seed: int) -> Classifier:
    torch.manual_seed(seed)
    backbone = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    network = Classifier(backbone, make_head(head, 16, CLASSES), layers=("0", "3"))
    optimiser = torch.optim.Adam(network.parameters(), lr=0.02)
    for step in range(25):
        images, labels = stripes(60, 100 + step)
        optimiser.zero_grad()
        F.cross_entropy(network(NORMALISE(images)), labels).backward()
        optimiser.step()
    return network.eval()


NORMALISE = Normalise((0.5,), (0.25,))


@pytest.fixture
def subject() -> Callable[..., OpenedNetwork]:
    return lambda head="cosine", seed=0: OpenedNetwork(
        network=trained(head, seed), normalise=NORMALISE, label=f"toy {head}", seed=seed, origin=f"{head}{seed}"
    )


class World(TypedDict):
    train: Callable[[], ImageSet]
    id: TensorSet
    ood: list[TensorSet]


@pytest.fixture(scope="session")
def world() -> World:
    images, labels = stripes(150, 1)
    train, train_labels = stripes(240, 2)
    return {
        "train": lambda: TensorSet("stripes", train, train_labels, ("a", "b", "c")),
        "id": TensorSet("stripes", images, labels, ("a", "b", "c")),
        "ood": [
            TensorSet("bright", noise(100, 3, 100, 256)),
            TensorSet("dark", noise(120, 4, 0, 130)),
            TensorSet("grey", noise(80, 5, 60, 200)),
        ],
    }
