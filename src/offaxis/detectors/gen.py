r"""GEN: generalised entropy (Liu, Lochman, Zach 2023, https://doi.org/10.1109/CVPR52729.2023.02293).

.. math:: S(x) = \sum_{j=1}^{M} p_{(j)}^\gamma (1 - p_{(j)})^\gamma

over the M largest probabilities. The paper's G is the negative of this; it sums, and so do we.
"""

import torch
from torch import Tensor

from offaxis.detectors.base import Detector
from offaxis.detectors.checks import at_least_one, positive
from offaxis.heads import Outputs
from offaxis.networks.inference import widest


def gen_score(logits: Tensor, gamma: float = 0.1, top: int | None = None) -> Tensor:
    """Compute scores (N,) in [0, inf) from logits (N, C): larger = more OOD.

    Args:
        logits: (N, C).
        gamma: the exponent, in (0, 1] in the paper.
        top: M, how many of the largest probabilities are summed; None takes all.
    """
    p = widest(logits).softmax(1).sort(1, descending=True).values
    # The complement of the largest is the sum of the others: 1 - p would have lost its digits.
    complement = torch.cat([p[:, 1:].sum(1, keepdim=True), 1 - p[:, 1:]], 1)
    return (p * complement)[:, :top].pow(gamma).sum(1)


class GEN(Detector):
    """The generalised entropy of the softmax.

    Args:
        gamma: the exponent; 0.1 is the paper's.
        top: M; None takes all classes, the paper takes 100 of ImageNet's 1,000.
    """

    name = "gen"
    paper = "https://doi.org/10.1109/CVPR52729.2023.02293"
    tunable = ("gamma", "top")

    def __init__(self, gamma: float = 0.1, top: int | None = None) -> None:
        super().__init__()
        self.gamma = positive("gamma", gamma)
        self.top = None if top is None else at_least_one("top", top)

    @property
    def grid(self) -> dict[str, tuple[float, ...]]:
        """Return exponents around the paper's."""
        return {"gamma": (0.01, 0.1, 0.5, 1.0)}

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        return gen_score(outputs.logits, self.gamma, self.top)
