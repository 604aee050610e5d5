"""A training run on disk: run.json (how it was started), log.jsonl, checkpoint.safetensors and model.safetensors."""

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from offaxis import __version__
from offaxis.data import Normalise
from offaxis.errors import ArgumentError, OffaxisError, RunError, StorageError
from offaxis.files import check_plain, json_line, lock, read_json, read_lines, unlock, write_json, write_text
from offaxis.heads import describe_head
from offaxis.heads.batch_norm import SyncedBatchNorm
from offaxis.networks.classifier import Classifier
from offaxis.networks.describe import build, build_network, describe, description, must_be_given
from offaxis.networks.open import open_for_weights
from offaxis.networks.opened import OpenedNetwork
from offaxis.networks.weights import read_tensors, restore, write_tensors
from offaxis.options import TrainOptions
from offaxis.training import checkpoint as checkpoints
from offaxis.training.batches import TrainingBatches
from offaxis.training.checkpoint import Checkpoint
from offaxis.training.step import Loss, describe_loss

if TYPE_CHECKING:
    from lightning_fabric import Fabric

FORMAT = "offaxis-run"
VERSION = 3
UNCHECKED = 2
"""The older version that is read too; its files have no checksums."""
_EVALUATED = ("recipe", "network", "loss", "frozen", "unfreeze", "views", "precision")
"""Settings of a training that records of its evaluation keep."""
_NEEDED = {"network", "head", "data", "normalise", "recipe", "seed"}
_RESTORE = "it should be what `offaxis train --out` wrote; restore it, or train again in another folder"


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The result of a training.

    Attributes:
        classifier: the trained network, in eval mode.
        normalise: what its images must be normalised with; None where a DataLoader normalised them.
        classes: names of the classes, in the order of the logits; empty where they are not known.
        history: one record per epoch: loss, accuracy, learning rate, scale and so on.
        folder: the run's folder, or None.
        record: what run.json holds: the command, the versions and the settings.
    """

    classifier: Classifier
    normalise: Normalise | None
    classes: tuple[str, ...]
    history: tuple[dict[str, Any], ...]
    folder: Path | None = None
    record: dict[str, Any] = field(default_factory=dict)

    def opened(self) -> OpenedNetwork:
        """Return the network with what its record tells, as ``open_network`` does."""
        settings = self.record.get("settings", {})
        data = settings.get("data")
        options = (data or {}).get("options", {})
        size = options.get("size")
        return OpenedNetwork(
            network=self.classifier,
            normalise=self.normalise,
            size=None if size is None else (size, size) if isinstance(size, int) else (size[0], size[1]),
            resize=options.get("resize"),
            classes=self.classes,
            seed=int(settings.get("seed", 0)),
            origin="" if self.folder is None else self.folder.resolve().name,
            id=data["name"]
            if data and data["fingerprint"]
            else None,  # the batches of a DataLoader are not a known set
            recipe=settings.get("recipe"),
            data=data,
            settings={key: settings[key] for key in _EVALUATED if key in settings},
            command=self.record.get("command"),
        )


def run_record(
    classifier: Classifier, batches: TrainingBatches, loss: Loss, fabric: "Fabric", folder: "RunFolder | None"
) -> dict[str, Any]:
    """Describe a training by fields, as run.json holds them.

    Returns:
        ``format``, ``version``, ``command`` (the words that started it, or None), ``options`` (those of ``offaxis train`` that
        are not its defaults, or None), ``versions`` (of offaxis, torch and Python) and ``settings``, everything that the
        result depends on: ``network``, ``head``, ``frozen``, ``parameters``, ``data``, ``normalise``, ``recipe``, ``loss``,
        ``seed``, ``precision`` and ``sync_bn``.
    """
    plan, normalise, head = batches.plan, batches.normalise, classifier.head
    settings = {
        "network": description(classifier) or _attached(classifier),
        "head": describe_head(head) or {"name": type(head).__name__, **head.arguments},
        "frozen": classifier.frozen,
        **({} if classifier.unfrozen_from is None else {"unfreeze": classifier.unfrozen_from}),
        "parameters": sum(p.numel() for p in classifier.parameters()),
        "data": {**batches.describe(), "classes": list(batches.classes)},
        "normalise": None if normalise is None else {"mean": list(normalise.mean), "std": list(normalise.std)},
        "recipe": {"name": plan.recipe.name, **plan.recipe.to_json()},
        "loss": describe_loss(loss),
        "seed": plan.seed,
        "precision": fabric.strategy.precision.precision,
        "sync_bn": any(isinstance(part, SyncedBatchNorm) for part in classifier.backbone.modules()),
    }
    return {
        "format": FORMAT,
        "version": VERSION,
        "command": None if folder is None or folder.command is None else list(folder.command),
        "options": None if folder is None or folder.options is None else folder.options.record(),
        "versions": {"offaxis": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "settings": settings,
    }


def _attached(classifier: Classifier) -> dict[str, Any] | None:
    """Describe a network of timm, torchvision or transformers; None for one that must be given again."""
    if classifier.builder is None:
        return None
    plan = describe(classifier)
    return None if must_be_given(plan) else plan


class RunFolder:
    """The files of a run: run.json, log.jsonl, checkpoint.safetensors, and model.safetensors once it is finished.

    Inside a ``with`` block, ``begin`` locks the run for this process until the block ends.

    Args:
        path: the folder.
        command: the words of the command line that started the training, for its record.
        options: those of ``offaxis train``, for its record; their ``log_every`` is heeded.
    """

    def __init__(
        self, path: str | Path, *, command: Sequence[str] | None = None, options: TrainOptions | None = None
    ) -> None:
        path = Path(path)
        self.path, self.command, self.options = path, command, options
        self._held: IO[bytes] | None = None
        self.record = path / "run.json"
        self.log_file = path / "log.jsonl"
        self.checkpoint = path / "checkpoint.safetensors"
        self.model = path / "model.safetensors"

    @classmethod
    def of(cls, path: "str | Path | RunFolder") -> "RunFolder":
        """Return the folder at a path; a RunFolder as it is."""
        return path if isinstance(path, RunFolder) else cls(path)

    @property
    def log_every(self) -> int | None:
        """Return the steps between two lines of the log; None for about ten lines an epoch."""
        return None if self.options is None else self.options.log_every

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._held is not None:
            unlock(self._held)
            self._held = None

    def find_checkpoint(self, settings: dict[str, Any], resume: bool) -> Checkpoint | None:
        """Read the checkpoint of an earlier run with these settings; None where there is none. Nothing is written.

        Raises:
            RunError: there is a run here already and ``resume`` is not set, or the folder holds something else.
            CheckpointError: the checkpoint is damaged or belongs to other settings.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"Expected a folder for the run but {self.path} is a file. Name another folder.")
        if not self.record.exists():
            if self.path.is_dir() and any(not _temporary(file) for file in self.path.iterdir()):
                raise RunError(
                    f"Expected a run or an empty folder but {self.path} holds other files. Name another folder."
                )
            return None
        if not resume:
            raise RunError(
                f"There is a run in {self.path} already. Add resume=True (--resume in the shell) to resume it, or "
                "name another folder."
            )
        checkpoints.check_settings(read_run(self.path)["settings"], settings, self.record)
        if not self.checkpoint.exists() and self.model.exists():
            raise RunError(
                f"The run in {self.path} is finished and has no checkpoint, so there is nothing to resume: open_network opens "
                "the trained network. Name another folder to train anew."
            )
        if not self.checkpoint.exists():
            return None
        checkpoint = checkpoints.load_checkpoint(self.checkpoint)
        checkpoints.check_settings(checkpoint.settings, settings, self.checkpoint)
        return checkpoint

    def begin(self, record: dict[str, Any], checkpoint: Checkpoint | None) -> None:
        """Write run.json and lock the run; where it is resumed, remove the log lines after the step that it resumes from.

        Raises:
            RunError: another process is training here.
        """
        resumed = self.record.exists()
        if not resumed:
            write_json(self.record, record)
        self._held = self.record.open("rb")
        others = not lock(self._held) or not os.path.samestat(os.fstat(self._held.fileno()), self.record.stat())
        if others:  # the second: a process that began at the same time has replaced run.json
            raise RunError(
                f"Another process is training in {self.path}: wait until it has finished, stop it, or name another folder."
            )
        for left in filter(_temporary, self.path.glob(".*")):  # of a process that was killed while it wrote
            left.unlink(missing_ok=True)
        if resumed:
            kept = [json_line(r) for r in self.log_records() if checkpoint and r["step"] <= checkpoint.step]
            write_text(self.log_file, "".join(kept))

    def log(self, record: dict[str, Any]) -> None:
        """Append one line to log.jsonl."""
        try:
            with self.log_file.open("a", encoding="utf-8") as file:
                file.write(json_line(record))
        except OSError as error:
            raise StorageError(
                f"{self.log_file} cannot be written ({error.strerror}): free some space and resume."
            ) from error

    def log_records(self) -> Iterator[dict[str, Any]]:
        """Iterate over the records of log.jsonl; a last line that was cut off is left out.

        Raises:
            RunError: another line is damaged.
        """
        try:
            check_plain(self.log_file)
            lines = self.log_file.read_bytes().splitlines(keepends=True) if self.log_file.exists() else []
        except OSError as error:
            raise RunError(f"{self.log_file} cannot be read ({error.strerror or error}).") from error
        whole = [line for line in lines if line.endswith(b"\n")]
        remedy = "restore the file, or delete the line to go on without it"
        required = read_run(self.path)["version"] != UNCHECKED
        for number, record in enumerate(read_lines(whole, self.log_file, RunError, remedy, required=required), 1):
            if "kind" not in record or not isinstance(record.get("step"), int):
                raise RunError(f"Line {number} of {self.log_file} is no record of a step or an epoch: {remedy}.")
            yield record

    def finish(self, classifier: Classifier) -> None:
        """Write the trained weights to model.safetensors."""
        write_tensors(self.model, classifier.state_dict(), {"format": "offaxis-model-2"})


