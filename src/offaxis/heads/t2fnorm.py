r"""T2FNorm (Regmi et al. 2023, https://arxiv.org/abs/2305.17797).

.. math:: z = \frac{1}{\tau} W \frac{f}{\lVert f \rVert} + b, \qquad z_{\text{score}} = \frac{1}{\tau} W f + b

Features are normalised while training and for the class; OOD scores (max-softmax in the paper) are taken of the logits that
*unnormalised* features give, whose length tells ID from OOD images.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis.errors import positive
from offaxis.heads.base import Head, Outputs, at_least_float32, bounded, linear_parameters
from offaxis.heads.cosine import EPS


class T2FNormHead(Head):
    """Compute logits of unit features over tau for the class, and those of the features themselves for OOD scores.

    Args:
        in_features: d, the size of the features.
        num_classes: C.
        tau: the temperature, a hyperparameter; 0.1 in the paper.

    ``Outputs.logits`` classify; ``Outputs.score_logits``, in eval mode, are what detectors read in their place. Everything
    runs in float32 under autocast.

    Examples:
        >>> out = T2FNormHead(64, 10).eval().outputs(torch.randn(3, 64))
        >>> out.logits.shape, out.score_logits.shape
        (torch.Size([3, 10]), torch.Size([3, 10]))
    """

    scores_apart = True

    def __init__(self, in_features: int, num_classes: int, tau: float = 0.1) -> None:
        super().__init__(in_features, num_classes)
        self.weight, self.bias = linear_parameters(in_features, num_classes)
        self.tau = positive("tau", tau)
        self.arguments = {"tau": tau}

    def outputs(self, features: Tensor) -> Outputs:
        """(N, d) -> Outputs(features (N, d), logits (N, C), score_logits (N, C) in eval mode)."""
        self._check(features)
        with torch.autocast(features.device.type, enabled=False):
            f = bounded(at_least_float32(features), self.training)
            weight, bias = self.weight.to(f.dtype) / self.tau, self.bias.to(f.dtype)
            logits = F.linear(F.normalize(f, dim=1, eps=EPS), weight, bias)
            return Outputs(f, logits, score_logits=None if self.training else F.linear(f, weight, bias))
