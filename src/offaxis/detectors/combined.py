r"""Four readings of one forward pass, combined by their p-values so that none has to be chosen: ours.

.. math::

    S(x) = \sum_r \Phi^{-1}(1 - p_r(x)) + \log\Bigl(1 + \max\bigl(0, \tfrac{S_r(x) - \max_r}{s_r}\bigr)\Bigr)

with :math:`p_r` the share of up to 5,000 training images whose reading is as large, as Stouffer combines p-values, and a
logarithm where a reading is above all of theirs, in units of their standard deviation :math:`s_r`. Each fifth of these images
is read by statistics of all others, as a new image is. The readings, of unit features:

- the largest cosine with a class mean (``mean-cosine``, CTM), negated;
- the squared distance :math:`D_c` to the nearest class mean under one covariance (Mahalanobis++, shrunk by Ledoit and Wolf);
- how much less likely an image is under the classes than under one Gaussian about their common mean,
  :math:`-\log \sum_c e^{(D_0 - D_c) / 2}`;
- the confidence of the output layer, :math:`-\log \max_i p_i`.

Readings disagree about which OOD images are easy: a distance sees what is far from all training images and may find a new
class of the same kind more typical than the known ones; a confidence sees what lies between classes. Normal scores put all on
one scale, so that no reading outvotes the others by its tail. What was compared: study/report/regret.md.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis.detectors.base import Detector
from offaxis.detectors.cosine import cosine_score
from offaxis.detectors.feature_mahalanobis import ledoit_wolf
from offaxis.detectors.statistics import ClassMoments, Fitted, Reservoir
from offaxis.heads import Outputs
from offaxis.heads.base import at_least_float32
from offaxis.networks.run import Network, accumulating, widest

SAMPLE, FOLDS = 5000, 5
FLOOR = 1e-12  # of a variance and of a spread: classes can collapse to a point


class Readings(Fitted):
    """The readings of unit features and logits, by class means and one covariance within classes."""

    directions: Tensor
    whitener: Tensor
    points: Tensor
    origin: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.expect("directions", "whitener", "points", "origin")

    def sizes(self) -> dict[str, int]:
        """Return the width of the features."""
        return {"features": self.directions.shape[1]}

    def set(self, moments: ClassMoments, sample: Tensor, labels: Tensor) -> None:
        """Take the moments of unit features; the shrinkage is estimated on a sample (n, d) of them with labels (n,)."""
        means, mean = moments.means(), moments.mean()
        covariance = ledoit_wolf(moments.within(), sample - means[labels], int(moments.counts.sum()))
        covariance.diagonal().add_(FLOOR)
        root = torch.linalg.cholesky(covariance)
        self.whitener = torch.linalg.inv(root).T.contiguous()
        self.directions = F.normalize(means, dim=1)
        self.origin = mean @ self.whitener
        self.points = means @ self.whitener - self.origin

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """Compute the readings (N, 4) of unit features (N, d) and logits (N, C): larger = more out-of-distribution."""
        x = features.to(self.whitener.dtype)
        white = x @ self.whitener - self.origin
        nearer = white @ self.points.T - self.points.square().sum(1) / 2  # (D_0 - D_c) / 2
        found = (
            cosine_score(x @ self.directions.T),
            white.square().sum(1) - 2 * nearer.amax(1),
            -nearer.logsumexp(1),
            -widest(logits).to(x.dtype).log_softmax(1).amax(1),
        )
        return torch.stack(found, 1)


class Combined(Detector):
    """The sum of the normal scores of four readings: class means, a distance, a likelihood and the confidence."""

    name = "combined"
    paper = "https://arxiv.org/abs/2505.18032"
    uses = ("features", "logits")
    needs_fit = True

    known: Tensor
    spread: Tensor
    normal: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.readings = Readings()
        self.expect("known", "spread", "normal")

    def begin(self, network: Network) -> None:
        """Start the sums."""
        self._moments = ClassMoments(network.num_classes)
        self._sample = [Reservoir(SAMPLE) for _ in range(3)]  # features, logits and labels of the same images

    def update(self, outputs: Outputs, labels: Tensor) -> None:
        """Add a batch to the sums."""
        x = unit_features(outputs.features)
        self._moments.add(x, labels)
        for sample, rows in zip(self._sample, (x, outputs.detection_logits, labels.unsqueeze(1)), strict=True):
            sample.add(accumulating(rows))

    @torch.no_grad()
    def finish(self) -> None:
        """Compute the statistics, and the readings of images that they were not computed from: (4, n), each sorted."""
        x, logits, labels = (sample.rows() for sample in self._sample)
        y = labels.squeeze(1).long()
        read, parts = Readings(), []
        for own in (torch.arange(fold, len(x), FOLDS) for fold in range(min(FOLDS, len(x)))):
            read.set(self._moments.without(x[own], y[own]), x, y)
            parts.append(read(x[own], logits[own]))
        self.known = torch.cat(parts).T.sort(dim=1).values.contiguous()
        self.spread = self.known.std(1, correction=0).clamp_min(FLOOR)
        count = len(x) + 1
        self.normal = torch.special.ndtri((torch.arange(count).to(self.known) + 0.5) / count)
        self.readings.set(self._moments, x, y)
        del self._moments, self._sample

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        found = self.readings(unit_features(outputs.features), outputs.detection_logits)
        if torch.compiler.is_compiling():  # onnx has no binary search
            below = (self.known < found.unsqueeze(2)).sum(2)
        else:
            below = torch.searchsorted(self.known, found.T.contiguous()).T
        beyond = ((found - self.known[:, -1]) / self.spread).clamp_min(0)
        scores: Tensor = (self.normal[below] + (1 + beyond).log()).sum(1)
        return scores


def unit_features(features: Tensor) -> Tensor:
    """Divide features (N, d) by their lengths, in float64."""
    return F.normalize(widest(at_least_float32(features)), dim=1)