def _temporary(path: Path) -> bool:
    return path.name.startswith(".") and path.suffix == ".part"


def open_run(fabric: "Fabric", folder: RunFolder | None, record: dict[str, Any], resume: bool) -> Checkpoint | None:
    """Find the checkpoint to resume from, and write run.json where the run is new.

    Every process looks, so that all refuse together; then one of them writes.

    Raises:
        RunError: the folder holds something else, or the processes do not see the same run in it.
        CheckpointError: the checkpoint is damaged or belongs to other settings.
    """
    if folder is None:
        return None
    checkpoint, problem = None, None
    try:
        checkpoint = folder.find_checkpoint(record["settings"], resume)
    except OffaxisError as error:
        problem = error
    if fabric.world_size > 1:
        _check_processes_agree(
            fabric, folder, -2 if problem else -1 if checkpoint is None else checkpoint.step, problem
        )
    if problem is not None:
        raise problem
    fabric.barrier()
    if fabric.is_global_zero:
        try:
            folder.begin(record, checkpoint)
        except OffaxisError as error:
            problem = error
    _check_begun(fabric, folder, problem)
    return checkpoint


def _check_begun(fabric: "Fabric", folder: RunFolder, problem: OffaxisError | None) -> None:
    """Raise in every process where the first could not begin the run."""
    if fabric.world_size > 1:
        failed = fabric.all_gather(torch.tensor(problem is not None, device=fabric.device, dtype=torch.int))
        assert isinstance(failed, Tensor)
        if problem is None and failed.any():
            raise RunError(f"The first process could not begin the run in {folder.path}; its message says why.")
    if problem is not None:
        raise problem


