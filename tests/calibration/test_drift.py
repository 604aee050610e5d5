"""The drift monitor: exact p-values, a level that holds, and alarms that come soon."""

import bisect
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from offaxis.calibration.drift import BETS, DriftMonitor, Martingale, ScoreCounts, slot
from offaxis.errors import ArgumentError


@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=80))
def test_score_counts_count_as_a_sorted_list_does(scores: list[float]) -> None:
    counts, known = ScoreCounts(), list[int]()
    for score in scores:
        larger, equal = counts.add(score)
        place = slot(score)
        bisect.insort(known, place)
        assert equal == known.count(place)
        assert larger == sum(other > place for other in known)


@given(st.floats(-(2.0**99), 2.0**99, width=32), st.floats(-(2.0**99), 2.0**99, width=32))
def test_slots_keep_the_order(first: float, second: float) -> None:
    if first < second:
        assert slot(first) <= slot(second)


def test_slots_are_fine_enough_for_cosines() -> None:
    assert slot(-0.9990) < slot(-0.9988)
    assert slot(1e300) > slot(1e30)
    assert slot(-1e300) < slot(-1e30)


def test_every_bet_is_fair() -> None:
    for w, a in BETS:
        assert 0 < w < 1
        assert integrate.quad(lambda p, w=w, a=a: 1 - w + w * a * p ** (a - 1), 0, 1)[0] == pytest.approx(1, abs=1e-6)


def test_online_p_values_are_uniform_and_ties_are_broken_at_random() -> None:
    random = np.random.default_rng(0)
    fine = DriftMonitor(random.standard_normal(100))
    assert stats.kstest([fine.add(float(s)) for s in random.standard_normal(3000)], "uniform").pvalue > 0.01
    coarse = DriftMonitor(random.integers(3, size=100).astype(float))
    assert stats.kstest([coarse.add(float(s)) for s in random.integers(3, size=3000)], "uniform").pvalue > 0.01


def test_few_streams_alarm_without_cause() -> None:
    """200 streams of 500 p-values at level 20 %: the share that ever alarms is at most that. The long one is a benchmark."""
    alarms = 0
    for seed in range(200):
        martingale = Martingale(level=0.2)
        for p in np.random.default_rng(seed).random(500).tolist():
            martingale.bet(1 - p)
        alarms += martingale.state().alarm
    assert stats.binomtest(alarms, 200, 0.2, alternative="greater").pvalue > 0.01


def test_a_tenth_of_ood_images_is_detected_soon_even_after_a_long_quiet_time() -> None:
    random = np.random.default_rng(0)
    monitor = DriftMonitor(random.standard_normal(500), level=0.01)
    for score in random.standard_normal(5000).tolist():
        monitor.add(score)
    assert not monitor.state().alarm
    for score in (random.standard_normal(1000) + 3 * (random.random(1000) < 0.1)).tolist():
        monitor.add(score)
    state = monitor.state()
    assert state.alarmed_at is not None
    assert state.alarmed_at - 5000 < 400
    assert state.log10_largest >= 2
    monitor.reset()
    assert monitor.state().images == 0
    assert not monitor.state().alarm


def test_the_martingale_is_what_it_says() -> None:
    """The running logarithms against the sum over all starting times, written out."""
    martingale = Martingale()
    ps = np.random.default_rng(3).random(60)
    for p in ps.tolist():
        martingale.bet(p)
    reserve = [1 / math.sqrt(1 + n / 100) for n in range(61)]
    gains = {bet: 1 - bet[0] + bet[0] * bet[1] * ps ** (bet[1] - 1) for bet in BETS}
    started = sum(
        (reserve[n] - reserve[n + 1]) / len(BETS) * np.prod(gain[n:]) for gain in gains.values() for n in range(60)
    )
    assert math.exp(martingale.log_wealth) == pytest.approx(reserve[60] + started)


def test_the_level_must_be_a_chance() -> None:
    with pytest.raises(ArgumentError):
        DriftMonitor(np.zeros(3), level=2)
