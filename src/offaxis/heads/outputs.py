"""What a network says of a batch: everything that a detector may read, from one forward pass."""

from typing import NamedTuple

from torch import Tensor


class Outputs(NamedTuple):
    """The outputs of a classifier for N images.

    Attributes:
        features: (N, d), what the head was given (with ``hidden``, what its extra layer made of that).
        logits: (N, C), ready for cross-entropy.
        cosine: (N, C) in [-1, 1], the cosine between features and class axes; None where the head has none.
        scale: (N,), positive where predicted, what the cosine (or the linear logit) was multiplied by; None when unscaled.
        layers: pooled features (N, d_l) of inner layers by name; None unless they were asked for.
    """

    features: Tensor
    logits: Tensor
    cosine: Tensor | None = None
    scale: Tensor | None = None
    layers: dict[str, Tensor] | None = None
