r"""Maximum logit (Hendrycks et al. 2022, https://arxiv.org/abs/1911.11132).

.. math:: S(x) = -\max_i z_i(x)
"""

from torch import Tensor

from offaxis.detectors.base import Detector
from offaxis.heads import Outputs


def max_logit_score(logits: Tensor) -> Tensor:
    """Compute scores (N,) from logits (N, C): larger = more OOD."""
    return -logits.amax(1)


class MaxLogit(Detector):
    """The largest logit, negated."""

    name = "max-logit"
    paper = "https://arxiv.org/abs/1911.11132"

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        return max_logit_score(outputs.logits)
