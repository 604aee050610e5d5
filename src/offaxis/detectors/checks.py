"""Checks of what detectors are given: constructor arguments and outputs."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from offaxis.errors import ArgumentError, BadOutputsError, MissingOutputError
from offaxis.heads import Outputs

WHERE_FROM = {
    "cosine": "Train or attach the network with a head that has one (head='cosine'); a linear head has none.",
    "scale": "Train or attach the network with a head that has one (head='cosine' or 'deconf-c').",
}


def check_outputs(
    name: str,
    outputs: Outputs,
    *,
    uses: Sequence[str],
    layers: Sequence[str] = (),
    sizes: Mapping[str, int] | None = None,
) -> None:
    """Raise where outputs lack what a detector reads, have another shape than it was fitted with, or hold NaN.

    Args:
        name: the detector's, for the message.
        outputs: to be checked.
        uses: the fields that are read.
        layers: the inner layers that are read, where ``layers`` is among the fields.
        sizes: the expected width of a field or layer, where one is known.

    Raises:
        MissingOutputError: a field or layer is not there.
        BadOutputsError: a wrong shape, NaN or infinity.
    """
    sizes = sizes or {}
    count = len(outputs.logits)
    for field in uses:
        if field == "layers":
            present = outputs.layers or {}
            absent = [layer for layer in layers if layer not in present]
            if absent:
                raise MissingOutputError(
                    f"Expected the layers {', '.join(layers)} for {name} but {', '.join(absent)} are not among the "
                    "outputs: request them with network.outputs(images, layers=detector.layers)."
                )
            for layer in layers:
                _check_tensor(name, f"layer {layer}", present[layer], shape=(count, sizes.get(layer)))
            continue
        tensor = getattr(outputs, field)
        if tensor is None:
            raise MissingOutputError(
                f"Expected outputs with a {field} for {name} but the network's head gives none. {WHERE_FROM[field]}"
            )
        _check_tensor(name, field, tensor, shape=(count,) if field == "scale" else (count, sizes.get(field)))


def _check_tensor(name: str, what: str, tensor: Tensor, shape: tuple[int, ...] | tuple[int, int | None]) -> None:
    count, width = shape[0], shape[1] if len(shape) == 2 else None
    fits = tensor.dim() == len(shape) and tensor.shape[0] == count and width in (None, tensor.shape[-1])
    if not fits:
        expected = f"({count},)" if len(shape) == 1 else f"({count}, {width or 'd'})"
        raise BadOutputsError(
            f"Expected {what} of shape {expected} for {name} but got {tuple(tensor.shape)}. A detector scores outputs of "
            "the network that it was fitted with."
        )
    if not torch.isfinite(tensor).all():
        rows = torch.nonzero(~torch.isfinite(tensor.reshape(count, -1)).all(1)).flatten()
        shown = ", ".join(str(int(row)) for row in rows[:5])
        raise BadOutputsError(
            f"Expected finite numbers for {name} but the {what} of {len(rows)} of {count} images hold NaN or infinity "
            f"(images {shown}{', ...' if len(rows) > 5 else ''} of the batch). Look at those images, and at the training."
        )


def positive(name: str, value: float) -> float:
    """Return a finite number above zero, or raise ArgumentError."""
    if not _number(value) or not 0 < value < math.inf:
        raise ArgumentError(f"Expected argument `{name}` to be a positive number but got {value!r}.")
    return value


def not_negative(name: str, value: float) -> float:
    """Return a finite number, zero or above, or raise ArgumentError."""
    if not _number(value) or not 0 <= value < math.inf:
        raise ArgumentError(f"Expected argument `{name}` to be zero or a positive number but got {value!r}.")
    return value


def fraction(name: str, value: float) -> float:
    """Return a number in [0, 1), or raise ArgumentError."""
    if not _number(value) or not 0 <= value < 1:
        raise ArgumentError(f"Expected argument `{name}` to be a fraction in [0, 1) but got {value!r}.")
    return value


def at_least_one(name: str, value: int) -> int:
    """Return a whole number of at least one, or raise ArgumentError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ArgumentError(f"Expected argument `{name}` to be a whole number of at least 1 but got {value!r}.")
    return value


def channel_std(value: Sequence[float] | None) -> tuple[float, ...] | None:
    """Return the positive standard deviation of each channel, or None where images were not divided; or raise."""
    if value is None:
        return None
    if not value or not all(_number(v) and 0 < v < math.inf for v in value):
        raise ArgumentError(f"Expected argument `std` to be a positive number for each channel but got {value!r}.")
    return tuple(float(v) for v in value)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
