r"""NCI: neural collapse inspired (Liu, Qin 2025, https://arxiv.org/abs/2311.01479), with alpha 0.

.. math:: S(x) = -\frac{w_{\hat c} \cdot (f - \mu)}{\lVert f - \mu \rVert}

the projection of the predicted class's weight on the features' direction from the mean :math:`\mu` of the training features. It
assumes logits that are linear in the features; for a cosine head f is the unit feature vector and w the unit axis
(``HeadCopy``). Nothing to tune: the paper's alpha, which is tuned on OOD images, is 0.
"""

import torch
from torch import Tensor

from offaxis.detectors.fdbd import EPS, FDBD
from offaxis.heads import Outputs
from offaxis.networks.inference import widest


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
