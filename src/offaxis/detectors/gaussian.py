"""A Gaussian for each class with one covariance for all, ready for fast distances."""

import torch
from torch import Tensor

from offaxis.detectors.fitted import Fitted
from offaxis.detectors.precision import widest


def whitener(covariance: Tensor) -> Tensor:
    """W (d, r) with W W' the pseudo-inverse of a covariance (d, d) of rank r.

    Directions without variance (dead features, fewer images than dimensions) are left out, as the pseudo-inverse does:
    those whose eigenvalue is below the largest times d times the precision of float64.
    """
    values, vectors = torch.linalg.eigh(covariance)
    kept = values > values[-1].clamp_min(0) * len(values) * torch.finfo(values.dtype).eps
    white: Tensor = vectors[:, kept] * values[kept].rsqrt()
    return white


class TiedGaussian(Fitted):
    """Squared Mahalanobis distances to several centres that share a covariance.

    Features are whitened once; then a single matrix product gives the distances to all centres.
    """

    centre: Tensor
    whitener: Tensor
    points: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.expect("centre", "whitener", "points")

    def set(self, means: Tensor, covariance: Tensor) -> None:
        """Take centres (C, d) and a covariance (d, d), both in float64."""
        self.centre = means.mean(0)
        self.whitener = whitener(covariance)
        self.points = (means - self.centre) @ self.whitener

    @property
    def size(self) -> int:
        """d, the width of the features."""
        return len(self.centre)

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, d) -> squared distances (N, C), not negative."""
        x = widest(features).to(self.centre.dtype)
        white = (x - self.centre) @ self.whitener
        lengths = white.square().sum(1, keepdim=True) + self.points.square().sum(1)
        return (lengths - 2 * white @ self.points.T).clamp_min(0)
