r"""IsoMax+'s minimum distance score (Macêdo, Ludermir 2022, https://arxiv.org/abs/2105.14399).

.. math:: S(x) = \min_j \lVert \hat f - \hat p_j \rVert = \sqrt{2 - 2 \max_j \cos\theta_j}

between the unit features and the unit prototypes of the head ``isomax``. It ranks images as the cosine score does.
"""

from torch import Tensor

from offaxis.detectors.base import Detector
from offaxis.heads import Outputs


def minimum_distance_score(cosine: Tensor) -> Tensor:
    """Compute scores (N,) in [0, 2] from cosines (N, C): larger = more OOD."""
    return (2 - 2 * cosine.amax(1)).clamp_min(0).sqrt()


class IsoMaxPlus(Detector):
    """The distance from unit features to the nearest prototype."""

    name = "isomax"
    paper = "https://arxiv.org/abs/2105.14399"
    uses = ("cosine",)

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        assert outputs.cosine is not None  # score() has checked it
        return minimum_distance_score(outputs.cosine)
