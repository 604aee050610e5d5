"""Weights: files of tensors that are written whole and checked, any file of weights that a user has, and their checksum."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from offaxis.errors import ArgumentError, CheckpointError, OffaxisError
from offaxis.files import UNSEALED, check_plain, check_seal, sealed
from offaxis.networks.classifier import Classifier

UNCHECKED_FORMATS = ("offaxis-checkpoint-2", "offaxis-model-1")
"""Formats of older versions, whose files have no checksum."""


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


def _errno(message: str) -> int:
    """Return the error number in a message such as 'No space left on device (os error 28)'; 0 where there is none.

    safetensors 0.4 says 'Os { code: 28, kind: StorageFull }'.
    """
    found = re.search(r"(?:os error|Os \{ code:) (\d+)", message)
    return int(found[1]) if found else 0


def restore(network: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    """Load saved weights into a network of the same shape, in place.

    Raises:
        CheckpointError: names or shapes differ, or weights are not finite numbers.
    """
    own = network.state_dict()
    learned = {name for name, _ in network.named_parameters()}  # buffers may hold infinity, as masks of attention do
    shapes = ({name: tensor.shape for name, tensor in each.items()} for each in (own, weights))
    wrong = differences(*shapes) or _first_three(
        f"{name} {reason}"
        for name in own
        if (
            reason := _why_unusable(
                weights[name], own[name], name in learned or name.endswith(("running_mean", "running_var"))
            )
        )
    )
    if wrong:
        raise CheckpointError(
            f"The weights in {path} do not fit this network: {wrong}. Was it made with another network?"
        )
    network.load_state_dict(weights)


def differences(own: Mapping[str, torch.Size], given: Mapping[str, torch.Size]) -> str:
    """Return in words how given weights differ from those of a network, by names and shapes; empty where they do not."""
    wrong = [f"{name} is missing" for name in own.keys() - given.keys()]
    wrong += [f"{name} is unknown" for name in given.keys() - own.keys()]
    wrong += [
        f"{name} has shape {tuple(given[name])} where {tuple(own[name])} was expected"
        for name in own.keys() & given.keys()
        if own[name] != given[name]
    ]
    return _first_three(wrong)


def _first_three(said: Iterable[str]) -> str:
    every = sorted(said)
    return "; ".join(every[:3]) + (f"; and {len(every) - 3} more" if len(every) > 3 else "")


def _why_unusable(weight: Tensor, own: Tensor, finite: bool) -> str:
    """Return why a tensor cannot take the place of a network's own; empty where it can."""
    if weight.layout != torch.strided or weight.is_meta or weight.is_quantized:
        return "is no plain tensor with values"
    if own.is_floating_point() and not weight.is_floating_point():
        return f"is of type {weight.dtype}, which holds no real numbers"
    return "has NaN or infinity" if finite and not weight.isfinite().all() else ""


def is_of_classifier(weights: Mapping[str, Tensor]) -> bool:
    """Return whether weights are those of a Classifier, by their names: a backbone's and a head's."""
    return any(n.startswith("head.") for n in weights) and any(n.startswith("backbone.") for n in weights)


def load_weights(
    network: nn.Module, weights: dict[str, Tensor], path: str | Path, output: str | None = None, *, take: bool = False
) -> None:
    """Load weights into a network: its own, or those of the original one that a Classifier was made of.

    Args:
        network: a Classifier, a Paired or an Ensemble.
        weights: by name.
        path: where they are from, for messages.
        output: what the original network calls its output layer; None for the layer that ``attach`` replaced.
        take: load the original output layer into the head; otherwise the head keeps the weights that it has.

    Raises:
        CheckpointError: the weights do not fit.
    """
    if isinstance(network, Classifier) and not is_of_classifier(weights):
        own, backbone = network.state_dict(), network.backbone
        replaced = [name for name, part in backbone.named_modules() if isinstance(part, nn.Identity)]
        counters = [name for name in own if name.endswith("num_batches_tracked")]  # files of before 2018 have none
        named = {n: own[n] for n in own if n in counters or (n.startswith("head.") and not take)}
        for name, tensor in weights.items():
            layer, _, leaf = name.rpartition(".")
            if f"backbone.{name}" in own or layer not in (replaced if output is None else [output]):
                named[f"backbone.{name}"] = tensor
            elif take:
                named[f"head.{leaf}"] = tensor
        weights = named
    restore(network, weights, Path(path))


def trained_channels(network: nn.Module, weights: Mapping[str, Tensor]) -> int | None:
    """Return the number of channels that weights take, where it is not that of the network's first convolution."""
    named = ((name, part) for name, part in network.named_modules() if isinstance(part, nn.Conv2d) and part.groups == 1)
    name, first = next(named, ("", None))
    trained = weights.get(f"{name}.weight", weights.get(f"backbone.{name}.weight"))
    if first is None or trained is None or trained.dim() != 4 or trained.shape[1] == first.in_channels:
        return None
    return trained.shape[1]


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read a file of weights: safetensors, or a state dictionary of PyTorch, read without running code.

    A dictionary that holds the weights under ``state_dict`` or ``model`` is understood, and so are names that begin with
    ``module.`` or ``_orig_mod.``, as those of distributed and of compiled networks do.

    Raises:
        ArgumentError: there is no such file; nothing is downloaded.
        CheckpointError: the file does not hold weights.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise ArgumentError(
            f"Expected a file of weights but {path} is not there. Weights are never downloaded: fetch the file first and name "
            "it (safetensors, or a state dictionary of PyTorch)."
        )
    if file.suffix == ".safetensors":
        return _without_prefix(read_tensors(file)[0], "_orig_mod.")
    try:
        loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # PyTorch raises many kinds of errors for a damaged file
        reason = str(error).strip().split("\n")[0].split(". ")[0][:200]  # torch then tells how to run it all the same
        raise CheckpointError(
            f"The weights in {path} cannot be read without running code of the file ({type(error).__name__}: {reason}). Save "
            "them as safetensors, or as torch.save(network.state_dict(), file)."
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not loaded or not all(isinstance(t, Tensor) for t in loaded.values()):
        raise CheckpointError(
            f"Expected a state dictionary in {path} but it holds something else: save torch.save(network.state_dict(), file)."
        )
    return _without_prefix({str(name): tensor for name, tensor in loaded.items()}, "module.", "_orig_mod.")


def _without_prefix(weights: dict[str, Tensor], *prefixes: str) -> dict[str, Tensor]:
    """Take from the names whatever of the prefixes they all begin with, one inside the other."""
    while weights:
        shared = next((p for p in prefixes if all(name.startswith(p) for name in weights)), None)
        if shared is None:
            break
        weights = {name.removeprefix(shared): tensor for name, tensor in weights.items()}
    return weights


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
