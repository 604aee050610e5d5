r"""NNGuide: nearest neighbour guidance (Park, Jung, Teoh 2023, https://arxiv.org/abs/2309.14888).

.. math:: S(x) = -E(x) \cdot \frac{1}{k} \sum_{j=1}^{k} \bigl[E(x_i) \cos(f(x), f(x_i))\bigr]_{(j)}, \qquad
    E = \log \sum_c e^{z_c}

the energy of an image times the mean of its k largest cosines with training images, each weighted by the energy of that
training image. Larger training sets are sampled, as in the paper.
"""

from torch import Tensor

from offaxis.detectors.knn import Neighbours, nearest, unit
from offaxis.detectors.logit_scores import energy_score
from offaxis.heads import Outputs
from offaxis.networks.run import widest


class NNGuide(Neighbours):
    """The energy of an image, guided by its most similar training images.

    Args:
        k: how many neighbours; 10 in the paper.
    """

    name = "nnguide"
    paper = "https://arxiv.org/abs/2309.14888"
    uses = ("features", "logits")

    def __init__(self, k: int = 10) -> None:
        super().__init__(k)

    def rows(self, outputs: Outputs) -> Tensor:
        """Compute the unit features (N, d) times their energies."""
        return unit(outputs.features) * -energy_score(outputs.detection_logits).unsqueeze(1)

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        x = unit(outputs.features).to(self.bank.dtype)
        near = self.bank[nearest(x, self.bank, self.k)[1]]  # products of a batch round by its size, these do not
        guidance = (widest(x).unsqueeze(1) * widest(near)).sum(2).mean(1)
        return energy_score(outputs.detection_logits).to(guidance.dtype) * guidance
