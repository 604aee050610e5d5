r"""NECO: neural collapse inspired (Ben Ammar, Belkhir, Popescu, Manzanera, Franchi 2024, https://arxiv.org/abs/2310.06823).

.. math:: S(x) = -\frac{\lVert P^\top h \rVert}{\lVert h \rVert} \, \max_i z_i, \qquad h = \frac{f - \mu}{\sigma}

the share of the length of the standardised features h that lies in the principal subspace of the training features, whose
directions are the columns of P, times the largest logit. Features that collapse on their classes span one dimension less than
there are classes, and OOD images lie outside.
"""

import torch
from torch import Tensor

from offaxis.detectors.base import Detector
from offaxis.detectors.statistics import ClassMoments
from offaxis.errors import ArgumentError, at_least_one
from offaxis.heads import Outputs
from offaxis.networks.run import Network, widest


class NECO(Detector):
    """The largest logit, times the share of the features that lies in the training features' principal subspace, negated.

    Args:
        dim: the dimension of the subspace, which the paper chooses for each network; None takes C - 1.
    """

    name = "neco"
    paper = "https://arxiv.org/abs/2310.06823"
    uses = ("features", "logits")
    needs_fit = True
    tunable = fitted_for = ("dim",)
    wide = "mean"

    mean: Tensor
    spread: Tensor
    basis: Tensor

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = None if dim is None else at_least_one("dim", dim)
        self.expect("mean", "spread", "basis")

    def begin(self, network: Network) -> None:
        """Start the sums."""
        self._moments = ClassMoments(network.num_classes)

    def update(self, outputs: Outputs, labels: Tensor) -> None:
        """Add a batch to the sums."""
        self._moments.add(outputs.features, labels)

    def finish(self) -> None:
        """Compute mean and standard deviation of each feature, and the principal directions of the standardised ones."""
        covariance, width = self._moments.total(), len(self._moments.second)
        if self.dim is not None and self.dim > width:
            raise ArgumentError(f"Expected argument `dim` to be at most the {width} features but got {self.dim}.")
        variance, rounding = covariance.diagonal(), self._moments.scale() * torch.finfo(covariance.dtype).eps
        self.mean = self._moments.mean()
        self.spread = torch.where(variance > rounding, variance, 1).sqrt()  # a dead feature stays as it is
        _, vectors = torch.linalg.eigh(covariance / torch.outer(self.spread, self.spread))  # eigenvalues ascend
        self.basis = vectors[:, -(self.dim or self._moments.num_classes - 1) :].contiguous()
        del self._moments

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        x = (widest(outputs.features).to(self.mean.dtype) - self.mean) / self.spread
        share: Tensor = torch.linalg.vector_norm(x @ self.basis, dim=1) / torch.linalg.vector_norm(x, dim=1).clamp_min(
            1e-12
        )
        return -share * widest(outputs.detection_logits).amax(1).to(x.dtype)
