r"""Ensemble of cosines (Techapanurak, Suganuma, Okatani 2019, supplement, https://arxiv.org/abs/1905.10628).

.. math:: S(x) = -\max_i \frac{1}{M} \sum_{m=1}^{M} \cos\theta_i^{(m)}(x)

The cosines are averaged over the networks class by class, and then the largest is taken: not the mean of the maxima.
"""

from torch import Tensor

from offaxis.detectors.base import Passes
from offaxis.detectors.cosine import Cosine, cosine_score
from offaxis.errors import DetectorError
from offaxis.networks.ensemble import Ensemble
from offaxis.networks.inference import Network


def cosine_ensemble_score(cosines: Tensor) -> Tensor:
    """Cosines of M networks (M, N, C) -> scores (N,) in [-1, 1], larger = more OOD."""
    return cosine_score(cosines.mean(0))


class CosineEnsemble(Cosine):
    """The cosine score of an ``Ensemble``, whose outputs hold the averaged cosines.

    Args:
        networks: how many networks the ensemble has, for the account of passes; five in the paper.
    """

    name = "cosine-ensemble"
    options = ("networks",)

    def __init__(self, networks: int = 5) -> None:
        super().__init__()
        self.networks = networks

    @property
    def passes(self) -> Passes:
        """One forward through each network."""
        return Passes(self.networks)

    def check_network(self, network: Network) -> None:
        """Raise DetectorError unless the network is an Ensemble."""
        if not isinstance(network, Ensemble):
            raise DetectorError(
                f"Expected an Ensemble for {self.name} but got a {type(network).__name__}: make one with "
                "Ensemble([network, ...]), or use the cosine detector for a single network."
            )

    def score_images(self, network: Network, images: Tensor) -> Tensor:
        """Images (N, c, h, w) -> scores (N,) in [-1, 1]."""
        self.check_network(network)
        return super().score_images(network, images)
