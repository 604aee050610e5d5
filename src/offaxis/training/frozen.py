"""Train a head on features that are in memory: those of a frozen backbone, or of any other model."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis.errors import ArgumentError, DataError, NotFiniteError
from offaxis.heads import Head, HeadLike, make_head

EPOCHS, LEAST_STEPS, WARM_UP = 60, 300, 0.1


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
    """Train a head on features with AdamW; the learning rate rises over a tenth of the steps and falls along a cosine.

    Takes seconds for tens of thousands of rows. The same features and the same seed give the same weights, bit for bit, on
    the same machine. torch's global random numbers are left as they were.

    Args:
        features: (N, d), finite.
        labels: int64 (N,) from 0 to C - 1.
        head: a name out of ``offaxis.heads.HEADS`` or a callable (d, C) -> Head.
        num_classes: C; None is the largest label + 1.
        seed: of the first weights and of the order of the rows.
        epochs: passes over the features; None is 60, and more where these would be fewer than 300 steps.
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
        >>> rows = torch.randn(60, 8) + 4 * torch.eye(8)[torch.arange(60) % 3]
        >>> trained = train_head(rows, torch.arange(60) % 3)
        >>> bool((trained(rows).argmax(1) == torch.arange(60) % 3).float().mean() > 0.9)
        True
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
            _descend(made, features, labels, epochs, batch_size, learning_rate, weight_decay, seed)
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
    epochs: int | None,
    batch_size: int,
    learning_rate: float,
    weight_decay: float,
    seed: int,
) -> None:
    """Take the steps of a training of a head."""
    count = len(features)
    per_epoch = max(1, count // batch_size + (count % batch_size > 1))  # a batch of one has no batch statistics
    epochs = epochs or max(EPOCHS, math.ceil(LEAST_STEPS / per_epoch))
    parameters = dict(head.named_parameters())
    decayed = [parameter for name, parameter in parameters.items() if name not in head.undecayed]
    undecayed = [parameter for name, parameter in parameters.items() if name in head.undecayed]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": undecayed, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW([group for group in groups if group["params"]], lr=learning_rate)
    generator = torch.Generator().manual_seed(seed)
    step, steps = 0, epochs * per_epoch
    head.train()
    for _ in range(epochs):
        for rows in torch.randperm(count, generator=generator).split(batch_size)[:per_epoch]:
            for group in optimiser.param_groups:
                group["lr"] = learning_rate * share_of_rate(step, steps)
            loss = F.cross_entropy(head(features[rows]), labels[rows])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            step += 1
        if not math.isfinite(loss.item()):
            raise NotFiniteError(
                "Expected a finite loss but that of the head became NaN or infinite. Scale the features to ordinary sizes, or "
                "train with a smaller learning rate."
            )


def share_of_rate(step: int, steps: int, warm_up: float = WARM_UP) -> float:
    """Return the learning rate of a step as a share of the largest: a linear rise, then half a cosine wave."""
    rise = max(1.0, warm_up * steps)
    if step < rise:
        return (step + 1) / (rise + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(steps - rise, 1.0)))
