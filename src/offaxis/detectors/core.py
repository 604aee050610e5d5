r"""CORE: confidence and orthogonal residual (Yang, Kim, Bahk 2026, https://arxiv.org/abs/2603.18290).

.. math::

    S(x) = -\zeta\Bigl(\log \sum_i e^{z_i}\Bigr) - \zeta\Bigl(\max_c \cos(r, r_c)\Bigr), \qquad
    r = (I - W^+ W)(f - \mu), \quad \zeta(v) = \frac{v - \operatorname{mean} v}{\operatorname{std} v}

the energy, which sees what the rows of W span, and the direction of the residual r that they do not see: how well it agrees
with the residual :math:`r_c` of a class mean. :math:`\mu` is the mean of the training features, over which both are
standardised. For a cosine head f is the unit feature vector that the head sees, and W holds the unit axes.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis.detectors.base import Detector
from offaxis.detectors.logit_scores import energy_score
from offaxis.detectors.statistics import ClassMoments, HeadCopy, Reservoir
from offaxis.errors import ArgumentError
from offaxis.heads import Outputs
from offaxis.networks.run import Network, accumulating, widest


class CORE(Detector):
    """The energy, and how little what the output layer does not see of the features looks like that of any class."""

    name = "core"
    paper = "https://arxiv.org/abs/2603.18290"
    uses = ("features", "logits")
    needs_fit = True

    residual: Tensor
    mean: Tensor
    directions: Tensor
    centre: Tensor
    spread: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head = HeadCopy()
        self.expect("residual", "mean", "directions", "centre", "spread")

    def begin(self, network: Network) -> None:
        """Copy the head, find what its weights leave out and start the sums."""
        self.head.set(network.head)
        weight = accumulating(self.head.weight)
        _, lengths, vectors = torch.linalg.svd(weight)
        rank = int((lengths > lengths[0] * max(weight.shape) * torch.finfo(weight.dtype).eps).sum())
        if rank == len(vectors):
            raise ArgumentError(
                f"Expected an output layer that leaves out a part of the features but its {len(weight)} rows span all "
                f"{rank}: core needs more features than classes; fdbd, nci and ora do not."
            )
        self.residual = vectors[rank:].T.contiguous()
        self._moments = ClassMoments(network.num_classes, covariance=False)
        self._sample, self._energy = Reservoir(), Reservoir()

    def update(self, outputs: Outputs, labels: Tensor) -> None:
        """Add a batch to the sums."""
        inputs = self.head.inputs(outputs.features)
        self._moments.add(inputs, labels)
        self._sample.add(inputs)
        self._energy.add(energy_score(widest(outputs.logits)).unsqueeze(1))

    def finish(self) -> None:
        """Compute the residuals of the class means, and the mean and standard deviation of both terms."""
        self.mean = self._moments.mean()
        self.directions = F.normalize((self._moments.means() - self.mean) @ self.residual, dim=1)
        agreement = torch.cat([self._agreement(accumulating(part)) for part in self._sample.rows().split(8192)])
        terms = torch.stack([self._energy.rows().squeeze(1).to(agreement), -agreement])
        self.centre, self.spread = terms.mean(1), terms.std(1, correction=0).clamp_min(1e-12)
        del self._moments, self._sample, self._energy

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images: their mean over training images is 0."""
        agreement = self._agreement(self.head.inputs(outputs.features))
        terms = torch.stack([energy_score(widest(outputs.logits)).to(agreement.dtype), -agreement], 1)
        return ((terms - self.centre) / self.spread).sum(1)

    def _agreement(self, inputs: Tensor) -> Tensor:
        """Compute the largest cosines (N,) between the residuals of inputs (N, d) and those of the class means."""
        x = widest(inputs).to(self.mean.dtype)
        return F.linear(F.normalize((x - self.mean) @ self.residual, dim=1), self.directions).amax(1)
