"""Guarantees beside the marginal one: lists with a bound on false alarms, thresholds with a confidence."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from offaxis import Calibration
from offaxis.calibration.conformal import (
    allowed,
    check_confidence,
    control_fdr,
    flag_rate,
    p_values,
    smallest_count,
    threshold,
)
from offaxis.errors import ArgumentError, TooFewImagesError

guarantees = pytest.importorskip("benchmarks.batch_guarantees", reason="run from the project's folder")


# lists ----------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 100), min_size=1, max_size=40), st.sampled_from([0.01, 0.05, 0.1, 0.25, 0.3, 0.9]))
def test_the_flagged_are_those_of_benjamini_and_hochberg(ranks: list[int], fdr: float) -> None:
    """Against the definition, in exact fractions: the largest k with k p-values of at most k fdr / m_0."""
    exact = [Fraction(rank, 100) for rank in ranks]
    bound = Fraction(repr(fdr))
    ordered = sorted(exact)
    storey = min(len(exact), 2 * (1 + sum(p > Fraction(1, 2) for p in exact)))
    k = max((i for i, p in enumerate(ordered, 1) if p <= i * bound / storey), default=0)
    expected = [k > 0 and p <= ordered[k - 1] for p in exact]
    flags = control_fdr(np.array([float(p) for p in exact]), fdr, calibration_images=99)
    assert flags.flagged.tolist() == expected
    assert flags.least == math.ceil(storey / (bound * 100))
    assert flags.flagged.sum() == 0 or flags.flagged.sum() >= flags.least


def test_they_agree_with_scipy() -> None:
    random = np.random.default_rng(0)
    calibration = np.sort(random.standard_normal(999))
    values = p_values(calibration_scores=calibration, scores=random.standard_normal(300) + np.repeat([0, 2], 150))
    storey = min(300, 2 * (1 + (values > 0.5).sum()))
    expected = stats.false_discovery_control(values) * storey / 300 <= 0.2
    assert 0 < expected.sum() < 300
    assert control_fdr(values, 0.2, calibration_images=999).flagged.tolist() == expected.tolist()


@pytest.mark.parametrize("ties", [False, True], ids=["continuous", "ties"])
@pytest.mark.parametrize("share", guarantees.SHARES)
def test_at_most_a_tenth_of_the_flagged_are_false_alarms(share: float, ties: bool) -> None:
    line = guarantees.simulate_batches(share, ties, draws=150, calibration=400, batch=200)
    assert line.fdr <= guarantees.FDR + 3 * line.error
    assert share < 0.1 or line.power > 0.3
    assert share > 0 or line.fdr == line.any_flag  # without OOD images every flag is a false alarm


def test_where_nothing_can_be_flagged_the_number_of_images_is_named() -> None:
    calibration = Calibration.from_scores(np.arange(99.0), np.zeros(99, np.int64), 2)
    values = calibration.p_values(np.array([1000.0, *([1.0] * 999)]))
    flags = calibration.control_fdr(values, 0.1)
    assert not flags.flagged.any()
    assert (flags.least, flags.calibration_images) == (100, 99)
    assert "99 calibration images can flag 100 images or more together, or none" in flags.explain()
    assert "it takes 9,999 calibration images" in flags.explain()
    enough = Calibration.from_scores(np.arange(9999.0), np.zeros(9999, np.int64), 2)
    found = enough.control_fdr(enough.p_values(np.array([1e6, *([1.0] * 999)])), 0.1)
    assert found.flagged.tolist() == [True] + [False] * 999
    assert "1 of 1,000 images are flagged together" in found.explain()
    assert calibration.control_fdr([], 0.1).flagged.tolist() == []


def test_p_values_per_class_and_other_numbers_are_refused() -> None:
    for values in ([0.5, 1 / 31], [0.0], [float("nan")], [2.0], [[0.5]]):
        with pytest.raises(ArgumentError, match="not those per class"):
            control_fdr(np.array(values), 0.1, calibration_images=99)
    for fdr in (0, 1, 10, True, "x"):
        with pytest.raises(ArgumentError, match="Expected `fdr` to be a number between 0 and 1"):
            control_fdr(np.array([0.5]), fdr, calibration_images=99)  # type: ignore[arg-type]


# a confidence ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
def test_k_is_the_largest_whose_quantile_is_at_most_alpha(alpha: float, confidence: float) -> None:
    least = smallest_count(alpha, confidence)
    assert allowed(least, alpha, confidence) >= 1
    assert allowed(least - 1, alpha, confidence) == 0
    for n in (least, least + 7, 2 * least, 1000):
        k = allowed(n, alpha, confidence)
        assert k <= allowed(n, alpha)  # the marginal promise holds too
        if k:
            assert stats.beta(k, n + 1 - k).ppf(confidence) <= alpha
        assert k == allowed(n, alpha) or stats.beta(k + 1, n - k).ppf(confidence) > alpha


def test_five_per_cent_at_95_takes_59_images() -> None:
    assert smallest_count(0.05, 0.95) == 59
    scores = np.arange(59.0)
    with pytest.raises(TooFewImagesError, match=r"at least 59 .* alpha = 0.05 and a confidence of 0.95 but got 58"):
        Calibration.from_scores(scores[:58], np.zeros(58, np.int64), 2, confidence=0.95)
    calibration = Calibration.from_scores(scores, np.zeros(59, np.int64), 2, confidence=0.95)
    assert calibration.threshold() == 58.0
    assert calibration.levels == [1 / 60, 1 / 60]
    assert calibration.flag_rate() == flag_rate(59, 0.05, 0.95)
    assert calibration.flag_rate().high <= 0.05


@pytest.mark.parametrize("ties", [False, True], ids=["continuous", "ties"])
@pytest.mark.parametrize("images", [59, 200])
def test_calibration_sets_keep_the_promise_as_often_as_it_says(images: int, ties: bool) -> None:
    line = guarantees.simulate_confidence(images, ties, sets=1500)
    error = math.sqrt(line.law * (1 - line.law) / 1500)
    assert line.law >= guarantees.CONFIDENCE
    assert line.kept >= guarantees.CONFIDENCE - 3 * error
    if not ties:  # exact
        assert line.kept == pytest.approx(line.law, abs=4 * error + 1e-9)
        assert line.marginal < 0.8  # at most alpha on average alone: many sets flag more


@given(st.lists(st.integers(-5, 5), min_size=80, max_size=120), st.lists(st.integers(-6, 6), min_size=1, max_size=20))
def test_threshold_and_verdicts_agree_with_a_confidence(known: list[int], new: list[int]) -> None:
    assume(len(set(known)) > 1)
    calibration = Calibration.from_scores(np.array(known, float), np.zeros(len(known), np.int64), 2, confidence=0.9)
    scores = np.array(new, np.float64)
    by_p = calibration.p_values(scores) <= calibration.levels[0]
    assert by_p.tolist() == (scores > calibration.threshold()).tolist()


def test_per_class_each_class_has_its_own_k() -> None:
    classes = np.repeat([0, 1, 2], [200, 70, 30])
    calibration = Calibration.from_scores(np.arange(300.0), classes, 3, per_class=True, confidence=0.95)
    assert calibration.enough() == [True, True, False]
    assert calibration.levels == [allowed(n, 0.05, 0.95) / (n + 1) for n in (200, 70, 30)]
    assert calibration.class_thresholds()[2] is None
    assert calibration.class_flag_rates()[1] == flag_rate(70, 0.05, 0.95)


def test_a_confidence_is_a_probability_or_none() -> None:
    assert check_confidence(None) is None
    assert check_confidence(0) is None
    assert check_confidence(0.95) == 0.95
    for value in (1, -0.1, True, "0.9", 95):
        with pytest.raises(ArgumentError, match=r"between 0 and 1, such as 0\.95"):
            check_confidence(value)  # type: ignore[arg-type]


# arguments ------------------------------------------------------------------------------------------------------------


def test_p_values_are_asked_for_by_keyword_and_calibration_scores_must_be_sorted() -> None:
    with pytest.raises(TypeError):
        p_values(np.array([1.0]), np.array([2.0]))  # type: ignore[misc]
    with pytest.raises(ArgumentError, match="in rising order"):
        p_values(calibration_scores=np.array([2.0, 1.0]), scores=np.array([1.0]))
    assert threshold(np.arange(19.0), 0.05) == 18.0
