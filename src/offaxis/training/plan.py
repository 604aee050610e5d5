"""What happens at each step, as a function of the seed and the step alone.

Nothing random is carried from one step to the next: a training that is cut off anywhere goes on from its weights, its
momentum and the number of the step, and ends as if it had never stopped.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from offaxis.errors import DataError
from offaxis.training.recipe import Recipe


@dataclass(frozen=True)
class Plan:
    """Which images each step sees, and with which random numbers.

    Attributes:
        images: N, the number of training images.
        recipe: epochs, batch size, learning rates.
        seed: of everything random but the network's first weights.
        processes: how many share each batch.
        rank: which of them this is.
    """

    images: int
    recipe: Recipe
    seed: int
    processes: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        batch = self.recipe.batch_size
        if batch % self.processes or batch // self.processes < 2:
            raise DataError(
                f"Expected a batch size that gives each of the {self.processes} processes the same number of images, at "
                f"least 2, but got {batch}."
            )
        if self.images < batch:
            raise DataError(
                f"Expected at least as many training images as a batch has ({batch}) but got {self.images}. "
                "Use a smaller batch size."
            )

    @property
    def remainder(self) -> int:
        """Images of an epoch's last, incomplete batch; 0 where each process could not have two of them."""
        rest = self.images % self.recipe.batch_size
        return rest - rest % self.processes if rest // self.processes >= 2 else 0

    @property
    def steps_per_epoch(self) -> int:
        """Batches an epoch."""
        return self.images // self.recipe.batch_size + bool(self.remainder)

    @property
    def steps(self) -> int:
        """Batches of the whole training."""
        return self.steps_per_epoch * self.recipe.epochs

    def learning_rate(self, step: int) -> float:
        """The learning rate of a step."""
        return self.recipe.learning_rate_at(step, self.steps)

    def order(self, epoch: int) -> Tensor:
        """(N,), the order in which an epoch visits the images."""
        return torch.randperm(self.images, generator=self.generator("order", epoch))

    def batch(self, order: Tensor, step: int) -> tuple[Tensor, int, int]:
        """This process's indices at a step, where they begin in the global batch, and that batch's size."""
        begin = (step % self.steps_per_epoch) * self.recipe.batch_size
        indices = order[begin : begin + self.recipe.batch_size]
        if len(indices) < self.recipe.batch_size:
            indices = indices[: self.remainder]
        share = len(indices) // self.processes
        return indices[self.rank * share : (self.rank + 1) * share], self.rank * share, len(indices)

    def batches(self, first: int, last: int) -> Iterator[tuple[Tensor, int, int]]:
        """What ``batch`` gives for the steps from ``first`` to before ``last``."""
        order, of_epoch = torch.empty(0), -1
        for step in range(first, last):
            epoch = step // self.steps_per_epoch
            if epoch != of_epoch:
                order, of_epoch = self.order(epoch), epoch
            yield self.batch(order, step)

    def generator(self, purpose: str, number: int) -> Generator:
        """Random numbers for one purpose at one epoch or step, on the CPU."""
        return Generator().manual_seed(self.derived_seed(purpose, number))

    def derived_seed(self, purpose: str, number: int) -> int:
        """A 63-bit seed that depends on nothing but the plan's seed, the purpose and the number."""
        digest = hashlib.blake2b(f"{self.seed}/{purpose}/{number}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1
