"""The linear output layer, with the paper's scale as an option."""

import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis.heads.base import Head, Outputs, at_least_float32, linear_parameters
from offaxis.heads.scale import Scale, make_scale


class LinearHead(Head):
    """The linear head: logits w . f + b, or s * (w . f + b) with a scale (row 2 of the paper's ablation).

    Args:
        in_features: d, the size of the features.
        num_classes: C.
        scale: None for the standard network, else as in ``CosineHead``.

    Weight and bias have the names, the shapes and the initialisation of ``nn.Linear``.
    """

    def __init__(self, in_features: int, num_classes: int, scale: Scale | None = None) -> None:
        super().__init__(in_features, num_classes)
        self.weight, self.bias = linear_parameters(in_features, num_classes)
        self.scale = None if scale is None else make_scale(scale, in_features, num_classes, "paper")
        self.arguments = {"scale": scale}

    def outputs(self, features: Tensor) -> Outputs:
        """Compute Outputs(features (N, d), logits (N, C), None, scale (N,) > 0 or None)."""
        self._check(features)
        logits = F.linear(features, self.weight, self.bias)
        if self.scale is None:
            return Outputs(features, logits)
        with torch.autocast(features.device.type, enabled=False):
            scale: Tensor = self.scale(at_least_float32(features))
            return Outputs(features, scale.unsqueeze(1) * logits, None, scale)
