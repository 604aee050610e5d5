"""The watch: what it stops for, what it lets pass."""

import math
import warnings

import pytest

from offaxis.errors import NotFiniteError, ScaleCollapseError
from offaxis.training.guard import CollapseGuard

CHANCE = math.log(10)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stops_at_once(loss: float) -> None:
    with pytest.raises(NotFiniteError, match=r"learning rate that is too high \(it was 0.1\).*clip=1.5"):
        CollapseGuard(10, 20, None, 0.1).look(30, 5, loss, 1.0)


def test_a_scale_near_zero_stops_after_a_window() -> None:
    watch = CollapseGuard(10, 20, None, 0.1)
    watch.look(5, 5, CHANCE, 0.01)
    watch.look(15, 10, CHANCE, 0.01)
    with pytest.raises(ScaleCollapseError, match=r"(?s)mean was 0.01.*last 20 steps before step 20.*clip=1.5"):
        watch.look(20, 5, CHANCE, 0.01)


def test_the_advice_does_not_name_a_cure_that_is_in_use() -> None:
    with pytest.raises(ScaleCollapseError) as caught:
        CollapseGuard(10, 5, 2.0, 0.3).look(20, 5, CHANCE, 0.01)
    assert "clip" not in str(caught.value)
    assert "it was 0.3" in str(caught.value)


def test_a_scale_that_recovers_is_let_pass() -> None:
    watch = CollapseGuard(10, 20, None, 0.1)
    for step in range(0, 100, 10):
        watch.look(step + 5, 5, CHANCE, 0.01)
        watch.look(step + 10, 5, CHANCE, 0.5)


@pytest.mark.parametrize(("loss", "scale"), [(0.5, 0.001), (CHANCE, None), (CHANCE, 1.0)])
def test_neither_a_small_scale_with_a_low_loss_nor_a_head_without_scale_is_a_collapse(
    loss: float, scale: float | None
) -> None:
    watch = CollapseGuard(10, 5, None, 0.1)
    for step in range(5, 100, 5):
        watch.look(step, 5, loss, scale)


def test_a_training_that_taught_nothing_is_said_to() -> None:
    watch = CollapseGuard(10, 20, 2.0, 0.1)
    with pytest.warns(UserWarning, match="learned next to nothing"):
        watch.end(0.95 * CHANCE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.end(0.5 * CHANCE)
