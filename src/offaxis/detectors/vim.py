r"""ViM: virtual-logit matching (Wang, Li, Feng, Zhang 2022, https://arxiv.org/abs/2203.10807).

.. math::

    S(x) = \alpha \lVert R^\top (f - o) \rVert - \log \sum_i e^{z_i(x)}, \qquad
    \alpha = \frac{\sum \max_i z_i}{\sum \lVert R^\top (f - o) \rVert}

R spans what the D leading principal directions of the training features leave out, about the origin :math:`o = -W^+ b`
at which the logits vanish. For a cosine head f is the unit feature vector that the head sees, and o is 0.
"""

import torch
from torch import Tensor

from offaxis.detectors.base import Detector
from offaxis.detectors.logit_scores import energy_score
from offaxis.detectors.statistics import HeadCopy, Reservoir
from offaxis.errors import ArgumentError, at_least_one
from offaxis.heads import Outputs
from offaxis.networks.run import Network, accumulating, widest


def vim_score(residual: Tensor, logits: Tensor, alpha: Tensor) -> Tensor:
    """Compute scores (N,) from residual lengths (N,), logits (N, C) and alpha: larger = more OOD."""
    return alpha * residual + energy_score(logits)


def published_dim(width: int) -> int:
    """Return the paper's number of principal directions: 1000 of 2048 and more, 512 of 768 and more, else half."""
    return 1000 if width >= 2048 else 512 if width >= 768 else width // 2


class ViM(Detector):
    """The part of the features that the training data does not explain, against the energy.

    Args:
        dim: D, the number of principal directions; None takes the paper's rule.
    """

    name = "vim"
    paper = "https://arxiv.org/abs/2203.10807"
    uses = ("features",)
    needs_fit = True
    tunable = fitted_for = ("dim",)

    origin: Tensor
    residual: Tensor
    alpha: Tensor

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = None if dim is None else at_least_one("dim", dim)
        self.head = HeadCopy()
        self.expect("origin", "residual", "alpha")

    def begin(self, network: Network) -> None:
        """Copy the head, place the origin and start the sums."""
        self.head.set(network.head)
        weight, bias = accumulating(self.head.weight), accumulating(self.head.bias)
        width = weight.shape[1]
        if self.dim is not None and self.dim >= width:
            raise ArgumentError(f"Expected argument `dim` to be below the {width} features but got {self.dim}.")
        self.origin = -torch.linalg.pinv(weight) @ bias
        self._second = torch.zeros_like(weight.T @ weight)
        self._sample, self._largest = Reservoir(), Reservoir()

    def update(self, outputs: Outputs, labels: Tensor) -> None:  # noqa: ARG002 - the contract's
        """Add a batch; labels are not needed."""
        inputs = self.head.inputs(outputs.features)
        x = accumulating(inputs) - self.origin
        self._second.addmm_(x.T, x)
        self._sample.add(inputs)
        self._largest.add(self.head.logits(inputs, outputs.scale).amax(1, keepdim=True))

    def finish(self) -> None:
        """Compute the residual space and the alpha that makes both terms equal on average."""
        inputs = self._sample.rows()
        _, vectors = torch.linalg.eigh(self._second)  # eigenvalues ascend
        width = len(vectors)
        self.residual = vectors[:, : width - (self.dim or published_dim(width))].contiguous()
        lengths = torch.cat([self._length(accumulating(part)) for part in inputs.split(8192)])
        self.alpha = widest(self._largest.rows()).mean().to(lengths.device) / lengths.mean().clamp_min(1e-12)
        del self._second, self._sample, self._largest

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        inputs = self.head.inputs(outputs.features)
        return vim_score(self._length(inputs), widest(self.head.logits(inputs, outputs.scale)), self.alpha)

    def _length(self, inputs: Tensor) -> Tensor:
        x = widest(inputs).to(self.origin.dtype)
        length: Tensor = torch.linalg.vector_norm((x - self.origin) @ self.residual, dim=1)
        return length
