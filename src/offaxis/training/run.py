"""A training run on disk: what it was started with, what it logged, where it stands, what came out."""

import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from offaxis import __version__
from offaxis.data import ImageSet, Normalise
from offaxis.errors import DataError, OffaxisError, RunError, StorageError
from offaxis.files import replacing, write_text
from offaxis.networks import build, description
from offaxis.networks.classifier import Classifier
from offaxis.training import checkpoint as checkpoints
from offaxis.training.checkpoint import Checkpoint
from offaxis.training.plan import Plan
from offaxis.training.step import Loss, name_of


@dataclass(frozen=True)
class Trained:
    """What a training leaves behind.

    Attributes:
        classifier: the trained network, in eval mode.
        normalise: what its images must go through first.
        classes: names of the classes, in the order of the logits; empty where they have none.
        history: one record an epoch: loss, accuracy, learning rate, scale and the like.
        folder: where the run is kept, or None.
    """

    classifier: Classifier
    normalise: Normalise
    classes: tuple[str, ...]
    history: tuple[dict[str, Any], ...]
    folder: Path | None


class RunFolder:
    """The files of a run: run.json, log.jsonl, checkpoint.safetensors, and model.safetensors once it is finished."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about = path / "run.json"
        self.log_file = path / "log.jsonl"
        self.checkpoint = path / "checkpoint.safetensors"
        self.model = path / "model.safetensors"

    def find(self, settings: dict[str, Any], resume: bool) -> Checkpoint | None:
        """Where an earlier run with these settings stopped; reads only.

        Raises:
            RunError: there is a run here already and ``resume`` is not set, or the folder holds something else.
            CheckpointError: the checkpoint is damaged or belongs to other settings.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"Expected a folder for the run but {self.path} is a file. Name another folder.")
        if not self.about.exists():
            if self.path.is_dir() and any(not _temporary(file) for file in self.path.iterdir()):
                raise RunError(
                    f"Expected a run or an empty folder but {self.path} holds other files. Name another folder."
                )
            return None
        if not resume:
            raise RunError(
                f"There is a run in {self.path} already. Add resume=True (--resume in the shell) to go on with it, or "
                "name another folder."
            )
        checkpoints.check_settings(read_about(self.path)["settings"], settings, self.about)
        if not self.checkpoint.exists() and self.model.exists():
            raise RunError(
                f"The run in {self.path} is finished and its checkpoint is gone, so there is nothing to go on from: load_run "
                "reads the trained network. Name another folder to train anew."
            )
        if not self.checkpoint.exists():
            return None
        found = checkpoints.load_checkpoint(self.checkpoint)
        checkpoints.check_settings(found.settings, settings, self.checkpoint)
        return found

    def begin(self, settings: dict[str, Any], found: Checkpoint | None) -> None:
        """Write what the run is started with, or forget what was logged after the step that it goes on from."""
        for left in filter(_temporary, self.path.glob(".*")):  # of a process that was killed while it wrote
            left.unlink(missing_ok=True)
        if self.about.exists():
            kept = [json.dumps(r) + "\n" for r in self.records() if found and r["step"] <= found.step]
            write_text(self.log_file, "".join(kept))
            return
        about = {
            "offaxis": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "settings": settings,
        }
        write_text(self.about, json.dumps(about, indent=2) + "\n")

    def log(self, record: dict[str, Any]) -> None:
        """Append one line to log.jsonl."""
        try:
            with self.log_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise StorageError(
                f"{self.log_file} cannot be written ({error.strerror}): free some space and resume."
            ) from error

    def records(self) -> Iterator[dict[str, Any]]:
        """The lines of log.jsonl; a last line that was cut off is left out."""
        if not self.log_file.exists():
            return
        for line in self.log_file.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue

    def finish(self, classifier: Classifier) -> None:
        """Write the trained weights by themselves."""
        weights = {name: t.detach().cpu().clone().contiguous() for name, t in classifier.state_dict().items()}
        with replacing(self.model) as temporary:
            checkpoints.write_tensors(weights, temporary, {"format": "offaxis-model-1"})


def _temporary(path: Path) -> bool:
    return path.name.startswith(".") and path.suffix == ".part"


def read_about(folder: Path) -> dict[str, Any]:
    """What run.json says.

    Raises:
        RunError: the folder is not a run.
    """
    path = folder / "run.json"
    if not path.is_file():
        raise RunError(
            f"Expected the folder of a training run but {folder} {'has no run.json' if folder.is_dir() else 'does not exist'}. "
            "Name a folder that `offaxis train --out` made."
        )
    try:
        about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        about["settings"]["recipe"]
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged ({error}): it should be what `offaxis train --out` wrote.") from error
    return about


def load_run(folder: str | Path, into: Classifier | None = None) -> Trained:
    """The outcome of a finished training.

    Args:
        folder: what ``train(out=...)`` or ``offaxis train --out`` was given.
        into: a network to put the weights into; needed where it was not one of offaxis.networks.

    Raises:
        RunError: the folder is not a run, the run is unfinished, or its network must be given.
        CheckpointError: the weights are damaged or do not fit.
    """
    run = RunFolder(Path(folder))
    settings = read_about(run.path)["settings"]
    if not run.model.exists():
        raise RunError(
            f"The run in {run.path} is not finished. Go on with it: offaxis train --resume --out {run.path} and the same "
            "options."
        )
    if into is None:
        if settings["network"] is None:
            raise RunError(
                f"The run in {run.path} trained a network that is not one of offaxis.networks: make the same network and "
                "pass it as load_run(folder, into=classifier)."
            )
        into = build(settings["network"])
    checkpoints.restore(into, checkpoints.read_tensors(run.model), run.model)
    history = tuple(r for r in run.records() if r["kind"] == "epoch")
    normalise = Normalise(tuple(settings["normalise"]["mean"]), tuple(settings["normalise"]["std"]))
    return Trained(into.eval(), normalise, tuple(settings["classes"]), history, run.path)


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
