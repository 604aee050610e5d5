"""The checks that detectors make of their arguments."""

import math
from collections.abc import Sequence

from offaxis.errors import ArgumentError


def positive(name: str, value: float) -> float:
    """A finite number above zero."""
    if not _number(value) or not 0 < value < math.inf:
        raise ArgumentError(f"Expected argument `{name}` to be a positive number but got {value!r}.")
    return value


def not_negative(name: str, value: float) -> float:
    """A finite number, zero or above."""
    if not _number(value) or not 0 <= value < math.inf:
        raise ArgumentError(f"Expected argument `{name}` to be zero or a positive number but got {value!r}.")
    return value


def fraction(name: str, value: float) -> float:
    """A number in [0, 1)."""
    if not _number(value) or not 0 <= value < 1:
        raise ArgumentError(f"Expected argument `{name}` to be a fraction in [0, 1) but got {value!r}.")
    return value


def at_least_one(name: str, value: int) -> int:
    """A whole number of at least one."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ArgumentError(f"Expected argument `{name}` to be a whole number of at least 1 but got {value!r}.")
    return value


def channel_std(value: Sequence[float] | None) -> tuple[float, ...] | None:
    """The standard deviation that each channel was divided by, positive; None where images were not divided."""
    if value is None:
        return None
    if not value or not all(_number(v) and 0 < v < math.inf for v in value):
        raise ArgumentError(f"Expected argument `std` to be a positive number for each channel but got {value!r}.")
    return tuple(float(v) for v in value)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
