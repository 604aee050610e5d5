"""Running means of what a training logs."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from offaxis.heads import Outputs


def measure(out: Outputs, labels: Tensor, loss: Tensor) -> Tensor:
    """(4,): sums over a batch of loss, hits and scale, and the number of images, on the batch's device."""
    with torch.no_grad():
        count = loss.new_tensor(float(len(labels)))
        hits = (out.logits.argmax(1) == labels).sum().to(loss.dtype)
        scale = loss.new_zeros(()) if out.scale is None else out.scale.sum().to(loss.dtype)
        return torch.stack([loss.detach() * count, hits, scale, count])


@dataclass
class Tally:
    """Sums over images of what ``measure`` gives, and the time they took."""

    sums: list[float] = field(default_factory=lambda: [0.0] * 4)
    seconds: float = 0.0

    def add(self, sums: list[float], seconds: float) -> None:
        """Add the sums of some more images."""
        self.sums = [a + b for a, b in zip(self.sums, sums, strict=True)]
        self.seconds += seconds

    def means(self, scaled: bool) -> dict[str, Any]:
        """Loss, accuracy in [0, 1], mean scale (None where the head has none) and images a second."""
        loss, hits, scale, count = self.sums
        return {
            "loss": loss / count,
            "accuracy": hits / count,
            "scale": scale / count if scaled else None,
            "images_per_second": round(count / self.seconds, 1) if self.seconds else None,
        }
