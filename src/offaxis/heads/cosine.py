r"""Softmax of scaled cosine similarity (Techapanurak, Suganuma, Okatani 2019, arXiv:1905.10628).

.. math::

    p_i = \frac{e^{s \cos\theta_i}}{\sum_j e^{s \cos\theta_j}}, \qquad
    \cos\theta_i = \frac{w_i^\top f}{\lVert w_i \rVert \lVert f \rVert}, \qquad
    s = s_0 \exp\{\mathrm{BN}(w_s^\top f + b_s) / s_0\}

A class is an axis :math:`w_i`; an OOD image points off every axis, so its largest cosine is small. s_0 follows from the
sizes of the head, so that it learns under any optimiser (docs/head-start.md); in the paper, ``start="paper"``, it is 1.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.errors import ArgumentError
from offaxis.heads.base import (
    LARGEST_FEATURE,
    Head,
    Outputs,
    Scale,
    Start,
    at_least_float32,
    linear_parameters,
    make_scale,
)

EPS = 1e-12  # a vector shorter than this has no direction: its cosines are 0
LONG = 2.0**50  # features above this are shortened before their squares are summed, which could overflow


def unit_length(features: Tensor) -> Tensor:
    """Divide the rows of (N, d) by their lengths; the row 0 stays 0, and no finite row is too long.

    Where no feature is above 2**50 this is ``F.normalize`` bit for bit.
    """
    largest = features.detach().abs().amax(1, keepdim=True)
    return F.normalize(features / torch.where(largest > LONG, largest, 1), dim=1, eps=EPS)


class CosineHead(Head):
    """Logits s * cos: the paper's output layer, and by its arguments each row of the paper's ablation.

    Args:
        in_features: d, the size of the features.
        num_classes: C.
        scale: ``"predicted"`` from the features (the method), ``"learned"`` as one parameter (NormFace), or a constant.
        hidden: size of an extra linear layer, without activation, between features and cosine, as metric-learning
            methods have it; the features of ``outputs`` and the scale are then taken from that layer's output.
        start: where a predicted scale starts: ``"sizes"``, at a number that follows from d and C, the same for all images;
            or ``"paper"``, near exp(N(0, 1)) over the images of a batch, the authors' own. Other scales ignore it.

    Everything runs in float32 under autocast. A zero feature vector has cosine 0 with every axis. In eval mode logits are
    finite wherever the features are.

    Examples:
        >>> head = CosineHead(64, 10).eval()
        >>> out = head.outputs(torch.randn(3, 64))
        >>> out.cosine.shape, bool((out.cosine.abs() <= 1).all()), out.scale.shape
        (torch.Size([3, 10]), True, torch.Size([3]))
    """

    undecayed = ("weight", "hidden.weight", "hidden.bias")

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        scale: Scale = "predicted",
        hidden: int | None = None,
        start: Start = "sizes",
    ) -> None:
        super().__init__(in_features, num_classes)
        if hidden is not None and (not isinstance(hidden, int) or hidden < 1):
            raise ArgumentError(f"Expected argument `hidden` to be None or a positive whole number but got {hidden!r}.")
        width = hidden or in_features
        self.hidden = nn.Linear(in_features, hidden) if hidden else None
        self.weight, _ = linear_parameters(width, num_classes)
        self.scale = make_scale(scale, width, num_classes, start)
        self.arguments = {"scale": scale, "hidden": hidden, "start": start}

    def outputs(self, features: Tensor) -> Outputs:
        """(N, d) -> Outputs(features (N, d), logits (N, C), cosine (N, C) in [-1, 1], scale (N,) > 0)."""
        self._check(features)
        with torch.autocast(features.device.type, enabled=False):
            f = at_least_float32(features)
            if self.hidden is not None:
                f = f.clamp(-LARGEST_FEATURE, LARGEST_FEATURE)
                f = F.linear(f, self.hidden.weight.to(f.dtype), self.hidden.bias.to(f.dtype))
            axes = F.normalize(self.weight.to(f.dtype), dim=1, eps=EPS)
            unit = F.normalize(f, dim=1, eps=EPS) if self.training else unit_length(f)
            cosine = F.linear(unit, axes).clamp(-1, 1)
            scale: Tensor = self.scale(f)
            return Outputs(f, scale.unsqueeze(1) * cosine, cosine, scale)
