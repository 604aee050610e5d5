"""Train a head on features: those of a frozen backbone, which sees each image once, or of any other model."""

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis.data import Normalise
from offaxis.data.adapt import as_image_set, is_loader
from offaxis.data.transforms import Batches
from offaxis.errors import ArgumentError, DataError, NotFiniteError
from offaxis.heads import Head, HeadLike, make_head
from offaxis.networks.classifier import Classifier
from offaxis.training.batches import (
    ImageSetBatches,
    labels_of,
    make_training_batches,
    make_validation_batches,
)
from offaxis.training.features import extract_features, extract_view
from offaxis.training.loop import checked_classifier, fabric_on
from offaxis.training.recipe import Recipe, frozen
from offaxis.training.record import RunFolder, Trained, open_run, run_record
from offaxis.training.step import cross_entropy

if TYPE_CHECKING:
    from lightning_fabric import Fabric

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

    Examples:
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
    per_epoch = _steps_per_epoch(count, batch_size)
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


def _steps_per_epoch(rows: int, batch_size: int) -> int:
    """Count the batches of an epoch; one row alone has no batch statistics and is left out."""
    return max(1, rows // batch_size + (rows % batch_size > 1))


def with_enough_epochs(recipe: Recipe, rows: int) -> Recipe:
    """Return the recipe with so many epochs that a head on ``rows`` features is trained for at least 1,000 steps."""
    least = math.ceil(LEAST_STEPS / _steps_per_epoch(rows, recipe.batch_size))
    return recipe.replace(epochs=max(recipe.epochs, least))


def share_of_rate(step: int, steps: int, warm_up: float = WARM_UP) -> float:
    """Return the learning rate of a step as a share of the largest: a linear rise, then half a cosine wave."""
    rise = max(1.0, warm_up * steps)
    if step < rise:
        return (step + 1) / (rise + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(steps - rise, 1.0)))


def train_frozen(
    classifier: Classifier,
    data: Any,
    recipe: Recipe | None = None,
    *,
    seed: int = 0,
    out: "str | Path | RunFolder | None" = None,
    resume: bool = False,
    normalise: Normalise | None = None,
    validation: Any = None,
    views: int = 1,
    cache: str | Path | None = None,
    device: "str | torch.device | Fabric" = "auto",
    quiet: bool = False,
) -> Trained:
    """Train the head of a classifier and leave its backbone as it is; the backbone sees each image once.

    Features are kept in ``cache``, so that another seed, head or recipe takes seconds; only ``views`` of another seed, crop or
    flip are other images. The same features and the same seed give the same weights, bit for bit.

    Args:
        classifier: a pretrained network with a new head, as ``attach`` makes it; it is trained in place.
        data: labelled training images, as ``train`` takes them; a DataLoader is refused, since it is not known whether it
            gives the same images each time.
        recipe: epochs, batch size, learning rate and weight decay of the head, crop and flip of the views;
            ``frozen()`` with enough epochs if None.
        seed: of the order of the features and of the views.
        out: a folder for the trained network; None keeps nothing.
        resume: accept a folder in which this training was begun and not finished.
        normalise: mean and std; those of ``data`` if None.
        validation: like ``data``: labelled images whose accuracy is measured at the end.
        views: how many versions of each image are trained on: the image itself, and others cropped and flipped at random.
        cache: the folder of features; None computes them anew.
        device: where the backbone runs, as in ``train``; one process.
        quiet: show no progress.

    Raises:
        DataError: the images or labels cannot be trained on.
        ArgumentError: fewer than one view, or several processes.
        NotFiniteError: the training failed; the message says what helps.
    """
    classifier = checked_classifier(classifier)
    fabric = fabric_on(device)
    if views < 1 or fabric.world_size > 1:
        raise ArgumentError(
            f"Expected at least one view, and one process, to train on features but got {views} and {fabric.world_size}."
        )
    if is_loader(data) or is_loader(validation):
        what = "train" if is_loader(data) else "validate"
        raise DataError(
            f"Expected a dataset, whose images are the same each time, to {what} on features but got a DataLoader: give its "
            "dataset without augmentation and normalisation, or train with the backbone in every step (offaxis.train)."
        )
    classifier.to(fabric.device).freeze()
    images = as_image_set(data)
    recipe = recipe or with_enough_epochs(frozen(), len(images) * views)
    small = recipe.replace(batch_size=max(2, min(recipe.batch_size, len(images))))
    batches = make_training_batches(classifier, images, small, seed=seed, normalise=normalise, fabric=fabric)
    assert isinstance(batches, ImageSetBatches)
    assert batches.normalise is not None
    to_validate = None if validation is None else make_validation_batches(classifier, validation, batches)
    folder = None if out is None else RunFolder.of(out)
    record = run_record(classifier, batches, cross_entropy, fabric, folder)
    record["settings"]["views"] = views
    with folder or nullcontext():
        open_run(fabric, folder, record, resume)
        started = time.monotonic()
        store = None if cache is None else Path(cache)
        seen = [extract_features(classifier, images, batches.normalise, cache=store, quiet=quiet)]
        seen += [extract_view(classifier, batches, number, cache=store, quiet=quiet) for number in range(1, views)]
        features, labels = torch.cat(seen), batches.labels.repeat(views)
        head = train_head(
            features.to(fabric.device),
            labels,
            head=lambda *_: classifier.head,
            num_classes=classifier.num_classes,
            seed=seed,
            epochs=recipe.epochs,
            batch_size=recipe.batch_size,
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
        )
        loss, accuracy, scale = _measure(head, features, labels)
        epoch = {
            "kind": "epoch",
            "step": recipe.epochs * _steps_per_epoch(len(features), recipe.batch_size),
            "epoch": recipe.epochs,
            "learning_rate": recipe.learning_rate,
            "loss": loss,
            "accuracy": accuracy,
            "scale": scale,
        }
        if isinstance(to_validate, Batches):
            held_out = to_validate.images
            new = extract_features(
                classifier, held_out, to_validate.normalise, cache=store, title="test images", quiet=quiet
            )
            epoch["validation_accuracy"] = _measure(head, new, labels_of(held_out, "validate on"))[1]
        epoch["seconds"] = round(time.monotonic() - started, 3)
        if folder is not None:
            folder.log(epoch)
            folder.finish(classifier)
    return Trained(
        classifier=classifier.eval(),
        normalise=batches.normalise,
        classes=batches.classes,
        history=(epoch,),
        folder=None if folder is None else folder.path,
        record=record,
    )


@torch.no_grad()
def _measure(head: Head, features: Tensor, labels: Tensor) -> tuple[float, float, float | None]:
    """Return mean loss, accuracy in [0, 1] and mean scale (None where there is none) of features."""
    loss, hits, scale = 0.0, 0, 0.0
    device = next(head.parameters()).device
    out = None
    for rows, wanted in zip(features.split(4096), labels.split(4096), strict=True):
        out = head.outputs(rows.to(device))
        wanted = wanted.to(device)
        loss += float(F.cross_entropy(out.logits, wanted, reduction="sum"))
        hits += int((out.logits.argmax(1) == wanted).sum())
        scale += 0.0 if out.scale is None else float(out.scale.sum())
    count = len(features)
    return loss / count, hits / count, None if out is None or out.scale is None else scale / count
