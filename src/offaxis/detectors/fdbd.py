r"""fDBD and NCI: features relative to the mean of the training features, and the head's weights.

Fast decision boundary distance (Liu, Qin 2024, https://arxiv.org/abs/2312.11536):

.. math::

    S_{\text{fDBD}}(x) = -\frac{1}{C - 1} \sum_{c \ne \hat c}
    \frac{z_{\hat c} - z_c}{\lVert w_{\hat c} - w_c \rVert \, \lVert f - \mu \rVert}

the mean distance from the features to the decision boundaries of the predicted class, relative to their distance from the
mean :math:`\mu` of the training features. Neural collapse inspired (Liu, Qin 2025, https://arxiv.org/abs/2311.01479), with
alpha 0:

.. math:: S_{\text{NCI}}(x) = -\frac{w_{\hat c} \cdot (f - \mu)}{\lVert f - \mu \rVert}

the projection of the predicted class's weight on the features' direction from that mean. Both assume logits that are linear in
the features; for a cosine head f is the unit feature vector, w the unit axes and z the cosines (``HeadCopy``). Nothing to tune:
NCI's alpha, which its paper tunes on OOD images, is 0.
"""

import torch
from torch import Tensor

from offaxis.detectors.base import Detector
from offaxis.detectors.statistics import HeadCopy
from offaxis.heads import Outputs
from offaxis.heads.normalised import weight_distances
from offaxis.networks.run import Network, accumulating, widest

EPS = 1e-12


def fdbd_score(logits: Tensor, distances: Tensor, length: Tensor) -> Tensor:
    """Compute scores (N,) <= 0, larger = more OOD.

    Args:
        logits: (N, C), linear in the features.
        distances: (C, C) between weight rows, 1 where rows are equal.
        length: (N,), the distance of the features to the mean of the training features.
    """
    largest, predicted = logits.max(1, keepdim=True)
    total = ((largest - logits) / distances[predicted.squeeze(1)]).sum(1)
    return -total / ((logits.shape[1] - 1) * length.clamp_min(EPS))


class FDBD(Detector):
    """Score by the distance to the decision boundaries relative to that from the training mean, negated."""

    name = "fdbd"
    paper = "https://arxiv.org/abs/2312.11536"
    uses = ("features",)
    needs_fit = True

    mean: Tensor
    distances: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head = HeadCopy()
        self.expect("mean", "distances")

    def begin(self, network: Network) -> None:
        """Copy the head and start the sum."""
        self.head.set(network.head)
        self.distances = weight_distances(widest(self.head.weight))
        self._sum, self._count = accumulating(self.head.weight).new_zeros(self.head.weight.shape[1]), 0

    def update(self, outputs: Outputs, labels: Tensor) -> None:  # noqa: ARG002 - the contract's
        """Add a batch to the sum; labels are not needed."""
        inputs = accumulating(self.head.inputs(outputs.features))
        self._sum += inputs.sum(0)
        self._count += len(inputs)

    def finish(self) -> None:
        """Compute the mean of the training features."""
        self.mean = self._sum / self._count
        del self._sum, self._count

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute the scores (N,) of N images."""
        x = widest(self.head.inputs(outputs.features)).to(self.mean.dtype)
        length: Tensor = torch.linalg.vector_norm(x - self.mean, dim=1)
        return fdbd_score(self.head.logits(x, None), self.distances, length)


def nci_score(centred: Tensor, weight: Tensor) -> Tensor:
    """Compute scores (N,) from features less their mean (N, d) and the predicted class's weight (N, d); larger = more OOD."""
    length: Tensor = torch.linalg.vector_norm(centred, dim=1)
    return -(centred * weight).sum(1) / length.clamp_min(EPS)


class NCI(FDBD):
    """Score by the alignment of the features, taken from the training mean, with the predicted class's weight, negated.

    What is fitted is the same as for fDBD: a copy of the head, and the mean of the training features.
    """

    name = "nci"
    paper = "https://arxiv.org/abs/2311.01479"

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute the scores (N,) of N images."""
        x = widest(self.head.inputs(outputs.features)).to(self.mean.dtype)
        weight = self.head.weight.to(x.dtype)
        predicted = self.head.logits(x, None).argmax(1)
        return nci_score(x - self.mean, weight[predicted])
