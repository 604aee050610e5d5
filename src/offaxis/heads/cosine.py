r"""Softmax of scaled cosine similarity (Techapanurak, Suganuma, Okatani 2019, arXiv:1905.10628).

.. math::

    p_i = \frac{e^{s \cos\theta_i}}{\sum_j e^{s \cos\theta_j}}, \qquad
    \cos\theta_i = \frac{w_i^\top f}{\lVert w_i \rVert \lVert f \rVert}, \qquad
    s = s_0 \exp\{\mathrm{BN}(w_s^\top f + b_s) / s_0\}

A class is an axis :math:`w_i`; an OOD image points off every axis, so its largest cosine is small. s_0 follows from the
sizes of the head, so that it learns under any optimiser (docs/head-start.md); in the paper, ``start="paper"``, it is 1.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.errors import ArgumentError, at_least_one
from offaxis.heads.base import LARGEST_EXPONENT, LARGEST_FEATURE, Head, Outputs, at_least_float32, linear_parameters
from offaxis.heads.batch_norm import SyncedBatchNorm

EPS = 1e-12  # a vector shorter than this has no direction: its cosines are 0
LONG = 2.0**50  # features above this are shortened before their squares are summed, which could overflow


def unit_length(features: Tensor) -> Tensor:
    """Divide the rows of (N, d) by their lengths; the row 0 stays 0, and no finite row is too long.

    Where no feature is above 2**50 this is ``F.normalize`` bit for bit.
    """
    largest = features.detach().abs().amax(1, keepdim=True)
    return F.normalize(features / torch.where(largest > LONG, largest, 1), dim=1, eps=EPS)


Scale = Literal["predicted", "learned"] | float
Start = Literal["sizes", "paper"]


class PredictedScale(nn.Module):
    r"""Predict one positive number per image from its features: the paper's scale, which may start elsewhere than at 1.

    .. math:: s = s_0 \exp\{z / s_0\}, \qquad z = \mathrm{BN}(w_s^\top f + b_s)

    With :math:`s_0 = 1` this is the paper's formula, bit for bit. For small z it is :math:`s_0 + z`, so a step moves s by
    as much as it does at the paper's start. s_0 is a buffer: weight decay does not pull it back, and a state dictionary
    without one, made where there was none, sets it to 1.

    Args:
        in_features: d, the size of the features.
        start: s_0; None for the paper's formula, with the paper's state dictionary.
        gain: BN's weight at the start: 1 in the paper, so that log s deviates by 1 / s_0 between the images of a batch.
    """

    start: Tensor | None

    def __init__(self, in_features: int, start: float | None = None, gain: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, 1)
        self.norm = SyncedBatchNorm(1)
        nn.init.constant_(self.norm.weight, gain)
        self.register_buffer("start", None if start is None else torch.tensor(float(start)))

    def forward(self, features: Tensor) -> Tensor:
        """Compute the scales (N,) of features (N, d) of at least float32: positive, and finite in eval mode."""
        f = features if self.training else features.clamp(-LARGEST_FEATURE, LARGEST_FEATURE)
        raw = F.linear(f, self.linear.weight.to(f.dtype), self.linear.bias.to(f.dtype))
        normalised: Tensor = self.norm(raw)
        z = normalised.squeeze(1)
        if self.start is None:
            return z.clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT).exp()
        start = self.start.to(f.dtype)
        return start * (z / start).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT).exp()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        if self.start is not None and f"{prefix}linear.weight" in state_dict:
            state_dict.setdefault(f"{prefix}start", torch.ones_like(self.start))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def start_from_sizes(in_features: int, num_classes: int) -> float:
    r"""Compute where a predicted scale starts by default, s_0, from the sizes of the head alone.

    The larger of two: :math:`\sqrt{d / 3}`, the product of lengths :math:`\lVert w_i \rVert \lVert f \rVert` with which
    ``nn.Linear`` starts on features of unit mean square; and ``smallest_sufficient_scale``.

    Examples:
        >>> round(start_from_sizes(64, 10), 1), round(start_from_sizes(1280, 10), 1)
        (6.1, 20.7)
    """
    return max(math.sqrt(in_features / 3), smallest_sufficient_scale(num_classes))


def smallest_sufficient_scale(num_classes: int, loss: float = 0.01) -> float:
    """Compute the smallest s at which cross-entropy could reach ``loss``.

    It could if every image lay on its class axis and the axes were as far apart as C axes can be: the bound of
    NormFace's proposition 2 (Wang et al. 2017, arXiv:1704.06369), solved for s.
    """
    others = max(num_classes - 1, 1)
    return others / (others + 1) * math.log(others / math.expm1(loss))


class CommonScale(nn.Module):
    """One scale for all images: learned like a weight (NormFace), or fixed, as in most metric-learning methods."""

    value: Tensor

    def __init__(self, value: float, learned: bool) -> None:
        super().__init__()
        if learned:
            self.value = nn.Parameter(torch.tensor(float(value)))
        else:
            self.register_buffer("value", torch.tensor(float(value)))

    def forward(self, features: Tensor) -> Tensor:
        """(N, d) -> (N,), the same number N times."""
        return self.value.to(features.dtype).expand(features.shape[0])


def make_scale(scale: Scale, in_features: int, num_classes: int, start: Start) -> nn.Module:
    """Make the module that gives s for a batch of features; ``start`` is that of a predicted scale."""
    if start not in ("sizes", "paper"):
        raise ArgumentError(f'Expected argument `start` to be "sizes" or "paper" but got {start!r}.')
    if scale == "predicted":
        if start == "paper":
            return PredictedScale(in_features)
        return PredictedScale(in_features, start_from_sizes(in_features, num_classes), gain=0.0)
    if scale == "learned":
        return CommonScale(smallest_sufficient_scale(num_classes), learned=True)
    if isinstance(scale, (int, float)) and not isinstance(scale, bool) and 0 < scale < math.inf:
        return CommonScale(scale, learned=False)
    raise ArgumentError(
        f'Expected argument `scale` to be "predicted", "learned" or a positive number but got {scale!r}.'
    )


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

    undecayed: tuple[str, ...] = ("weight", "hidden.weight", "hidden.bias")
    linear_in = "directions"

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        scale: Scale = "predicted",
        hidden: int | None = None,
        start: Start = "sizes",
    ) -> None:
        super().__init__(in_features, num_classes)
        width = in_features if hidden is None else at_least_one("hidden", hidden)
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
