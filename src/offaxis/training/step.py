"""One step of training: a batch's crops, forward pass, gradient, clipping and update."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.data import Normalise
from offaxis.heads import Outputs
from offaxis.networks.classifier import Classifier
from offaxis.training import checkpoint as checkpoints
from offaxis.training.augment import crop_and_flip
from offaxis.training.checkpoint import Checkpoint
from offaxis.training.clip import UsualNorm
from offaxis.training.plan import Plan
from offaxis.training.tally import measure

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
        return loss, measure(out, labels, loss)


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
        self.usual = None if recipe.clip is None else UsualNorm(recipe.clip, fabric.device)

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
