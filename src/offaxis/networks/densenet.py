"""DenseNet-BC for small images (Huang, Liu, van der Maaten, Weinberger 2017, arXiv:1608.06993)."""

from typing import Any

import torch
from torch import Tensor, nn

from offaxis.heads import HeadLike, make_head
from offaxis.networks.classifier import Classifier
from offaxis.networks.wide_resnet import check_sizes, initialise


class Layer(nn.Module):
    """Bottleneck layer: BN, ReLU, 1x1 conv to 4k channels, BN, ReLU, 3x3 conv to k, concatenated to the input."""

    def __init__(self, in_channels: int, growth: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, 4 * growth, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Compute maps (N, c + k, h, w) of maps (N, c, h, w)."""
        narrow = self.dropout(self.conv1(self.relu(self.bn1(x))))
        new = self.dropout(self.conv2(self.relu(self.bn2(narrow))))
        return torch.cat([x, new], 1)


def _block(layers: int, channels: int, growth: int, dropout: float) -> tuple[nn.Sequential, int]:
    """Return ``layers`` bottleneck layers in a row, and the number of their output channels."""
    modules = [Layer(channels + i * growth, growth, dropout) for i in range(layers)]
    return nn.Sequential(*modules), channels + layers * growth


class Transition(nn.Module):
    """Halves the channels by a 1x1 convolution and the maps by an average pool."""

    def __init__(self, in_channels: int, out_channels: int, dropout: float) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(in_channels)
        self.conv = nn.Conv2d(in_channels, out_channels, 1, bias=False)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.AvgPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        """Compute maps (N, c', h/2, w/2) of maps (N, c, h, w)."""
        out: Tensor = self.pool(self.dropout(self.conv(self.relu(self.bn(x)))))
        return out


class DenseNetBackbone(nn.Module):
    """Backbone of a DenseNet-BC: images (N, c, h, w) -> features (N, d), non-negative (ReLU, average pooling)."""

    layer_names = ("conv", "transition1", "transition2", "final")

    def __init__(self, *, depth: int, growth: int, in_channels: int, dropout: float, stem_stride: int) -> None:
        super().__init__()
        layers = (depth - 4) // 6
        channels = 2 * growth
        self.conv = nn.Conv2d(in_channels, channels, 3, stem_stride, 1, bias=False)
        self.block1, channels = _block(layers, channels, growth, dropout)
        self.transition1 = Transition(channels, channels := channels // 2, dropout)
        self.block2, channels = _block(layers, channels, growth, dropout)
        self.transition2 = Transition(channels, channels := channels // 2, dropout)
        self.block3, channels = _block(layers, channels, growth, dropout)
        self.final = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
        self.num_features = channels
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Compute features (N, d) of images (N, c, h, w)."""
        maps = self.transition1(self.block1(self.conv(x)))
        maps = self.block3(self.transition2(self.block2(maps)))
        pooled: Tensor = self.final(maps).mean((2, 3))
        return pooled


def densenet_bc(
    depth: int = 100,
    growth: int = 12,
    num_classes: int = 10,
    head: HeadLike = "cosine",
    in_channels: int = 3,
    dropout: float = 0.0,
    stem_stride: int = 1,
) -> Classifier:
    """Make a DenseNet-BC (bottlenecks, compression 0.5), the CIFAR version, with one of our heads; 100-12 is the paper's.

    Args:
        depth: 6n + 4, with n bottleneck layers in each of three blocks.
        growth: k, the channels that each layer adds.
        num_classes: C.
        head: ``"cosine"``, ``"linear"`` or a callable (in_features, num_classes) -> Head.
        in_channels: 3 for colour, 1 for grey.
        dropout: after each convolution.
        stem_stride: 2 for maps of half the size: small versions that train on a laptop.
    """
    check_sizes(depth, dropout, growth=growth, in_channels=in_channels, stem_stride=stem_stride)
    arguments: dict[str, Any] = {
        "depth": depth,
        "growth": growth,
        "in_channels": in_channels,
        "dropout": dropout,
        "stem_stride": stem_stride,
    }
    backbone = DenseNetBackbone(**arguments)
    return Classifier(
        backbone,
        make_head(head, backbone.num_features, num_classes),
        backbone.layer_names,
        origin={"name": "densenet_bc", **arguments},
    )
