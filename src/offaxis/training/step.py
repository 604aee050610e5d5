"""One step of training: forward pass, loss, gradient, clipping, update and the sums that are logged."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.heads import Outputs
from offaxis.networks.classifier import Classifier
from offaxis.training import checkpoint as checkpoints
from offaxis.training.batches import Share, TrainingBatches
from offaxis.training.checkpoint import Checkpoint

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Loss = Callable[[Outputs, Tensor], Tensor]
"""(Outputs of a batch, labels (N,)) -> the batch's mean loss, a scalar."""


def cross_entropy(out: Outputs, labels: Tensor) -> Tensor:
    """Compute the mean cross-entropy of the logits, the loss of the paper."""
    return F.cross_entropy(out.logits, labels)


def describe_loss(loss: Loss) -> dict[str, Any]:
    """Describe a loss for run.json: its name and its ``arguments``, a dictionary that JSON can hold, where it has them.

    A module without ``arguments`` is described by its text as well, so that one with other settings is another loss.
    """
    name = getattr(loss, "__name__", type(loss).__name__)
    arguments: dict[str, Any] | None = getattr(loss, "arguments", None)
    if arguments is None:
        arguments = {"text": repr(loss)} if isinstance(loss, nn.Module) else {}
    return {"name": name, **arguments}


class _LossModule(nn.Module):
    """Forward pass, loss and logged sums as one module, which Fabric can wrap for several processes."""

    def __init__(self, classifier: Classifier, loss: Loss) -> None:
        super().__init__()
        self.classifier = classifier
        self.loss = loss

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        out = self.classifier.outputs(images)
        loss = self.loss(out, labels)
        return loss, batch_sums(out, labels, loss)


