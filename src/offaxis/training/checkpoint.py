"""Checkpoints: the state of a training in one safetensors file, written whole or not at all."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offaxis.errors import CheckpointError
from offaxis.heads import complete_description
from offaxis.networks.weights import UNCHECKED_FORMATS, read_tensors, write_tensors

FORMAT = "offaxis-checkpoint-3"
_ANEW = "delete it and start the training anew"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything that the rest of a training depends on.

    Attributes:
        step: how many steps are done.
        settings: what the training was started with; it can only be resumed with the same.
        progress: running sums of the current epoch, its history and the like, as JSON can hold it.
        weights: the network's parameters and buffers by name.
        momentum: the optimiser's buffers by parameter name.
    """

    step: int
    settings: dict[str, Any]
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
    meta = {"step": checkpoint.step, "settings": checkpoint.settings, "progress": checkpoint.progress}
    write_tensors(path, tensors, {"format": FORMAT, "state": json.dumps(meta)})


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        CheckpointError: the file is missing, damaged, foreign or of another version.
    """
    if not path.exists():
        raise CheckpointError(f"There is no checkpoint at {path}: no epoch was finished there.")
    tensors, head = read_tensors(path, remedy=_ANEW)
    found = head.get("format", "none")
    if found not in (FORMAT, *UNCHECKED_FORMATS):
        raise CheckpointError(
            f"Expected a checkpoint of the format {FORMAT} but {path} has the format {found}. "
            "Name a folder that this version of `offaxis train` wrote, or start the training anew in another one."
        )
    parts: dict[str, dict[str, Tensor]] = {"weights": {}, "momentum": {}}
    try:
        for name, tensor in tensors.items():
            part, _, rest = name.partition("/")
            parts[part][rest] = tensor
        meta = json.loads(head["state"])
        return Checkpoint(step=meta["step"], settings=meta["settings"], progress=meta["progress"], **parts)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged ({type(error).__name__}: {error}): {_ANEW}.") from error


_FREE = ("recipe.name",)
"""Settings that may differ when a training is resumed: the numbers of the recipe decide, not what it is called."""


def check_settings(saved: dict[str, Any], requested: dict[str, Any], path: Path) -> None:
    """Raise CheckpointError unless a training is resumed with the settings that it was started with.

    The message names each setting that differs.
    """
    before, now = _flat(saved), _flat(requested)
    differing = [
        f"{key} was {before.get(key)!r} and is now {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and key not in _FREE
    ]
    if differing:
        raise CheckpointError(
            f"The checkpoint {path} belongs to another training: {'; '.join(differing)}. Use the same settings, or another "
            "folder."
        )


def complete_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a training with what old records leave out of their head."""
    complete, network = dict(settings), settings.get("network")
    if isinstance(settings.get("head"), dict):
        complete["head"] = complete_description(settings["head"])
    if isinstance(network, dict) and isinstance(network.get("head"), dict):
        complete["network"] = {**network, "head": complete_description(network["head"])}
    return complete


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Flatten one level: {"recipe": {"epochs": 3}} -> {"recipe.epochs": 3}."""
    flat: dict[str, Any] = {}
    for key, value in complete_settings(settings).items():
        flat |= {f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def momentum_by_name(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's momentum buffers by the names of their parameters."""
    state = optimizer.state
    buffers = {n: state[p].get("momentum_buffer") for n, p in network.named_parameters() if p in state}
    return {name: buffer for name, buffer in buffers.items() if buffer is not None}


def restore_momentum(network: nn.Module, optimizer: torch.optim.Optimizer, momentum: dict[str, Tensor]) -> None:
    """Restore saved momentum buffers, each with the memory format of its parameter."""
    for name, parameter in network.named_parameters():
        if name in momentum:
            # zeros_like keeps the memory layout of the parameter, and with it the order of floating-point sums
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter).copy_(momentum[name])
