r"""ELogitNorm: extended logit normalisation (https://arxiv.org/abs/2504.11434).

.. math::

    L = \mathrm{CE}\left(\frac{z}{D(f)}, y\right), \qquad
    D(f) = \frac{1}{C} \sum_c \frac{\lvert z_{\max} - z_c \rvert}{\lVert w_{\max} - w_c \rVert}

D is the mean distance of the features to the decision boundaries between the predicted class and the others (0 for the
predicted class itself). There is no hyperparameter; the gradient flows through D. At test the logits are plain z, and the
paper's score is max-softmax of them.
"""

import torch
from torch import Tensor

from offaxis.heads.base import Outputs
from offaxis.heads.linear import LinearHead

EPS = 1e-7  # equal weight rows have no boundary between them, and equal logits no distance to one


def weight_distances(weight: Tensor) -> Tensor:
    """Compute the distances between weight rows (C, d): (C, C), 1 where two rows are equal, so that dividing is safe.

    Taken through the Gram matrix; the guard stands before the root, whose slope at 0 is infinite.
    """
    squares = weight.square().sum(1)
    between = squares.unsqueeze(0) + squares.unsqueeze(1) - 2 * weight @ weight.T
    equal = between <= EPS * (squares.unsqueeze(0) + squares.unsqueeze(1))
    return torch.where(equal, torch.ones_like(between), between).sqrt()


def mean_boundary_distance(logits: Tensor, weight: Tensor) -> Tensor:
    """Compute the mean distance to the boundaries of the predicted class: logits (N, C), weight (C, d) -> (N, 1) >= 0."""
    largest, predicted = logits.max(1, keepdim=True)
    return ((largest - logits) / weight_distances(weight)[predicted.squeeze(1)]).mean(1, keepdim=True)


class ELogitNormHead(LinearHead):
    """Compute logits W f + b, in train mode divided by the mean distance to the decision boundaries.

    Args:
        in_features: d, the size of the features.
        num_classes: C.

    Weight and bias have the names, the shapes and the initialisation of ``nn.Linear``. In train mode everything runs in
    float32 under autocast.

    Examples:
        >>> ELogitNormHead(64, 10)(torch.randn(3, 64)).shape
        torch.Size([3, 10])
    """

    normalises_logits = True

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        self.arguments = {}

    def outputs(self, features: Tensor) -> Outputs:
        """(N, d) -> Outputs(features (N, d), logits (N, C))."""
        if not self.training:
            return super().outputs(features)
        with torch.autocast(features.device.type, enabled=False):
            f, logits = self._float32_logits(features)
            distance = mean_boundary_distance(logits, self.weight.to(f.dtype))
            # equal logits have no distance and stay as they are: over EPS, the gradient would be 10 million times as large
            return Outputs(f, logits / torch.where(distance > EPS, distance, torch.ones_like(distance)))
