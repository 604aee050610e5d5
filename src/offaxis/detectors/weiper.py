r"""WeiPer+KLD: divergences under perturbed weights (Granz, Heurich, Landgraf 2024, https://arxiv.org/abs/2405.17164).

.. math::

    S(x) = D(p_f, q_f(x)) + \lambda_1 D(p_z, q_z(x)) - \lambda_2 \frac1r \sum_{j=1}^r \max_i \mathrm{softmax}_i(z^{(j)}),
    \qquad z^{(j)} = (W + \delta \lVert W \rVert N_j) f + b

:math:`q_f(x)` is the histogram of the d features of one image, :math:`q_z(x)` that of its rC logits under r perturbations of
the weights, whose rows point in random directions :math:`N_j` and are :math:`\delta` times as long as the weights'; both are
smoothed by a window of neighbouring bins. p are the mean histograms of training images, and D is the symmetric divergence, the
sum of (p - q) log (p / q). For a cosine head f is the unit feature vector and W holds the unit axes; the logits of the last
term have the image's scale.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis.detectors.base import Detector
from offaxis.detectors.statistics import HeadCopy, Reservoir
from offaxis.errors import at_least_one, not_negative
from offaxis.heads import Outputs
from offaxis.networks.run import Network, widest

BINS = 100
WINDOWS, FLOORS = (4, 15), (0.01, 0.025)
"""Smoothing of the features' histogram and of the perturbed logits', in bins, and what is added to each bin, as published."""
SAMPLE, BLOCK = 10_000, 64
"""Training images whose histograms are averaged, and how many of them are in memory at once."""


def soft_histograms(values: Tensor, limits: Tensor) -> Tensor:
    """Compute the shares (N, BINS) of the values (N, D) of each image between two limits (2,); those outside are left out."""
    low, high = limits.to(values.dtype)
    places = ((values - low) / (high - low) * BINS).floor().clamp(-1, BINS).long() + 1
    counts = values.new_zeros(values.shape[0], BINS + 2).scatter_add(1, places, torch.ones_like(values))
    return counts[:, 1:-1] / values.shape[1]


def divergence(typical: Tensor, shares: Tensor, window: int, floor: float) -> Tensor:
    """Compute D (N,) >= 0 between a typical histogram (BINS,) and smoothed ones (N, BINS); ``floor`` is added to each bin."""
    places = torch.arange(BINS + window - 1, device=shares.device) - (window - 1) // 2
    padded = shares[:, places.clamp(0, BINS - 1)]  # the outer bins are repeated
    q = torch.stack([padded[:, start : start + BINS] for start in range(window)]).mean(0) + floor
    p = typical.to(q.dtype) + floor
    p, q = p / p.sum(), q / q.sum(1, keepdim=True)
    return ((p - q) * (p.log() - q.log())).sum(1)


class WeiPerKLD(Detector):
    """How far the features of an image, and its logits under random perturbations, are spread unlike training images'.

    The defaults are those that the authors chose for CIFAR-10, on OOD validation images; for CIFAR-100 they took 2.4, 0.1 and
    1. What is saved holds the perturbed weights, (repeats * C, d).

    Args:
        distance: delta, the length of the perturbations relative to the weights'.
        logits_weight: lambda_1.
        confidence_weight: lambda_2.
        repeats: r.
    """

    name = "weiper-kld"
    paper = "https://arxiv.org/abs/2405.17164"
    uses = ("features",)
    needs_fit = True
    tunable = ("distance", "logits_weight", "confidence_weight")
    fitted_for = ("distance",)
    options = ("repeats",)

    weight: Tensor
    limits: Tensor
    typical: Tensor

    def __init__(
        self,
        distance: float = 1.8,
        logits_weight: float = 2.5,
        confidence_weight: float = 0.1,
        repeats: int = 100,
    ) -> None:
        super().__init__()
        self.distance = not_negative("distance", distance)
        self.logits_weight = not_negative("logits_weight", logits_weight)
        self.confidence_weight = not_negative("confidence_weight", confidence_weight)
        self.repeats = at_least_one("repeats", repeats)
        self.head = HeadCopy()
        self.expect("weight", "limits", "typical")

    def begin(self, network: Network) -> None:
        """Copy the head and perturb its weights."""
        self.head.set(network.head)
        own = self.head.weight.repeat(self.repeats, 1)
        noise = torch.randn(own.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(own)
        self.weight = own + self.distance * own.norm(dim=1, keepdim=True) * F.normalize(noise, dim=1)
        self._sample = Reservoir(SAMPLE)

    def update(self, outputs: Outputs, labels: Tensor) -> None:  # noqa: ARG002 - the contract's
        """Add a batch to the sample; labels are not needed."""
        self._sample.add(self.head.inputs(outputs.features))

    def finish(self) -> None:
        """Compute the limits of the histograms and their means."""
        blocks = self._sample.rows().split(BLOCK)
        ends = [torch.stack([torch.stack(part.aminmax()) for part in self._values(block)]) for block in blocks]
        lows, highs = torch.stack(ends).unbind(2)
        self.limits = torch.stack([lows.amin(0), highs.amax(0) + 1e-8], 1)  # the largest value is inside
        sums = [
            torch.stack([soft_histograms(*pair).sum(0) for pair in zip(self._values(block), self.limits, strict=True)])
            for block in blocks
        ]
        self.typical = torch.stack(sums).sum(0) / sum(map(len, blocks))
        del self._sample

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        features, logits = self._values(self.head.inputs(outputs.features))
        of_features, of_logits = (
            divergence(self.typical[i], soft_histograms(values, self.limits[i]), WINDOWS[i], FLOORS[i])
            for i, values in enumerate((features, logits))
        )
        scaled = logits if outputs.scale is None else widest(outputs.scale).unsqueeze(1) * logits
        confidence: Tensor = scaled.unflatten(1, (self.repeats, -1)).softmax(2).amax(2).mean(1)
        return of_features + self.logits_weight * of_logits - self.confidence_weight * confidence

    def _values(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs (N, d) of the head and their logits (N, repeats * C) under the perturbed weights."""
        x = widest(inputs)
        return x, F.linear(x, self.weight.to(x.dtype), self.head.bias.repeat(self.repeats).to(x.dtype))
