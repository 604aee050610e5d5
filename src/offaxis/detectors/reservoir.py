"""A bounded sample of feature rows from a stream: all of them while they fit, a uniform sample beyond that."""

import torch
from torch import Tensor

from offaxis.errors import NotFittedError


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
        """The sample, (M, d) with M up to ``size``."""
        if not self.seen:
            raise NotFittedError("Expected training images to fit on but there were none.")
        return torch.cat(self.parts) if self.kept is None else self.kept
