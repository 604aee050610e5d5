r"""Cosines with the class means, and with both the class weights and the class means.

.. math::

    S_{\text{mean}}(x) = -\max_i \cos(f(x), \mu_i), \qquad
    S_{\text{two}}(x) = -\tfrac12 \left[\max_i \cos(f, w_i) + \max_i \cos(f, \mu_i)\right]

with :math:`\mu_i` the mean of the training features of class i. The cosine with the class means is Class Typical Matching
(https://arxiv.org/abs/2306.14920); the two cosines are its mean with the cosine of the trained axes. A class's weight says what
tells it from the others; its mean says where its images lie. A long training makes the two parallel (neural collapse: Papyan,
Han, Donoho 2020, https://arxiv.org/abs/2008.08186); until then what all classes have in common shows in the means alone, and an
OOD image may lack it. There is nothing to tune and no OOD image is needed; the means take one pass over training images.
"""

from torch import Tensor
from torch.nn import functional as F

from offaxis.detectors.base import Detector
from offaxis.detectors.cosine import cosine_score
from offaxis.detectors.statistics import ClassMoments
from offaxis.heads import Outputs
from offaxis.heads.base import at_least_float32
from offaxis.networks.inference import Network


class MeanCosine(Detector):
    """The largest cosine between an image's features and the mean features of a class, negated."""

    name = "mean-cosine"
    paper = "https://arxiv.org/abs/2306.14920"
    uses: tuple[str, ...] = ("features",)
    needs_fit = True

    directions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.expect("directions")

    def sizes(self) -> dict[str, int]:
        """Return the width of the features."""
        return {"features": self.directions.shape[1]}

    def begin(self, network: Network) -> None:
        """Start the sums."""
        self._moments = ClassMoments(network.num_classes, covariance=False)

    def update(self, outputs: Outputs, labels: Tensor) -> None:
        """Add a batch to the sums."""
        self._moments.add(outputs.features, labels)

    def finish(self) -> None:
        """Compute the directions of the class means, (C, d)."""
        self.directions = F.normalize(self._moments.means(), dim=1)
        del self._moments

    def cosines(self, features: Tensor) -> Tensor:
        """Compute the cosines (N, C) in [-1, 1] of features (N, d) with the class means."""
        x = at_least_float32(features)
        return F.linear(F.normalize(x, dim=1), self.directions.to(x.dtype)).clamp(-1, 1)

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) in [-1, 1] from the Outputs of N images."""
        return -self.cosines(outputs.features).amax(1)


class TwoCosines(MeanCosine):
    """The mean of the largest cosine with a class weight and the largest with a class mean, negated."""

    name = "two-cosines"
    paper = "https://arxiv.org/abs/1905.10628"
    uses = ("features", "cosine")

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) in [-1, 1] from the Outputs of N images."""
        assert outputs.cosine is not None  # score() has checked it
        return (cosine_score(outputs.cosine) + super().forward(outputs)) / 2
