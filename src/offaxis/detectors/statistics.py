"""Class means and covariances from a stream of batches, in float64, in memory that does not grow with the images."""

import torch
from torch import Tensor

from offaxis.detectors.precision import accumulating
from offaxis.errors import NotFittedError


class ClassMoments:
    """Counts, sums and the second moment of features, class by class, added up batch by batch.

    Everything is taken relative to the mean of the first batch, so that the subtraction at the end does not cancel.

    Args:
        num_classes: C.
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.origin: Tensor | None = None

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Add features (N, d) with labels (N,)."""
        x = accumulating(features)
        if self.origin is None:
            size = x.shape[1]
            self.origin = x.mean(0)
            self.counts = x.new_zeros(self.num_classes)
            self.sums = x.new_zeros(self.num_classes, size)
            self.second = x.new_zeros(size, size)
        x = x - self.origin
        where = labels.to(x.device)
        self.counts.index_add_(0, where, x.new_ones(len(x)))
        self.sums.index_add_(0, where, x)
        self.second.addmm_(x.T, x)

    def means(self) -> Tensor:
        """The mean of each class, (C, d)."""
        self._check()
        assert self.origin is not None
        return self.origin + self.sums / self.counts.unsqueeze(1)

    def mean(self) -> Tensor:
        """The mean of all images, (d,)."""
        self._check()
        assert self.origin is not None
        return self.origin + self.sums.sum(0) / self.counts.sum()

    def within(self) -> Tensor:
        """The tied covariance, (d, d): the mean over all images of (f - mean of its class)(f - mean of its class)'."""
        self._check()
        return (self.second - self.sums.T @ (self.sums / self.counts.unsqueeze(1))) / self.counts.sum()

    def total(self) -> Tensor:
        """The covariance of all images about their common mean, (d, d)."""
        self._check()
        count, total = self.counts.sum(), self.sums.sum(0)
        return (self.second - torch.outer(total, total) / count) / count

    def _check(self) -> None:
        if self.origin is None:
            raise NotFittedError("Expected training images to fit on but there were none.")
        empty = torch.nonzero(self.counts == 0).flatten().tolist()
        if empty:
            raise NotFittedError(
                f"Expected training images of all {self.num_classes} classes but there are none of class "
                f"{', '.join(map(str, empty[:10]))}: a class without images has no mean. Fit on the whole training set."
            )
