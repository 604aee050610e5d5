r"""Relative Mahalanobis distance (Ren et al. 2021, https://arxiv.org/abs/2106.09022).

.. math::

    S(x) = \min_c \left[(f - \mu_c)^\top \Sigma^{+} (f - \mu_c) - (f - \mu_0)^\top \Sigma_0^{+} (f - \mu_0)\right]

with the class means and the covariance within classes, less the same distance under one Gaussian for all classes. Both
covariances are divided by the number of images, as in the paper.
"""

from torch import Tensor

from offaxis.detectors.base import Detector
from offaxis.detectors.statistics import ClassMoments, TiedGaussian
from offaxis.heads import Outputs
from offaxis.networks.inference import Network


def relative_mahalanobis_score(to_classes: Tensor, to_all: Tensor) -> Tensor:
    """Compute scores (N,) from squared distances to the classes (N, C) and to the common mean (N, 1): larger = more OOD."""
    return (to_classes - to_all).amin(1)


class RelativeMahalanobis(Detector):
    """How much farther an image is from its nearest class than from the data as a whole."""

    name = "relative-mahalanobis"
    paper = "https://arxiv.org/abs/2106.09022"
    uses = ("features",)
    needs_fit = True

    def __init__(self) -> None:
        super().__init__()
        self.classes = TiedGaussian()
        self.background = TiedGaussian()

    def sizes(self) -> dict[str, int]:
        """Return the width of the features."""
        return {"features": self.classes.size}

    def begin(self, network: Network) -> None:
        """Start the sums."""
        self._moments = ClassMoments(network.num_classes)

    def update(self, outputs: Outputs, labels: Tensor) -> None:
        """Add a batch to the sums."""
        self._moments.add(outputs.features, labels)

    def finish(self) -> None:
        """Compute the means and both covariances."""
        self.classes.set(self._moments.means(), self._moments.within())
        self.background.set(self._moments.mean().unsqueeze(0), self._moments.total())
        del self._moments

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        return relative_mahalanobis_score(self.classes(outputs.features), self.background(outputs.features))
