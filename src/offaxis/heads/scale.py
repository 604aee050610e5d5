"""Where the scale s in softmax(s * cos) comes from: predicted per image, learned, or a constant."""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.errors import ArgumentError
from offaxis.heads.batch_norm import SyncedBatchNorm

Scale = Literal["predicted", "learned"] | float


class PredictedScale(nn.Module):
    """The paper's scale: s = exp(BN(w_s . f + b_s)), one positive number per image.

    Initialised with PyTorch's defaults, so that s starts near exp(N(0, 1)).
    """

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, 1)
        self.norm = SyncedBatchNorm(1)

    def forward(self, features: Tensor) -> Tensor:
        """(N, d) of at least float32 -> (N,), positive."""
        exponent = F.linear(features, self.linear.weight.to(features.dtype), self.linear.bias.to(features.dtype))
        normalised: Tensor = self.norm(exponent)
        return normalised.squeeze(1).exp()


class LearnedScale(nn.Module):
    """NormFace's scale: one parameter for all images, learned like a weight.

    It starts at the smallest s at which cross-entropy could reach 0.01 if every image lay on its class axis and the
    axes were as far apart as C axes can be (the bound of NormFace's proposition 2, solved for s).
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        others = max(num_classes - 1, 1)
        self.value = nn.Parameter(torch.tensor(others / (others + 1) * math.log(others / math.expm1(0.01))))

    def forward(self, features: Tensor) -> Tensor:
        """(N, d) -> (N,), the same number N times."""
        return self.value.to(features.dtype).expand(features.shape[0])


class ConstantScale(nn.Module):
    """A scale that somebody chose: a hyperparameter, as in most metric-learning methods."""

    value: Tensor

    def __init__(self, value: float) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(float(value)))

    def forward(self, features: Tensor) -> Tensor:
        """(N, d) -> (N,), the constant N times."""
        return self.value.to(features.dtype).expand(features.shape[0])


def make_scale(scale: Scale, in_features: int, num_classes: int) -> nn.Module:
    """The module that gives s for a batch of features."""
    if scale == "predicted":
        return PredictedScale(in_features)
    if scale == "learned":
        return LearnedScale(num_classes)
    if isinstance(scale, (int, float)) and not isinstance(scale, bool) and 0 < scale < math.inf:
        return ConstantScale(scale)
    raise ArgumentError(
        f'Expected argument `scale` to be "predicted", "learned" or a positive number but got {scale!r}.'
    )