class Stepper:
    """Takes the steps of a training: a classifier with its optimiser, on its device."""

    def __init__(self, classifier: Classifier, batches: TrainingBatches, loss: Loss, fabric: "Fabric") -> None:
        self.classifier, self.batches, self.plan, self.fabric = classifier, batches, batches.plan, fabric
        recipe = self.plan.recipe
        # Small convolutional networks train faster with channels last, on the CPU too (benchmarks/memory_format.py).
        classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        classifier.train()
        optimizer = torch.optim.SGD(
            classifier.parameter_groups(recipe.weight_decay, recipe.decay_head, recipe.backbone_rate),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            nesterov=recipe.momentum > 0,
        )
        self.module, self.optimizer = fabric.setup(_LossModule(classifier, loss), optimizer)
        self.relative_clip = None if recipe.clip is None else RelativeClip(recipe.clip, fabric.device)

    def step(self, number: int, share: Share) -> Tensor:
        """Take one step: prepare the batch, forward pass, gradient, clipping, update.

        Args:
            number: of the step, from 0.
            share: this process's share of the batch, as it was read.

        Returns:
            (4,), what ``batch_sums`` computes.
        """
        images, labels = self.batches.prepare(number, share, self.fabric.device)
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.learning_rate(number) * group.get("rate", 1.0)
        torch.manual_seed(self.plan.derived_seed("dropout", number * self.plan.processes + self.plan.rank))
        loss, sums = self.module(images, labels)
        self.optimizer.zero_grad(set_to_none=True)
        self.fabric.backward(loss)
        self._clip()
        self.optimizer.step()
        measured: Tensor = sums
        return measured

    def _clip(self) -> None:
        fixed = self.plan.recipe.max_norm
        limits = [] if self.relative_clip is None else [self.relative_clip.limit()]
        limits += [] if fixed is None else [torch.tensor(fixed, device=self.fabric.device)]
        if limits:
            largest: Any = torch.stack(limits).min()  # a tensor, so that no device has to wait
            norm = self.fabric.clip_gradients(self.module, self.optimizer, max_norm=largest, error_if_nonfinite=False)
            if self.relative_clip is not None and norm is not None:
                self.relative_clip.add(norm.detach())

    def state(self, done: int, settings: dict[str, Any], progress: dict[str, Any]) -> Checkpoint:
        """Return all that the remaining steps depend on, after ``done`` steps."""
        own = {
            "precision": self.fabric.strategy.precision.state_dict(),
            "relative_clip": None if self.relative_clip is None else self.relative_clip.state(),
        }
        return Checkpoint(
            step=done,
            settings=settings,
            progress=progress | own,
            weights=self.classifier.state_dict(),
            momentum=checkpoints.momentum_by_name(self.classifier, self.optimizer),
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint whose weights are in the classifier already."""
        checkpoints.restore_momentum(self.classifier, self.optimizer, checkpoint.momentum)
        self.fabric.strategy.precision.load_state_dict(checkpoint.progress["precision"])
        if self.relative_clip is not None:
            self.relative_clip.restore(checkpoint.progress["relative_clip"])


class RelativeClip:
    """Gradient clipping relative to the running mean of the gradient's norm.

    The limit is ``factor`` times the mean of the norms so far (of about the last 50, later on), each counted after
    clipping. So one bad batch, whose gradient may be ten times the average, moves the weights no more than ``factor``
    ordinary batches would, while ordinary gradients are not clipped, whatever the network's size.
    """

    memory = 50

    def __init__(self, factor: float, device: torch.device) -> None:
        self.factor = factor
        self.count = torch.zeros((), device=device)
        self.mean = torch.zeros((), device=device)

    def limit(self) -> Tensor:
        """Return the largest norm that the next gradient may have; infinity before the first."""
        return torch.where(self.mean > 0, self.factor * self.mean, torch.inf)

    def add(self, norm: Tensor) -> None:
        """Add a gradient's norm before clipping to the running mean.

        Norms that are not finite are ignored: in 16 bits gradients overflow now and then, and such a step is skipped.
        """
        clipped = torch.minimum(norm.to(self.mean), self.limit())
        counts = torch.isfinite(clipped)
        self.count = self.count + counts
        moved = self.mean + (clipped - self.mean) / self.count.clamp(1, self.memory)
        self.mean = torch.where(counts, moved, self.mean)

    def state(self) -> list[float]:
        """Return what a checkpoint keeps: the number of norms and their running mean."""
        return [int(self.count), float(self.mean)]

    def restore(self, state: list[float]) -> None:
        """Resume from what ``state`` returned."""
        self.count = torch.full_like(self.count, state[0])
        self.mean = torch.full_like(self.mean, state[1])


def batch_sums(out: Outputs, labels: Tensor, loss: Tensor) -> Tensor:
    """Compute the sums (4,) over a batch of loss, hits and scale, and the number of images, on the batch's device."""
    with torch.no_grad():
        count = loss.new_tensor(float(len(labels)))
        hits = (out.logits.argmax(1) == labels).sum().to(loss.dtype)
        scale = loss.new_zeros(()) if out.scale is None else out.scale.sum().to(loss.dtype)
        return torch.stack([loss.detach() * count, hits, scale, count])


@dataclass
class RunningMeans:
    """Running sums of what ``batch_sums`` computes, and the time that the steps took."""

    sums: list[float] = field(default_factory=lambda: [0.0] * 4)
    seconds: float = 0.0

    def add(self, sums: list[float], seconds: float) -> None:
        """Add the sums of some more images."""
        self.sums = [a + b for a, b in zip(self.sums, sums, strict=True)]
        self.seconds += seconds

    def means(self, scaled: bool) -> dict[str, Any]:
        """Compute mean loss, accuracy in [0, 1], mean scale (None where the head has none) and images per second."""
        loss, hits, scale, count = self.sums
        return {
            "loss": loss / count,
            "accuracy": hits / count,
            "scale": scale / count if scaled else None,
            "images_per_second": round(count / self.seconds, 1) if self.seconds else None,
        }
