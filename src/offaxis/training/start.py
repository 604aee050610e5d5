"""Before the first step: are the images fit for it, what does the outcome depend on, is there a run to go on with?"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from offaxis.data import ImageSet, Normalise
from offaxis.errors import DataError, OffaxisError, RunError
from offaxis.networks import description
from offaxis.networks.classifier import Classifier
from offaxis.training.checkpoint import Checkpoint
from offaxis.training.plan import Plan
from offaxis.training.run import RunFolder
from offaxis.training.step import Loss, name_of

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def check_images(classifier: Classifier, data: ImageSet, validation: ImageSet | None) -> None:
    """Raise DataError unless there are images, labelled, of classes that the network has."""
    _check_labels(classifier, data, "train on")
    if validation is None:
        return
    _check_labels(classifier, validation, "validate on")
    if data.classes and validation.classes and data.classes != validation.classes:
        raise DataError(
            f"Expected validation images of the classes that are trained ({', '.join(data.classes[:10])}) but "
            f"{validation.name} has {', '.join(validation.classes[:10])}: their numbers would not mean the same."
        )


def labels_of(data: ImageSet, purpose: str) -> Tensor:
    """The labels (N,) of a set that is not empty; DataError where there are none."""
    if data.labels is None:
        raise DataError(
            f"Expected labelled images to {purpose} but {data.name} has no labels. A folder of one's own has a folder for "
            "each class in it."
        )
    if len(data) == 0:
        raise DataError(f"Expected images to {purpose} but {data.name} is empty.")
    return data.labels


def _check_labels(classifier: Classifier, data: ImageSet, purpose: str) -> None:
    labels = labels_of(data, purpose)
    least, most = int(labels.min()), int(labels.max())
    if least < 0 or most >= classifier.num_classes:
        raise DataError(
            f"Expected labels from 0 to {classifier.num_classes - 1}, as the network has {classifier.num_classes} classes, but "
            f"{data.name} has labels from {least} to {most}. Make the network with num_classes={most + 1}."
        )


def settings_of(
    classifier: Classifier,
    data: ImageSet,
    plan: Plan,
    normalise: Normalise,
    loss: Loss,
    fabric: "Fabric",
    sync_bn: bool,
) -> dict[str, Any]:
    """What the outcome depends on, as JSON can hold it."""
    return {
        "network": description(classifier),
        "head": {"kind": type(classifier.head).__name__, **classifier.head.arguments},
        "frozen": classifier.frozen,
        "parameters": sum(p.numel() for p in classifier.parameters()),
        "classes": list(data.classes),
        "data": {"name": data.name, "images": len(data), "fingerprint": data.fingerprint},
        "normalise": {"mean": list(normalise.mean), "std": list(normalise.std)},
        "recipe": plan.recipe.to_json(),
        "loss": name_of(loss),
        "seed": plan.seed,
        "precision": fabric.strategy.precision.precision,
        "sync_bn": sync_bn,
    }


def find_earlier(
    fabric: "Fabric", folder: RunFolder | None, settings: dict[str, Any], resume: bool
) -> Checkpoint | None:
    """Where an earlier run stopped. Every process looks, so that all refuse together; then one of them writes.

    Raises:
        RunError: the folder holds something else, or the processes do not see the same run in it.
        CheckpointError: the checkpoint is damaged or belongs to other settings.
    """
    if folder is None:
        return None
    found, problem = None, None
    try:
        found = folder.find(settings, resume)
    except OffaxisError as error:
        problem = error
    if fabric.world_size > 1:
        _agree(fabric, folder, -2 if problem else -1 if found is None else found.step, problem)
    if problem is not None:
        raise problem
    fabric.barrier()
    if fabric.is_global_zero:
        folder.begin(settings, found)
    return found


def _agree(fabric: "Fabric", folder: RunFolder, step: int, problem: OffaxisError | None) -> None:
    """Raise where another process found something else than this one."""
    steps = fabric.all_gather(torch.tensor(step, device=fabric.device))
    assert isinstance(steps, Tensor)
    if problem is None and (steps != step).any():
        raise RunError(
            f"The processes do not find the same run in {folder.path}: on some machine it is missing or older. Name a "
            "folder on a disk that all of them share, or start anew."
        )
