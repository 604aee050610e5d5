r"""ASH: activation shaping (Djurisic, Bozanic, Ashok, Liu 2023, https://arxiv.org/abs/2209.09858).

.. math:: S(x) = -\log \sum_i e^{z_i(f')}

where f' keeps the k largest of the d features of an image, k = d - round(d p), and zeroes the rest:

- **s** (scale): the kept ones times :math:`\exp(s_1 / s_2)`, the sums before and after pruning;
- **b** (binarise): the kept ones all become :math:`s_1 / k`;
- **p** (prune): the kept ones stay.

Meant for features after a ReLU; where nothing positive is kept, s_1 / s_2 counts as 0. For a cosine head f
is the unit feature vector that the head sees (``HeadCopy``).
"""

import torch
from torch import Tensor

from offaxis.detectors.checks import fraction
from offaxis.detectors.shaped_energy import ShapedEnergy
from offaxis.errors import ArgumentError

VARIANTS = ("s", "b", "p")


def kept_count(width: int, percentile: float) -> int:
    """Return how many of ``width`` features are kept: at least one."""
    return max(width - round(width * percentile), 1)


def sum_ratio(features: Tensor, percentile: float) -> Tensor:
    """Compute s_1 / s_2, all features over the kept ones: (N, d) -> (N, 1), at most d / k; 0 where s_2 is not positive."""
    kept = features.topk(kept_count(features.shape[1], percentile), 1).values.sum(1, keepdim=True)
    safe = torch.where(kept > 0, kept, torch.ones_like(kept))
    return torch.where(kept > 0, features.sum(1, keepdim=True) / safe, torch.zeros_like(kept))


def shape_activations(features: Tensor, variant: str, percentile: float) -> Tensor:
    """Prune features (N, d) -> (N, d) and, but for variant p, rescale or binarise what is kept."""
    count = kept_count(features.shape[1], percentile)
    values, where = features.topk(count, 1)
    if variant == "b":
        values = (features.sum(1, keepdim=True) / count).expand_as(values)
    pruned = torch.zeros_like(features).scatter(1, where, values)
    return pruned * sum_ratio(features, percentile).exp() if variant == "s" else pruned


class ASH(ShapedEnergy):
    """The energy after shaping the features.

    Args:
        percentile: p, the fraction of features that is zeroed; 0.9 is the paper's for ASH-S on ImageNet.
        variant: ``"s"``, ``"b"`` or ``"p"``.
    """

    name = "ash"
    paper = "https://arxiv.org/abs/2209.09858"
    tunable = ("percentile",)
    options = ("variant",)

    def __init__(self, percentile: float = 0.9, variant: str = "s") -> None:
        super().__init__()
        if variant not in VARIANTS:
            raise ArgumentError(f"Expected argument `variant` to be one of {', '.join(VARIANTS)} but got {variant!r}.")
        self.percentile = fraction("percentile", percentile)
        self.variant = variant

    @property
    def grid(self) -> dict[str, tuple[float, ...]]:
        """Return the fractions to try."""
        return {"percentile": (0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)}

    def shape(self, inputs: Tensor) -> Tensor:
        """Prune and reshape the inputs (N, d) -> (N, d)."""
        return shape_activations(inputs, self.variant, self.percentile)
