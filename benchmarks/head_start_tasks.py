"""Load the tasks of ``python -m benchmarks.head_start``: images or features in memory, and the network that learns them.

Run by itself (``python -m benchmarks.head_start_tasks``) it does nothing.

OOD sets here are development sets alone: textures, glyphs and noise for CIFAR (study/sets.py), letters and photographs
for digits, packages for photographs of fruit and clothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.data import load_images
from offaxis.data.embedded import digits, letters, photographs, small_digits
from offaxis.networks import wide_resnet


@dataclass(frozen=True)
class Task:
    """What is learned: normalised inputs, labels, development OOD inputs by name, and the budget.

    Attributes:
        backbone: gives a fresh (or a pretrained) network that maps inputs to features (N, width).
    """

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    ood: dict[str, Tensor]
    backbone: Callable[[], nn.Module]
    width: int
    epochs: int
    batch: int = 64
    flip: bool = False

    @property
    def num_classes(self) -> int:
        """Count the classes."""
        return int(self.train[1].max()) + 1


def small_cnn(channels: int, width: int = 64, norm: bool = True, stride: int = 1) -> nn.Module:
    """Make three convolutions, each with (or without) batch normalisation and halved maps, and global pooling."""
    sizes = (channels, width // 4, width // 2, width)
    layers: list[nn.Module] = []
    for i, (before, after) in enumerate(pairwise(sizes)):
        layers.append(nn.Conv2d(before, after, 3, stride if i == 0 else 1, 1, bias=not norm))
        layers += [nn.BatchNorm2d(after)] if norm else []
        layers += [nn.ReLU(), nn.MaxPool2d(2)] if i < 2 else [nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def wide_resnet_backbone() -> nn.Module:
    """Make a WRN-10-2 with halved maps, without its head."""
    return wide_resnet(depth=10, width=2, stem_stride=2).backbone


class _Block(nn.Module):
    """The residual block of He et al. 2015 with the shortcut of option A, as the published weights need it."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.pad = (after - before) // 2
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """(N, c, h, w) -> (N, c', h/stride, w/stride)."""
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.pad:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(out + x)


class _ResNet20(nn.Module):
    """The CIFAR ResNet-20 of He et al. 2015 without its output layer: images -> features (N, 64)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        for i, (before, after) in enumerate(((16, 16), (16, 32), (32, 64)), 1):
            first = _Block(before, after, 1 if i == 1 else 2)
            setattr(self, f"layer{i}", nn.Sequential(first, _Block(after, after, 1), _Block(after, after, 1)))

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, 32, 32) -> (N, 64)."""
        x = F.relu(self.bn1(self.conv1(x)))
        for name in ("layer1", "layer2", "layer3"):
            x = getattr(self, name)(x)
        return x.mean((2, 3))


def published_resnet20(weights: Path) -> nn.Module:
    """Make the ResNet-20 with the published weights of akamaster/pytorch_resnet_cifar10."""
    state = torch.load(weights, weights_only=True, map_location="cpu")["state_dict"]
    network = _ResNet20()
    network.load_state_dict({k.removeprefix("module."): v for k, v in state.items() if "linear" not in k})
    return network


def _pixels(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    scaled = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    return (scaled - mean) / std


def _digits(small: bool, width: int = 64) -> Task:
    """Load digits: the small ones for a network without normalisation, the others for one with it."""
    kind = small_digits if small else digits
    (x, y), (tx, ty) = ((s.images, s.labels) for s in (kind("train"), kind("test")))
    assert y is not None
    assert ty is not None
    mean, std = (x.float() / 255).mean(), (x.float() / 255).std()
    size = x.shape[2]
    others = {"letters": letters(500, size), "photographs": photographs(500, size)}
    ood = {name: _pixels(o.images, mean, std) for name, o in others.items()}
    train, test = (_pixels(x, mean, std), y), (_pixels(tx, mean, std), ty)
    if small:
        return Task(train, test, ood, lambda: small_cnn(1, width, norm=False), width, epochs=10, batch=32)
    return Task(train, test, ood, lambda: small_cnn(1, width, stride=2), width, epochs=6)


@cache
def _cifar(name: str, root: str, train_count: int, test_count: int) -> tuple[Tensor, ...]:
    """Take the same random part of the training images, and the first test images, for every candidate."""
    train, test = load_images(name, "train", root=root), load_images(name, "test", root=root)
    assert train.labels is not None
    assert test.labels is not None
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:train_count]
    first = torch.arange(test_count)
    ood = [
        load_images(other, "test", root=root, like=train, count=500 if other == "uniform" else None)
        for other in ("dtd", "notmnist", "uniform")
    ]
    mixed = [
        o.batch(torch.randperm(len(o), generator=torch.Generator().manual_seed(0))[:500]).float()
        / (1 if o.batch(first[:1]).is_floating_point() else 255)
        for o in ood
    ]
    return (
        train.batch(chosen).float() / 255, train.labels[chosen], test.batch(first).float() / 255, test.labels[first], *mixed,
    )  # fmt: skip


