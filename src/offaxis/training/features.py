"""Train a head on features: those of a frozen backbone, which sees each image once, or of any other model."""

import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from offaxis.data import ImageSet, Normalise
from offaxis.data.adapt import as_image_set, check_labels_in_range, is_loader
from offaxis.data.images import hash_batch
from offaxis.data.transforms import NO_LABELS, Batches
from offaxis.errors import ArgumentError, CheckpointError, DataError, NotFiniteError, StorageError
from offaxis.heads import Head, HeadLike, make_head
from offaxis.networks.classifier import Classifier, FeatureInput
from offaxis.networks.run import Network, eval_mode, one_thread, prepared_batches, require_finite
from offaxis.networks.saved import checksum, read_tensors, write_tensors
from offaxis.progress import Progress
from offaxis.training.batches import ImageSetBatches, Share, make_training_batches, make_validation_batches
from offaxis.training.loop import batch_sums, checked_classifier, cross_entropy, fabric_on, mean_values
from offaxis.training.recipe import Recipe, frozen
from offaxis.training.record import RunFolder, Trained, open_run, run_record

if TYPE_CHECKING:
    from lightning_fabric import Fabric

LEAST_STEPS, WARM_UP = 1000, 0.1
BATCH, PART = 32, 2048
"""Images that go through the backbone at once, and whose features are kept in one file."""


# a head on features --------------------------------------------------------------------------------------------------


def train_head(
    features: Tensor,
    labels: Tensor,
    *,
    head: HeadLike = "cosine",
    num_classes: int | None = None,
    seed: int = 0,
    recipe: Recipe | None = None,
    **changes: Any,
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
        recipe: epochs, batch size, largest learning rate and weight decay (of all parameters but the head's ``undecayed``
            ones); ``frozen()`` if None, with more epochs where these would be fewer than 1,000 steps.
        changes: ``epochs``, ``batch_size``, ``learning_rate`` and ``weight_decay`` in place of the recipe's.

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
    if features.dim() != 2 or len(features) < 2 or labels.shape != features.shape[:1]:
        raise DataError(
            "Expected features of shape (N, d) with N of at least 2, and N labels, but got "
            f"{tuple(features.shape)} and {tuple(labels.shape)}."
        )
    if not bool(features.isfinite().all()):
        raise DataError("Expected finite features but some are NaN or infinite: leave these rows out.")
    classes = int(labels.max()) + 1 if num_classes is None else num_classes
    labels = check_labels_in_range(labels.to(features.device, torch.int64), classes, "the set of features")
    chosen = (recipe or frozen()).replace(**changes)
    if recipe is None and changes.get("epochs") is None:
        chosen = with_enough_epochs(chosen, len(features))
    rows = min(chosen.batch_size, len(features))
    with one_thread(rows * features.shape[1] * classes), torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(seed)
        made = make_head(head, features.shape[1], max(classes, 2)).to(features.device)
        _descend(made, features.detach().float(), labels, chosen, torch.Generator().manual_seed(seed))
    return made.eval()


def _descend(head: Head, features: Tensor, labels: Tensor, recipe: Recipe, generator: torch.Generator) -> None:
    """Take the steps of a training of a head, in place."""
    per_epoch = _steps_per_epoch(len(features), recipe.batch_size)
    update = _NormalisedDescent(head, recipe.weight_decay)
    step, steps = 0, recipe.epochs * per_epoch
    head.train()
    for _ in range(recipe.epochs):
        for rows in torch.randperm(len(features), generator=generator).split(recipe.batch_size)[:per_epoch]:
            loss = head.loss(head.outputs(features[rows]), labels[rows])
            gradients = torch.autograd.grad(loss, update.parameters, materialize_grads=True)
            update.step(gradients, recipe.learning_rate * share_of_rate(step, steps))
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


def with_enough_epochs(recipe: Recipe, rows: int, steps: int = LEAST_STEPS) -> Recipe:
    """Return the recipe with so many epochs that a head on ``rows`` features is trained for at least so many steps."""
    least = math.ceil(steps / _steps_per_epoch(rows, recipe.batch_size))
    return recipe.replace(epochs=max(recipe.epochs, least))


def share_of_rate(step: int, steps: int, warm_up: float = WARM_UP) -> float:
    """Return the learning rate of a step as a share of the largest: a linear rise, then half a cosine wave."""
    rise = max(1.0, warm_up * steps)
    if step < rise:
        return (step + 1) / (rise + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(steps - rise, 1.0)))


