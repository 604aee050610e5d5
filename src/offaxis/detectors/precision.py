"""float64 where a device has it: sums over many images and temperatures of 1000 do not survive float32."""

import torch
from torch import Tensor


def widest(tensor: Tensor) -> Tensor:
    """The tensor in float64; unchanged on Apple's GPUs, which have no float64."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def accumulating(tensor: Tensor) -> Tensor:
    """A detached copy in float64 for sums over a whole data set, on the CPU where the device has no float64."""
    detached = tensor.detach()
    return detached.to("cpu" if detached.device.type == "mps" else detached.device, torch.float64)
