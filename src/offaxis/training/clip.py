"""Gradient clipping relative to the gradient's own usual size, against the collapse of the scale."""

import torch
from torch import Tensor


class UsualNorm:
    """The running mean of the gradient's norm, and the limit that follows from it.

    The limit is ``factor`` times the mean of the norms so far (of about the last 50, later on), each counted after
    clipping. So one bad batch, whose gradient may be ten times as large as usual, moves the weights no more than
    ``factor`` ordinary batches would, while ordinary batches are left as they are, whatever the network's size.
    """

    memory = 50

    def __init__(self, factor: float, device: torch.device) -> None:
        self.factor = factor
        self.count = 0
        self.mean = torch.zeros((), device=device)

    def limit(self) -> Tensor:
        """The largest norm that the next gradient may have; there is none before the first."""
        return self.factor * self.mean if self.count else torch.full_like(self.mean, torch.inf)

    def add(self, norm: Tensor) -> None:
        """Take note of a gradient's norm before clipping."""
        clipped = torch.minimum(norm.to(self.mean), self.limit())
        self.count += 1
        self.mean = self.mean + (clipped - self.mean) / min(self.count, self.memory)

    def state(self) -> list[float]:
        """What a checkpoint keeps."""
        return [self.count, float(self.mean)]

    def restore(self, state: list[float]) -> None:
        """Go on from a checkpoint."""
        self.count = int(state[0])
        self.mean = torch.full_like(self.mean, state[1])
