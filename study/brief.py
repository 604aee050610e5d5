"""Small networks that are trained briefly, as a first try would be: a ViT and a ConvNeXt for 28x28 grey images.

offaxis train --id fashion-mnist --network study/brief.py:vit --epochs 3 --lr 0.01 --out ...
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ViT(nn.Module):
    """Patches of 4x4 pixels, four encoder layers of width 64, the mean over tokens."""

    def __init__(self, classes: int = 10, width: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, 4)
        self.places = nn.Parameter(0.02 * torch.randn(49, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, nn.LayerNorm(width), enable_nested_tensor=False)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits (N, C) of images (N, 1, 28, 28)."""
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        logits: Tensor = self.fc(self.encoder(tokens).mean(1))
        return logits


class Block(nn.Module):
    """A block of ConvNeXt: depthwise 7x7, layer norm, four times as wide, GELU, back, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.wide, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Compute maps (N, c, h, w) of the same size."""
        inner = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        added: Tensor = self.back(F.gelu(self.wide(inner))).permute(0, 3, 1, 2)
        return x + added


class ConvNeXt(nn.Module):
    """Two stages of two blocks, of width 48 and 96, and the mean over places."""

    def __init__(self, classes: int = 10, width: int = 48) -> None:
        super().__init__()
        self.stages = nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1),
            Block(width),
            Block(width),
            nn.Conv2d(width, 2 * width, 2, 2),
            Block(2 * width),
            Block(2 * width),
        )
        self.norm = nn.LayerNorm(2 * width)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits (N, C) of images (N, 1, 28, 28)."""
        logits: Tensor = self.fc(self.norm(self.stages(x).mean((2, 3))))
        return logits


def vit() -> nn.Module:
    """Make the ViT."""
    return ViT()


def convnext() -> nn.Module:
    """Make the ConvNeXt."""
    return ConvNeXt()
