"""Statistics of training features, in memory that does not grow with the images, and modules that keep them as buffers."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.errors import MissingOutputError, NotFittedError
from offaxis.heads import Head
from offaxis.heads.base import at_least_float32
from offaxis.networks.run import accumulating, widest


class Fitted(nn.Module):
    """A module with buffers that are None until it is fitted or loaded.

    ``load_state_dict`` of PyTorch refuses tensors for which a module has no place yet; here a buffer takes the shape of
    what is loaded, so that an unfitted module becomes the fitted one.
    """

    _expected: tuple[str, ...] = ()
    wide: str = ""
    """The buffer whose last dimension is that of the features that are expected once it is fitted."""

    def expect(self, *names: str) -> None:
        """Register buffers that fitting will fill."""
        for name in names:
            self.register_buffer(name, None)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a buffer; one without a value is filled by fitting."""
        super().register_buffer(name, tensor, persistent)
        if tensor is None:
            self._expected = (*self._expected, name)

    @property
    def expects(self) -> bool:
        """Return whether fitting fills any buffer, of the parts too."""
        return any(part._expected for part in self.modules() if isinstance(part, Fitted))

    def clear(self) -> None:
        """Discard what fitting has filled, of the parts too."""
        for part in self.modules():
            if isinstance(part, Fitted):
                part._buffers.update(dict.fromkeys(part._expected))

    @property
    def fitted(self) -> bool:
        """Return whether every buffer, of the parts too, has its value."""
        own = all(buffer is not None for buffer in self._buffers.values())
        return own and all(part.fitted for part in self.children() if isinstance(part, Fitted))

    def sizes(self) -> dict[str, int]:
        """Return the widths that it expects once fitted, by field of Outputs or by layer: by default those of its parts."""
        parts = (part for part in self.children() if isinstance(part, Fitted))
        own = {"features": getattr(self, self.wide).shape[-1]} if self.wide else {}
        return own | {field: size for part in parts for field, size in part.sizes().items()}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name, buffer in self._buffers.items():
            value = state_dict.get(prefix + name)
            if isinstance(value, Tensor) and (buffer is None or buffer.shape != value.shape):
                self._buffers[name] = torch.empty_like(value)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class ClassMoments:
    """Counts, sums and the second moment of features, class by class, added up batch by batch.

    Everything is taken relative to the mean of the first batch, so that the subtraction at the end does not cancel.

    Args:
        num_classes: C.
        covariance: whether the second moment is needed, which takes most of the time; else means alone can be computed.
    """

    def __init__(self, num_classes: int, *, covariance: bool = True) -> None:
        self.num_classes, self.covariance = num_classes, covariance
        self.origin: Tensor | None = None

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Add features (N, d) with labels (N,)."""
        x = accumulating(features)
        if self.origin is None:
            size = x.shape[1]
            self.origin = x.mean(0)
            self.counts = x.new_zeros(self.num_classes)
            self.sums = x.new_zeros(self.num_classes, size)
            self.second = x.new_zeros(size, size) if self.covariance else x.new_zeros(0, 0)
        x = x - self.origin
        where = labels.to(x.device)
        self.counts.index_add_(0, where, x.new_ones(len(x)))
        self.sums.index_add_(0, where, x)
        if self.covariance:
            self.second.addmm_(x.T, x)

    def without(self, features: Tensor, labels: Tensor) -> "ClassMoments":
        """Return the moments less those of rows that were added; a class that would be left empty keeps its rows."""
        assert self.origin is not None
        where = labels.to(self.counts.device)
        left = self.counts - torch.bincount(where, minlength=self.num_classes).to(self.counts)
        kept = left[where] > 0
        x, where = accumulating(features)[kept] - self.origin, where[kept]
        other = ClassMoments(self.num_classes, covariance=self.covariance)
        other.origin, other.second = self.origin, self.second - x.T @ x
        other.counts = self.counts.index_add(0, where, x.new_full((len(x),), -1))
        other.sums = self.sums.index_add(0, where, x, alpha=-1)
        return other

    def means(self) -> Tensor:
        """Compute the mean of each class, (C, d).

        Raises:
            NotFittedError: a class has no images.
        """
        empty = torch.nonzero(self.counts == 0).flatten().tolist()
        if empty:
            raise NotFittedError(
                f"Expected training images of all {self.num_classes} classes but there are none of class "
                f"{', '.join(map(str, empty[:10]))}: a class without images has no mean. Fit on the whole training set."
            )
        assert self.origin is not None
        return self.origin + self.sums / self.counts.unsqueeze(1)

    def mean(self) -> Tensor:
        """Compute the mean of all images, (d,)."""
        assert self.origin is not None
        return self.origin + self.sums.sum(0) / self.counts.sum()

    def within(self) -> Tensor:
        """Compute the tied covariance (d, d): the mean over images of (f - mean of its class)(f - mean of its class)'."""
        return (self.second - self.sums.T @ (self.sums / self.counts.unsqueeze(1))) / self.counts.sum()

    def total(self) -> Tensor:
        """Compute the covariance (d, d) of all images about their common mean."""
        count, total = self.counts.sum(), self.sums.sum(0)
        return (self.second - torch.outer(total, total) / count) / count

    def scale(self) -> float:
        """Compute the size of the second moment that covariances are a difference from: their rounding errors go by it."""
        return float(torch.linalg.matrix_norm(self.second) / self.counts.sum())


