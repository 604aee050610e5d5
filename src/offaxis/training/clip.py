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
        self.count = torch.zeros((), device=device)
        self.mean = torch.zeros((), device=device)

    def limit(self) -> Tensor:
        """The largest norm that the next gradient may have; there is none before the first."""
        return torch.where(self.mean > 0, self.factor * self.mean, torch.inf)

    def add(self, norm: Tensor) -> None:
        """Take note of a gradient's norm before clipping.

        A norm that is no finite number does not count: in 16 bits gradients overflow now and then, and such a step is skipped.
        """
        clipped = torch.minimum(norm.to(self.mean), self.limit())
        counts = torch.isfinite(clipped)
        self.count = self.count + counts
        moved = self.mean + (clipped - self.mean) / self.count.clamp(1, self.memory)
        self.mean = torch.where(counts, moved, self.mean)

    def state(self) -> list[float]:
        """What a checkpoint keeps."""
        return [int(self.count), float(self.mean)]

    def restore(self, state: list[float]) -> None:
        """Go on from a checkpoint."""
        self.count = torch.full_like(self.count, state[0])
        self.mean = torch.full_like(self.mean, state[1])
