r"""Heads that normalise logits or features in training, so that confidence cannot grow by length alone, one paper a class.

- LogitNorm (Wei, Xie, Cheng, Feng, An, Li 2022, https://arxiv.org/abs/2205.09310): an ordinary linear layer z = W f + b;
  while training, cross-entropy sees its logits at constant length. At test the logits are plain z, and the paper's score is
  max-softmax of them.

  .. math:: L = \mathrm{CE}\left(\frac{z}{\tau \lVert z \rVert}, y\right)

- ELogitNorm (https://arxiv.org/abs/2504.11434): the same with D, the mean distance of the features to the decision boundaries
  between the predicted class and the others (0 for the predicted class itself), in place of the length. There is no
  hyperparameter; the gradient flows through D.

  .. math::

    L = \mathrm{CE}\left(\frac{z}{D(f)}, y\right), \qquad
    D(f) = \frac{1}{C} \sum_c \frac{\lvert z_{\max} - z_c \rvert}{\lVert w_{\max} - w_c \rVert}

- T2FNorm (Regmi et al. 2023, https://arxiv.org/abs/2305.17797): features are normalised while training and for the class; OOD
  scores (max-softmax in the paper) are taken of the logits that *unnormalised* features give, whose length tells ID from OOD
  images.

  .. math:: z = \frac{1}{\tau} W \frac{f}{\lVert f \rVert} + b, \qquad z_{\text{score}} = \frac{1}{\tau} W f + b

- L2-constrained softmax (Ranjan, Castillo, Chellappa 2017, https://arxiv.org/abs/1703.09507): the features of an ordinary
  linear layer have the length alpha, in training and at test.

  .. math:: z = W \frac{\alpha f}{\lVert f \rVert} + b
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis.errors import ArgumentError, positive
from offaxis.heads.base import Head, Outputs, at_least_float32, bounded, linear_parameters
from offaxis.heads.linear import LinearHead

EPS = 1e-7  # added to a length, as published; equal weight rows have no boundary, and equal logits no distance to one


class LogitNormHead(LinearHead):
    """Compute logits W f + b, in train mode divided by tau times their length.

    Args:
        in_features: d, the size of the features.
        num_classes: C.
        tau: the temperature, a hyperparameter; 0.04 in the paper, which chose it on noise.

    Weight and bias have the names, the shapes and the initialisation of ``nn.Linear``. In train mode everything runs in
    float32 under autocast.

    Examples:
        >>> head = LogitNormHead(64, 10)
        >>> head(torch.randn(3, 64)).norm(dim=1).mul(0.04).round(decimals=3)
        tensor([1., 1., 1.], grad_fn=<RoundBackward1>)
    """

    normalises_logits = True

    def __init__(self, in_features: int, num_classes: int, tau: float = 0.04) -> None:
        super().__init__(in_features, num_classes)
        self.tau = positive("tau", tau)
        self.arguments = {"tau": tau}

    def outputs(self, features: Tensor) -> Outputs:
        """(N, d) -> Outputs(features (N, d), logits (N, C))."""
        if not self.training:
            return super().outputs(features)
        with torch.autocast(features.device.type, enabled=False):
            f, logits = self._float32_logits(features)
            length = torch.linalg.vector_norm(logits, dim=1, keepdim=True)
            # zero logits (a head that starts at zero) count as of length 1: over EPS, the gradient would be huge
            return Outputs(f, logits / (self.tau * torch.where(length > EPS, length + EPS, torch.ones_like(length))))


def weight_distances(weight: Tensor) -> Tensor:
    """Compute the distances between weight rows (C, d): (C, C), 1 where two rows are equal, so that dividing is safe.

    Taken through the Gram matrix; the guard stands before the root, whose slope at 0 is infinite.
    """
    squares = weight.square().sum(1)
    between = squares.unsqueeze(0) + squares.unsqueeze(1) - 2 * weight @ weight.T
    equal = between <= EPS * (squares.unsqueeze(0) + squares.unsqueeze(1))
    return torch.where(equal, torch.ones_like(between), between).sqrt()


def mean_boundary_distance(logits: Tensor, weight: Tensor) -> Tensor:
    """Compute the mean distance to the boundaries of the predicted class: logits (N, C), weight (C, d) -> (N, 1) >= 0."""
    largest, predicted = logits.max(1, keepdim=True)
    return ((largest - logits) / weight_distances(weight)[predicted.squeeze(1)]).mean(1, keepdim=True)


class ELogitNormHead(LinearHead):
    """Compute logits W f + b, in train mode divided by the mean distance to the decision boundaries.

    Args:
        in_features: d, the size of the features.
        num_classes: C.

    Weight and bias have the names, the shapes and the initialisation of ``nn.Linear``. In train mode everything runs in
    float32 under autocast.

    Examples:
        >>> ELogitNormHead(64, 10)(torch.randn(3, 64)).shape
        torch.Size([3, 10])
    """

    normalises_logits = True

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        self.arguments = {}

    def outputs(self, features: Tensor) -> Outputs:
        """(N, d) -> Outputs(features (N, d), logits (N, C))."""
        if not self.training:
            return super().outputs(features)
        with torch.autocast(features.device.type, enabled=False):
            f, logits = self._float32_logits(features)
            distance = mean_boundary_distance(logits, self.weight.to(f.dtype))
            # equal logits have no distance and stay as they are: over EPS, the gradient would be 10 million times as large
            return Outputs(f, logits / torch.where(distance > EPS, distance, torch.ones_like(distance)))


class T2FNormHead(Head):
    """Compute logits of unit features over tau for the class, and those of the features themselves for OOD scores.

    Args:
        in_features: d, the size of the features.
        num_classes: C.
        tau: the temperature, a hyperparameter; 0.1 in the paper.

    ``Outputs.logits`` classify; ``Outputs.score_logits``, in eval mode, are what detectors read in their place. Everything
    runs in float32 under autocast.

    Examples:
        >>> out = T2FNormHead(64, 10).eval().outputs(torch.randn(3, 64))
        >>> out.logits.shape, out.score_logits.shape
        (torch.Size([3, 10]), torch.Size([3, 10]))
    """

    scores_apart = True

    def __init__(self, in_features: int, num_classes: int, tau: float = 0.1) -> None:
        super().__init__(in_features, num_classes)
        self.weight, self.bias = linear_parameters(in_features, num_classes)
        self.tau = positive("tau", tau)
        self.arguments = {"tau": tau}

    def outputs(self, features: Tensor) -> Outputs:
        """(N, d) -> Outputs(features (N, d), logits (N, C), score_logits (N, C) in eval mode)."""
        self._check(features)
        with torch.autocast(features.device.type, enabled=False):
            f = bounded(at_least_float32(features), self.training)
            weight, bias = self.weight.to(f.dtype) / self.tau, self.bias.to(f.dtype)
            logits = F.linear(F.normalize(f, dim=1), weight, bias)
            return Outputs(f, logits, score_logits=None if self.training else F.linear(f, weight, bias))


class L2SoftmaxHead(Head):
    """Compute logits W f + b of features whose length is alpha, and their cosines with the weights.

    Args:
        in_features: d, the size of the features.
        num_classes: C.
        scale: alpha, which must be given: the paper has no single value for it.

    The features of ``outputs`` are those of length alpha, which the weights see. Everything runs in float32 under autocast.

    Examples:
        >>> L2SoftmaxHead(64, 10, scale=16).outputs(torch.randn(3, 64)).features.norm(dim=1).round()
        tensor([16., 16., 16.])
    """

    linear_in = "features"

    def __init__(self, in_features: int, num_classes: int, scale: float | None = None) -> None:
        super().__init__(in_features, num_classes)
        if scale is None:
            raise ArgumentError(
                "Expected a scale for the head l2-softmax, the length of its features, but got none: its paper takes 16 to 64 "
                "and says of no single value that it is right for all. Give one: --scale 16, L2SoftmaxHead(d, C, scale=16)."
            )
        self.weight, self.bias = linear_parameters(in_features, num_classes)
        self.length = positive("scale", scale)
        self.arguments = {"scale": scale}

    def outputs(self, features: Tensor) -> Outputs:
        """(N, d) -> Outputs(features (N, d) of length alpha, logits (N, C), cosine (N, C) in [-1, 1])."""
        self._check(features)
        with torch.autocast(features.device.type, enabled=False):
            unit = F.normalize(bounded(at_least_float32(features), self.training), dim=1)
            weight = self.weight.to(unit.dtype)
            cosine = F.linear(unit, F.normalize(weight, dim=1)).clamp(-1, 1)
            return Outputs(self.length * unit, F.linear(self.length * unit, weight, self.bias.to(unit.dtype)), cosine)
