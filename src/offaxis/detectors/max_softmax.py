r"""The baseline: maximum softmax probability (Hendrycks, Gimpel 2017, https://arxiv.org/abs/1610.02136).

.. math:: S(x) = -\max_i p_i(x), \qquad p = \mathrm{softmax}(z)

Computed in float64: in float32 every image whose largest logit leads by 17 has probability 1, and they all tie.
"""

from torch import Tensor

from offaxis.detectors.base import Detector
from offaxis.heads import Outputs
from offaxis.networks.inference import Network, widest


def max_softmax_score(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Compute scores (N,) in [-1, -1/C] from logits (N, C): larger = more OOD."""
    return -(widest(logits) / temperature).softmax(1).amax(1)


class MaxSoftmax(Detector):
    """The network's confidence in its class, negated."""

    name = "max-softmax"
    paper = "https://arxiv.org/abs/1610.02136"

    def check_network(self, network: Network) -> None:
        """Accept every network: the probabilities of an ensemble are the mean over its members."""

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        return max_softmax_score(outputs.logits)
