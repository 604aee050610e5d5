"""The collapse guard: what it stops for, what it lets pass."""

import math
import warnings

import pytest

from offaxis.errors import NotFiniteError, ScaleCollapseError
from offaxis.training.check import CollapseGuard

CHANCE = math.log(10)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stops_at_once(loss: float) -> None:
    with pytest.raises(NotFiniteError, match=r"learning rate that is too high \(it was 0.1\).*clip=1.5"):
        CollapseGuard(num_classes=10, window=20, clip=None, learning_rate=0.1).check(30, 5, loss, 1.0)


def test_a_scale_near_zero_stops_after_a_window() -> None:
    guard = CollapseGuard(num_classes=10, window=20, clip=None, learning_rate=0.1)
    guard.check(5, 5, CHANCE, 0.01)
    guard.check(15, 10, CHANCE, 0.01)
    with pytest.raises(ScaleCollapseError, match=r"(?s)mean was 0.01.*last 20 steps before step 20.*clip=1.5"):
        guard.check(20, 5, CHANCE, 0.01)


def test_the_advice_does_not_name_a_cure_that_is_in_use() -> None:
    with pytest.raises(ScaleCollapseError) as caught:
        CollapseGuard(num_classes=10, window=5, clip=2.0, learning_rate=0.3).check(20, 5, CHANCE, 0.01)
    assert "clip" not in str(caught.value)
    assert "it was 0.3" in str(caught.value)


def test_a_scale_that_recovers_is_let_pass() -> None:
    guard = CollapseGuard(num_classes=10, window=20, clip=None, learning_rate=0.1)
    for step in range(0, 100, 10):
        guard.check(step + 5, 5, CHANCE, 0.01)
        guard.check(step + 10, 5, CHANCE, 0.5)


@pytest.mark.parametrize(("loss", "scale"), [(0.5, 0.001), (CHANCE, None), (CHANCE, 1.0)])
def test_neither_a_small_scale_with_a_low_loss_nor_a_head_without_scale_is_a_collapse(
    loss: float, scale: float | None
) -> None:
    guard = CollapseGuard(num_classes=10, window=5, clip=None, learning_rate=0.1)
    for step in range(5, 100, 5):
        guard.check(step, 5, loss, scale)


def test_a_training_that_taught_nothing_is_warned_about() -> None:
    guard = CollapseGuard(num_classes=10, window=20, clip=2.0, learning_rate=0.1)
    with pytest.warns(UserWarning, match="learned next to nothing"):
        guard.check_end(0.95 * CHANCE, 0.5)
    with pytest.warns(UserWarning, match="accuracy 15.0%, and guessing gives.*10.0%"):
        guard.check_end(0.5 * CHANCE, 0.15)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guard.check_end(0.5 * CHANCE, 0.5)
        guard.check_end(1.5 * CHANCE, 0.5, by_accuracy=True)
    with pytest.warns(UserWarning, match="accuracy 15.0%, and guessing gives 10.0%"):
        guard.check_end(50.0, 0.15, by_accuracy=True)
