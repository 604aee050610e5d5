"""A toy data set that every detector must solve: four classes of stripes, and noise as the OOD images."""

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.heads import make_head
from offaxis.networks.classifier import Classifier
from offaxis.networks.combine import Ensemble, Paired
from offaxis.training.leave_out import MarginEntropyLoss, train_leave_out

NetworkOf = Callable[[str], Any]
"""Kind of network -> a trained network of one's own (a copy)."""

CLASSES = 4
STD = (0.5,)


def stripes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images (count, 1, 8, 8) of stripes in four directions with random phases, and their classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    angle = labels * math.pi / CLASSES
    phase = torch.rand(count, generator=generator) * 2 * math.pi
    grid = torch.arange(8.0)
    along = grid.view(1, 1, 8) * angle.cos().view(-1, 1, 1) + grid.view(1, 8, 1) * angle.sin().view(-1, 1, 1)
    waves = torch.sin(1.6 * along + phase.view(-1, 1, 1))
    return (waves + 0.1 * torch.randn(count, 8, 8, generator=generator)).unsqueeze(1), labels


def noise(count: int, seed: int) -> Tensor:
    return 0.8 * torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Toy:
    train: list[tuple[Tensor, Tensor]]
    images: Tensor
    labels: Tensor
    ood_images: Tensor


def backbone() -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            first=nn.Conv2d(1, 8, 3, padding=1),
            norm=nn.BatchNorm2d(8),
            relu=nn.ReLU(),
            second=nn.Conv2d(8, 24, 3, padding=1, stride=2),
            relu2=nn.ReLU(),
            pool=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
        )
    )


def untrained(head: str, classes: int = CLASSES, seed: int = 0) -> Classifier:
    torch.manual_seed(seed)
    return Classifier(backbone(), make_head(head, 24, classes), layers=("first", "second"))


def train(network: Classifier, loss: Callable[..., Tensor] | None = None, steps: int = 150) -> Classifier:
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    network.train()
    for i in range(steps):
        images, labels = stripes(64, 1000 + i)
        outputs = network.outputs(images)
        value = F.cross_entropy(outputs.logits, labels) if loss is None else loss(outputs, labels)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    optimiser.zero_grad()
    return network.eval()


@contextmanager
def single() -> Iterator[None]:
    """float32, whatever type a test has made the default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


@functools.cache
@single()
def trained(kind: str, seed: int = 0) -> Any:
    if kind == "ensemble":
        return Ensemble([trained("cosine", seed) for seed in (0, 1)])
    if kind == "paired":
        return Paired(trained("linear"), trained("cosine"))
    if kind == "leave-out":
        return train_leave_out(CLASSES, lambda c: untrained("linear", c), _train_member, count=2).eval()
    return train(untrained(kind, seed=seed))


def _train_member(member: Classifier, loss: MarginEntropyLoss, seed: int) -> None:
    train(member, loss)
