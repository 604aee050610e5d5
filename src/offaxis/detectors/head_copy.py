"""A copy of a head's weights, for methods that ask what the logits would be if the features were others."""

import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis.detectors.fitted import Fitted
from offaxis.errors import MissingOutputError
from offaxis.heads import CosineHead, Head, LinearHead, Outputs
from offaxis.heads.cosine import EPS
from offaxis.heads.head import at_least_float32


class HeadCopy(Fitted):
    """The linear map from features to logits that a head is *for one image*.

    A linear head is W f + b for every image, times s(f) where it has a scale. A cosine head divides by the features' own
    length, which would undo any change of length: ReAct, ASH and SCALE change little else. So the length and the scale
    are held at what they are for the unchanged image, and the head is a linear map again:

    ``logits(f') = s(f) * (W f' / |f|)`` with unit axes in W, which for f' = f are the network's own logits.
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
        """The widths of features and logits."""
        return {"features": self.weight.shape[1]}

    def inputs(self, features: Tensor) -> Tensor:
        """What the linear map is applied to: features (N, d), of unit length where the head is a cosine's."""
        x = at_least_float32(features)
        return x / self._length(x)

    def logits(self, outputs: Outputs, changed: Tensor | None = None) -> Tensor:
        """The logits (N, C) with the features of ``outputs`` changed to ``changed`` (N, d); the network's own if None."""
        features = at_least_float32(outputs.features)
        x = (features if changed is None else changed) / self._length(features)
        logits = F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))
        return logits if outputs.scale is None else outputs.scale.to(x.dtype).unsqueeze(1) * logits

    def _length(self, features: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(features, dim=1, keepdim=True).clamp_min(EPS)
        return length.pow(self.power.to(features.dtype))
