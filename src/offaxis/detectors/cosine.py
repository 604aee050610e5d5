r"""Scaled cosine similarity (Techapanurak, Suganuma, Okatani 2019, https://arxiv.org/abs/1905.10628).

.. math:: S(x) = -\max_i \cos\theta_i(x), \qquad \cos\theta_i = \frac{w_i^\top f}{\lVert w_i \rVert \lVert f \rVert}

The paper calls an image ID where its largest cosine is high; here the sign is turned, so that larger = more OOD. The
scale s is not part of the score, and there is nothing to tune.
"""

from torch import Tensor

from offaxis.detectors.base import Detector, Passes
from offaxis.errors import DetectorError
from offaxis.heads import Outputs
from offaxis.networks.ensemble import Ensemble
from offaxis.networks.inference import Network


def cosine_score(cosine: Tensor) -> Tensor:
    """Compute scores (N,) in [-1, 1] from cosines (N, C): larger = more OOD."""
    return -cosine.amax(1)


class Cosine(Detector):
    """The largest cosine between an image's features and the class axes, negated."""

    name = "cosine"
    paper = "https://arxiv.org/abs/1905.10628"
    uses = ("cosine",)

    def check_network(self, network: Network) -> None:
        """Accept every network: an ensemble's cosine is the mean over its members."""

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        assert outputs.cosine is not None  # score() has checked it
        return cosine_score(outputs.cosine)


class CosineEnsemble(Cosine):
    """The cosine score of an ``Ensemble``, whose outputs hold the averaged cosines.

    Args:
        networks: how many networks the ensemble has, for ``passes``; five in the paper.
    """

    name = "cosine-ensemble"
    options = ("networks",)

    def __init__(self, networks: int = 5) -> None:
        super().__init__()
        self.networks = networks

    @property
    def passes(self) -> Passes:
        """Return one forward pass through each network."""
        return Passes(self.networks)

    def check_network(self, network: Network) -> None:
        """Raise DetectorError unless the network is an Ensemble."""
        if not isinstance(network, Ensemble):
            raise DetectorError(
                f"Expected an Ensemble for {self.name} but got a {type(network).__name__}: make one with "
                "Ensemble([network, ...]), or use the cosine detector for a single network."
            )

    def score_images(self, network: Network, images: Tensor) -> Tensor:
        """Compute scores (N,) in [-1, 1] of images (N, c, h, w)."""
        self.check_network(network)
        return super().score_images(network, images)
