r"""LogitNorm (Wei, Xie, Cheng, Feng, An, Li 2022, https://arxiv.org/abs/2205.09310).

.. math:: L = \mathrm{CE}\left(\frac{z}{\tau \lVert z \rVert}, y\right), \qquad z = W f + b

An ordinary linear layer; while training, cross-entropy sees its logits at constant length, so that confidence cannot grow
by length alone. At test the logits are plain z, and the paper's score is max-softmax of them.
"""

import torch
from torch import Tensor

from offaxis.errors import positive
from offaxis.heads.base import Outputs
from offaxis.heads.linear import LinearHead

EPS = 1e-7  # added to the length, as published: logits that are all equal to zero stay zero


class LogitNormHead(LinearHead):
    """Compute logits W f + b, in train mode divided by tau times their length.

    Args:
        in_features: d, the size of the features.
        num_classes: C.
        tau: the temperature, a hyperparameter; 0.04 in the paper, which chose it on noise.

    Weight and bias have the names, the shapes and the initialisation of ``nn.Linear``. In train mode everything runs in
    float32 under autocast.

    Examples:
        >>> head = LogitNormHead(64, 10)
        >>> head(torch.randn(3, 64)).norm(dim=1).mul(0.04).round(decimals=3)
        tensor([1., 1., 1.], grad_fn=<RoundBackward1>)
    """

    normalises_logits = True

    def __init__(self, in_features: int, num_classes: int, tau: float = 0.04) -> None:
        super().__init__(in_features, num_classes)
        self.tau = positive("tau", tau)
        self.arguments = {"tau": tau}

    def outputs(self, features: Tensor) -> Outputs:
        """(N, d) -> Outputs(features (N, d), logits (N, C))."""
        if not self.training:
            return super().outputs(features)
        with torch.autocast(features.device.type, enabled=False):
            f, logits = self._float32_logits(features)
            length = torch.linalg.vector_norm(logits, dim=1, keepdim=True)
            # zero logits (a head that starts at zero) count as of length 1: over EPS, the gradient would be huge
            return Outputs(f, logits / (self.tau * torch.where(length > EPS, length + EPS, torch.ones_like(length))))