def _check_processes_agree(fabric: "Fabric", folder: RunFolder, step: int, problem: OffaxisError | None) -> None:
    """Raise RunError where another process sees another checkpoint than this one."""
    steps = fabric.all_gather(torch.tensor(step, device=fabric.device))
    assert isinstance(steps, Tensor)
    if problem is None and (steps != step).any():
        raise RunError(
            f"The processes do not find the same run in {folder.path}: on some machine it is missing or older. Name a "
            "folder on a disk that all of them share, or start anew."
        )


def read_run(folder: Path) -> dict[str, Any]:
    """Read run.json: the fields that ``run_record`` describes.

    Raises:
        RunError: the folder is not a run, or one of another format version.
    """
    path = folder / "run.json"
    if not path.is_file():
        raise RunError(
            f"Expected the folder of a training run but {folder} {'has no run.json' if folder.is_dir() else 'does not exist'}. "
            "Name a folder that `offaxis train --out` made."
        )
    record = read_json(path, RunError, _RESTORE, required=lambda values: values.get("version") == VERSION)
    version = record.get("version", 1)
    if record.get("format", FORMAT) != FORMAT or not isinstance(record.get("settings"), dict):
        raise RunError(f"{path} is damaged or foreign: {_RESTORE}.")
    if version not in (VERSION, UNCHECKED):
        raise RunError(
            f"Expected a run of format version {VERSION} but {folder} has version {version}: it was made by "
            f"{'an older' if isinstance(version, int) and version < VERSION else 'another'} version of offaxis. Train it "
            "again with this one, in another folder."
        )
    missing = _NEEDED - record["settings"].keys()
    if missing or not isinstance(record["settings"]["data"], dict) or "classes" not in record["settings"]["data"]:
        raise RunError(f"{path} is damaged, its settings lack {', '.join(sorted(missing)) or 'classes'}: {_RESTORE}.")
    return {**record, "settings": checkpoints.complete_settings(record["settings"])}


