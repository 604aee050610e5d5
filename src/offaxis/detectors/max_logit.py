r"""Maximum logit (Hendrycks et al. 2022, https://arxiv.org/abs/1911.11132).

.. math:: S(x) = -\max_i z_i(x)
"""

from torch import Tensor

from offaxis.detectors.base import Detector
from offaxis.heads import Outputs


def max_logit_score(logits: Tensor) -> Tensor:
    """Logits (N, C) -> scores (N,), larger = more OOD."""
    return -logits.amax(1)


class MaxLogit(Detector):
    """The largest logit, negated."""

    name = "max-logit"
    paper = "https://arxiv.org/abs/1911.11132"

    def forward(self, outputs: Outputs) -> Tensor:
        """Outputs of N images -> scores (N,)."""
        return max_logit_score(outputs.logits)
