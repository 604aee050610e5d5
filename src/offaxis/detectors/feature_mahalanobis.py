r"""Mahalanobis distances in the space of the last features: relative, and on unit features (Mahalanobis++).

.. math::

    S_{\text{rel}}(x) = \min_c d_\Sigma(f, \mu_c) - d_{\Sigma_0}(f, \mu_0), \qquad
    S_{++}(x) = \min_c d_\Sigma(\hat f, \mu_c), \qquad
    d_\Sigma(f, \mu) = (f - \mu)^\top \Sigma^{+} (f - \mu), \quad \hat f = f / \lVert f \rVert

with the class means and the covariance within classes; the relative distance is less the same under one Gaussian for all
classes. Covariances are divided by the number of images, as in the papers, or shrunk as Ledoit and Wolf do.

- ``relative-mahalanobis``: Ren et al. 2021, https://arxiv.org/abs/2106.09022.
- ``mahalanobis++`` and ``relative-mahalanobis++``: Mueller, Hein 2025, https://arxiv.org/abs/2505.18032.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis.detectors.base import Detector
from offaxis.detectors.statistics import ClassMoments, Reservoir, TiedGaussian
from offaxis.errors import true_or_false
from offaxis.heads import Outputs
from offaxis.heads.base import at_least_float32
from offaxis.networks.run import Network, widest


def relative_mahalanobis_score(to_classes: Tensor, to_all: Tensor) -> Tensor:
    """Compute scores (N,) from squared distances to the classes (N, C) and to the common mean (N, 1): larger = more OOD."""
    return (to_classes - to_all).amin(1)


def ledoit_wolf(covariance: Tensor, centred: Tensor, count: int | None = None) -> Tensor:
    """Shrink a covariance (d, d) towards a multiple of the identity, by Ledoit and Wolf's 2004 formula.

    Args:
        covariance: of the rows, divided by their number.
        centred: (N, d), the rows less their means, or a sample of them.
        count: how many rows the covariance is of, where these are a sample.
    """
    width = len(covariance)
    level = covariance.trace() / width
    size = covariance.square().sum()
    fourth = centred.square().sum(1).square().mean()  # the mean of |x|^4
    apart = (size - 2 * level * covariance.trace() + width * level.square()) / width
    noise = torch.minimum((fourth - size) / ((count or len(centred)) * width), apart)
    share = torch.where(apart > 0, noise / apart, torch.zeros_like(apart)).clamp(0, 1)
    return (1 - share) * covariance + share * level * torch.eye(width).to(covariance)


class FeatureMahalanobis(Detector):
    """Score by the distance of the features to the nearest class mean under one covariance; a base of three detectors.

    Args:
        shrinkage: shrink the covariances (Ledoit and Wolf), for features that are many beside the images.
    """

    uses = ("features",)
    needs_fit = True
    options = ("shrinkage",)
    relative = False
    unit = False

    def __init__(self, shrinkage: bool = False) -> None:
        super().__init__()
        self.shrinkage = true_or_false("shrinkage", shrinkage)
        self.classes = TiedGaussian()
        if self.relative:
            self.background = TiedGaussian()

    def begin(self, network: Network) -> None:
        """Start the sums."""
        self._moments = ClassMoments(network.num_classes)
        self._sample, self._labels = Reservoir(), Reservoir()

    def update(self, outputs: Outputs, labels: Tensor) -> None:
        """Add a batch to the sums."""
        features = self._inputs(outputs)
        self._moments.add(features, labels)
        if self.shrinkage:
            self._sample.add(features)
            self._labels.add(labels.unsqueeze(1))

    def finish(self) -> None:
        """Compute the means and the covariances."""
        moments = self._moments
        means, within = moments.means(), moments.within()
        mean, total = moments.mean().unsqueeze(0), moments.total()
        if self.shrinkage:
            rows, labels = self._sample.rows().to(means), self._labels.rows().squeeze(1).to(means.device)
            shrunk = ledoit_wolf(within, rows - means[labels], int(moments.counts.sum()))
            # the same for both: shrunk each by its own amount, the data as a whole could come out narrower than a class
            within, total = shrunk, total + (shrunk - within)
        self.classes.set(means, within, moments.scale())
        if self.relative:
            self.background.set(mean, total, moments.scale())
        del self._moments, self._sample, self._labels

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        features = self._inputs(outputs)
        distances: Tensor = self.classes(features)
        return relative_mahalanobis_score(distances, self.background(features)) if self.relative else distances.amin(1)

    def _inputs(self, outputs: Outputs) -> Tensor:
        features = outputs.features
        return F.normalize(widest(at_least_float32(features)), dim=1) if self.unit else features


class RelativeMahalanobis(FeatureMahalanobis):
    """How much farther an image is from its nearest class than from the data as a whole."""

    name = "relative-mahalanobis"
    paper = "https://arxiv.org/abs/2106.09022"
    relative = True


class MahalanobisPlusPlus(FeatureMahalanobis):
    """How far the unit features of an image are from the nearest class."""

    name = "mahalanobis++"
    paper = "https://arxiv.org/abs/2505.18032"
    unit = True


class RelativeMahalanobisPlusPlus(FeatureMahalanobis):
    """How much farther the unit features of an image are from the nearest class than from the data as a whole."""

    name = "relative-mahalanobis++"
    paper = "https://arxiv.org/abs/2505.18032"
    relative = unit = True
