"""The linear output layer: a new one, with the paper's scale as an option, or the trained one of a network."""

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.errors import AttachError
from offaxis.heads.base import Head, Outputs, at_least_float32, bounded, finite, linear_parameters
from offaxis.heads.cosine import Scale, make_scale


class LinearHead(Head):
    """The linear head: logits w . f + b, or s * (w . f + b) with a scale (row 2 of the paper's ablation).

    Args:
        in_features: d, the size of the features.
        num_classes: C.
        scale: None for the standard network, else as in ``CosineHead``.
        bias: whether there is a bias b.

    Weight and bias have the names, the shapes and the initialisation of ``nn.Linear``. In eval mode logits are finite
    wherever the features are.
    """

    linear_in = "features"

    def __init__(self, in_features: int, num_classes: int, scale: Scale | None = None, *, bias: bool = True) -> None:
        super().__init__(in_features, num_classes)
        self.weight, self.bias = linear_parameters(in_features, num_classes)
        self.scale = None if scale is None else make_scale(scale, in_features, num_classes, "paper")
        self.arguments = {"scale": scale}
        if not bias:
            self.register_parameter("bias", None)
            self.arguments["bias"] = False

    @classmethod
    def from_layer(cls, layer: nn.Linear) -> Self:
        """Return a head that is a trained layer: its parameters are shared, and its logits are equal bit for bit.

        A layer of one logit, whose sigmoid is the probability of the second of two classes, becomes one of two, the first of
        them 0: their softmax is that sigmoid and its rest.

        Raises:
            AttachError: the weight is computed from other parameters, or the layer computes something else than w . f + b.
        """
        if not isinstance(layer.weight, nn.Parameter):
            raise AttachError(
                "Expected an output layer whose weight is a parameter but it is computed from others (weight or spectral "
                "normalisation): call torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight') first."
            )
        classes, bias = max(2, layer.out_features), layer.bias is not None
        with torch.device("meta"):  # nothing to initialise
            head = cls(layer.in_features, classes, bias=bias)
        head.weight, head.bias = layer.weight, layer.bias
        if layer.out_features == 1:
            head.weight = nn.Parameter(two_rows(layer.weight.detach()))
            if bias:
                head.bias = nn.Parameter(two_rows(layer.bias.detach()))
        if type(layer).forward is not nn.Linear.forward and not head._agrees_with(layer):
            raise AttachError(
                f"Expected an output layer that computes w . f + b but a {type(layer).__name__} computes something else: "
                "train one of our heads in its place, attach(model, head='cosine')."
            )
        return head

    @torch.no_grad()
    def _agrees_with(self, layer: nn.Linear) -> bool:
        features = torch.linspace(-1, 1, 2 * self.in_features, device=self.weight.device, dtype=self.weight.dtype)
        return torch.equal(layer(features.view(2, -1)), self(features.view(2, -1))[:, -layer.out_features :])

    def outputs(self, features: Tensor) -> Outputs:
        """Compute Outputs(features (N, d), logits (N, C), None, scale (N,) > 0 or None)."""
        self._check(features)
        logits = finite(F.linear(bounded(features, self.training), self.weight, self.bias), self.training)
        if self.scale is None:
            return Outputs(features, logits)
        with torch.autocast(features.device.type, enabled=False):
            scale: Tensor = self.scale(at_least_float32(features))
            return Outputs(features, finite(scale.unsqueeze(1) * logits, self.training), None, scale)

    def _float32_logits(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (N, d) and logits (N, C) in float32 or wider, for losses that normalise logits; no autocast."""
        self._check(features)
        f = at_least_float32(features)
        return f, F.linear(f, self.weight.to(f.dtype), None if self.bias is None else self.bias.to(f.dtype))


def two_rows(single: Tensor) -> Tensor:
    """Return the weight (1, d) or the bias (1,) of one logit as that of two, the first of which is always 0."""
    return torch.cat([torch.zeros_like(single), single])


class NoClassesHead(Head):
    """The head of features without labels: the features themselves, and one logit that is 0 for every row.

    Args:
        in_features: d, the size of the features.
        num_classes: 1.
    """

    def __init__(self, in_features: int, num_classes: int = 1) -> None:
        super().__init__(in_features, 2)  # which is the least that other heads take
        self.num_classes = num_classes

    def outputs(self, features: Tensor) -> Outputs:
        """Compute Outputs(features (N, d), logits (N, 1) of zeros)."""
        self._check(features)
        return Outputs(features, features.new_zeros(len(features), self.num_classes))
