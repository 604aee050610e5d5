"""Recipes: the paper's numbers, the learning rate's steps, and refusals."""

import json
import math
from typing import Any

import pytest

from offaxis.errors import ArgumentError
from offaxis.options import TrainOptions
from offaxis.training import RECIPES, Recipe, laptop, paper_densenet, paper_wide_resnet
from offaxis.training.recipe import recipe_of


def test_the_papers_recipes_are_exact() -> None:
    wide, dense = paper_wide_resnet(), paper_densenet()
    assert (wide.epochs, wide.batch_size, wide.weight_decay) == (200, 128, 0.0005)
    assert (dense.epochs, dense.batch_size, dense.weight_decay) == (300, 64, 0.0001)
    for recipe in (wide, dense):
        assert (recipe.learning_rate, recipe.momentum, recipe.milestones, recipe.gamma) == (0.1, 0.9, (0.5, 0.75), 0.1)
        assert recipe.clip is None
        assert recipe.max_norm is None
        assert (recipe.crop, recipe.flip, recipe.decay_head) == (4, True, False)


@pytest.mark.parametrize("steps", [8, 101, 78_200])
def test_the_learning_rate_falls_at_half_and_at_three_quarters(steps: int) -> None:
    recipe = laptop()
    rates = [recipe.learning_rate_at(step, steps) for step in range(steps)]
    assert rates[0] == 0.1
    assert rates == sorted(rates, reverse=True)
    assert sum(r == 0.1 for r in rates) == -(-steps // 2)
    assert [round(r, 6) for r in (rates[-1], rates[-(-steps // 2)])] == [0.001, 0.01]


@pytest.mark.parametrize("steps", [8, 101, 78_200])
@pytest.mark.parametrize("ramp", [0.0, 0.2, 0.9])
def test_a_ramp_goes_up_and_then_down_in_straight_lines(ramp: float, steps: int) -> None:
    rates = [
        Recipe(epochs=1, batch_size=2, learning_rate=0.4, ramp=ramp).learning_rate_at(s, steps) for s in range(steps)
    ]
    top = rates.index(max(rates))
    assert 0.4 * (1 - 3 / steps) <= rates[top] <= 0.4
    assert abs(top + 0.5 - ramp * steps) <= 1
    bends = [
        abs(b - 2 * a + c)
        for part in (rates[:top], rates[top + 1 :])
        for a, b, c in zip(part[1:], part, part[2:], strict=False)
    ]
    assert max(bends, default=0) < 1e-9
    assert 0 < rates[-1] <= 0.4 / max(1, (1 - ramp) * steps - 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("epochs", -3),
        ("epochs", 1.5),
        ("batch_size", 1),
        ("crop", -1),
        ("learning_rate", 0),
        ("learning_rate", float("nan")),
        ("learning_rate", float("inf")),
        ("weight_decay", -1e-4),
        ("momentum", 1.0),
        ("milestones", (0.75, 0.5)),
        ("milestones", (0.0,)),
        ("clip", 0.5),
        ("max_norm", 0.0),
        ("gamma", 0.0),
        ("ramp", 1.0),
        ("ramp", -0.1),
    ],
)
def test_impossible_numbers_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"`{name}`"):
        Recipe(**{"epochs": 2, "batch_size": 8, name: value})


def test_but_changes_what_is_given_and_keeps_the_rest() -> None:
    changed = laptop().replace(epochs=3, learning_rate=None)
    assert changed.epochs == 3
    assert changed.learning_rate == laptop().learning_rate
    assert json.loads(json.dumps(changed.to_json())) == changed.to_json()


def test_openoods_recipe_falls_along_half_a_cosine() -> None:
    recipe = RECIPES["openood"]()
    assert (recipe.epochs, recipe.batch_size, recipe.weight_decay, recipe.momentum) == (100, 128, 5e-4, 0.9)
    rates = [recipe.learning_rate_at(step, 1000) for step in range(1000)]
    expected = [1e-6 + (0.1 - 1e-6) * 0.5 * (1 + math.cos(math.pi * step / 1000)) for step in range(1000)]
    assert rates == pytest.approx(expected, rel=1e-12)
    assert recipe.to_json()["cosine"] is True
    assert "cosine" not in RECIPES["laptop"]().to_json()  # so that earlier runs can be resumed


@pytest.mark.parametrize("shape", [None, (3, 32, 32), (3, 224, 224)])
def test_two_kinds_of_random_crops_are_refused(shape: tuple[int, int, int] | None) -> None:
    def run(crop: int, min_area: float) -> TrainOptions:
        return TrainOptions(id="cifar10", network="wrn-10-1", crop=crop, min_area=min_area)

    with pytest.raises(ArgumentError, match=r"got crop 8, .* and min_area 0\.5, .*leave out --crop or --min-area"):
        recipe_of(run(8, 0.5), shape)
    assert recipe_of(run(8, 1.0), shape).crop == 8
    assert recipe_of(run(0, 0.5), shape).min_area == 0.5