# the features of a frozen backbone -----------------------------------------------------------------------------------


def extract_features(
    classifier: Classifier,
    images: ImageSet,
    normalise: Normalise,
    *,
    view: tuple[ImageSetBatches, int] | None = None,
    cache: Path | None = None,
    title: str = "features",
    quiet: bool = True,
) -> Tensor:
    """Compute the features (N, d) that the head of a classifier gets, on the CPU, in one pass over the images.

    Args:
        classifier: the network; it runs where it is, in eval mode.
        images: N images.
        normalise: mean and std, as in training.
        view: batches of these images, by which they are cropped and flipped at random, and the number of the view.
        cache: a folder of safetensors files, each of at most ``PART`` images and, of a folder, of one class, named by the
            checksums of weights and images, so that a pass that is stopped is resumed and a set to which a class was added
            takes those of the others; None for no cache.
        title: the title of the progress bar.
        quiet: show no progress.
    """
    device = next((parameter.device for parameter in classifier.parameters()), torch.device("cpu"))

    batches, number = view or (None, 0)

    def compute(chosen: Sequence[Tensor]) -> Tensor:
        parts = list[Tensor]()
        for rows, pixels in zip(chosen, images.stream(chosen), strict=True):
            if batches is None:
                batch = normalise(pixels)
            else:
                share = Share(pixels, batches.labels[rows], 0, len(rows))
                place = number * math.ceil(len(images) / BATCH) + int(rows[0]) // BATCH
                batch, _ = batches.prepare(place, share, device)
            for part, _ in prepared_batches(classifier, [batch]):
                parts.append(classifier.features(part).flatten(1).float().cpu())
            progress.to(int(rows[-1]) + 1)
        require_finite("the network's features", torch.cat(parts))
        return torch.cat(parts)

    key: dict[str, Any] = {}
    if cache is not None:
        key = {
            "weights": checksum(classifier.backbone, None),
            "network": repr(classifier.backbone),
            "device": device.type,
            "normalise": [normalise.mean, normalise.std],
        }
    if batches is not None:
        changes = [getattr(batches.recipe, name) for name in ("crop", "flip", "min_area", "jitter")]
        key |= {"view": number, "seed": batches.seed, "augmentation": changes}
        key["images"] = images.fingerprint if cache is not None else None
    found, labels = list[Tensor](), images.labels
    by_class = batches is None and images.sorted_by_class and labels is not None
    runs = labels.unique_consecutive(return_counts=True)[1].tolist() if by_class and labels is not None else len(images)
    with Progress(title, len(images), quiet) as progress, eval_mode(classifier), torch.no_grad():
        for rows in (part for run in torch.arange(len(images)).split(runs) for part in run.split(PART)):
            chosen = rows.split(BATCH)
            if batches is not None:
                key["images from"] = int(rows[0])
            elif cache is not None:
                key["images"] = [value.hex() for pixels in images.stream(chosen) for value in hash_batch(pixels)]
            found.append(_kept(cache, json.dumps(key, sort_keys=True), partial(compute, chosen)))
            progress.to(int(rows[-1]) + 1)
    return torch.cat(found)


