"""Train a head on features that are in memory: those of a frozen backbone, or of any other model."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis.errors import ArgumentError, DataError, NotFiniteError
from offaxis.heads import Head, HeadLike, make_head

EPOCHS, LEAST_STEPS, WARM_UP = 60, 1000, 0.1


def train_head(
    features: Tensor,
    labels: Tensor,
    *,
    head: HeadLike = "cosine",
    num_classes: int | None = None,
    seed: int = 0,
    epochs: int | None = None,
    batch_size: int = 256,
    learning_rate: float = 1e-2,
    weight_decay: float = 1e-2,
) -> Head:
    """Train a head on features; the learning rate rises over a tenth of the steps and falls to 0 along a cosine.

    Takes seconds for tens of thousands of rows. The same features and the same seed give the same weights, bit for bit, on
    the same machine. torch's global random numbers are left as they were.

    Args:
        features: (N, d), finite.
        labels: int64 (N,) from 0 to C - 1.
        head: a name out of ``offaxis.heads.HEADS`` or a callable (d, C) -> Head.
        num_classes: C; None is the largest label + 1.
        seed: of the first weights and of the order of the rows.
        epochs: passes over the features; None is 60, and more where these would be fewer than 1,000 steps.
        batch_size: rows a step.
        learning_rate: the largest.
        weight_decay: of all parameters but the head's ``undecayed`` ones.

    Returns:
        The trained head, in eval mode, on the device of the features.

    Raises:
        DataError: there are fewer than two rows, they are not finite, or the labels do not fit.
        ArgumentError: there is no such head, or a number is out of its range.
        NotFiniteError: the loss became NaN or infinite.

    Example:
        >>> rows, labels = torch.randn(60, 8), torch.arange(60) % 3
        >>> train_head(rows, labels, epochs=2)(rows).shape
        torch.Size([60, 3])
    """
    features, labels = _checked(features, labels)
    classes = int(labels.max()) + 1 if num_classes is None else num_classes
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise DataError(
            f"Expected labels from 0 to {classes - 1} but got labels from {int(labels.min())} to {int(labels.max())}."
        )
    if batch_size < 2 or not learning_rate > 0 or not weight_decay >= 0 or (epochs is not None and epochs < 1):
        raise ArgumentError(
            "Expected a batch of at least 2 rows, a positive learning rate, no negative weight decay and at least one epoch "
            f"but got {batch_size}, {learning_rate}, {weight_decay} and {epochs}."
        )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = make_head(head, features.shape[1], max(classes, 2)).to(features.device)
        with torch.enable_grad():
            _descend(
                made,
                features,
                labels,
                epochs=epochs,
                batch_size=batch_size,
                learning_rate=learning_rate,
                weight_decay=weight_decay,
                generator=torch.Generator().manual_seed(seed),
            )
    return made.eval()


def _checked(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return features and labels as training takes them; raise DataError where they cannot be used."""
    if features.dim() != 2 or len(features) < 2 or labels.shape != features.shape[:1]:
        raise DataError(
            "Expected features of shape (N, d) with N of at least 2, and N labels, but got "
            f"{tuple(features.shape)} and {tuple(labels.shape)}."
        )
    if not bool(features.isfinite().all()):
        raise DataError("Expected finite features but some are NaN or infinite: leave these rows out.")
    return features.detach().float(), labels.to(features.device, torch.int64)


def _descend(
    head: Head,
    features: Tensor,
    labels: Tensor,
    *,
    epochs: int | None,
    batch_size: int,
    learning_rate: float,
    weight_decay: float,
    generator: torch.Generator,
) -> None:
    """Take the steps of a training of a head, in place."""
    count = len(features)
    per_epoch = max(1, count // batch_size + (count % batch_size > 1))  # a batch of one has no batch statistics
    epochs = epochs or max(EPOCHS, math.ceil(LEAST_STEPS / per_epoch))
    update = _NormalisedDescent(head, weight_decay)
    step, steps = 0, epochs * per_epoch
    head.train()
    for _ in range(epochs):
        for rows in torch.randperm(count, generator=generator).split(batch_size)[:per_epoch]:
            loss = F.cross_entropy(head(features[rows]), labels[rows])
            gradients = torch.autograd.grad(loss, update.parameters, materialize_grads=True)
            update.step(gradients, learning_rate * share_of_rate(step, steps))
            step += 1
        if not math.isfinite(loss.item()):
            raise NotFiniteError(
                "Expected a finite loss but that of the head became NaN or infinite. Scale the features to ordinary sizes, or "
                "train with a smaller learning rate."
            )


class _NormalisedDescent:
    """Gradient descent with Nesterov momentum, where each parameter's gradient is divided by its own running size.

    Adam with one second moment per parameter tensor in place of one per number (blockwise adaptivity, Zheng and Kwok 2019,
    arXiv:1905.09899). Like Adam it needs no learning rate for the size of the features; like plain gradient descent, and
    unlike Adam, it ends where logistic regression does: on photographs two points higher for a linear head.
    """

    momentum, memory = 0.9, 0.999

    def __init__(self, head: Head, weight_decay: float) -> None:
        named = dict(head.named_parameters())
        self.parameters = list(named.values())
        self.decays = [0.0 if name in head.undecayed else weight_decay for name in named]
        self.speeds = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.squares = [parameter.new_zeros(()) for parameter in self.parameters]
        self.steps = 0

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: float) -> None:
        """Move the parameters against their gradients."""
        self.steps += 1
        share = 1 - self.memory**self.steps
        for parameter, gradient, speed, square, decay in zip(
            self.parameters, gradients, self.speeds, self.squares, self.decays, strict=True
        ):
            square.lerp_(gradient.square().mean(), 1 - self.memory)
            unit = gradient / ((square / share).sqrt() + 1e-20)
            speed.mul_(self.momentum).add_(unit)
            parameter.mul_(1 - rate * decay).sub_(
                unit.add_(speed, alpha=self.momentum), alpha=rate * (1 - self.momentum)
            )


def share_of_rate(step: int, steps: int, warm_up: float = WARM_UP) -> float:
    """Return the learning rate of a step as a share of the largest: a linear rise, then half a cosine wave."""
    rise = max(1.0, warm_up * steps)
    if step < rise:
        return (step + 1) / (rise + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(steps - rise, 1.0)))