def _cifar_task(name: str, root: str, backbone: Callable[[], nn.Module], width: int, epochs: int, sizes: tuple[int, int],
                published: bool = False) -> Task:  # fmt: skip
    x, y, tx, ty, *ood = _cifar(name, root, *sizes)
    mean = torch.tensor((0.485, 0.456, 0.406) if published else (0.4914, 0.4824, 0.4467)).view(1, 3, 1, 1)
    std = torch.tensor((0.229, 0.224, 0.225) if published else (0.2471, 0.2435, 0.2616)).view(1, 3, 1, 1)
    named = dict(zip(("dtd", "notmnist", "uniform"), ood, strict=True))
    return Task(
        ((x - mean) / std, y),
        ((tx - mean) / std, ty),
        {k: (v - mean) / std for k, v in named.items()},
        backbone,
        width,
        epochs,
        flip=True,
    )


def _photos(name: str, features: Path) -> Task:
    parts = [np.load(features / f"{part}.npz") for part in (f"{name}-train", f"{name}-test", "packages")]
    x, tx, ood = (torch.from_numpy(p["features"]) for p in parts)
    y, ty = (torch.from_numpy(p["labels"]).long() for p in parts[:2])
    return Task((x, y), (tx, ty), {"packages": ood}, nn.Identity, x.shape[1], epochs=20)


TASKS = (
    "small-digits",
    "digits",
    "cifar10",
    "cifar10-wrn",
    "fruit",
    "clothing",
    "finetune",
    "finetune-100",
    "small-digits-wide",
    "digits-wide",
)


def load_task(name: str, data: Path, features: Path, weights: Path) -> Task:
    """Load one of TASKS.

    Args:
        name: out of TASKS.
        data: folder of image sets, as OFFAXIS_DATA names it.
        features: folder that benchmarks/photo_features.py wrote; the network that finetune-100 starts from is kept there.
        weights: the published ResNet-20.
    """
    if name in ("small-digits", "digits"):
        return _digits(name == "small-digits")
    if name in ("small-digits-wide", "digits-wide"):
        return _digits(name == "small-digits-wide", 256)
    if name in ("fruit", "clothing"):
        return _photos(name, features)
    if name == "finetune":
        return _cifar_task(
            "cifar10", str(data), lambda: published_resnet20(weights), 64, 2, (800, 1000), published=True
        )
    if name == "cifar10-wrn":
        return _cifar_task("cifar10", str(data), wide_resnet_backbone, 128, 10, (10000, 4000))
    if name == "cifar10":
        return _cifar_task("cifar10", str(data), lambda: small_cnn(3, 128, stride=2), 128, 5, (4000, 4000))
    kept = features / "pretrained.pt"
    if not kept.exists():
        torch.save(_pretrained(str(data)).state_dict(), kept)

    def backbone() -> nn.Module:
        network = small_cnn(3, 128, stride=2)
        network.load_state_dict(torch.load(kept, weights_only=True))
        return network

    return _cifar_task("cifar100", str(data), backbone, 128, 3, (5000, 4000))


def _pretrained(root: str) -> nn.Module:
    """Train the small CNN with an ordinary linear layer on 20,000 images of CIFAR-10."""
    torch.manual_seed(0)
    task = _cifar_task("cifar10", root, lambda: small_cnn(3, 128, stride=2), 128, 6, (20000, 1000))
    backbone = task.backbone()
    network = nn.Sequential(backbone, nn.Linear(128, 10))
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3)
    x, y = task.train
    for _ in range(task.epochs):
        for indices in torch.randperm(len(x)).split(task.batch):
            optimiser.zero_grad()
            F.cross_entropy(network(x[indices]), y[indices]).backward()
            optimiser.step()
    return backbone
