"""Temperature, sets of classes and images decided alone: formulas against slow ones, and their promises over 1,000 draws."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from offaxis import Calibration
from offaxis.calibration.classes import ClassCalibration, class_probabilities, class_sets, fit_temperature, masses
from offaxis.errors import CalibrationError

DRAWS = 1000
Array = np.ndarray[Any, Any]


def draw(count: int, random: np.random.Generator, spread: float = 4.0) -> tuple[Array, Array]:
    """Logits (n, 4) that are three times as large as those that drew the labels (n,): sure of themselves, and often wrong."""
    true = random.normal(size=(count, 4)) * random.uniform(0, spread, size=(count, 1))
    chances = class_probabilities(true, None)
    labels = (chances.cumsum(1) < random.uniform(size=(count, 1))).sum(1).clip(max=3)
    return (3 * true).astype(np.float32), labels


def test_the_temperature_is_the_one_that_made_the_labels() -> None:
    logits, labels = draw(20_000, np.random.default_rng(0))
    assert fit_temperature(logits, labels) == pytest.approx(3, rel=0.05)
    found = ClassCalibration.fitted(logits, labels)
    assert found is not None
    assert found.ece[0] > 0.1
    assert found.ece[1] < 0.02


def test_it_has_the_smallest_loss_that_pytorch_finds() -> None:
    logits, labels = draw(300, np.random.default_rng(1))
    found = fit_temperature(logits, labels)
    values, targets = torch.from_numpy(logits).double(), torch.from_numpy(labels)

    def loss(temperature: float) -> float:
        own = torch.nn.functional.cross_entropy(values / temperature, targets, reduction="sum")
        every = torch.log_softmax(values / temperature, 1).mean(1)  # an image of every class in equal parts
        return float(own - every.mean())

    grid = np.exp(np.linspace(-2, 3, 2000))
    assert found == pytest.approx(grid[np.argmin([loss(t) for t in grid])], rel=0.01)


def test_no_probability_becomes_one_where_every_class_is_right() -> None:
    logits = np.eye(5, dtype=np.float32)[np.arange(60) % 5] * 8
    found = ClassCalibration.fitted(logits, np.arange(60) % 5)
    assert found is not None
    assert 0.9 < found.probability.max() < 0.9999


def test_masses_and_sets_are_those_of_a_slow_version() -> None:
    random = np.random.default_rng(2)
    chances = class_probabilities(random.normal(size=(50, 7)), None)
    chances[:5] = np.round(chances[:5], 1)  # ties
    limit = 0.7
    found, sets = masses(chances), class_sets(chances, limit)
    for row, mass, of_row in zip(chances, found, sets, strict=True):
        order = sorted(range(7), key=lambda c: (-row[c], c))
        before = {c: sum(row[other] for other in order[:place]) for place, c in enumerate(order)}
        assert mass == pytest.approx([before[c] for c in range(7)], abs=1e-12)
        assert of_row == [c for c in order if mass[c] <= limit]


def test_the_right_class_is_in_the_set_as_often_as_promised() -> None:
    alpha = 0.1
    random = np.random.default_rng(3)
    covered, sizes = [], []
    for _ in range(DRAWS):
        logits, labels = draw(140, random)
        known = ClassCalibration.fitted(logits[:120], labels[:120])
        assert known is not None
        limit = known.most_mass(alpha)
        assert limit is not None
        sets = class_sets(class_probabilities(logits[120:], None, known.temperature), limit)
        covered.append(np.mean([label in found for label, found in zip(labels[120:], sets, strict=True)]))
        sizes.append(np.mean([len(found) for found in sets]))
    error = 3 * np.std(covered) / np.sqrt(DRAWS)
    assert 1 - alpha - error <= np.mean(covered) <= 1 - alpha + 1 / 61 + error
    assert 1 < np.mean(sizes) < 3.5


def test_images_decided_alone_are_wrong_no_more_often_than_promised() -> None:
    """Over 1,000 calibration sets at most 5 % choose a probability above which more than a twentieth is wrong."""
    random = np.random.default_rng(4)
    new_logits, new_labels = draw(5000, random, 10.0)
    right = new_logits.argmax(1) == new_labels
    broken, shares = 0, []
    for _ in range(DRAWS):
        known = ClassCalibration.fitted(*draw(800, random, 10.0))
        assert known is not None
        alone = known.alone(0.05)
        if alone is None:
            shares.append(0.0)
            continue
        taken = class_probabilities(new_logits, None, known.temperature).max(1) >= alone.probability
        broken += (~right[taken]).mean() > 0.05
        shares.append(alone.share)
    assert broken <= stats.binom.ppf(0.999, DRAWS, 0.05)
    assert np.mean(shares) > 0.25  # of 0.6 that is possible


def test_what_cannot_be_promised_is_refused_with_a_number() -> None:
    logits, labels = draw(200, np.random.default_rng(5))
    known = ClassCalibration.fitted(logits, labels)
    scores = np.arange(200.0)
    with pytest.raises(CalibrationError, match=r"at most 0\.01 are wrong.*are 200 with labels.*at least 598"):
        Calibration.from_scores(scores, labels, 4, classes=known, max_error=0.01)
    with pytest.raises(CalibrationError, match=r"have no labels"):
        Calibration.from_scores(scores, labels, 4, max_error=0.3)
    assert ClassCalibration.fitted(logits[:19], labels[:19]) is None
    assert ClassCalibration.fitted(logits[:20], labels[:20]).most_mass(0.05) is None  # type: ignore[union-attr]
