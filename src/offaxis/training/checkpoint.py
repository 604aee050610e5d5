"""Checkpoints: the state of a training in one safetensors file, written whole or not at all."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from offaxis.errors import CheckpointError, OffaxisError
from offaxis.files import UNSEALED, check_plain, check_seal, sealed
from offaxis.heads import complete_description

FORMAT = "offaxis-checkpoint-3"
UNCHECKED_FORMATS = ("offaxis-checkpoint-2", "offaxis-model-1")
"""Formats of older versions, whose files have no checksum."""
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


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file with a checksum among its metadata, whole or not at all.

    Raises:
        StorageError: the disk is full or the folder cannot be written to.
    """
    # Tied parameters would share memory, which safetensors refuses; a clone of each is the plain way out.
    whole = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    with sealed(path) as temporary:
        try:
            save_file(whole, temporary, {**metadata, "checksum": UNSEALED})
        except SafetensorError as error:  # it hides the operating system's error number in its message
            raise OSError(_errno(str(error)), str(error), str(temporary)) from error


def read_tensors(
    path: Path,
    error: type[OffaxisError] = CheckpointError,
    remedy: str = "train again, or restore the file",
    *,
    required: bool | None = None,
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a safetensors file and check its checksum.

    Args:
        path: the file.
        error: the exception to raise where it is missing, damaged or not of this kind.
        remedy: what to do then.
        required: whether a file without a checksum is refused; if None, where it says that it is one of offaxis.
    """
    try:
        check_plain(path)
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            kind = metadata.get("format", "")
            ours = kind.startswith("offaxis-") and kind not in UNCHECKED_FORMATS
            check_seal(path, error, remedy, required=ours if required is None else required)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except (SafetensorError, OSError, ValueError) as problem:
        raise error(f"{path} cannot be read as a safetensors file ({problem}): {remedy}.") from problem
    return tensors, metadata


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


def restore(network: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    """Load saved weights into a network of the same shape, in place.

    Raises:
        CheckpointError: names or shapes differ, or weights are not finite numbers.
    """
    own = network.state_dict()
    learned = {name for name, _ in network.named_parameters()}  # buffers may hold infinity, as masks of attention do
    wrong = [f"{n} is missing" for n in own.keys() - weights.keys()]
    wrong += [f"{n} is unknown" for n in weights.keys() - own.keys()]
    wrong += [
        f"{n} has shape {tuple(weights[n].shape)} where {tuple(own[n].shape)} was expected"
        for n in own.keys() & weights.keys()
        if own[n].shape != weights[n].shape
    ]
    wrong += [
        f"{n} {reason}"
        for n in own.keys() & weights.keys()
        if (reason := _why_unusable(weights[n], own[n], n in learned or n.endswith(("running_mean", "running_var"))))
    ]
    if wrong:
        shown = "; ".join(sorted(wrong)[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
        raise CheckpointError(
            f"The weights in {path} do not fit this network: {shown}. Was it made with another network?"
        )
    network.load_state_dict(weights)


def _why_unusable(weight: Tensor, own: Tensor, finite: bool) -> str:
    """Return why a tensor cannot take the place of a network's own; empty where it can."""
    if weight.layout != torch.strided or weight.is_meta or weight.is_quantized:
        return "is no plain tensor with values"
    if own.is_floating_point() and not weight.is_floating_point():
        return f"is of type {weight.dtype}, which holds no real numbers"
    return "has NaN or infinity" if finite and not weight.isfinite().all() else ""


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


def _errno(message: str) -> int:
    """Return the error number in a message such as 'No space left on device (os error 28)'; 0 where there is none.

    safetensors 0.4 says 'Os { code: 28, kind: StorageFull }'.
    """
    found = re.search(r"(?:os error|Os \{ code:) (\d+)", message)
    return int(found[1]) if found else 0


def checksum(network: nn.Module, normalise: object) -> str:
    """Return the SHA-256 of all that a network's outputs depend on: parameters, buffers and normalisation."""
    digest = hashlib.sha256(repr(normalise).encode())
    for name, tensor in sorted(network.state_dict().items()):
        plain = tensor.detach().cpu().contiguous()
        kind = ""
        if plain.dtype == torch.bfloat16:  # which NumPy has not
            kind, plain = "bfloat16 ", plain.view(torch.int16)
        array = plain.numpy()
        digest.update(f"{name} {kind}{array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
