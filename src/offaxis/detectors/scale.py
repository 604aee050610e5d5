r"""SCALE (Xu, Chen, Franchi, Yao 2024, https://arxiv.org/abs/2310.00227).

.. math:: S(x) = -\log \sum_i e^{z_i(r f)}, \qquad r = \exp(s_1 / s_2)

All features of an image times one number: :math:`s_1` is their sum, :math:`s_2` the sum of the k largest. Unlike ASH
nothing is pruned. For a cosine head f is the unit feature vector that the head sees (``HeadCopy``).
"""

from torch import Tensor

from offaxis.detectors.ash import sum_ratio
from offaxis.detectors.checks import fraction
from offaxis.detectors.shaped_energy import ShapedEnergy


def scale_activations(features: Tensor, percentile: float) -> Tensor:
    """Multiply each row of features (N, d) by exp(s_1 / s_2)."""
    return features * sum_ratio(features, percentile).exp()


class SCALE(ShapedEnergy):
    """The energy after scaling the features.

    Args:
        percentile: p, the fraction of features that s_2 leaves out; 0.85 is the paper's for ImageNet.
    """

    name = "scale"
    paper = "https://arxiv.org/abs/2310.00227"
    tunable = ("percentile",)

    def __init__(self, percentile: float = 0.85) -> None:
        super().__init__()
        self.percentile = fraction("percentile", percentile)

    @property
    def grid(self) -> dict[str, tuple[float, ...]]:
        """Return the fractions to try."""
        return {"percentile": (0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)}

    def shape(self, inputs: Tensor) -> Tensor:
        """Multiply each row of the inputs (N, d) by one number."""
        return scale_activations(inputs, self.percentile)
