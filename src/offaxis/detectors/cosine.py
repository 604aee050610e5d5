r"""Scaled cosine similarity (Techapanurak, Suganuma, Okatani 2019, https://arxiv.org/abs/1905.10628).

.. math:: S(x) = -\max_i \cos\theta_i(x), \qquad \cos\theta_i = \frac{w_i^\top f}{\lVert w_i \rVert \lVert f \rVert}

The paper calls an image ID where its largest cosine is high; here the sign is turned, so that larger = more OOD. The
scale s is not part of the score, and there is nothing to tune.

With the class means :math:`\mu_i` of the training features:

.. math::

    S_{\text{mean}}(x) = -\max_i \cos(f(x), \mu_i), \qquad
    S_{\text{two}}(x) = -\tfrac12 \left[\max_i \cos(f, w_i) + \max_i \cos(f, \mu_i)\right]

The cosine with the class means is Class Typical Matching (https://arxiv.org/abs/2306.14920); the two cosines are its mean with
the cosine of the trained axes. A class's weight says what distinguishes it from the others; its mean says where its images lie.
A long training makes the two parallel (neural collapse: Papyan, Han, Donoho 2020, https://arxiv.org/abs/2008.08186); until then
what all classes have in common shows in the means alone, and an OOD image may lack it. There is nothing to tune and no OOD
image is needed; the means take one pass over training images.

IsoMax+'s minimum distance (Macêdo, Ludermir 2022, https://arxiv.org/abs/2105.14399) between unit features and the unit
prototypes of the head ``isomax`` ranks images as the cosine does: :math:`\min_j \lVert \hat f - \hat p_j \rVert =
\sqrt{2 - 2 \max_j \cos\theta_j}`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.detectors.base import Detector, Passes
from offaxis.detectors.statistics import ClassMoments
from offaxis.heads import Head, IsoMaxHead, Outputs
from offaxis.heads.base import at_least_float32
from offaxis.networks.classifier import Classifier
from offaxis.networks.combine import Ensemble, Paired
from offaxis.networks.run import Network, eval_mode


@torch.no_grad()
def gives_cosine(head: Head) -> bool:
    """Return whether a head gives a cosine, by running it once."""
    parameter = next(head.parameters(), torch.empty(0))
    with eval_mode(head):
        features = torch.ones(1, head.in_features, device=parameter.device, dtype=parameter.dtype)
        return head.outputs(features).cosine is not None


def cosine_score(cosine: Tensor) -> Tensor:
    """Compute scores (N,) in [-1, 1] from cosines (N, C): larger = more OOD."""
    return -cosine.amax(1)


class Cosine(Detector):
    """The largest cosine between an image's features and the class axes, negated."""

    name = "cosine"
    paper = "https://arxiv.org/abs/1905.10628"
    uses = ("cosine",)
    takes: tuple[type[nn.Module], ...] = (
        Classifier,
        Paired,
        Ensemble,
    )  # an ensemble's cosine is the mean over its members

    def suits(self, network: Network) -> bool:
        """Return whether it is a single network: the cosine of an ensemble has a name of its own."""
        return not isinstance(network, Ensemble)

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        assert outputs.cosine is not None  # score() has checked it
        return cosine_score(outputs.cosine)


class CosineEnsemble(Cosine):
    """The cosine score of an ``Ensemble``, whose outputs hold the averaged cosines.

    Args:
        networks: how many networks the ensemble has, for ``passes``; five in the paper.
    """

    name = "cosine-ensemble"
    takes = (Ensemble,)
    options = ("networks",)

    def __init__(self, networks: int = 5) -> None:
        super().__init__()
        self.networks = networks

    @property
    def passes(self) -> Passes:
        """Return one forward pass through each network."""
        return Passes(self.networks)

    def suits(self, network: Network) -> bool:
        """Return whether it is an ensemble."""
        return isinstance(network, Ensemble)

    def score_images(self, network: Network, images: Tensor) -> Tensor:
        """Compute scores (N,) in [-1, 1] of images (N, c, h, w)."""
        self.check_network(network)
        return super().score_images(network, images)


class MeanCosine(Detector):
    """The largest cosine between an image's features and the mean features of a class, negated.

    This is Class Typical Matching (CTM, https://arxiv.org/abs/2306.14920).
    """

    name = "mean-cosine"
    paper = "https://arxiv.org/abs/2306.14920"
    uses: tuple[str, ...] = ("features",)
    needs_fit = True
    wide = "directions"

    directions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.expect("directions")

    def begin(self, network: Network) -> None:
        """Start the sums."""
        self._moments = ClassMoments(network.num_classes, covariance=False)

    def update(self, outputs: Outputs, labels: Tensor) -> None:
        """Add a batch to the sums."""
        self._moments.add(outputs.features, labels)

    def finish(self) -> None:
        """Compute the directions of the class means, (C, d)."""
        self.directions = F.normalize(self._moments.means(), dim=1)
        del self._moments

    def cosines(self, features: Tensor) -> Tensor:
        """Compute the cosines (N, C) in [-1, 1] of features (N, d) with the class means."""
        x = at_least_float32(features)
        return F.linear(F.normalize(x, dim=1), self.directions.to(x.dtype)).clamp(-1, 1)

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) in [-1, 1] from the Outputs of N images."""
        return -self.cosines(outputs.features).amax(1)


class TwoCosines(MeanCosine):
    """The mean of the largest cosine with a class weight and the largest with a class mean, negated.

    What it adds to Class Typical Matching (``mean-cosine``) is the cosine with the trained axes of a cosine head.
    """

    name = "two-cosines"
    paper = "https://arxiv.org/abs/1905.10628"
    uses = ("features", "cosine")

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) in [-1, 1] from the Outputs of N images."""
        assert outputs.cosine is not None  # score() has checked it
        return (cosine_score(outputs.cosine) + super().forward(outputs)) / 2


def minimum_distance_score(cosine: Tensor) -> Tensor:
    """Compute scores (N,) in [0, 2] from cosines (N, C): larger = more OOD."""
    return (2 - 2 * cosine.amax(1)).clamp_min(0).sqrt()


class IsoMaxPlus(Detector):
    """The distance from unit features to the nearest prototype."""

    name = "isomax"
    paper = "https://arxiv.org/abs/2105.14399"
    uses = ("cosine",)

    def suits(self, network: Network) -> bool:
        """Return whether the network has the head of the method; on others it ranks images as the cosine does."""
        return not isinstance(network, Ensemble) and isinstance(network.head, IsoMaxHead)

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        assert outputs.cosine is not None  # score() has checked it
        return minimum_distance_score(outputs.cosine)