def whitener(covariance: Tensor, scale: float = 0.0) -> Tensor:
    """Compute W (d, r) with W W' the pseudo-inverse of a covariance (d, d) of rank r.

    Directions without variance (dead features, fewer images than dimensions) are left out, as the pseudo-inverse does:
    those whose eigenvalue is below the largest times d times the precision of float64.

    Args:
        covariance: (d, d).
        scale: the size of the matrices that it is a difference of, whose rounding errors have eigenvalues too: independent
            of one another, up to about scale times the precision. Those below sqrt(d) times that are left out as well.
    """
    values, vectors = torch.linalg.eigh(covariance)
    size = len(values)
    kept = values > (values[-1] * size).clamp_min(scale * size**0.5) * torch.finfo(values.dtype).eps
    white: Tensor = vectors[:, kept] * values[kept].rsqrt()
    return white


class TiedGaussian(Fitted):
    """Squared Mahalanobis distances to several centres that share a covariance.

    Features are whitened once; then a single matrix product gives the distances to all centres.
    """

    wide = "centre"
    centre: Tensor
    whitener: Tensor
    points: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.expect("centre", "whitener", "points")

    def set(self, means: Tensor, covariance: Tensor, scale: float = 0.0) -> None:
        """Take centres (C, d) and a covariance (d, d), both in float64, and the scale of its errors (``whitener``)."""
        self.centre = means.mean(0)
        self.whitener = whitener(covariance, scale)
        self.points = (means - self.centre) @ self.whitener

    def forward(self, features: Tensor) -> Tensor:
        """Compute squared distances (N, C), not negative, of features (N, d)."""
        x = widest(features).to(self.centre.dtype)
        white = (x - self.centre) @ self.whitener
        lengths = white.square().sum(1, keepdim=True) + self.points.square().sum(1)
        return (lengths - 2 * white @ self.points.T).clamp_min(0)


class HeadCopy(Fitted):
    """The linear map that a head is once it has its inputs and its scale.

    A linear head is s * (W x + b) with x the features themselves. A cosine head is s * W x with unit axes in W and x the
    unit features, f / |f|. Methods that change features (ReAct, ASH, SCALE) change x, and neither the division by |f| nor
    the scale s is computed anew: a cosine head would otherwise undo every change of length, and s overflow.
    """

    wide = "weight"
    weight: Tensor
    bias: Tensor
    power: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.expect("weight", "bias", "power")

    def set(self, head: Head) -> None:
        """Copy the weights of a linear or cosine head.

        Raises:
            MissingOutputError: the head is of another kind, which has no such linear map.
        """
        if head.linear_in is None:
            raise MissingOutputError(
                f"Expected a linear or cosine head, whose logits are a linear map of the features, but the network has a "
                f"{type(head).__name__}. Use a detector that reads logits or features alone."
            )
        own: Any = head
        weight, directions = at_least_float32(own.weight.detach()).clone(), head.linear_in == "directions"
        self.weight = F.normalize(weight, dim=1) if directions else weight
        bias = None if directions else own.bias
        self.bias = weight.new_zeros(len(weight)) if bias is None else bias.detach().to(weight.dtype).clone()
        # Lengths to this power: 1 divides by them, 0 does not.
        self.power = weight.new_tensor(float(directions))

    def inputs(self, features: Tensor) -> Tensor:
        """Return the inputs of the linear map: features (N, d), of unit length where the head is a cosine's."""
        x = at_least_float32(features)
        return x / self._length(x)

    def logits(self, inputs: Tensor, scale: Tensor | None) -> Tensor:
        """Compute logits (N, C) of inputs (N, d), changed or not, with the image's own scale (N,)."""
        logits = F.linear(inputs, self.weight.to(inputs.dtype), self.bias.to(inputs.dtype))
        return logits if scale is None else scale.to(inputs.dtype).unsqueeze(1) * logits

    def _length(self, features: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(features, dim=1, keepdim=True).clamp_min(1e-12)
        return length.pow(self.power.to(features.dtype))


class Reservoir:
    """Keeps up to ``size`` rows, every row of the stream with the same chance; the draw depends on nothing else.

    Args:
        size: 50,000 holds the training sets of CIFAR whole, so that what is computed from it is exact there.
    """

    def __init__(self, size: int = 50_000) -> None:
        self.size = size
        self.seen = 0
        self.parts: list[Tensor] = []
        self.kept: Tensor | None = None
        self.generator = torch.Generator().manual_seed(0)

    def add(self, rows: Tensor) -> None:
        """Offer rows (N, d); while there is room they are kept as they are, without a copy."""
        rows = rows.detach()
        room = max(self.size - self.seen, 0)
        if room:
            self.parts.append(rows[:room])
        late = rows[room:]
        if len(late):
            if self.kept is None:
                self.kept, self.parts = torch.cat(self.parts), []
            order = torch.arange(self.seen + room, self.seen + len(rows), dtype=torch.float64) + 1
            place = (torch.rand(len(late), generator=self.generator, dtype=torch.float64) * order).long()
            chosen = place < self.size
            self.kept[place[chosen].to(rows.device)] = late[chosen.to(rows.device)]
        self.seen += len(rows)

    def rows(self) -> Tensor:
        """Return the sample (M, d), M up to ``size``."""
        return torch.cat(self.parts) if self.kept is None else self.kept
