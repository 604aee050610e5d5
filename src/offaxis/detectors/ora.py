r"""ORA: relative angles (Demirel, Fumero, Locatello 2025, https://arxiv.org/abs/2410.04525).

.. math::

    S(x) = \cos \max_c \angle(f - \mu, f_c - \mu), \qquad
    f_c = f - \frac{z_{\hat c} - z_c}{\lVert w_{\hat c} - w_c \rVert^2} (w_{\hat c} - w_c)

from the largest angle, seen from the mean :math:`\mu` of the training features, between the features and their projection on a
decision boundary of the predicted class :math:`\hat c`; the paper scores by the angle, which ranks images in the same order.
No projection is computed: with the distance d to the boundary and the part b of :math:`f - \mu` along its normal, the angle is
that of :math:`(\lVert f - \mu \rVert^2 - d b,\; d \sqrt{\lVert f - \mu \rVert^2 - b^2})`. What is fitted is the same as for
fDBD, and so is what f and w are for a cosine head.
"""

from torch import Tensor

from offaxis.detectors.fdbd import EPS, FDBD
from offaxis.heads import Outputs
from offaxis.networks.run import widest


def ora_score(logits: Tensor, distances: Tensor, centred: Tensor, weight: Tensor) -> Tensor:
    """Compute scores (N,) in [-1, 1], larger = more OOD.

    Args:
        logits: (N, C), linear in the features.
        distances: (C, C) between weight rows, 1 where rows are equal.
        centred: (N, d), the features less the mean of the training features.
        weight: (C, d).
    """
    largest, predicted = logits.max(1, keepdim=True)
    apart = distances[predicted.squeeze(1)]
    along = centred @ weight.T
    boundary, normal = (largest - logits) / apart, (along.gather(1, predicted) - along) / apart
    square = centred.square().sum(1, keepdim=True)
    across = boundary * (square - normal.square()).clamp_min(0).sqrt()
    towards = square - boundary * normal
    return (towards / (towards.square() + across.square()).sqrt().clamp_min(EPS)).amin(1)


class ORA(FDBD):
    """Score by the largest angle, seen from the training mean, between the features and a decision boundary."""

    name = "ora"
    paper = "https://arxiv.org/abs/2410.04525"

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute the scores (N,) of N images."""
        x = widest(self.head.inputs(outputs.features)).to(self.mean.dtype)
        return ora_score(self.head.logits(x, None), self.distances, x - self.mean, self.head.weight.to(x.dtype))
