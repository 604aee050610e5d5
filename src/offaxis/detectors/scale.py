r"""SCALE (Xu, Chen, Franchi, Yao 2024, https://arxiv.org/abs/2310.00227).

.. math:: S(x) = -\log \sum_i e^{z_i(r f)}, \qquad r = \exp(s_1 / s_2)

All features of an image times one number: :math:`s_1` is their sum, :math:`s_2` the sum of the k largest. Unlike ASH
nothing is pruned. For a cosine head f is the unit feature vector that the head sees (``HeadCopy``).
"""

from torch import Tensor

from offaxis.detectors.arguments import fraction
from offaxis.detectors.ash import sum_ratio
from offaxis.detectors.detector import Detector
from offaxis.detectors.energy import energy_score
from offaxis.detectors.head_copy import HeadCopy
from offaxis.detectors.network import Network
from offaxis.heads import Outputs


def scale_activations(features: Tensor, percentile: float) -> Tensor:
    """Features (N, d) -> (N, d), each row times exp(s_1 / s_2)."""
    return features * sum_ratio(features, percentile).exp()


class SCALE(Detector):
    """The energy after scaling the features.

    Args:
        percentile: p, the fraction of features that s_2 leaves out; 0.85 is the paper's for ImageNet.
    """

    name = "scale"
    paper = "https://arxiv.org/abs/2310.00227"
    uses = ("features",)
    needs_fit = True
    tunable = ("percentile",)

    def __init__(self, percentile: float = 0.85) -> None:
        super().__init__()
        self.percentile = fraction("percentile", percentile)
        self.head = HeadCopy()

    @property
    def grid(self) -> dict[str, tuple[float, ...]]:
        """The usual fractions."""
        return {"percentile": (0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)}

    def sizes(self) -> dict[str, int]:
        """The width of the features."""
        return self.head.sizes()

    def begin(self, network: Network) -> None:
        """Copy the head: that is all there is to fit."""
        self.head.set(network.head)

    def forward(self, outputs: Outputs) -> Tensor:
        """Outputs of N images -> scores (N,)."""
        scaled = scale_activations(self.head.inputs(outputs.features), self.percentile)
        return energy_score(self.head.logits(scaled, outputs.scale))
