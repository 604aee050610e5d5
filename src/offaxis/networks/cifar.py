"""The paper's networks for small images, and their small relatives.

Wide residual networks (Zagoruyko and Komodakis 2016, https://arxiv.org/abs/1605.07146) and DenseNet-BC (Huang, Liu, van der
Maaten, Weinberger 2017, https://arxiv.org/abs/1608.06993). ``convnet`` is a small network for 32x32 colour images that
reaches a high accuracy within minutes of one core; its shape is that of public speed records on CIFAR-10 (Jordan 2024,
https://arxiv.org/abs/2404.00498).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.errors import ArgumentError, at_least_one, fraction
from offaxis.heads import HeadLike, make_head
from offaxis.networks.classifier import Classifier


class Block(nn.Module):
    """Pre-activation residual block: BN, ReLU, 3x3 conv, BN, ReLU, dropout, 3x3 conv, plus the shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        # Where the size changes, the shortcut starts after the first activation; elsewhere it is the input itself.
        changes = in_channels != out_channels or stride != 1
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """Compute maps (N, c', h/stride, w/stride) of maps (N, c, h, w)."""
        active = self.relu(self.bn1(x))
        residual: Tensor = self.conv2(self.dropout(self.relu(self.bn2(self.conv1(active)))))
        return residual + (x if self.shortcut is None else self.shortcut(active))


class WideResNetBackbone(nn.Module):
    """Backbone of a wide ResNet: images (N, c, h, w) -> features (N, 64 * width), non-negative (ReLU, average pooling)."""

    layer_names = ("conv", "group1", "group2", "final")

    def __init__(self, *, depth: int, width: int, in_channels: int, dropout: float, stem_stride: int) -> None:
        super().__init__()
        blocks = (depth - 4) // 6
        sizes = (16, 16 * width, 32 * width, 64 * width)
        self.conv = nn.Conv2d(in_channels, sizes[0], 3, stem_stride, 1, bias=False)
        groups = []
        for before, after, stride in zip(sizes, sizes[1:], (1, 2, 2), strict=False):
            first = Block(before, after, stride, dropout)
            groups.append(nn.Sequential(first, *[Block(after, after, 1, dropout) for _ in range(blocks - 1)]))
        self.group1, self.group2, self.group3 = groups
        self.final = nn.Sequential(nn.BatchNorm2d(sizes[-1]), nn.ReLU(inplace=True))
        self.num_features = sizes[-1]
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Compute features (N, d) of images (N, c, h, w)."""
        maps: Tensor = self.final(self.group3(self.group2(self.group1(self.conv(x)))))
        return maps.mean((2, 3))


def wide_resnet(
    depth: int = 28,
    width: int = 10,
    num_classes: int = 10,
    head: HeadLike = "cosine",
    in_channels: int = 3,
    dropout: float = 0.0,
    stem_stride: int = 1,
) -> Classifier:
    """Make WRN-depth-width, the CIFAR version, with one of our heads; WRN-28-10 is the paper's.

    Args:
        depth: 6n + 4, with n residual blocks in each of three groups.
        width: k; the groups have 16k, 32k and 64k channels.
        num_classes: C.
        head: ``"cosine"``, ``"linear"`` or a callable (in_features, num_classes) -> Head.
        in_channels: 3 for colour, 1 for grey.
        dropout: between the two convolutions of a block.
        stem_stride: 2 for maps of half the size: small versions that train on a laptop, about four times faster.
    """
    sizes = {"depth": depth, "width": width, "in_channels": in_channels, "stem_stride": stem_stride}
    check_sizes(rest=4, **sizes)
    backbone = WideResNetBackbone(**sizes, dropout=fraction("dropout", dropout))
    return with_head(backbone, head, num_classes, "wide_resnet", **sizes, dropout=dropout)


def initialise(network: nn.Module) -> None:
    """Initialise convolutions from N(0, sqrt(2 / (k * k * out_channels))), batch normalisations with 1 and 0."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            height, width = module.kernel_size
            nn.init.normal_(module.weight, 0.0, (2.0 / (height * width * module.out_channels)) ** 0.5)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


def with_head(backbone: Any, head: HeadLike, num_classes: int, name: str, **sizes: float) -> Classifier:
    """Make a Classifier of a backbone of this package; the function's ``name`` and its arguments record how it was made."""
    made = make_head(head, backbone.num_features, num_classes)
    return Classifier(backbone, made, backbone.layer_names, origin={"name": name, **sizes})


