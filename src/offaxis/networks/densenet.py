"""DenseNet-BC for small images (Huang, Liu, van der Maaten, Weinberger 2017, arXiv:1608.06993)."""

import torch
from torch import Tensor, nn

from offaxis.heads import HeadLike, make_head
from offaxis.networks.classifier import Classifier
from offaxis.networks.wide_resnet import check_sizes, initialise


class Layer(nn.Module):
    """Bottleneck layer: BN, ReLU, 1x1 conv to 4k channels, BN, ReLU, 3x3 conv to k; the input stays beside the output."""

    def __init__(self, in_channels: int, growth: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, 4 * growth, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """(N, c, h, w) -> (N, c + k, h, w)."""
        narrow = self.dropout(self.conv1(self.relu(self.bn1(x))))
        new = self.dropout(self.conv2(self.relu(self.bn2(narrow))))
        return torch.cat([x, new], 1)


def _block(layers: int, channels: int, growth: int, dropout: float) -> tuple[nn.Sequential, int]:
    """``layers`` bottleneck layers in a row, and the channels that come out of them."""
    made = [Layer(channels + i * growth, growth, dropout) for i in range(layers)]
    return nn.Sequential(*made), channels + layers * growth


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
        """(N, c, h, w) -> (N, c', h/2, w/2)."""
        out: Tensor = self.pool(self.dropout(self.conv(self.relu(self.bn(x)))))
        return out


class DenseNetBackbone(nn.Module):
    """Images (N, c, h, w) -> features (N, d), after ReLU and global average pooling, so non-negative."""

    layer_names = ("conv", "transition1", "transition2", "final")

    def __init__(self, depth: int, growth: int, in_channels: int, dropout: float, stem_stride: int) -> None:
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
        """(N, c, h, w) -> (N, d)."""
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
    """DenseNet-BC (bottlenecks, compression 0.5), the CIFAR version, with a head of ours; the paper's is 100 deep, growth 12.

    Args:
        depth: 6n + 4, with n bottleneck layers in each of three blocks.
        growth: k, the channels each layer adds.
        num_classes: C.
        head: ``"cosine"``, ``"linear"`` or a callable (in_features, num_classes) -> Head.
        in_channels: 3 for colour, 1 for grey.
        dropout: after each convolution.
        stem_stride: 2 halves the maps at once, for laptops.
    """
    check_sizes(depth, dropout, growth=growth, in_channels=in_channels, stem_stride=stem_stride)
    backbone = DenseNetBackbone(depth, growth, in_channels, dropout, stem_stride)
    origin = {
        "name": "densenet_bc",
        "depth": depth,
        "growth": growth,
        "in_channels": in_channels,
        "dropout": dropout,
        "stem_stride": stem_stride,
    }
    made = make_head(head, backbone.num_features, num_classes)
    return Classifier(backbone, made, backbone.layer_names, origin=origin)
