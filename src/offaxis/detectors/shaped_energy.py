r"""The energy after a change of the features: what ReAct, ASH and SCALE have in common.

.. math:: S(x) = -\log \sum_i e^{z_i(g(f))}

They differ in g alone. For a cosine head f is the unit feature vector that the head sees (``HeadCopy``).
"""

from abc import abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis.detectors.base import Detector
from offaxis.detectors.energy import energy_score
from offaxis.detectors.statistics import Fitted
from offaxis.errors import MissingOutputError
from offaxis.heads import CosineHead, Head, LinearHead, Outputs
from offaxis.heads.base import at_least_float32
from offaxis.heads.cosine import EPS
from offaxis.networks.inference import Network


class HeadCopy(Fitted):
    """The linear map that a head is once it has its inputs and its scale.

    A linear head is s * (W x + b) with x the features themselves. A cosine head is s * W x with unit axes in W and x the
    unit features, f / |f|. Methods that change features (ReAct, ASH, SCALE) change x, and neither the division by |f| nor
    the scale s is computed anew: a cosine head would otherwise undo every change of length, and s overflow.
    """

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
        if not isinstance(head, (LinearHead, CosineHead)):
            raise MissingOutputError(
                f"Expected a linear or cosine head, whose logits are a linear map of the features, but the network has a "
                f"{type(head).__name__}. Use a detector that reads logits or features alone."
            )
        weight = at_least_float32(head.weight.detach()).clone()
        if isinstance(head, CosineHead):
            weight = F.normalize(weight, dim=1, eps=EPS)
            self.bias = weight.new_zeros(len(weight))
        else:
            self.bias = head.bias.detach().to(weight.dtype).clone()
        self.weight = weight
        # Lengths to this power: 1 divides by them, 0 does not.
        self.power = weight.new_tensor(float(isinstance(head, CosineHead)))

    def sizes(self) -> dict[str, int]:
        """Return the width of the features."""
        return {"features": self.weight.shape[1]}

    def inputs(self, features: Tensor) -> Tensor:
        """Return the inputs of the linear map: features (N, d), of unit length where the head is a cosine's."""
        x = at_least_float32(features)
        return x / self._length(x)

    def logits(self, inputs: Tensor, scale: Tensor | None) -> Tensor:
        """Compute logits (N, C) of inputs (N, d), changed or not, with the image's own scale (N,)."""
        logits = F.linear(inputs, self.weight.to(inputs.dtype), self.bias.to(inputs.dtype))
        return logits if scale is None else scale.to(inputs.dtype).unsqueeze(1) * logits

    def _length(self, features: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(features, dim=1, keepdim=True).clamp_min(EPS)
        return length.pow(self.power.to(features.dtype))


class ShapedEnergy(Detector):
    """The energy of the logits that the head gives for changed features; a subclass defines the change in ``shape``."""

    uses = ("features",)
    needs_fit = True

    def __init__(self) -> None:
        super().__init__()
        self.head = HeadCopy()

    @abstractmethod
    def shape(self, inputs: Tensor) -> Tensor:
        """Change the inputs (N, d) of the head's linear map -> (N, d)."""

    def sizes(self) -> dict[str, int]:
        """Return the width of the features."""
        return self.head.sizes()

    def begin(self, network: Network) -> None:
        """Copy the head."""
        self.head.set(network.head)

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) from the Outputs of N images."""
        return energy_score(self.head.logits(self.shape(self.head.inputs(outputs.features)), outputs.scale))
