r"""The energy after a change of the features: ReAct, ASH and SCALE, one paper a class.

.. math:: S(x) = -\log \sum_i e^{z_i(g(f))}

They differ in g alone. For a cosine head f is the unit feature vector that the head sees (``HeadCopy``).

- ReAct (Sun, Guo, Li 2021, https://arxiv.org/abs/2111.12797): :math:`g(f) = \min(f, c)`, c a quantile of all activations
  of the training images.
- ASH (Djurisic, Bozanic, Ashok, Liu 2023, https://arxiv.org/abs/2209.09858): g keeps the k largest of the d features,
  k = d - round(d p), and zeroes the rest. **s** (scale): the kept ones times :math:`\exp(s_1 / s_2)`, the sums before and
  after pruning; **b** (binarise): the kept ones all become :math:`s_1 / k`; **p** (prune): the kept ones stay. Made for
  features after a ReLU; where nothing positive is kept, s_1 / s_2 counts as 0.
- SCALE (Xu, Chen, Franchi, Yao 2024, https://arxiv.org/abs/2310.00227): all features times :math:`\exp(s_1 / s_2)`, s_1 their
  sum and s_2 the sum of the k largest; nothing is pruned.
"""

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from offaxis.detectors.base import Detector
from offaxis.detectors.logit_scores import energy_score
from offaxis.detectors.statistics import HeadCopy, Reservoir
from offaxis.errors import ArgumentError, NotFittedError, fraction
from offaxis.heads import Outputs
from offaxis.networks.run import Network, widest


class ShapedEnergy(Detector):
    """The energy of the logits that the head gives for changed features; a subclass defines the change in ``shape``."""

    uses = ("features",)
    needs_fit = True

    def __init__(self) -> None:
        super().__init__()
        self.head = HeadCopy()

    @abstractmethod
    def shape(self, inputs: Tensor) -> Tensor:
        """Change the inputs (N, d) of the head's linear map -> (N, d)."""

    def begin(self, network: Network) -> None:
        """Copy the head."""
        self.head.set(network.head)

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        return energy_score(self.head.logits(self.shape(self.head.inputs(outputs.features)), outputs.scale))


def rectify(features: Tensor, threshold: Tensor) -> Tensor:
    """Clip features (N, d) from above."""
    return features.clamp(max=threshold.to(features.dtype))


class ReAct(ShapedEnergy):
    """The energy after clipping the features.

    Args:
        percentile: the quantile of the activations at which they are clipped; 0.9 in the paper.
    """

    name = "react"
    paper = "https://arxiv.org/abs/2111.12797"
    tunable = ("percentile",)
    grid: Mapping[str, tuple[float, ...]] = {"percentile": (0.85, 0.9, 0.95, 0.99)}

    levels: Tensor
    thresholds: Tensor

    def __init__(self, percentile: float = 0.9) -> None:
        super().__init__()
        self.percentile = fraction("percentile", percentile)
        self.expect("levels", "thresholds")

    def begin(self, network: Network) -> None:
        """Copy the head and start the sample of activations."""
        super().begin(network)
        self._sample = Reservoir()

    def update(self, outputs: Outputs, labels: Tensor) -> None:  # noqa: ARG002 - the contract's
        """Add a batch to the sample; labels are not needed."""
        self._sample.add(self.head.inputs(outputs.features))

    def finish(self) -> None:
        """Compute the thresholds at the present quantile and at those of the grid."""
        activations = self._sample.rows()
        levels = sorted({self.percentile, *self.grid["percentile"]})
        quantiles = np.percentile(activations.cpu().numpy(), [100 * level for level in levels])
        self.levels = widest(activations[:0]).new_tensor(levels)
        self.thresholds = torch.tensor(quantiles, dtype=activations.dtype, device=activations.device)
        del self._sample

    def shape(self, inputs: Tensor) -> Tensor:
        """Clip inputs (N, d) at the threshold of the present quantile."""
        chosen = self.thresholds.index_select(0, (self.levels - self.percentile).abs().argmin().view(1))
        return rectify(inputs, chosen)

    def check_fitted(self) -> None:
        """Raise NotFittedError unless the threshold of the present quantile is there."""
        super().check_fitted()
        if not torch.isclose(self.levels, torch.tensor(self.percentile).to(self.levels), rtol=0, atol=1e-6).any():
            known = ", ".join(f"{level:g}" for level in self.levels.tolist())
            raise NotFittedError(
                f"Expected a quantile that react was fitted for ({known}) but got {self.percentile:g}: fit it again."
            )


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
    grid: Mapping[str, tuple[float, ...]] = {"percentile": (0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)}

    def __init__(self, percentile: float = 0.9, variant: str = "s") -> None:
        super().__init__()
        if variant not in VARIANTS:
            raise ArgumentError(f"Expected argument `variant` to be one of {', '.join(VARIANTS)} but got {variant!r}.")
        self.percentile = fraction("percentile", percentile)
        self.variant = variant

    def shape(self, inputs: Tensor) -> Tensor:
        """Prune and reshape the inputs (N, d) -> (N, d)."""
        return shape_activations(inputs, self.variant, self.percentile)


def scale_activations(features: Tensor, percentile: float) -> Tensor:
    """Multiply each row of features (N, d) by exp(s_1 / s_2)."""
    return features * sum_ratio(features, percentile).exp()


class SCALE(ShapedEnergy):
    """The energy after scaling the features.

    Args:
        percentile: p, the fraction of features that s_2 leaves out; 0.85 is the paper's for ImageNet.
    """

    name = "scale"
    paper = "https://arxiv.org/abs/2310.00227"
    tunable = ("percentile",)
    grid: Mapping[str, tuple[float, ...]] = {"percentile": (0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)}

    def __init__(self, percentile: float = 0.85) -> None:
        super().__init__()
        self.percentile = fraction("percentile", percentile)

    def shape(self, inputs: Tensor) -> Tensor:
        """Multiply each row of the inputs (N, d) by one number."""
        return scale_activations(inputs, self.percentile)
