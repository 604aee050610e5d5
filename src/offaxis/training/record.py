"""A training run on disk: run.json (how it was started), log.jsonl, checkpoint.safetensors and model.safetensors."""

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis import __version__
from offaxis.data import Normalise
from offaxis.errors import ArgumentError, CheckpointError, OffaxisError, RunError, StorageError
from offaxis.files import digest, json_line, lock, read_json, read_lines, unlock, write_json, write_text
from offaxis.heads import Outputs, complete_description, describe_head
from offaxis.heads.base import OWN_HEAD, find_head
from offaxis.heads.batch_norm import SyncedBatchNorm
from offaxis.networks.classifier import Classifier
from offaxis.networks.open import NetworkSource, open_for_weights
from offaxis.networks.opened import OpenedNetwork
from offaxis.networks.saved import (
    build,
    build_network,
    checksum,
    describe,
    description,
    must_be_given,
    read_tensors,
    restore,
    write_tensors,
)
from offaxis.options import TrainOptions
from offaxis.training.batches import TrainingBatches

if TYPE_CHECKING:
    from lightning_fabric import Fabric

FORMAT, VERSION, CHECKPOINT = "offaxis-run", 3, "offaxis-checkpoint-3"
OLD_VERSION, OLD_CHECKPOINT = 2, "offaxis-checkpoint-2"
"""Those of offaxis 0.2.0, whose files have no checksums."""
_EVALUATED = ("recipe", "network", "loss", "frozen", "unfreeze", "views", "precision")
"""Settings of a training that records of its evaluation keep."""
_RESTORE = "it should be what `offaxis train --out` wrote; restore it, or train again in another folder"

