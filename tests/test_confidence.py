"""Calibration error and risk-coverage against slow versions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offaxis.errors import ArgumentError
from offaxis.metrics import (
    area_under_generalized_risk_coverage,
    area_under_risk_coverage,
    auroc,
    expected_calibration_error,
    reliability_bins,
    risk_coverage,
)

answers = st.lists(st.tuples(st.integers(0, 20).map(lambda v: v / 20), st.booleans()), min_size=1, max_size=40)


@given(answers, st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_ece_is_counted_bin_by_bin(pairs: list[tuple[float, bool]], bins: int) -> None:
    sure, right = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    total = 0.0
    for b in range(bins):
        inside = np.clip(np.ceil(sure * bins) - 1, 0, bins - 1) == b
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - sure[inside].mean())
    assert expected_calibration_error(sure, right, bins) == pytest.approx(total, abs=1e-12)


@given(answers, st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_aurc_is_the_mean_risk_and_knows_no_order(pairs: list[tuple[float, bool]], seed: int) -> None:
    sure, right = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    shuffle = np.random.default_rng(seed)
    each = []
    for _ in range(300):  # ties in a random order: the mean over many orders
        order = shuffle.permutation(len(sure))
        order = order[np.argsort(-sure[order], kind="stable")]
        each.append(np.mean(np.cumsum(~right[order]) / np.arange(1, len(sure) + 1)))
    found = area_under_risk_coverage(sure, right)
    spread = np.std(each) / np.sqrt(len(each))
    assert abs(found - np.mean(each)) <= 6 * spread + 1e-12
    order = shuffle.permutation(len(sure))
    assert area_under_risk_coverage(sure[order], right[order]) == pytest.approx(found, abs=1e-12)


@given(answers)
@settings(max_examples=60, deadline=None)
def test_augrc_is_counted_pair_by_pair_and_follows_from_auroc(pairs: list[tuple[float, bool]]) -> None:
    sure, right = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    silent = [
        (wrong > other) + 0.5 * (wrong == other)
        for wrong, hit in zip(sure, right, strict=True)
        if not hit
        for other in sure
    ]
    found = area_under_generalized_risk_coverage(sure, right)
    assert found == pytest.approx(sum(silent) / len(sure) ** 2, abs=1e-12)
    if 0 < right.mean() < 1:  # equation 6 of the paper
        accuracy, ranked = right.mean(), auroc(-sure[right], -sure[~right])
        assert found == pytest.approx((1 - ranked) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2, abs=1e-12)


def test_the_ends_of_the_curve() -> None:
    coverage, risk = risk_coverage([0.9, 0.5, 0.1], [True, True, False])
    assert coverage[-1] == 1
    assert risk.tolist() == [0, 0, pytest.approx(1 / 3)]
    assert area_under_risk_coverage([0.3, 0.9], [True, True]) == 0
    assert area_under_risk_coverage([0.3, 0.9], [False, False]) == 1
    assert expected_calibration_error([1.0, 1.0], [True, True]) == 0


def test_what_is_no_confidence_is_refused() -> None:
    for sure, right in (
        ([], []),
        ([0.5], [True, False]),
        ([1.5], [True]),
        ([float("nan")], [True]),
        ([[0.5]], [[True]]),
    ):
        with pytest.raises(ArgumentError):
            expected_calibration_error(sure, right)
    with pytest.raises(ArgumentError, match="bins"):
        expected_calibration_error([0.5], [True], 0)


def test_reliability_bins_are_those_of_the_calibration_error() -> None:
    confidence = np.random.default_rng(0).uniform(size=500)
    correct = np.random.default_rng(1).uniform(size=500) < confidence**2
    says, accuracy, share = reliability_bins(confidence, correct)
    assert share.sum() == pytest.approx(1)
    assert (share * np.abs(accuracy - says)).sum() == pytest.approx(expected_calibration_error(confidence, correct))
