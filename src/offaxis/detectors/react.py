r"""ReAct: rectified activations (Sun, Guo, Li 2021, https://arxiv.org/abs/2111.12797).

.. math:: S(x) = -\log \sum_i e^{z_i(\min(f, c))}

Features are clipped at c, a quantile of all activations of the training images, and the energy is taken of the logits
that the clipped features give. For a cosine head f is the unit feature vector that the head sees (``HeadCopy``).
"""

import numpy as np
import torch
from torch import Tensor

from offaxis.detectors.checks import fraction
from offaxis.detectors.shaped_energy import ShapedEnergy
from offaxis.detectors.statistics import Reservoir
from offaxis.errors import NotFittedError
from offaxis.heads import Outputs
from offaxis.networks.inference import Network


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

    levels: Tensor
    thresholds: Tensor

    def __init__(self, percentile: float = 0.9) -> None:
        super().__init__()
        self.percentile = fraction("percentile", percentile)
        self.expect("levels", "thresholds")

    @property
    def grid(self) -> dict[str, tuple[float, ...]]:
        """Return the quantiles to try."""
        return {"percentile": (0.85, 0.9, 0.95, 0.99)}

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
        self.levels = torch.tensor(levels, dtype=torch.float64, device=activations.device)
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
