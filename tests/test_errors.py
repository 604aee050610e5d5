"""Checks of numbers that raise errors of this package."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from offaxis.errors import ArgumentError, at_least_one, fraction, not_negative, positive


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_whole_numbers_of_numpy_become_pythons(value: Any) -> None:
    assert at_least_one("k", value) == 3
    assert type(at_least_one("k", value)) is int


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.float16(0.5), Fraction(1, 2)])
def test_numbers_of_numpy_become_pythons(value: Any) -> None:
    for check in (positive, not_negative, fraction):
        assert check("x", value) == 0.5
        assert type(check("x", value)) is float


@pytest.mark.parametrize("value", [True, np.True_, "3", None, 1.5, np.float64(3), 0, np.int64(-1), float("nan")])
def test_what_is_no_whole_number_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match="`k` to be a whole number of at least 1 but got"):
        at_least_one("k", value)


@pytest.mark.parametrize(
    "value", [True, np.True_, "3", None, 1j, np.float32("nan"), np.float32("inf"), -1, np.int8(-1)]
)
def test_what_is_no_positive_number_is_refused(value: Any) -> None:
    for check in (positive, not_negative, fraction):
        with pytest.raises(ArgumentError, match="Expected argument `x` to be"):
            check("x", value)
