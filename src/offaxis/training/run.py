"""A training run on disk: what it was started with, what it logged, where it stands, what came out."""

import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from offaxis.data import Normalise
from offaxis.errors import RunError, StorageError
from offaxis.files import replacing, write_text
from offaxis.networks import build
from offaxis.networks.classifier import Classifier
from offaxis.training import checkpoint as checkpoints
from offaxis.training.checkpoint import Checkpoint
from offaxis.version import __version__


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
        found = checkpoints.load(self.checkpoint)
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
