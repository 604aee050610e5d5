r"""Cosine heads with a margin, one paper a class: while training, the true class y must win by more than a hair.

.. math:: z_i = s \cos\theta_i, \qquad z_y = s \, \psi(\theta_y)

- SphereFace (Liu, Wen, Yu, Li, Raj, Song 2017, https://arxiv.org/abs/1704.08063): :math:`\psi = (-1)^k \cos(m\theta) - 2k` for
  :math:`\theta` in :math:`[k\pi/m, (k+1)\pi/m]`, mixed with the plain cosine, :math:`(\lambda \cos\theta + \psi) / (1 +
  \lambda)`, where :math:`\lambda` falls from 1000 to 5 over the steps of a training; s is the length of the features.
- CosFace (Wang et al. 2018, https://arxiv.org/abs/1801.09414): :math:`\psi = \cos\theta - m`.
- ArcFace (Deng, Guo, Xue, Zafeiriou 2019, https://arxiv.org/abs/1801.07698): :math:`\psi = \cos(\theta + m)`, and
  :math:`\cos\theta - m \sin m` where :math:`\theta + m` exceeds :math:`\pi`.

The margin is in ``loss`` alone, which knows the true class: logits and cosines have none, and neither has a score.
"""

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.errors import at_least_one, positive
from offaxis.heads.base import Outputs, bounded
from offaxis.heads.cosine import EPS, CosineHead


class MarginHead(CosineHead):
    """Logits s * cos, whose loss has a margin in train mode; a subclass says which in ``narrowed``.

    Args:
        in_features: d, the size of the features.
        num_classes: C.
        margin: m.
        scale: s.
    """

    undecayed = ()
    normalises_logits = True

    def __init__(self, in_features: int, num_classes: int, margin: float, scale: float) -> None:
        super().__init__(in_features, num_classes, positive("scale", scale))
        self.margin = positive("margin", margin)
        self.arguments = {"margin": margin, "scale": scale}

    @abstractmethod
    def narrowed(self, cosine: Tensor) -> Tensor:
        """Compute what takes the place of the true class's cosines in training, of the same shape."""

    def loss(self, out: Outputs, labels: Tensor) -> Tensor:
        """Compute the mean cross-entropy, in train mode with the margin."""
        if not self.training:
            return super().loss(out, labels)
        assert out.cosine is not None
        assert out.scale is not None
        true = labels.unsqueeze(1)
        cosine = out.cosine.scatter(1, true, self.narrowed(out.cosine.gather(1, true)))
        return F.cross_entropy(out.scale.unsqueeze(1) * cosine, labels)


class CosFaceHead(MarginHead):
    """Subtract the margin from the true class's cosine.

    Args:
        in_features: d, the size of the features.
        num_classes: C.
        margin: m; 0.35 in the paper.
        scale: s; 64 in the paper, 30 for small sets.
    """

    def __init__(self, in_features: int, num_classes: int, margin: float = 0.35, scale: float = 64.0) -> None:
        super().__init__(in_features, num_classes, margin, scale)

    def narrowed(self, cosine: Tensor) -> Tensor:
        """Compute cos - m."""
        return cosine - self.margin


class ArcFaceHead(MarginHead):
    """Add the margin to the true class's angle.

    Args:
        in_features: d, the size of the features.
        num_classes: C.
        margin: m in radians; 0.5 in the paper.
        scale: s; 64 in the paper.
    """

    def __init__(self, in_features: int, num_classes: int, margin: float = 0.5, scale: float = 64.0) -> None:
        super().__init__(in_features, num_classes, margin, scale)

    def narrowed(self, cosine: Tensor) -> Tensor:
        """Compute cos(theta + m) without the angle, whose slope at 0 is infinite."""
        m = self.margin
        sine = (1 - cosine.square()).clamp_min(EPS).sqrt()
        within = cosine >= math.cos(math.pi - m)
        return torch.where(within, cosine * math.cos(m) - sine * math.sin(m), cosine - m * math.sin(m))


class FeatureLength(nn.Module):
    """The scale of SphereFace: the length of the features."""

    def forward(self, features: Tensor) -> Tensor:
        """(N, d) -> (N,)."""
        length: Tensor = torch.linalg.vector_norm(bounded(features, self.training), dim=1)
        return length.clamp_min(EPS)


class SphereFaceHead(MarginHead):
    """Multiply the true class's angle by the margin, more and more as the training goes on; features keep their length.

    Args:
        in_features: d, the size of the features.
        num_classes: C.
        margin: m, a whole number; 4 in the paper.
    """

    steps: Tensor

    def __init__(self, in_features: int, num_classes: int, margin: float = 4) -> None:
        whole = int(margin) if isinstance(margin, float) and margin.is_integer() else margin
        super().__init__(in_features, num_classes, at_least_one("margin", whole), 1.0)  # type: ignore[arg-type]
        self.scale = FeatureLength()
        self.arguments = {"margin": whole}
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def loss(self, out: Outputs, labels: Tensor) -> Tensor:
        """Compute the mean cross-entropy, in train mode with the margin of this step."""
        value = super().loss(out, labels)
        self.steps += int(self.training)
        return value

    def narrowed(self, cosine: Tensor) -> Tensor:
        """Mix psi with the plain cosine; cos(m theta) is a polynomial of cos theta (Chebyshev's)."""
        before, multiple = torch.ones_like(cosine), cosine
        for _ in range(self.arguments["margin"] - 1):
            before, multiple = multiple, 2 * cosine * multiple - before
        part = (cosine.detach().acos() * self.margin / math.pi).floor().clamp(max=self.margin - 1)
        psi = (1 - 2 * (part % 2)) * multiple - 2 * part
        plain = (1000 / (1 + 0.12 * self.steps)).clamp_min(5)  # lambda, as the authors' code has it
        return (plain * cosine + psi) / (1 + plain)
