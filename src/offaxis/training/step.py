"""One step of training: forward pass, loss, gradient, clipping, update, the sums that are logged, and when to stop."""

import math
import signal
import threading
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.errors import ArgumentError, NotFiniteError, ScaleCollapseError
from offaxis.heads import Outputs
from offaxis.networks.classifier import Classifier
from offaxis.networks.weights import checksum
from offaxis.training import checkpoint as checkpoints
from offaxis.training.batches import Share, TrainingBatches
from offaxis.training.check import LEAST_SCALE, learned_nothing
from offaxis.training.checkpoint import Checkpoint

if TYPE_CHECKING:
    from lightning_fabric import Fabric


Loss = Callable[[Outputs, Tensor], Tensor]
"""(Outputs of a batch, labels (N,)) -> the batch's mean loss, a scalar; PyTorch's own are given the logits instead."""


def cross_entropy(out: Outputs, labels: Tensor) -> Tensor:
    """Compute the mean cross-entropy of the logits, the loss of the paper."""
    return F.cross_entropy(out.logits, labels)


def describe_loss(loss: Loss) -> dict[str, Any]:
    """Describe a loss for run.json: its name and its ``arguments``, a dictionary that JSON can hold, where it has them.

    A module without ``arguments`` is described by its text as well, one of PyTorch, whose text says little, by its settings,
    and a partial function by what it was given, so that one with other settings is another loss.
    """
    if isinstance(loss, partial):
        given = {str(place): value for place, value in enumerate(loss.args)} | loss.keywords
        return {**describe_loss(loss.func), "given": {name: _plain(value) for name, value in given.items()}}
    name = getattr(loss, "__name__", type(loss).__name__)
    if isinstance(loss, nn.Module) and takes_logits(loss):
        settings = {key: value for key, value in vars(loss).items() if not key.startswith("_") and key != "training"}
        return {"name": name, **{key: _plain(value) for key, value in (settings | loss.state_dict()).items()}}
    arguments: dict[str, Any] | None = getattr(loss, "arguments", None)
    if arguments is None:
        arguments = {"text": repr(loss)} if isinstance(loss, nn.Module) else {}
    return {"name": name, **arguments}


def _plain(value: Any) -> Any:
    """Return a setting as JSON can hold it: numbers and texts as they are, tensors by their checksum, others by their type."""
    if isinstance(value, Tensor):
        holder = nn.Module()
        holder.register_buffer("value", value)
        return checksum(holder, None)[:16]
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else type(value).__name__


def takes_logits(loss: Any) -> bool:
    """Return whether a loss is PyTorch's, a module or a function: these take logits (N, C), others take Outputs."""
    while isinstance(loss, partial):
        loss = loss.func
    if isinstance(loss, nn.Module):
        return type(loss).forward.__module__ == "torch.nn.modules.loss"
    return getattr(F, getattr(loss, "__name__", ""), None) is loss


class _LossModule(nn.Module):
    """Forward pass, loss and logged sums as one module, which Fabric can wrap for several processes."""

    def __init__(self, classifier: Classifier, loss: Loss) -> None:
        super().__init__()
        self.classifier = classifier
        self.loss: Any = loss
        self.of_logits = takes_logits(loss)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        out = self.classifier.outputs(images)
        loss: Tensor = self.loss(out.logits if self.of_logits else out, labels)
        if loss.dim():
            raise ArgumentError(
                f"Expected a loss that is one number, the mean over a batch, but got one of shape {tuple(loss.shape)}: "
                "reduction='mean', or take the mean of it."
            )
        return loss, batch_sums(out, labels, loss)


class Stepper:
    """Takes the steps of a training: a classifier with its optimiser, on its device.

    Attributes:
        plain_loss: whether the loss is the cross-entropy of the logits.
    """

    def __init__(self, classifier: Classifier, batches: TrainingBatches, loss: Loss, fabric: "Fabric") -> None:
        self.classifier, self.batches, self.plan, self.fabric = classifier, batches, batches.plan, fabric
        self.plain_loss = loss is cross_entropy
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


class CollapseGuard:
    """Stops a training whose loss is not finite or whose scale has collapsed.

    Args:
        num_classes: C; guessing gives the loss ln C.
        window: how many steps in a row a collapsed scale is given to recover.
        clip: the recipe's gradient clipping, for the advice.
        learning_rate: the recipe's, for the advice.
    """

    def __init__(self, *, num_classes: int, window: int, clip: float | None, learning_rate: float) -> None:
        self.chance = math.log(num_classes)
        self.window = window
        self.clip = clip
        self.learning_rate = learning_rate
        self.collapsed: deque[int] = deque()

    def check(self, step: int, steps: int, loss: float, scale: float | None) -> None:
        """Check the mean loss and the mean scale of the last ``steps`` steps, which ended with ``step``.

        Raises:
            NotFiniteError: the loss is NaN or infinite.
            ScaleCollapseError: the scale has been near zero for a whole window, with the loss at chance.
        """
        if not math.isfinite(loss):
            raise NotFiniteError(
                f"The loss became {loss} within the {steps} steps before step {step}. Common causes: a learning rate that "
                f"is too high (it was {self.learning_rate:g}), NaN or infinite pixels, or 16-bit precision. Try a tenth of "
                f"the learning rate{'' if self.clip else ', gradient clipping (clip=1.5)'}, or precision 32-true."
            )
        if scale is None or abs(scale) >= LEAST_SCALE or loss < 0.9 * self.chance:
            self.collapsed.clear()
            return
        self.collapsed.append(steps)
        if sum(self.collapsed) >= self.window:
            cure = f"Lower the learning rate (it was {self.learning_rate:g})"
            if self.clip is None:
                cure = (
                    "Clip the gradient (clip=1.5 in the recipe, --clip 1.5 in the shell), which prevents this, or l"
                    + cure[1:]
                )
            raise ScaleCollapseError(
                f"The scale collapsed: its mean was {scale:.2g} over the last {sum(self.collapsed)} steps before step {step} "
                f"and the loss is {loss:.3f}, at chance (ln C = {self.chance:.3f}). Every gradient is proportional to the "
                f"scale, so training would stay there. {cure}. docs/scale-collapse.md explains how it comes about."
            )

    def check_end(self, loss: float, accuracy: float, *, by_accuracy: bool = False) -> None:
        """Warn where loss or accuracy of the last epoch are next to no better than guessing.

        Args:
            loss: the mean over the epoch.
            accuracy: likewise.
            by_accuracy: accuracy alone decides, as the loss cannot be compared with ln C: it is not the plain cross-entropy,
                or that of logits of a fixed size (LogitNorm), which is large before the classes are learned.
        """
        guessing = math.exp(-self.chance)
        compared, chance = (0.0, "") if by_accuracy else (loss, f"ln C = {self.chance:.3f} and ")
        if learned_nothing(accuracy=accuracy, loss=compared, guessing=guessing, guessing_loss=self.chance):
            warnings.warn(
                f"The network has learned next to nothing: its training ended with the loss {loss:.3f} and the accuracy "
                f"{accuracy:.1%}, and guessing gives {chance}{guessing:.1%}. More epochs, another "
                "learning rate, or a look at the labels may help.",
                UserWarning,
                stacklevel=3,
            )


class StopRequest:
    """Records the first SIGINT or SIGTERM inside its block instead of acting on it; a second one acts as before.

    Attributes:
        number: the signal, or None where none has come.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, signal.Handlers | object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python forbids handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._record)
        return self

    def _record(self, number: int, _frame: FrameType | None) -> None:
        self.number = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
