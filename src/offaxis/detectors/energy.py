r"""Free energy (Liu, Wang, Owens, Li 2020, https://arxiv.org/abs/2010.03759).

.. math:: S(x) = -T \log \sum_i e^{z_i(x) / T}

The paper takes T = 1 and finds larger temperatures no better, so there is no grid.
"""

import torch
from torch import Tensor

from offaxis.detectors.base import Detector
from offaxis.detectors.checks import positive
from offaxis.heads import Outputs
from offaxis.heads.base import at_least_float32


def energy_score(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Compute scores (N,) from logits (N, C): larger = more OOD."""
    return -temperature * torch.logsumexp(at_least_float32(logits) / temperature, 1)


class Energy(Detector):
    """The negative log-sum-exp of the logits.

    Args:
        temperature: T, 1 in the paper.
    """

    name = "energy"
    paper = "https://arxiv.org/abs/2010.03759"
    tunable = ("temperature",)

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = positive("temperature", temperature)

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        return energy_score(outputs.logits, self.temperature)
