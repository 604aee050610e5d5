"""Metrics against scikit-learn, scipy and slow versions, with ties, and the properties that they must have."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu, norm
from sklearn.metrics import auc, average_precision_score, log_loss, precision_recall_curve, roc_auc_score
from sklearn.metrics import roc_curve as reference_curve

from offaxis.errors import ArgumentError
from offaxis.metrics import (
    HIGHER_IS_BETTER,
    accuracy_at_tpr,
    all_metrics,
    aupr_in,
    aupr_in_trapezoid,
    aupr_out,
    aupr_out_trapezoid,
    auroc,
    bootstrap_interval,
    brier_score,
    classwise_calibration_error,
    detection_error,
    fpr_at_tpr,
    fpr_at_tpr_openood,
    negative_log_likelihood,
    open_set_metrics,
    roc_curve,
)

Floats = NDArray[np.float64]
METRICS = [auroc, aupr_in, aupr_out, accuracy_at_tpr, fpr_at_tpr, detection_error]
METRICS += [aupr_in_trapezoid, aupr_out_trapezoid, fpr_at_tpr_openood]
# few distinct values, so that ties are the rule
tied = arrays(np.float64, st.integers(1, 40), elements=st.integers(-3, 3).map(float))
untied = arrays(np.float64, st.integers(1, 40), elements=st.floats(-5, 5))
scores = st.one_of(tied, untied)


def labelled(id_scores: Floats, ood_scores: Floats) -> tuple[Floats, Floats]:
    """Labels with OOD positive, and all scores."""
    return np.r_[np.zeros(len(id_scores)), np.ones(len(ood_scores))], np.r_[id_scores, ood_scores]


@given(scores, scores)
@settings(max_examples=200, deadline=None)
def test_equal_to_scikit_learn_and_to_mann_whitney(id_scores: Floats, ood_scores: Floats) -> None:
    labels, values = labelled(id_scores, ood_scores)
    assert abs(auroc(id_scores, ood_scores) - roc_auc_score(labels, values)) < 1e-12
    assert abs(aupr_out(id_scores, ood_scores) - average_precision_score(labels, values)) < 1e-12
    assert abs(aupr_in(id_scores, ood_scores) - average_precision_score(1 - labels, -values)) < 1e-12
    precision, recall, _ = precision_recall_curve(labels, values)
    assert abs(aupr_out_trapezoid(id_scores, ood_scores) - auc(recall, precision)) < 1e-12
    precision, recall, _ = precision_recall_curve(1 - labels, -values)
    assert abs(aupr_in_trapezoid(id_scores, ood_scores) - auc(recall, precision)) < 1e-12
    fpr, tpr, _ = reference_curve(labels, values, drop_intermediate=False)
    assert abs(fpr_at_tpr_openood(id_scores, ood_scores) - fpr[np.argmax(tpr >= 0.95)]) < 1e-12
    statistic = mannwhitneyu(ood_scores, id_scores).statistic
    assert abs(auroc(id_scores, ood_scores) - statistic / len(id_scores) / len(ood_scores)) < 1e-12


@given(scores, scores)
@settings(max_examples=100, deadline=None)
def test_detection_error_tries_every_threshold(id_scores: Floats, ood_scores: Floats) -> None:
    thresholds = np.r_[-np.inf, np.unique(np.r_[id_scores, ood_scores])]
    errors = [(np.mean(id_scores > t) + np.mean(ood_scores <= t)) / 2 for t in thresholds]
    assert abs(detection_error(id_scores, ood_scores) - min(errors)) < 1e-12


@given(scores, scores, st.sampled_from([0.5, 0.8, 0.95]))
@settings(max_examples=100, deadline=None)
def test_rates_at_a_threshold_are_counted(id_scores: Floats, ood_scores: Floats, tpr: float) -> None:
    threshold = np.percentile(id_scores, 100 * tpr)
    accepted = sum(score <= threshold for score in ood_scores) / len(ood_scores)
    assert abs(fpr_at_tpr(id_scores, ood_scores, tpr) - accepted) < 1e-12
    assert abs(accuracy_at_tpr(id_scores, ood_scores, tpr) - (tpr + 1 - accepted) / 2) < 1e-12
    threshold = -np.percentile(-ood_scores, 100 * tpr)
    flagged = sum(score >= threshold for score in id_scores) / len(id_scores)
    assert abs(fpr_at_tpr(id_scores, ood_scores, tpr, positive="ood") - flagged) < 1e-12


def test_a_threshold_that_falls_on_tied_scores_is_theirs() -> None:
    id_scores, ood_scores = np.repeat([0.0, 1.0], [50, 50]), np.repeat([0.0, 1.0], [6, 95])
    assert fpr_at_tpr(id_scores, ood_scores, positive="ood") == 1.0  # 95 of 101 are less than 95 %: the zeros count too
    assert fpr_at_tpr(-ood_scores, -id_scores) == 1.0
    for kind in (np.float16, np.float32):
        assert fpr_at_tpr(id_scores.astype(kind), ood_scores.astype(kind), positive="ood") == 1.0


@given(scores, scores, st.sampled_from([0.5, 0.8, 0.95]))
@settings(max_examples=100, deadline=None)
def test_either_class_may_be_the_positive_one(id_scores: Floats, ood_scores: Floats, tpr: float) -> None:
    before = id_scores.copy(), ood_scores.copy()
    assert fpr_at_tpr(id_scores, ood_scores, tpr, positive="ood") == fpr_at_tpr(-ood_scores, -id_scores, tpr)
    np.testing.assert_array_equal(before[0], id_scores)
    np.testing.assert_array_equal(before[1], ood_scores)


@given(tied, tied, st.integers(0, 99))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("metric", METRICS)
def test_order_does_not_matter_and_range_is_kept(
    metric: Callable[..., float], id_scores: Floats, ood_scores: Floats, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    value = metric(id_scores, ood_scores)
    assert 0 <= value <= 1
    assert metric(generator.permutation(id_scores), generator.permutation(ood_scores)) == value


@given(tied, tied)
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("metric", [auroc, aupr_in, aupr_out, detection_error])
def test_increasing_maps_change_nothing(metric: Callable[..., float], id_scores: Floats, ood_scores: Floats) -> None:
    assert metric(np.exp(id_scores) + 7, np.exp(ood_scores) + 7) == metric(id_scores, ood_scores)


@given(scores, scores)
@settings(max_examples=60, deadline=None)
def test_swapping_the_sets_and_the_sign_changes_the_positive_class_alone(id_scores: Floats, ood_scores: Floats) -> None:
    assert abs(auroc(id_scores, ood_scores) - auroc(-ood_scores, -id_scores)) < 1e-12
    assert abs(aupr_in(id_scores, ood_scores) - aupr_out(-ood_scores, -id_scores)) < 1e-12


@pytest.mark.parametrize("metric", METRICS)
def test_perfect_and_hopeless(metric: Callable[..., float]) -> None:
    low, high = np.linspace(0, 1, 50), np.linspace(2, 3, 70)
    best = {fpr_at_tpr: 0.0, fpr_at_tpr_openood: 0.0, detection_error: 0.0, accuracy_at_tpr: 0.975}.get(metric, 1.0)
    assert abs(metric(low, high) - best) < 1e-12
    worst = {auroc: 0.0, fpr_at_tpr: 1.0, accuracy_at_tpr: 0.475, detection_error: 0.5}
    if metric in worst:
        assert abs(metric(high, low) - worst[metric]) < 1e-12


def test_scores_that_differ_in_the_last_bits_are_distinguished() -> None:
    """ODIN at T = 1000 spans .1 to .12; a grid of thresholds or a sigmoid would see ties."""
    id_scores = np.float32(0.1) + np.arange(1000, dtype=np.float32) * np.float32(1e-8)
    ood_scores = np.nextafter(id_scores.max(), np.float32(1)) + np.zeros(10, np.float32)
    assert auroc(id_scores, ood_scores) == 1.0
    big = np.float32(1e30)
    assert auroc(np.array([1.0, 2.0], np.float32) * big, np.array([3.0], np.float32) * big) == 1.0


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("id_scores", "ood_scores", "message"),
    [
        ([], [1.0], "ID"),
        ([1.0], [], "OOD"),
        ([np.nan, 1.0], [1.0], "1 that are NaN"),
        ([1.0], [np.inf], "OOD"),
        ([[1.0]], [1.0], "ID"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    metric: Callable[..., float], id_scores: object, ood_scores: object, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        metric(id_scores, ood_scores)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="tpr"):
        fpr_at_tpr([1.0], [2.0], 95)
    with pytest.raises(ArgumentError, match="positive"):
        fpr_at_tpr([1.0], [2.0], positive="both")  # type: ignore[arg-type]


@given(scores, scores)
@settings(max_examples=100, deadline=None)
def test_all_metrics_are_the_single_ones(id_scores: Floats, ood_scores: Floats) -> None:
    found = all_metrics(id_scores, ood_scores)
    assert list(found) == list(HIGHER_IS_BETTER)
    expected = {
        "auroc": auroc(id_scores, ood_scores),
        "aupr_in": aupr_in(id_scores, ood_scores),
        "aupr_out": aupr_out(id_scores, ood_scores),
        "accuracy_at_tpr95": accuracy_at_tpr(id_scores, ood_scores),
        "fpr_at_tpr95": fpr_at_tpr(id_scores, ood_scores),
        "fpr_at_tpr95_ood": fpr_at_tpr(id_scores, ood_scores, positive="ood"),
        "fpr_at_tpr95_openood": fpr_at_tpr_openood(id_scores, ood_scores),
        "aupr_in_trapezoid": aupr_in_trapezoid(id_scores, ood_scores),
        "aupr_out_trapezoid": aupr_out_trapezoid(id_scores, ood_scores),
        "detection_error": detection_error(id_scores, ood_scores),
    }
    assert found.keys() == expected.keys()
    assert all(abs(found[name] - value) < 1e-12 for name, value in expected.items())


@given(scores, scores)
@settings(max_examples=60, deadline=None)
def test_the_curve_has_the_area_and_the_points_of_scikit_learn(id_scores: Floats, ood_scores: Floats) -> None:
    x, y = roc_curve(id_scores, ood_scores)
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    assert abs(auc(x, y) - auroc(id_scores, ood_scores)) < 1e-12
    labels, values = labelled(id_scores, ood_scores)
    theirs = reference_curve(1 - labels, -values, drop_intermediate=False)
    np.testing.assert_allclose(x, theirs[0], atol=1e-12)
    np.testing.assert_allclose(y, theirs[1], atol=1e-12)


def test_a_thinned_curve_keeps_its_ends_and_nearly_its_area() -> None:
    draw = np.random.default_rng(0)
    id_scores, ood_scores = draw.normal(size=5000), draw.normal(1.5, size=3000)
    x, y = roc_curve(id_scores, ood_scores, points=60)
    assert len(x) <= 61
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    assert abs(auc(x, y) - auroc(id_scores, ood_scores)) < 2e-3


def test_bootstrap_intervals_hold_the_value_and_are_repeatable() -> None:
    draw = np.random.default_rng(1)
    id_scores, ood_scores = draw.normal(size=300).round(1), draw.normal(1, size=200).round(1)
    for metric in (auroc, fpr_at_tpr):
        low, high = bootstrap_interval(metric, id_scores, ood_scores, resamples=400, seed=3)
        assert low <= metric(id_scores, ood_scores) <= high
        assert bootstrap_interval(metric, id_scores, ood_scores, resamples=400, seed=3) == (low, high)
    assert bootstrap_interval(auroc, id_scores, ood_scores) != bootstrap_interval(auroc, id_scores, ood_scores, seed=1)


def test_the_fast_bootstrap_draws_from_the_same_law_as_the_slow_one() -> None:
    draw = np.random.default_rng(2)
    id_scores, ood_scores = draw.normal(size=120).round(1), draw.normal(1, size=80).round(1)
    fast = bootstrap_interval(auroc, id_scores, ood_scores, resamples=4000)
    slow = bootstrap_interval(lambda a, b: auroc(a, b), id_scores, ood_scores, resamples=4000)
    np.testing.assert_allclose(fast, slow, atol=0.006)


def test_a_bootstrap_interval_covers_the_truth() -> None:
    """Scores from two normal laws one apart: the true AUROC is Phi(1 / sqrt 2)."""
    truth, draw = norm.cdf(1 / np.sqrt(2)), np.random.default_rng(3)
    held = 0
    for _ in range(150):
        low, high = bootstrap_interval(auroc, draw.normal(size=80), draw.normal(1, size=80), resamples=300)
        held += low <= truth <= high
    assert 0.88 <= held / 150 <= 0.99


def test_a_bootstrap_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ArgumentError, match="resample"):
        bootstrap_interval(auroc, [0.0], [1.0], resamples=0)
    with pytest.raises(ArgumentError, match="level"):
        bootstrap_interval(auroc, [0.0], [1.0], level=1.0)


@given(scores, scores, st.data())
@settings(max_examples=60, deadline=None)
def test_open_set_metrics_are_those_of_every_threshold(
    id_scores: Floats, ood_scores: Floats, data: st.DataObject
) -> None:
    correct = np.array(data.draw(st.lists(st.booleans(), min_size=len(id_scores), max_size=len(id_scores))))
    known, strange = np.asarray(id_scores), np.asarray(ood_scores)
    thresholds = [-np.inf, *sorted({*known.tolist(), *strange.tolist()})]  # accepted is what is not above
    rates = np.array([[np.mean(strange <= t), np.mean((known <= t) & correct)] for t in thresholds])
    area = float(np.trapezoid(rates[:, 1], rates[:, 0]))
    found = open_set_metrics(known, correct, strange)
    assert found["oscr"] == pytest.approx(area)
    for percent in (1, 10):
        allowed = rates[rates[:, 0] <= percent / 100 + 1e-12]
        # a threshold may stand between two scores, where ties of ID and OOD scores hide it from the list
        between = max(
            [0.0, *(np.mean((known < t) & correct) for t in strange if np.mean(strange < t) <= percent / 100)]
        )
        assert found[f"ccr_at_fpr{percent}"] == pytest.approx(max(allowed[:, 1].max(), between))


def test_metrics_of_probabilities_are_those_of_their_definitions() -> None:
    draw = np.random.default_rng(0)
    shares = draw.dirichlet([0.4] * 5, 400)
    labels = np.array([draw.choice(5, p=row) for row in shares])
    assert negative_log_likelihood(shares, labels) == pytest.approx(log_loss(labels, shares, labels=range(5)))
    wanted = np.mean(
        [sum((p - (c == y)) ** 2 for c, p in enumerate(row)) for row, y in zip(shares, labels, strict=True)]
    )
    assert brier_score(shares, labels) == pytest.approx(wanted)
    gaps = []
    for c in range(5):
        for low in np.arange(15) / 15:
            inside = (shares[:, c] > low) & (shares[:, c] <= low + 1 / 15)
            gaps.append(abs(shares[inside, c].sum() - (labels[inside] == c).sum()) / 400)
    assert classwise_calibration_error(shares, labels) == pytest.approx(sum(gaps) / 5)
    for wrong in (shares[:, :4], shares[:0], np.where(shares > 0.5, np.nan, shares)):
        with pytest.raises(ArgumentError):
            brier_score(wrong, labels[: len(wrong)])
    with pytest.raises(ArgumentError, match="from 0 to 4"):
        negative_log_likelihood(shares, labels + 1)
