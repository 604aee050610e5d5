"""Golden numbers: what was computed once comes out again, to the bit on the torch and the CPU that it was recorded with.

``python -m tests.golden.record`` records them anew. Where arithmetic is changed on purpose, name the group in ``CHANGED``
(it is then compared by tolerance) or record it anew, in a commit that says so.
"""

import copy
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import stats

from offaxis.detectors import DETECTORS

from . import calibrations, cases, scores, subjects, texts, trainings
from .compare import Comparison, expected_arrays, expected_json, expected_texts, recorded_here

CHANGED: frozenset[str] = frozenset()
"""Groups whose arithmetic was changed on purpose since they were recorded."""
MOST = 0.8
"""By tolerance, the share that must agree where scores hang on the sign of a gradient near zero."""
ORDER = 0.99
"""By tolerance, the rank correlation of scores that hang on the inverse of a nearly singular covariance."""
THOUSANDTH = 1e-3
"""With NumPy 1, how far a score may be off that hangs on distances which NumPy 2 rounds to a thousandth."""
WHOLE = [group for group in cases.JSON_GROUPS if group not in ("trainings", "first-weights", "text-numbers")]


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, no warnings, at the root of the project."""
    monkeypatch.chdir(subjects.ROOT)
    with subjects.one_thread():
        yield


def check_detector(name: str) -> None:
    expected = {key: values for key, values in expected_arrays("detectors").items() if key.rpartition("/")[0] == name}
    found, exact = scores.detector_scores(name), recorded_here("detectors", CHANGED)
    if name in scores.ILL_CONDITIONED and not exact:
        assert list(found) == list(expected)
        for key, values in expected.items():
            assert stats.spearmanr(found[key], values).statistic > ORDER, key
        return
    if name == scores.ROUNDED_BY_NUMPY_2 and np.lib.NumpyVersion(np.__version__) < "2.0.0":
        for key, values in expected.items():
            np.testing.assert_allclose(found[key], values, rtol=0, atol=THOUSANDTH, err_msg=key)
        return
    hangs = scores.DETECTOR_CASES[name][0].startswith((*scores.PERTURBING, *scores.SINGLE_PRECISION))
    Comparison(exact).look(found, expected).require(MOST if hangs else 1)


@pytest.mark.parametrize("name", [*scores.NATIVE_CASES, *scores.DIGITS_CASES])
def test_scores_of_our_detectors(name: str) -> None:
    check_detector(name)


@pytest.mark.parametrize("name", scores.PYTORCH_OOD_CASES)
def test_scores_of_pytorch_ood(name: str, ood: ModuleType) -> None:
    check_detector(name)


def test_every_detector_that_was_recorded_is_pinned() -> None:
    pinned = {kind for kind, _, _ in scores.DETECTOR_CASES.values()}
    assert len(pinned) >= 58  # a new one has no numbers to keep
    assert pinned <= set(DETECTORS)
    assert {key.rpartition("/")[0] for key in expected_arrays("detectors")} == set(scores.DETECTOR_CASES)


@pytest.mark.parametrize("group", WHOLE)
def test_numbers(group: str) -> None:
    exact = recorded_here(group, CHANGED)
    found, expected = cases.JSON_GROUPS[group](), expected_json(group)
    if not exact:
        found, expected = ({k: v for k, v in each.items() if k != calibrations.FAR_OFF} for each in (found, expected))
    Comparison(exact).look(found, expected).require(MOST if group == "tuning" else 1)


@pytest.mark.parametrize("name", [*trainings.TRAININGS, "digits"])
def test_trainings(name: str) -> None:
    found = trainings.large_digits_training() if name == "digits" else trainings.training(name)
    expected = expected_json("trainings")[name]
    if recorded_here("trainings", CHANGED):
        Comparison(True).look(found, expected).require()
    else:
        assert len(found["epochs"]) == len(expected["epochs"])
        for key in ("loss", "learning_rate"):
            assert found["epochs"][-1][key] == pytest.approx(expected["epochs"][-1][key], rel=0.15)
        Comparison(False).look(found["mean"] + found["std"], expected["mean"] + expected["std"]).require()


def test_every_training_is_pinned() -> None:
    assert set(expected_json("trainings")) == {*trainings.TRAININGS, "digits"}


def test_first_weights() -> None:
    found, expected = trainings.first_weights(), expected_json("first-weights")
    found = {name: found[name] for name in expected}  # a new head has no weights to keep
    if recorded_here("first-weights", CHANGED):
        Comparison(True).look(found, expected).require()


@pytest.mark.parametrize("group", cases.TEXT_GROUPS)
def test_texts(group: str) -> None:
    found, expected = cases.TEXT_GROUPS[group](), expected_texts(group)
    pinned = expected_json("text-numbers").get(group)
    if pinned is not None:  # kept apart from the words, which may be recorded anew without them
        Comparison(True).look({name: texts.numbers(text) for name, text in found.items()}, pinned).require()
    assert list(found) == list(expected)
    for name in expected:
        assert found[name] == expected[name], name


def moved(value: Any) -> bool:
    """Move the first float (or else word) inside a value by as little as there is."""
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(entry, float):
            value[key] = float(np.nextafter(entry, np.inf))
            return True
        if isinstance(entry, str):
            value[key] = entry + "0"
            return True
        if isinstance(entry, np.ndarray):
            entry.flat[-1] = np.nextafter(entry.flat[-1], entry.dtype.type(np.inf))
            return True
        if isinstance(entry, (dict, list)) and moved(entry):
            return True
    return False


@pytest.mark.parametrize("group", [*cases.JSON_GROUPS, *cases.ARRAY_GROUPS])
def test_a_value_that_moves_by_one_bit_is_seen(group: str) -> None:
    expected = expected_arrays(group) if group in cases.ARRAY_GROUPS else expected_json(group)
    other = copy.deepcopy(expected)
    Comparison(True).look(other, expected).require()
    assert moved(other)
    with pytest.raises(AssertionError, match="1 of .* differ to the bit"):
        Comparison(True).look(other, expected).require()
