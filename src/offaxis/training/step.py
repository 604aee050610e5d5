"""One step of training: augmentation, forward pass, gradient, clipping, update and what is logged of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from offaxis.data import Normalise
from offaxis.heads import Outputs
from offaxis.networks.classifier import Classifier
from offaxis.training import checkpoint as checkpoints
from offaxis.training.checkpoint import Checkpoint
from offaxis.training.plan import Plan

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Loss = Callable[[Outputs, Tensor], Tensor]
"""(Outputs of a batch, labels (N,)) -> the batch's mean loss, a scalar."""


def cross_entropy(out: Outputs, labels: Tensor) -> Tensor:
    """The loss of the paper, and of nearly everyone."""
    return F.cross_entropy(out.logits, labels)


def name_of(loss: Loss) -> str:
    """What a run's settings call a loss: a function's name, or a module with what it was made with."""
    return repr(loss) if isinstance(loss, nn.Module) else getattr(loss, "__name__", type(loss).__name__)


class _Measured(nn.Module):
    """Forward pass, loss and what is logged of them, as one module that Fabric can wrap for several processes."""

    def __init__(self, classifier: Classifier, loss: Loss) -> None:
        super().__init__()
        self.classifier = classifier
        self.loss = loss

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        out = self.classifier.outputs(images)
        loss = self.loss(out, labels)
        return loss, batch_sums(out, labels, loss)


class Stepper:
    """A classifier with its optimiser, on its device."""

    def __init__(self, classifier: Classifier, plan: Plan, normalise: Normalise, loss: Loss, fabric: "Fabric") -> None:
        self.classifier, self.plan, self.normalise, self.fabric = classifier, plan, normalise, fabric
        recipe = plan.recipe
        # Small convolutional networks train faster with channels last, on the CPU too (benchmarks/memory_format.py).
        classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        classifier.train()
        optimizer = torch.optim.SGD(
            classifier.parameter_groups(recipe.weight_decay, recipe.decay_head),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            nesterov=recipe.momentum > 0,
        )
        self.module, self.optimizer = fabric.setup(_Measured(classifier, loss), optimizer)
        self.usual = None if recipe.clip is None else RelativeClip(recipe.clip, fabric.device)

    def step(self, number: int, images: Tensor, labels: Tensor, start: int, total: int) -> Tensor:
        """Take one step.

        Args:
            number: of the step, from 0.
            images: this process's share of the batch, as they are read.
            labels: theirs.
            start: where the share begins in the batch.
            total: the size of the batch.

        Returns:
            What ``measure`` gives.
        """
        recipe, plan = self.plan.recipe, self.plan
        images = images.to(self.fabric.device, non_blocking=True)
        labels = labels.to(self.fabric.device, non_blocking=True)
        images = crop_and_flip(images, recipe.crop, recipe.flip, plan.generator("augment", number), start, total)
        images = self.prepare(images)
        for group in self.optimizer.param_groups:
            group["lr"] = plan.learning_rate(number)
        torch.manual_seed(plan.derived_seed("dropout", number * plan.processes + plan.rank))
        loss, sums = self.module(images, labels)
        self.optimizer.zero_grad(set_to_none=True)
        self.fabric.backward(loss)
        self._clip()
        self.optimizer.step()
        measured: Tensor = sums
        return measured

    def prepare(self, images: Tensor) -> Tensor:
        """Images as they are read -> what the network takes."""
        return self.normalise(images).contiguous(memory_format=torch.channels_last)

    def _clip(self) -> None:
        fixed = self.plan.recipe.max_norm
        limits = [] if self.usual is None else [self.usual.limit()]
        limits += [] if fixed is None else [torch.tensor(fixed, device=self.fabric.device)]
        if limits:
            largest: Any = torch.stack(limits).min()  # a tensor, so that no device has to wait
            norm = self.fabric.clip_gradients(self.module, self.optimizer, max_norm=largest, error_if_nonfinite=False)
            if self.usual is not None and norm is not None:
                self.usual.add(norm.detach())

    def state(self, done: int, settings: dict[str, Any], progress: dict[str, Any]) -> Checkpoint:
        """All that the steps to come depend on, after ``done`` steps."""
        own = {
            "precision": self.fabric.strategy.precision.state_dict(),
            "usual_norm": None if self.usual is None else self.usual.state(),
        }
        momentum = checkpoints.momentum_by_name(self.classifier, self.optimizer)
        return Checkpoint(done, settings, progress | own, self.classifier.state_dict(), momentum)

    def restore(self, found: Checkpoint) -> None:
        """Go on from a checkpoint whose weights are in the classifier already."""
        checkpoints.restore_momentum(self.classifier, self.optimizer, found.momentum)
        self.fabric.strategy.precision.load_state_dict(found.progress["precision"])
        if self.usual is not None:
            self.usual.restore(found.progress["usual_norm"])


def crop_and_flip(
    images: Tensor, padding: int, flip: bool, generator: Generator, start: int = 0, total: int | None = None
) -> Tensor:
    """Shift each image by up to ``padding`` pixels, filling with black, and mirror it or not, each at random.

    One gather does both, whatever the type and the device of the images.

    Args:
        images: (B, c, h, w), uint8 or float in [0, 1].
        padding: how many black pixels stand on each side of the image that the crop is taken from.
        flip: mirror half of the images.
        generator: where the random numbers come from, on the CPU.
        start: where these images begin in the global batch.
        total: the size of the global batch, None where this is all of it. Numbers are drawn for the whole, so that each
            image meets the same ones however many processes share it.
    """
    if not padding and not flip:
        return images
    batch, channels, height, width = images.shape
    draws = batch if total is None else total
    ours = slice(start, start + batch)
    offsets = torch.randint(0, 2 * padding + 1, (draws, 2), generator=generator)[ours]
    mirrored = (torch.rand(draws, generator=generator)[ours] < 0.5) & flip
    rows = offsets[:, :1] + torch.arange(height)
    columns = torch.arange(width).expand(batch, width)
    columns = offsets[:, 1:] + torch.where(mirrored[:, None], width - 1 - columns, columns)
    flat = rows[:, :, None] * (width + 2 * padding) + columns[:, None, :]
    index = flat.view(batch, 1, -1).to(images.device).expand(-1, channels, -1)
    padded = F.pad(images, (padding, padding, padding, padding))
    return padded.flatten(2).gather(2, index).view_as(images)


class RelativeClip:
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


def batch_sums(out: Outputs, labels: Tensor, loss: Tensor) -> Tensor:
    """(4,): sums over a batch of loss, hits and scale, and the number of images, on the batch's device."""
    with torch.no_grad():
        count = loss.new_tensor(float(len(labels)))
        hits = (out.logits.argmax(1) == labels).sum().to(loss.dtype)
        scale = loss.new_zeros(()) if out.scale is None else out.scale.sum().to(loss.dtype)
        return torch.stack([loss.detach() * count, hits, scale, count])


@dataclass
class RunningMeans:
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