Loss = Callable[[Outputs, Tensor], Tensor]
"""(Outputs of a batch, labels (N,)) -> the batch's mean loss, a scalar; PyTorch's own are given the logits instead."""


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

    @classmethod
    def of(
        cls,
        classifier: Classifier,
        batches: TrainingBatches,
        history: Sequence[dict[str, Any]],
        folder: "RunFolder | None",
        record: dict[str, Any],
    ) -> Self:
        """Return the result of a training that has just ended."""
        return cls(
            classifier=classifier.eval(),
            normalise=batches.normalise,
            classes=batches.classes,
            history=tuple(history),
            folder=None if folder is None else folder.path,
            record=record,
        )

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
            id=data["name"] if data and data["fingerprint"] else None,  # a DataLoader is no known set
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
    recipe, normalise, head = batches.recipe, batches.normalise, classifier.head
    settings = {
        "network": description(classifier) or _attached(classifier),
        "head": describe_head(head) or {"name": type(head).__name__, **head.arguments},
        "frozen": classifier.frozen,
        **({} if classifier.unfrozen_from is None else {"unfreeze": classifier.unfrozen_from}),
        "parameters": sum(p.numel() for p in classifier.parameters()),
        "data": {**batches.describe(), "classes": list(batches.classes)},
        "normalise": None if normalise is None else {"mean": list(normalise.mean), "std": list(normalise.std)},
        "recipe": {"name": recipe.name, **recipe.to_json()},
        "loss": describe_loss(loss),
        "seed": batches.seed,
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


def describe_loss(loss: Loss) -> dict[str, Any]:
    """Describe a loss for run.json: its name and its ``arguments``, a dictionary that JSON can hold, where it has them.

    A module without ``arguments`` is described by its text as well, one of PyTorch, whose text says little, by its settings,
    and a partial function by what it was given, so that one with other settings is another loss.
    """
    if isinstance(loss, partial):
        given = {str(place): value for place, value in enumerate(loss.args)} | loss.keywords
        return {**describe_loss(loss.func), "given": {name: _setting(value) for name, value in given.items()}}
    name = getattr(loss, "__name__", type(loss).__name__)
    if isinstance(loss, nn.Module) and takes_logits(loss):
        settings = {key: value for key, value in vars(loss).items() if not key.startswith("_") and key != "training"}
        return {"name": name, **{key: _setting(value) for key, value in (settings | loss.state_dict()).items()}}
    arguments: dict[str, Any] | None = getattr(loss, "arguments", None)
    if arguments is None:
        arguments = {"text": repr(loss)} if isinstance(loss, nn.Module) else {}
    return {"name": name, **arguments}


def _setting(value: Any) -> Any:
    """Return a setting as JSON can hold it: numbers and texts as they are, tensors by their checksum, others by their type."""
    if isinstance(value, Tensor):
        holder = nn.Module()
        holder.register_buffer("value", value)
        return checksum(holder, None)[:16]
    if isinstance(value, (list, tuple)):
        return [_setting(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else type(value).__name__


def takes_logits(loss: Any) -> bool:
    """Return whether a loss is PyTorch's, a module or a function: these take logits (N, C), others take Outputs."""
    while isinstance(loss, partial):
        loss = loss.func
    if isinstance(loss, nn.Module):
        return type(loss).forward.__module__ == "torch.nn.modules.loss"
    return getattr(F, getattr(loss, "__name__", ""), None) is loss


class Checkpoint(NamedTuple):
    """Everything that the rest of a training depends on, beside what it was started with.

    Attributes:
        step: how many steps are done.
        progress: running sums of the current epoch, its history and the like, as JSON can hold it.
        weights: the network's parameters and buffers by name.
        momentum: the optimiser's buffers by parameter name.
    """

    step: int
    progress: dict[str, Any]
    weights: dict[str, Tensor]
    momentum: dict[str, Tensor]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; the one that was there stays until the new one is complete.

    Raises:
        StorageError: the disk is full or the folder cannot be written to.
    """
    tensors = {f"weights/{name}": tensor for name, tensor in checkpoint.weights.items()}
    tensors |= {f"momentum/{name}": tensor for name, tensor in checkpoint.momentum.items()}
    state = json.dumps({"step": checkpoint.step, "progress": checkpoint.progress})
    write_tensors(path, tensors, {"format": CHECKPOINT, "state": state})


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        CheckpointError: the file is missing, damaged, foreign or of another version.
    """
    tensors, head = read_tensors(path, remedy="delete it and start the training anew")
    if head.get("format") not in (CHECKPOINT, OLD_CHECKPOINT):
        raise CheckpointError(
            f"Expected a checkpoint of the format {CHECKPOINT} but {path} has the format {head.get('format', 'none')}. "
            "Name a folder that this version of `offaxis train` wrote, or start the training anew in another one."
        )
    state = json.loads(head["state"])
    weights, momentum = (
        {name.removeprefix(part): tensor for name, tensor in tensors.items() if name.startswith(part)}
        for part in ("weights/", "momentum/")
    )
    return Checkpoint(state["step"], state["progress"], weights, momentum)


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
        self.log_every = None if options is None else options.log_every
        self._held: IO[bytes] | None = None
        self.record = path / "run.json"
        self.log_file = path / "log.jsonl"
        self.checkpoint = path / "checkpoint.safetensors"
        self.model = path / "model.safetensors"

    @classmethod
    def of(cls, out: "str | Path | RunFolder | None") -> "RunFolder | None":
        """Return the folder at a path; a RunFolder as it is, and None where nothing is to be kept."""
        return cls(out) if isinstance(out, (str, Path)) else out

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._held is not None:
            unlock(self._held)
            self._held = None

    def begin(self, record: dict[str, Any], resume: bool) -> Checkpoint | None:
        """Write run.json where the run is new, lock it for this process, and return the checkpoint to resume from.

        Raises:
            RunError: there is a run here already and ``resume`` is not set, another process is training in it, or the folder
                holds something else.
            CheckpointError: the checkpoint is damaged, or the run was started with other settings.
        """
        if self.record.exists():
            checkpoint = self._find_checkpoint(record["settings"], resume)
            self._lock()
            records = [r for r in self.log_records() if checkpoint and r["step"] <= checkpoint.step]
            kept = [json_line(r) for r in records if r["kind"] != "test"]  # which is measured at the end of each start
            write_text(self.log_file, "".join(kept))
            return checkpoint
        if self.path.exists() and (self.path.is_file() or not all(map(_temporary, self.path.iterdir()))):
            what = "is a file" if self.path.is_file() else "holds other files"
            raise RunError(f"Expected a run or an empty folder but {self.path} {what}. Name another folder.")
        write_json(self.record, record)
        self._lock()
        return None

    def _find_checkpoint(self, settings: dict[str, Any], resume: bool) -> Checkpoint | None:
        if not resume:
            raise RunError(
                f"There is a run in {self.path} already. Add resume=True (--resume in the shell) to resume it, or "
                "name another folder."
            )
        before, now = _flat(read_run(self.path)["settings"]), _flat(settings)
        differing = [
            f"{key} was {before.get(key)!r} and is now {now.get(key)!r}"
            for key in sorted(before.keys() | now.keys())
            if before.get(key) != now.get(key) and key != "recipe.name"  # its numbers decide, not what it is called
        ]
        if differing:
            raise CheckpointError(
                f"The run in {self.path} was started with other settings: {'; '.join(differing)}. Use the same settings, or "
                "another folder."
            )
        if self.checkpoint.exists():
            checkpoint = load_checkpoint(self.checkpoint)
            self.check_own(self.checkpoint, checkpoint.progress)
            return checkpoint
        if self.model.exists():
            raise RunError(
                f"The run in {self.path} is finished and has no checkpoint, so there is nothing to resume: open_network opens "
                "the trained network. Name another folder to train anew."
            )
        return None

    def _lock(self) -> None:
        self._held = self.record.open("rb")
        others = not lock(self._held) or not os.path.samestat(os.fstat(self._held.fileno()), self.record.stat())
        if others:  # the second: a process that began at the same time has replaced run.json
            raise RunError(
                f"Another process is training in {self.path}: wait until it has finished, stop it, or name another folder."
            )
        for left in filter(_temporary, self.path.glob(".*")):  # of a process that was killed while it wrote
            left.unlink(missing_ok=True)

    def log(self, record: dict[str, Any]) -> None:
        """Append one line to log.jsonl."""
        try:
            with self.log_file.open("a", encoding="utf-8") as file:
                file.write(json_line(record))
        except OSError as error:
            raise StorageError(
                f"{self.log_file} cannot be written ({error.strerror}): free space and resume."
            ) from error

    def log_records(self) -> Iterator[dict[str, Any]]:
        """Iterate over the records of log.jsonl; a last line that was cut off is left out.

        Raises:
            RunError: another line is damaged.
        """
        lines = self.log_file.read_bytes().splitlines(keepends=True) if self.log_file.is_file() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        remedy = "restore the file, or delete the line to go on without it"
        required = read_run(self.path)["version"] == VERSION
        yield from read_lines(whole, self.log_file, RunError, remedy, required=required)

    def finish(self, classifier: Classifier) -> None:
        """Write the trained weights to model.safetensors."""
        write_tensors(self.model, classifier.state_dict(), {"format": "offaxis-model-2", "run": self.key()})

    def key(self) -> str:
        """Return what the files of the run call it: the digest of its settings."""
        return digest(read_run(self.path)["settings"])

    def check_own(self, file: Path, head: Mapping[str, Any]) -> None:
        """Raise CheckpointError where a file says that it belongs to a run of other settings; older ones do not say it."""
        if head.get("run", self.key()) != self.key():
            raise CheckpointError(
                f"{file} is of another run than {self.record}: its checksum names one of other settings. Restore the file, or "
                "train again in another folder."
            )


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Flatten one level: {"recipe": {"epochs": 3}} -> {"recipe.epochs": 3}."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= {f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def _temporary(path: Path) -> bool:
    return path.name.startswith(".") and path.suffix == ".part"


def open_run(fabric: "Fabric", folder: RunFolder | None, record: dict[str, Any], resume: bool) -> Checkpoint | None:
    """Begin the run in the first process, and return the checkpoint to resume from, or raise what was wrong, in all of them.

    Raises:
        RunError: the folder holds something else, or another process is training in it.
        CheckpointError: the checkpoint is damaged, or the run was started with other settings.
    """
    found: Checkpoint | OffaxisError | None = None
    if folder is not None and fabric.is_global_zero:
        try:
            found = folder.begin(record, resume)
        except OffaxisError as error:
            found = error
    found = fabric.broadcast(found)
    if isinstance(found, OffaxisError):
        raise found
    return found


def read_run(folder: Path) -> dict[str, Any]:
    """Read run.json: the fields that ``run_record`` describes.

    Raises:
        RunError: the folder is not a run, or one of another format version.
    """
    path = folder / "run.json"
    if not path.is_file():
        state = "has no run.json" if folder.is_dir() else "does not exist"
        raise RunError(f"Expected a folder that `offaxis train --out` made, a training run, but {folder} {state}.")
    record = read_json(path, RunError, _RESTORE, required=lambda values: values.get("version") == VERSION)
    version = record.get("version", 1)
    if record.get("format", FORMAT) != FORMAT or not isinstance(record.get("settings"), dict):
        raise RunError(f"{path} is damaged or foreign: {_RESTORE}.")
    if version == OLD_VERSION:
        return _completed(record)
    if version != VERSION:
        raise RunError(
            f"Expected a run of format version {VERSION} but {folder} has version {version}: it was made by another version "
            "of offaxis. Train it again with this one, in another folder."
        )
    return record


def _completed(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record of offaxis 0.2.0 with what it left out: the start of a cosine head, and options beside the command."""
    settings, words = dict(record["settings"]), list(record.get("command") or ())
    settings = {"frozen": False, **settings, "head": complete_description(settings["head"])}
    network = settings["network"]
    if network is not None and "name" in network:  # one of offaxis.networks
        settings["network"] = {**network, "head": complete_description(network["head"])}
    options = TrainOptions.from_words(words[2:]).record() if words[1:2] == ["train"] else None
    return {**record, "options": options, "settings": settings}


def recorded_options(record: Mapping[str, Any]) -> TrainOptions | None:
    """Return the options of ``offaxis train`` that a run.json holds; None where the training was started in Python."""
    return None if record.get("options") is None else TrainOptions.from_record(record["options"])


def single(opened: OpenedNetwork) -> Classifier:
    """Return the network that must be a single Classifier."""
    if not isinstance(opened.network, Classifier):
        raise ArgumentError(f"Expected one Classifier but {opened.origin} is a {type(opened.network).__name__}.")
    return opened.network


def load_run(folder: str | Path, into: NetworkSource | None = None) -> Trained:
    """Load the trained network of a finished run.

    Args:
        folder: what ``train(out=...)`` or ``offaxis train --out`` was given.
        into: a network to load the weights into, a module that gets the run's head, or ``file.py:function`` that makes one
            and is told the run's classes and head; needed where it was not one of offaxis.networks.

    Raises:
        RunError: the folder is not a run, the run is unfinished, or its network must be given.
        CheckpointError: the weights are damaged or do not fit.
    """
    run = RunFolder(folder)
    record = read_run(run.path)
    settings = record["settings"]
    classes, normalise, network = settings["data"]["classes"], settings["normalise"], settings["network"]
    if not run.model.exists():
        raise RunError(f"The run in {run.path} is not finished: add --resume to the command that began it.")
    if OWN_HEAD.fullmatch(settings["head"]["name"]):
        find_head(settings["head"]["name"])
    if into is not None:
        into = single(open_for_weights(into, len(classes), settings["head"]))
    elif network is None:
        raise RunError(
            f"The run in {run.path} trained a network that Python code had made, which run.json does not describe: make the "
            "same network and pass it as load_run(folder, into=classifier), or name the function that makes it: --network "
            "file.py:function."
        )
    else:
        into = build(network) if "kind" not in network else build_network(network)
    assert isinstance(into, Classifier)
    weights, head = read_tensors(run.model, required=record["version"] == VERSION)
    run.check_own(run.model, head)
    restore(into, weights, run.model)
    into.frozen, into.unfrozen_from = settings["frozen"], settings.get("unfreeze")
    return Trained(
        classifier=into.eval(),
        normalise=None if normalise is None else Normalise(tuple(normalise["mean"]), tuple(normalise["std"])),
        classes=tuple(classes),
        history=tuple(r for r in run.log_records() if r["kind"] == "epoch"),
        folder=run.path,
        record=record,
    )
