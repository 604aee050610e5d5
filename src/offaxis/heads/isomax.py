r"""IsoMax+ (Macêdo, Ludermir 2022, arXiv:2105.14399).

.. math:: z_j = -\lvert d_s \rvert \, \lVert \hat f - \hat p_j \rVert, \qquad \hat v = v / \lVert v \rVert

Prototypes :math:`p_j` and the distance scale :math:`d_s` are learned. Cross-entropy sees the logits times the entropic
scale 10 while training; afterwards the scale is removed, which gives probabilities of high entropy.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.heads.base import Head, Outputs, at_least_float32, bounded
from offaxis.heads.cosine import EPS


class IsoMaxHead(Head):
    """The head of IsoMax+: logits from the distances between unit features and unit prototypes.

    Args:
        in_features: d, the size of the features.
        num_classes: C.
        entropic_scale: factor of the logits in train mode; 10 in the paper.

    The distance is taken through the cosine, |f - p|^2 = 2 - 2 cos, so ``outputs`` has a cosine as well. Prototypes
    start from N(0, 1), the distance scale from 1. Everything runs in float32 under autocast.

    Examples:
        >>> out = IsoMaxHead(64, 10).eval().outputs(torch.randn(3, 64))
        >>> out.logits.shape, bool((out.logits <= 0).all())
        (torch.Size([3, 10]), True)
    """

    def __init__(self, in_features: int, num_classes: int, entropic_scale: float = 10.0) -> None:
        super().__init__(in_features, num_classes)
        self.prototypes = nn.Parameter(torch.randn(num_classes, in_features))
        self.distance_scale = nn.Parameter(torch.ones(()))
        self.entropic_scale = entropic_scale
        self.arguments = {"entropic_scale": entropic_scale}

    def outputs(self, features: Tensor) -> Outputs:
        """Compute Outputs(features (N, d), logits (N, C) <= 0, cosine (N, C) in [-1, 1], None)."""
        self._check(features)
        with torch.autocast(features.device.type, enabled=False):
            f = bounded(at_least_float32(features), self.training)
            axes = F.normalize(self.prototypes.to(f.dtype), dim=1, eps=EPS)
            cosine = F.linear(F.normalize(f, dim=1, eps=EPS), axes).clamp(-1, 1)
            distance = (2 - 2 * cosine).clamp_min(EPS).sqrt()  # the root's slope at 0 is infinite
            logits = -self.distance_scale.to(f.dtype).abs() * distance
            return Outputs(f, self.entropic_scale * logits if self.training else logits, cosine)
