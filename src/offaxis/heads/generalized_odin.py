r"""Generalized ODIN: decomposed confidence (Hsu, Shen, Jin, Kira 2020, arXiv:2002.11297).

.. math::

    z_i = \frac{h_i(f)}{g(f)}, \qquad g = \sigma(\mathrm{BN}(w_g^\top f + b_g)) \in (0, 1)

with one of three numerators: **C** the cosine :math:`\cos(w_i, f)`, **I** the inner product :math:`w_i^\top f + b_i`,
**E** the negative squared distance :math:`-\lVert f - w_i \rVert^2`. The score of the detector is the largest h.
"""

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.errors import ArgumentError
from offaxis.heads.base import LARGEST_EXPONENT, Head, Outputs, at_least_float32, bounded, finite
from offaxis.heads.batch_norm import SyncedBatchNorm
from offaxis.heads.cosine import EPS

Similarity = Literal["cosine", "inner", "euclid"]
SIMILARITIES: tuple[Similarity, ...] = ("cosine", "inner", "euclid")


class DeConfHead(Head):
    """The heads DeConf-C, -I and -E: logits h / g.

    Args:
        in_features: d, the size of the features.
        num_classes: C.
        similarity: ``"cosine"`` (DeConf-C), ``"inner"`` (DeConf-I) or ``"euclid"`` (DeConf-E).

    The scale of ``outputs`` is 1 / g, above 1, so that logits = scale * h. Weights of h start from He's normal
    distribution, its bias from zero; neither has weight decay. Everything runs in float32 under autocast.

    Examples:
        >>> out = DeConfHead(64, 10, "euclid").eval().outputs(torch.randn(3, 64))
        >>> out.logits.shape, bool((out.scale > 1).all()), out.cosine
        (torch.Size([3, 10]), True, None)
    """

    undecayed = ("weight", "bias")

    def __init__(self, in_features: int, num_classes: int, similarity: Similarity = "cosine") -> None:
        super().__init__(in_features, num_classes)
        if similarity not in SIMILARITIES:
            raise ArgumentError(
                f"Expected argument `similarity` to be one of {', '.join(map(repr, SIMILARITIES))} but got {similarity!r}."
            )
        self.similarity = similarity
        self.arguments = {"similarity": similarity}
        self.weight = nn.Parameter(torch.empty(num_classes, in_features))
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        self.bias = nn.Parameter(torch.zeros(num_classes)) if similarity == "inner" else None
        self.confidence = nn.Linear(in_features, 1)
        self.norm = SyncedBatchNorm(1)

    def outputs(self, features: Tensor) -> Outputs:
        """Compute Outputs(features (N, d), logits (N, C), cosine (N, C) for DeConf-C, scale 1 / g (N,) > 1)."""
        self._check(features)
        with torch.autocast(features.device.type, enabled=False):
            f = bounded(at_least_float32(features), self.training)
            h = self._numerators(f)
            raw = F.linear(f, self.confidence.weight.to(f.dtype), self.confidence.bias.to(f.dtype))
            normalised: Tensor = self.norm(raw)
            exponent = -normalised.squeeze(1).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)
            scale = 1 + torch.exp(exponent)  # 1 / sigmoid, without a division
            return Outputs(
                f, finite(scale.unsqueeze(1) * h, self.training), h if self.similarity == "cosine" else None, scale
            )

    def _numerators(self, f: Tensor) -> Tensor:
        weight = self.weight.to(f.dtype)
        if self.similarity == "cosine":
            return F.linear(F.normalize(f, dim=1, eps=EPS), F.normalize(weight, dim=1, eps=EPS)).clamp(-1, 1)
        if self.similarity == "inner":
            return F.linear(f, weight, None if self.bias is None else self.bias.to(f.dtype))
        return 2 * F.linear(f, weight) - f.square().sum(1, keepdim=True) - weight.square().sum(1)


deconf_c = partial(DeConfHead, similarity="cosine")
deconf_i = partial(DeConfHead, similarity="inner")
deconf_e = partial(DeConfHead, similarity="euclid")