def recorded_options(record: Mapping[str, Any]) -> TrainOptions | None:
    """Return the options of ``offaxis train`` that a run.json holds; None where the training was started in Python.

    Records of version 0.2.0 have the words of the command alone.
    """
    if record.get("options") is not None:
        return TrainOptions.from_record(record["options"])
    words = list(record.get("command") or ())
    return TrainOptions.from_words(words[2:]) if words[1:2] == ["train"] else None


def _make_network(plan: dict[str, Any]) -> Classifier:
    network = build_network(plan) if "kind" in plan else build(plan)
    assert isinstance(network, Classifier)
    return network


def load_run(folder: str | Path, into: "Classifier | str | None" = None) -> Trained:
    """Load the trained network of a finished run.

    Args:
        folder: what ``train(out=...)`` or ``offaxis train --out`` was given.
        into: a network to load the weights into, or ``file.py:function`` that makes it and is told the run's classes and
            head; needed where it was not one of offaxis.networks.

    Raises:
        RunError: the folder is not a run, the run is unfinished, or its network must be given.
        CheckpointError: the weights are damaged or do not fit.
    """
    run = RunFolder(Path(folder))
    record = read_run(run.path)
    settings = record["settings"]
    if not run.model.exists():
        raise RunError(
            f"The run in {run.path} is not finished. Resume it: offaxis train --resume --out {run.path} and the same "
            "options."
        )
    if isinstance(into, str):
        made = open_for_weights(into, len(settings["data"]["classes"]), settings.get("head")).network
        if not isinstance(made, Classifier):
            raise ArgumentError(f"Expected one Classifier but {into} makes a {type(made).__name__}.")
        into = made
    if into is None:
        if settings["network"] is None:
            raise RunError(
                f"The run in {run.path} trained a network that Python code had made, which run.json does not describe: make "
                "the same network and pass it as load_run(folder, into=classifier), or name the function that makes it: "
                "--network file.py:function."
            )
        into = _make_network(settings["network"])
    weights, _ = read_tensors(run.model, required=record["version"] != UNCHECKED)
    restore(into, weights, run.model)
    into.frozen, into.unfrozen_from = bool(settings.get("frozen")), settings.get("unfreeze")
    normalise = settings["normalise"]
    return Trained(
        classifier=into.eval(),
        normalise=None if normalise is None else Normalise(tuple(normalise["mean"]), tuple(normalise["std"])),
        classes=tuple(settings["data"]["classes"]),
        history=tuple(r for r in run.log_records() if r["kind"] == "epoch"),
        folder=run.path,
        record=record,
    )