def check_sizes(depth: int = 0, rest: int = 0, **sizes: int) -> None:
    """Raise ArgumentError for sizes below one, or a depth that is not 6n + ``rest`` with n > 0."""
    for name, size in sizes.items():
        at_least_one(name, size)
    if rest and (depth < 6 or depth % 6 != rest):
        raise ArgumentError(
            f"Expected argument `depth` to be 6n + {rest} ({6 + rest}, {12 + rest}, {18 + rest}, ...) but got {depth}."
        )


def check_no_dropout(dropout: float) -> None:
    """Raise ArgumentError for dropout, where a network has none."""
    if dropout:
        raise ArgumentError(f"Expected argument `dropout` to be 0, as this network has no dropout, but got {dropout}.")


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
    sizes = {"depth": depth, "growth": growth, "in_channels": in_channels, "stem_stride": stem_stride}
    check_sizes(rest=4, **sizes)
    backbone = DenseNetBackbone(**sizes, dropout=fraction("dropout", dropout))
    return with_head(backbone, head, num_classes, "densenet_bc", **sizes, dropout=dropout)


# the network of speed records -----------------------------------------------------------------------------------------

_SPREAD = ((3.17, 0.63, 0.57, 0.23), (0.91, 0.13, 0.12, 0.041), (0.44, 0.071, 0.068, 0.025))
"""Standard deviation of each filter below over CIFAR-10's normalised training images: rows are colours, columns patterns."""


class Whitening(nn.Conv2d):
    """Fixed filters of 2x2 pixels whose outputs have unit variance on natural images, each also with the other sign.

    The filters are the products of brightness and two opponent colours with the four patterns of Haar. Only the bias, one
    number for each output, is trained.

    Args:
        in_channels: 3 for colour; images of any other number of channels have the patterns of each channel alone.
    """

    def __init__(self, in_channels: int) -> None:
        super().__init__(in_channels, 8 * in_channels, 2)
        patterns = torch.tensor([[1, 1, 1, 1], [1, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1]]) / 2
        colours, spread = torch.eye(in_channels), torch.tensor(_SPREAD[0]).expand(in_channels, 4)
        if in_channels == 3:
            colours = F.normalize(torch.tensor([[1.0, 1, 1], [1, 0, -1], [1, -2, 1]]))
            spread = torch.tensor(_SPREAD)
        filters = torch.einsum("oc,hp->ohcp", colours, patterns).reshape(-1, in_channels, 2, 2)
        filters = filters / spread.reshape(-1, 1, 1, 1)
        self.weight = nn.Parameter(torch.cat([filters, -filters]), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(len(self.weight)))


class ConvBlock(nn.Module):
    """3x3 conv, maximum over 2x2 pixels, BN, GELU, 3x3 conv, BN, GELU."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        for conv in (self.conv1, self.conv2):
            nn.init.dirac_(conv.weight[: conv.in_channels])  # as many channels as there are pass unchanged at the start

    def forward(self, x: Tensor) -> Tensor:
        """Compute maps (N, c', h/2, w/2) of maps (N, c, h, w)."""
        x = F.gelu(self.bn1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.bn2(self.conv2(x)))


class ConvNetBackbone(nn.Module):
    """Backbone: images (N, c, h, w) -> features (N, width).

    The features are divided by ``SHRINK``, so that a linear layer behind them starts with small logits.
    """

    SHRINK = 9.0
    layer_names = ("block1", "block2", "block3")

    def __init__(self, *, width: int, in_channels: int) -> None:
        super().__init__()
        self.whiten = Whitening(in_channels)
        self.block1 = ConvBlock(8 * in_channels, width // 4)
        self.block2 = ConvBlock(width // 4, width)
        self.block3 = ConvBlock(width, width)
        self.num_features = width

    def forward(self, x: Tensor) -> Tensor:
        """Compute features (N, d) of images (N, c, h, w)."""
        maps: Tensor = self.block3(self.block2(self.block1(F.gelu(self.whiten(x)))))
        return maps.amax((2, 3)) / self.SHRINK


def convnet(
    width: int = 256, num_classes: int = 10, head: HeadLike = "cosine", in_channels: int = 3, dropout: float = 0.0
) -> Classifier:
    """Make a small convolutional network with one of our heads: 256 features, two million parameters.

    Args:
        width: channels of the second and third block, a multiple of 4; the first block has a quarter.
        num_classes: C.
        head: ``"cosine"``, ``"linear"`` or a callable (in_features, num_classes) -> Head.
        in_channels: 3 for colour, 1 for grey.
        dropout: must be 0; the network has none.
    """
    check_sizes(width=width, in_channels=in_channels)
    check_no_dropout(dropout)
    if width % 4:
        raise ArgumentError(f"Expected argument `width` to be a multiple of 4 but got {width}.")
    backbone = ConvNetBackbone(width=width, in_channels=in_channels)
    return with_head(backbone, head, num_classes, "convnet", width=width, in_channels=in_channels)
