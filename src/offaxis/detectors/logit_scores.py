r"""Scores of the logits alone: one paper a class, nothing is fitted.

- Maximum softmax probability, the baseline (Hendrycks, Gimpel 2017, https://arxiv.org/abs/1610.02136):
  :math:`S = -\max_i p_i`. Taken in float64: in float32 every image whose largest logit leads by 17 has probability 1.
- Maximum logit (Hendrycks et al. 2022, https://arxiv.org/abs/1911.11132): :math:`S = -\max_i z_i`.
- Free energy (Liu, Wang, Owens, Li 2020, https://arxiv.org/abs/2010.03759): :math:`S = -T \log \sum_i e^{z_i / T}`; the
  paper takes T = 1 and finds larger temperatures no better, so there is no grid.
- GEN, generalised entropy (Liu, Lochman, Zach 2023, https://doi.org/10.1109/CVPR52729.2023.02293):
  :math:`S = \sum_{j=1}^{M} p_{(j)}^\gamma (1 - p_{(j)})^\gamma` over the M largest probabilities; the paper's G is
  the negative.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from offaxis.detectors.base import Detector
from offaxis.errors import at_least_one, positive
from offaxis.heads import Outputs
from offaxis.heads.base import at_least_float32
from offaxis.networks.classifier import Classifier
from offaxis.networks.combine import Ensemble, Paired
from offaxis.networks.run import widest


def max_softmax_score(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Compute scores (N,) in [-1, -1/C] from logits (N, C): larger = more OOD."""
    return -(widest(logits) / temperature).softmax(1).amax(1)


class MaxSoftmax(Detector):
    """The network's confidence in its class, negated."""

    name = "max-softmax"
    paper = "https://arxiv.org/abs/1610.02136"
    takes = (Classifier, Paired, Ensemble)  # the probabilities of an ensemble are the mean over its members

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        return max_softmax_score(outputs.detection_logits)


def max_logit_score(logits: Tensor) -> Tensor:
    """Compute scores (N,) from logits (N, C): larger = more OOD."""
    return -logits.amax(1)


class MaxLogit(Detector):
    """The largest logit, negated."""

    name = "max-logit"
    paper = "https://arxiv.org/abs/1911.11132"

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        return max_logit_score(outputs.detection_logits)


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
        return energy_score(outputs.detection_logits, self.temperature)


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
    grid: Mapping[str, tuple[float, ...]] = {"gamma": (0.01, 0.1, 0.5, 1.0)}

    def __init__(self, gamma: float = 0.1, top: int | None = None) -> None:
        super().__init__()
        self.gamma = positive("gamma", gamma)
        self.top = None if top is None else at_least_one("top", top)

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        return gen_score(outputs.detection_logits, self.gamma, self.top)
