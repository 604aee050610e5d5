"""Metrics against scikit-learn, scipy and slow versions, with ties, and the properties that they must have."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu
from sklearn.metrics import average_precision_score, roc_auc_score

from offaxis.errors import ArgumentError
from offaxis.metrics import accuracy_at_tpr, aupr_in, aupr_out, auroc, detection_error, fpr_at_tpr

Floats = NDArray[np.float64]
METRICS = [auroc, aupr_in, aupr_out, accuracy_at_tpr, fpr_at_tpr, detection_error]
# few distinct values, so that ties are the rule
tied = arrays(np.float64, st.integers(1, 40), elements=st.integers(-3, 3).map(float))
untied = arrays(np.float64, st.integers(1, 40), elements=st.floats(-5, 5))
scores = st.one_of(tied, untied)


def labelled(known: Floats, unknown: Floats) -> tuple[Floats, Floats]:
    """Labels with OOD positive, and all scores."""
    return np.r_[np.zeros(len(known)), np.ones(len(unknown))], np.r_[known, unknown]


@given(scores, scores)
@settings(max_examples=200, deadline=None)
def test_equal_to_scikit_learn_and_to_mann_whitney(known: Floats, unknown: Floats) -> None:
    labels, values = labelled(known, unknown)
    assert abs(auroc(known, unknown) - roc_auc_score(labels, values)) < 1e-12
    assert abs(aupr_out(known, unknown) - average_precision_score(labels, values)) < 1e-12
    assert abs(aupr_in(known, unknown) - average_precision_score(1 - labels, -values)) < 1e-12
    statistic = mannwhitneyu(unknown, known).statistic
    assert abs(auroc(known, unknown) - statistic / len(known) / len(unknown)) < 1e-12


@given(scores, scores)
@settings(max_examples=100, deadline=None)
def test_detection_error_tries_every_threshold(known: Floats, unknown: Floats) -> None:
    thresholds = np.r_[-np.inf, np.unique(np.r_[known, unknown])]
    errors = [(np.mean(known > t) + np.mean(unknown <= t)) / 2 for t in thresholds]
    assert abs(detection_error(known, unknown) - min(errors)) < 1e-12


@given(scores, scores, st.sampled_from([0.5, 0.8, 0.95]))
@settings(max_examples=100, deadline=None)
def test_rates_at_a_threshold_are_counted(known: Floats, unknown: Floats, tpr: float) -> None:
    threshold = np.percentile(known, 100 * tpr)
    accepted = sum(score <= threshold for score in unknown) / len(unknown)
    assert abs(fpr_at_tpr(known, unknown, tpr) - accepted) < 1e-12
    assert abs(accuracy_at_tpr(known, unknown, tpr) - (tpr + 1 - accepted) / 2) < 1e-12
    threshold = np.percentile(unknown, 100 * (1 - tpr))
    flagged = sum(score >= threshold for score in known) / len(known)
    assert abs(fpr_at_tpr(known, unknown, tpr, positive="ood") - flagged) < 1e-12


@given(tied, tied, st.integers(0, 99))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("metric", METRICS)
def test_order_does_not_matter_and_range_is_kept(
    metric: Callable[..., float], known: Floats, unknown: Floats, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    value = metric(known, unknown)
    assert 0 <= value <= 1
    assert metric(generator.permutation(known), generator.permutation(unknown)) == value


@given(tied, tied)
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("metric", [auroc, aupr_in, aupr_out, detection_error])
def test_increasing_maps_change_nothing(metric: Callable[..., float], known: Floats, unknown: Floats) -> None:
    assert metric(np.exp(known) + 7, np.exp(unknown) + 7) == metric(known, unknown)


@given(scores, scores)
@settings(max_examples=60, deadline=None)
def test_swapping_the_sets_and_the_sign_changes_the_positive_class_alone(known: Floats, unknown: Floats) -> None:
    assert abs(auroc(known, unknown) - auroc(-unknown, -known)) < 1e-12
    assert abs(aupr_in(known, unknown) - aupr_out(-unknown, -known)) < 1e-12


@pytest.mark.parametrize("metric", METRICS)
def test_perfect_and_hopeless(metric: Callable[..., float]) -> None:
    low, high = np.linspace(0, 1, 50), np.linspace(2, 3, 70)
    best = {fpr_at_tpr: 0.0, detection_error: 0.0, accuracy_at_tpr: 0.975}.get(metric, 1.0)
    assert abs(metric(low, high) - best) < 1e-12
    worst = {auroc: 0.0, fpr_at_tpr: 1.0, accuracy_at_tpr: 0.475, detection_error: 0.5}
    if metric in worst:
        assert abs(metric(high, low) - worst[metric]) < 1e-12


def test_scores_that_differ_in_the_last_bits_are_told_apart() -> None:
    """ODIN at T = 1000 spans .1 to .12; a grid of thresholds or a sigmoid would see ties."""
    known = np.float32(0.1) + np.arange(1000, dtype=np.float32) * np.float32(1e-8)
    unknown = np.nextafter(known.max(), np.float32(1)) + np.zeros(10, np.float32)
    assert auroc(known, unknown) == 1.0
    big = np.float32(1e30)
    assert auroc(np.array([1.0, 2.0], np.float32) * big, np.array([3.0], np.float32) * big) == 1.0


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("known", "unknown", "said"),
    [([], [1.0], "ID"), ([1.0], [], "OOD"), ([np.nan, 1.0], [1.0], "1 of 2"), ([1.0], [np.inf], "OOD"), ([[1.0]], [1.0], "ID")],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused(
    metric: Callable[..., float], known: object, unknown: object, said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        metric(known, unknown)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="tpr"):
        fpr_at_tpr([1.0], [2.0], 95)
    with pytest.raises(ArgumentError, match="positive"):
        fpr_at_tpr([1.0], [2.0], positive="both")  # type: ignore[arg-type]
