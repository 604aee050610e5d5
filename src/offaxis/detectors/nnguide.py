r"""NNGuide: nearest neighbour guidance (Park, Jung, Teoh 2023, https://arxiv.org/abs/2309.14888).

.. math:: S(x) = -E(x) \cdot \frac{1}{k} \sum_{j=1}^{k} \bigl[E(x_i) \cos(f(x), f(x_i))\bigr]_{(j)}, \qquad
    E = \log \sum_c e^{z_c}

the energy of an image times the mean of its k largest cosines with training images, each weighted by the energy of that
training image. Larger training sets are sampled, as in the paper.
"""

from torch import Tensor

from offaxis.detectors.base import Detector
from offaxis.detectors.knn import nearest, unit
from offaxis.detectors.logit_scores import energy_score
from offaxis.detectors.statistics import Reservoir
from offaxis.errors import NotFittedError, at_least_one
from offaxis.heads import Outputs
from offaxis.networks.run import Network, widest


class NNGuide(Detector):
    """The energy of an image, guided by its most similar training images.

    Args:
        k: how many neighbours; 10 in the paper.
    """

    name = "nnguide"
    paper = "https://arxiv.org/abs/2309.14888"
    uses = ("features", "logits")
    needs_fit = True
    tunable = ("k",)

    bank: Tensor

    def __init__(self, k: int = 10) -> None:
        super().__init__()
        self.k = at_least_one("k", k)
        self.expect("bank")

    def sizes(self) -> dict[str, int]:
        """Return the width of the features."""
        return {"features": self.bank.shape[1]}

    def begin(self, network: Network) -> None:  # noqa: ARG002 - the contract's
        """Start the bank."""
        self._sample = Reservoir()

    def update(self, outputs: Outputs, labels: Tensor) -> None:  # noqa: ARG002 - the contract's
        """Add the unit features of a batch times their energies; labels are not needed."""
        self._sample.add(unit(outputs.features) * -energy_score(outputs.detection_logits).unsqueeze(1))

    def finish(self) -> None:
        """Keep the bank (M, d)."""
        self.bank = self._sample.rows()
        del self._sample

    def check_fitted(self) -> None:
        """Raise NotFittedError unless there are at least k training images."""
        super().check_fitted()
        if len(self.bank) < self.k:
            raise NotFittedError(
                f"Expected at least k = {self.k} training images but nnguide was fitted with {len(self.bank)}: fit it with "
                "more, or choose a smaller k."
            )

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        x = unit(outputs.features).to(self.bank.dtype)
        near = self.bank[nearest(x, self.bank, self.k)[1]]  # products of a batch round by its size, these do not
        guidance = (widest(x).unsqueeze(1) * widest(near)).sum(2).mean(1)
        return energy_score(outputs.detection_logits).to(guidance.dtype) * guidance
