"""A small convolutional network for 32x32 colour images that reaches a high accuracy within minutes of one core.

Its shape is that of public speed records on CIFAR-10 (Jordan 2024, https://arxiv.org/abs/2404.00498): patches of 2x2 pixels
are whitened by a fixed layer, three blocks of two convolutions follow, and features are the maxima over the last maps.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.errors import ArgumentError
from offaxis.heads import HeadLike, make_head
from offaxis.networks.classifier import Classifier

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
    if width < 4 or width % 4:
        raise ArgumentError(f"Expected argument `width` to be a positive multiple of 4 but got {width}.")
    if in_channels < 1:
        raise ArgumentError(f"Expected argument `in_channels` to be at least 1 but got {in_channels}.")
    if dropout:
        raise ArgumentError(f"Expected argument `dropout` to be 0, as this network has no dropout, but got {dropout}.")
    backbone = ConvNetBackbone(width=width, in_channels=in_channels)
    made = make_head(head, backbone.num_features, num_classes)
    origin = {"name": "convnet", "width": width, "in_channels": in_channels}
    return Classifier(backbone, made, backbone.layer_names, origin=origin)