def _kept(folder: Path | None, key: str, compute: Callable[[], Tensor]) -> Tensor:
    """Return the features of a key from the folder, or compute and keep them there."""
    if folder is None:
        return compute()
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"
    with suppress(CheckpointError):  # a damaged file is computed anew
        return read_tensors(path, required=True)[0]["features"]
    features = compute()
    try:
        write_tensors(path, {"features": features}, {"format": "offaxis-features-1"})
    except StorageError as error:
        warnings.warn(f"The features were not kept for the next training. {error}", UserWarning, stacklevel=2)
    return features


def on_features(
    network: Network,
    batches: Iterable[tuple[Tensor, Tensor]],
    cache: Path,
    *,
    title: str = "training images",
    quiet: bool = True,
) -> tuple[Network, Iterable[tuple[Tensor, Tensor]]]:
    """Return the head of a frozen network as a classifier of features, and batches of its features in place of images.

    Their outputs are those of the network on the images, without its layers. A network whose backbone was trained with its
    head is returned as it is, with the images; so is any network with batches that are not of an image set.
    """
    frozen = isinstance(network, Classifier) and network.frozen and network.unfrozen_from is None
    if not frozen or not isinstance(batches, Batches):
        return network, batches
    assert isinstance(network, Classifier)
    parameter = next(network.parameters())
    head = Classifier(FeatureInput(), network.head).to(parameter.device, parameter.dtype)
    images = batches.images
    rows = extract_features(network, images, batches.normalise, cache=cache, title=f"{title}: features", quiet=quiet)
    parts = rows.split(batches.size)
    labels = [NO_LABELS] * len(parts) if images.labels is None else images.labels.split(batches.size)
    return head, list(zip(parts, labels, strict=True))


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
    classifier, fabric = checked_classifier(classifier), fabric_on(device)
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
    held_out = None if validation is None else make_validation_batches(classifier, validation, batches)
    folder = RunFolder.of(out)
    record = run_record(classifier, batches, cross_entropy, fabric, folder)
    record["settings"]["views"] = views
    with folder or nullcontext():
        open_run(fabric, folder, record, resume)
        started = time.monotonic()
        kept = None if cache is None else Path(cache)
        extract = partial(extract_features, classifier, normalise=batches.normalise, cache=kept, quiet=quiet)
        seen = [extract(images)]
        seen += [extract(images, view=(batches, n), title=f"features of view {n + 1}") for n in range(1, views)]
        features, labels = torch.cat(seen).to(fabric.device), batches.labels.repeat(views)
        head, classes = classifier.head, classifier.num_classes
        train_head(features, labels, head=lambda *_: head, num_classes=classes, seed=seed, recipe=recipe)
        epoch = {
            "kind": "epoch",
            "step": recipe.epochs * _steps_per_epoch(len(features), recipe.batch_size),
            "epoch": recipe.epochs,
            "learning_rate": recipe.learning_rate,
            **_measure_head(head, features, labels, started),
        }
        if isinstance(held_out, Batches):
            rows, wanted = extract(held_out.images, title="test images"), held_out.images.labels
            assert wanted is not None
            epoch["validation_accuracy"] = _measure_head(head, rows, wanted, started)["accuracy"]
        epoch["seconds"] = round(time.monotonic() - started, 3)
        if folder is not None:
            folder.log(epoch)
            folder.finish(classifier)
    return Trained.of(classifier, batches, [epoch], folder, record)


@torch.no_grad()
def _measure_head(head: Head, features: Tensor, labels: Tensor, started: float) -> dict[str, Any]:
    """Return mean loss, accuracy in [0, 1] and mean scale (None where there is none) of features."""
    sums, device = torch.zeros(4), next(head.parameters()).device
    for rows, wanted in zip(features.split(4096), labels.split(4096), strict=True):
        out, wanted = head.outputs(rows.to(device)), wanted.to(device)
        sums += batch_sums(out, wanted, cross_entropy(out, wanted)).cpu()
    return mean_values(sums.tolist(), time.monotonic() - started, out.scale is not None)
