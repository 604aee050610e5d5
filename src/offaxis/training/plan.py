"""The plan of a training: steps, learning rates, order of the images and random numbers, as functions of seed and step.

Nothing random is carried from one step to the next, so a training that is interrupted resumes from its weights, its
momentum and the number of the step, and ends as if it had never stopped.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from offaxis.errors import DataError
from offaxis.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """Number of steps, learning rate and random numbers of each step.

    Attributes:
        recipe: epochs, batch size, learning rates.
        seed: of everything random but the network's initial weights.
        processes: how many processes share each batch.
        rank: which of them this is, from 0.
    """

    recipe: Recipe
    seed: int
    processes: int = 1
    rank: int = 0

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int:
        """Return the number of batches per epoch."""

    @property
    def steps(self) -> int:
        """Return the number of batches of the whole training."""
        return self.steps_per_epoch * self.recipe.epochs

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.recipe.learning_rate_at(step, self.steps)

    def generator(self, purpose: str, number: int) -> Generator:
        """Return a CPU generator for one purpose at one epoch or step."""
        return Generator().manual_seed(self.derived_seed(purpose, number))

    def derived_seed(self, purpose: str, number: int) -> int:
        """Return a 63-bit seed that depends on nothing but the plan's seed, the purpose and the number."""
        digest = hashlib.blake2b(f"{self.seed}/{purpose}/{number}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True, kw_only=True)
class LoaderPlan(Plan):
    """The plan of a training on the batches of a DataLoader, which chooses the images itself.

    Attributes:
        per_epoch: the number of batches that the loader gives per epoch.
    """

    per_epoch: int

    def __post_init__(self) -> None:
        if self.per_epoch < 1:
            raise DataError("Expected a DataLoader that gives at least one batch but it is empty.")

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of batches per epoch."""
        return self.per_epoch


@dataclass(frozen=True, kw_only=True)
class ImagePlan(Plan):
    """The plan of a training on N images, which also says which of them each step sees.

    Attributes:
        images: N, the number of training images.
    """

    images: int

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
        """Return the size of an epoch's last, incomplete batch; 0 where a process would get fewer than two images."""
        rest = self.images % self.recipe.batch_size
        return rest - rest % self.processes if rest // self.processes >= 2 else 0

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of batches per epoch."""
        return self.images // self.recipe.batch_size + bool(self.remainder)

    def order(self, epoch: int) -> Tensor:
        """Return the order (N,) in which an epoch visits the images."""
        return torch.randperm(self.images, generator=self.generator("order", epoch))

    def batch(self, order: Tensor, step: int) -> tuple[Tensor, int, int]:
        """Return this process's indices at a step, where they begin in the global batch, and that batch's size."""
        begin = (step % self.steps_per_epoch) * self.recipe.batch_size
        indices = order[begin : begin + self.recipe.batch_size]
        if len(indices) < self.recipe.batch_size:
            indices = indices[: self.remainder]
        share = len(indices) // self.processes
        return indices[self.rank * share : (self.rank + 1) * share], self.rank * share, len(indices)

    def batches(self, first: int, last: int) -> Iterator[tuple[Tensor, int, int]]:
        """Iterate over what ``batch`` returns for the steps from ``first`` to before ``last``."""
        order, of_epoch = torch.empty(0), -1
        for step in range(first, last):
            epoch = step // self.steps_per_epoch
            if epoch != of_epoch:
                order, of_epoch = self.order(epoch), epoch
            yield self.batch(order, step)
