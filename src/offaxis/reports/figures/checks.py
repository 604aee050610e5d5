"""What comes into a figure is looked at before anything is drawn."""

from collections.abc import Collection

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offaxis.errors import ArgumentError


def not_empty(what: str, things: Collection[object]) -> None:
    """Refuse nothing at all."""
    if len(things) == 0:
        raise ArgumentError(f"Expected at least one of {what} to draw but got none.")


def numbers(what: str, values: ArrayLike) -> NDArray[np.float64]:
    """A row of finite numbers, as float64 (N,)."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ArgumentError(
            f"Expected {what} to be a non-empty row of numbers but got an array of shape {array.shape}."
        )
    wrong = array.size - int(np.count_nonzero(np.isfinite(array)))
    if wrong:
        raise ArgumentError(
            f"Expected {what} to be finite but {wrong} of {array.size} are NaN or infinite. Leave them out, or look for "
            "what made them."
        )
    return array


def number(what: str, value: float) -> float:
    """A finite number."""
    return float(numbers(what, [value])[0])


def flags(what: str, values: ArrayLike, length: int) -> NDArray[np.bool_]:
    """A row of yes and no, bool (length,)."""
    array = np.asarray(values)
    if array.shape != (length,):
        raise ArgumentError(f"Expected {what} to have shape ({length},) but got {array.shape}.")
    if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
        raise ArgumentError(f"Expected {what} to be true or false but got other values.")
    return array.astype(np.bool_)
