"""ResNets for images of 32x32 pixels whose parameters have the names of published weights.

``resnet18-32`` is OpenOOD's network (https://github.com/Jingkang50/OpenOOD, ``ResNet18_32x32``), ``resnet20-cifar`` to
``resnet110-cifar`` those of He, Zhang, Ren, Sun 2016 (https://arxiv.org/abs/1512.03385, section 4.2, shortcuts A) with the
names of https://github.com/akamaster/pytorch_resnet_cifar10. Only the name of the output layer differs here, where a head takes
its place: ``open_network`` and ``to_published`` translate.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.data import Normalise
from offaxis.errors import ArgumentError
from offaxis.heads import HeadLike
from offaxis.heads.linear import LinearHead
from offaxis.networks.cifar import check_no_dropout, check_sizes, with_head
from offaxis.networks.classifier import Classifier

OUTPUT_LAYERS = {"resnet18_32": "fc", "resnet_cifar": "linear"}
"""Function that makes a network -> the name of the output layer in published weights."""
PUBLISHED_NORMALISE = {
    ("resnet_cifar", 10): Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ("resnet18_32", 10): Normalise((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ("resnet18_32", 100): Normalise((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}
"""The normalisation that published weights were trained with: by the function that makes a network and the classes."""


class BasicBlock(nn.Module):
    """Residual block: 3x3 conv, BN, ReLU, 3x3 conv, BN, plus the shortcut, ReLU."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Compute maps (N, c', h/stride, w/stride) of maps (N, c, h, w)."""
        residual = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(residual + self.shortcut(x))


class PaddedShortcut(nn.Module):
    """The shortcut without parameters: every second pixel, and channels of zeros on both sides."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.padding = channels // 2

    def forward(self, x: Tensor) -> Tensor:
        """Compute maps (N, 2c, h/2, w/2) of maps (N, c, h, w)."""
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.padding, self.padding))


def _shortcut(in_channels: int, out_channels: int, stride: int, padded: bool) -> nn.Module:
    """Make what stands in for the input where the shape changes: a padded shortcut, or OpenOOD's convolution with BN."""
    if stride == 1 and in_channels == out_channels:
        return nn.Sequential()
    if padded:
        return PaddedShortcut(in_channels)
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels))


class ResNetBackbone(nn.Module):
    """Backbone of a ResNet for 32x32 images: (N, c, h, w) -> features (N, d), non-negative (ReLU, average pooling).

    Args:
        sizes: channels of each layer; each but the first halves the maps.
        blocks: residual blocks of each layer.
        in_channels: 3 for colour, 1 for grey.
        padded: shortcuts without parameters instead of 1x1 convolutions.
    """

    def __init__(self, *, sizes: tuple[int, ...], blocks: int, in_channels: int, padded: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, sizes[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(sizes[0])
        before = sizes[0]
        for number, after in enumerate(sizes, 1):
            rows = []
            for block in range(blocks):
                stride = 2 if number > 1 and block == 0 else 1
                rows.append(BasicBlock(before, after, stride, _shortcut(before, after, stride, padded)))
                before = after
            self.add_module(f"layer{number}", nn.Sequential(*rows))
        self.layer_names = ("conv1", *(f"layer{number}" for number in range(1, len(sizes) + 1)))
        self.num_features = before

    def forward(self, x: Tensor) -> Tensor:
        """Compute features (N, d) of images (N, c, h, w)."""
        maps: Tensor = F.relu(self.bn1(self.conv1(x)))
        for name in self.layer_names[1:]:
            maps = getattr(self, name)(maps)
        return maps.mean((2, 3))


def resnet18_32(
    num_classes: int = 10, head: HeadLike = "cosine", in_channels: int = 3, dropout: float = 0.0
) -> Classifier:
    """Make the ResNet-18 of OpenOOD's CIFAR benchmarks, with one of our heads: 512 features, first convolution 3x3.

    Args:
        num_classes: C.
        head: ``"cosine"``, ``"linear"`` or a callable (in_features, num_classes) -> Head.
        in_channels: 3 for colour, 1 for grey.
        dropout: must be 0; the network has none.
    """
    check_sizes(in_channels=in_channels)
    check_no_dropout(dropout)
    backbone = ResNetBackbone(sizes=(64, 128, 256, 512), blocks=2, in_channels=in_channels, padded=False)
    return with_head(backbone, head, num_classes, "resnet18_32", in_channels=in_channels)


def resnet_cifar(
    depth: int = 20, num_classes: int = 10, head: HeadLike = "cosine", in_channels: int = 3, dropout: float = 0.0
) -> Classifier:
    """Make a ResNet of He et al. for CIFAR, with one of our heads: 16, 32 and 64 channels, 64 features.

    Args:
        depth: 6n + 2, with n residual blocks in each of three layers: 20, 32, 44, 56, 110.
        num_classes: C.
        head: ``"cosine"``, ``"linear"`` or a callable (in_features, num_classes) -> Head.
        in_channels: 3 for colour, 1 for grey.
        dropout: must be 0; the network has none.
    """
    check_sizes(depth, 2, in_channels=in_channels)
    check_no_dropout(dropout)
    backbone = ResNetBackbone(sizes=(16, 32, 64), blocks=(depth - 2) // 6, in_channels=in_channels, padded=True)
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return with_head(backbone, head, num_classes, "resnet_cifar", depth=depth, in_channels=in_channels)


# published weights ----------------------------------------------------------------------------------------------------


def to_published(classifier: Classifier) -> dict[str, Tensor]:
    """Return a network's weights by their published names, as OpenOOD reads them.

    Raises:
        ArgumentError: it is no network of this module, or its logits at test are not W f + b.
    """
    function = (classifier.origin or {}).get("name", "")
    if function not in OUTPUT_LAYERS:
        raise ArgumentError(
            f"Expected a network with published names of its weights ({', '.join(OUTPUT_LAYERS)}) but got "
            f"{function or 'a network of your own'}."
        )
    head = classifier.head
    if not isinstance(head, LinearHead) or head.scale is not None:  # LogitNorm's and ELogitNorm's are such
        raise ArgumentError(
            f"Expected a head whose logits at test are linear in the features (linear, logitnorm, elogitnorm) but got a "
            f"{type(head).__name__}: a plain state dictionary has no place for it. Save a bundle instead."
        )
    layer = {f"{OUTPUT_LAYERS[function]}.{name}": tensor for name, tensor in head.state_dict().items()}
    return {**classifier.backbone.state_dict(), **layer}
