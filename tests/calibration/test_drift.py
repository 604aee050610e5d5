"""The drift monitor: exact p-values, a level that holds, and alarms that come soon."""

import bisect
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from offaxis.calibration.drift import AT_ONCE, BETS, Bets, DriftMonitor, ScoreCounts, slot
from offaxis.errors import ArgumentError, CalibrationError


@settings(deadline=None)
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
        martingale = Bets(level=0.2)
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
    martingale = Bets()
    ps = np.random.default_rng(3).random(60)
    for p in ps.tolist():
        martingale.bet(p)
    reserve = [(1 - AT_ONCE) / math.sqrt(1 + n / 100) for n in range(61)]
    gains = {bet: 1 - bet[0] + bet[0] * bet[1] * ps ** (bet[1] - 1) for bet in BETS}
    started = sum(
        (reserve[n] - reserve[n + 1] + (n == 0) * AT_ONCE) / len(BETS) * np.prod(gain[n:])
        for gain in gains.values()
        for n in range(60)
    )
    assert math.exp(martingale.log_wealth) == pytest.approx(reserve[60] + started)
    sums = sum(np.prod(gain[n:]) / len(BETS) for gain in gains.values() for n in range(60))
    assert martingale.sum == pytest.approx(sums)


def test_wealth_beyond_the_largest_number_is_counted_and_lost_again() -> None:
    """Against logarithms written out, over a stream that takes the martingale to 1e1000 and back."""
    martingale, ps = Bets(), [0.001] * 1000 + [1.0] * 6000
    in_play, largest = np.full(len(BETS), math.log(AT_ONCE / len(BETS))), 0.0
    reserve = [(1 - AT_ONCE) / math.sqrt(1 + n / 100) for n in range(len(ps) + 1)]
    for n, p in enumerate(ps):
        martingale.bet(p)
        gains = np.log([1 - w + w * a * p ** (a - 1) for w, a in BETS])
        in_play = np.logaddexp(in_play, math.log((reserve[n] - reserve[n + 1]) / len(BETS))) + gains
        wealth = np.logaddexp.reduce([math.log(reserve[n + 1]), *in_play])
        assert martingale.log_wealth == pytest.approx(wealth, abs=1e-6)
        largest = max(largest, wealth)
    assert martingale.state().log10_largest == pytest.approx(largest / math.log(10))
    assert largest > 2500 > 1000 > martingale.log_wealth


def test_ood_images_among_the_largest_id_scores_are_detected() -> None:
    """A tenth of the images are OOD with p-values up to 0.1 (an AUROC of 0.95), as real detectors score them."""
    delays = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        monitor = DriftMonitor(random.random(500), level=0.01, seed=seed)
        for number in range(600):
            monitor.add(random.random() if random.random() > 0.1 else 0.9 + 0.1 * random.random())
            if monitor.state().alarm:
                delays.append(number + 1)
                break
    assert len(delays) >= 10  # of 20; 3 with bets on p-values near zero alone


def test_a_warning_does_not_tire_and_starts_again() -> None:
    random = np.random.default_rng(0)
    monitor = DriftMonitor(random.standard_normal(500), level=1e-9, run_length=1000)
    for score in random.standard_normal(20_000).tolist():
        monitor.add(score)
    before = monitor.state().warnings
    assert before <= 20
    for score in (random.standard_normal(2000) + 2 * (random.random(2000) < 0.3)).tolist():
        monitor.add(score)
    state = monitor.state()
    assert state.warnings >= before + 2
    assert state.warned_at is not None
    assert state.warned_at > 20_000
    monitor.reset()
    assert monitor.state().warnings == 0
    assert monitor.state().warned_at is None


def test_false_warnings_are_as_rare_as_the_run_length_says() -> None:
    first = []
    for seed in range(100):
        bets, random = Bets(run_length=50), np.random.default_rng(seed)
        while bets.warned_at is None and bets.images < 500:
            bets.bet(1 - random.random())
        first.append(bets.images)
    assert np.mean(first) >= 50


@pytest.mark.parametrize("wrong", [{"level": 2}, {"level": 0}, {"run_length": 0}])
def test_level_and_run_length_must_make_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ArgumentError):
        DriftMonitor(np.zeros(3), **wrong)  # type: ignore[arg-type]


def test_the_benchmark_bets_as_the_monitor_does() -> None:
    streams = pytest.importorskip("benchmarks.drift_streams", reason="run from the project's folder")
    random = np.random.default_rng(3)
    calibration, stream = random.normal(size=60).round(1), np.append(random.normal(size=250), random.normal(2, 1, 150))
    monitor = DriftMonitor(calibration, seed=5)
    ps, states = [], []
    for score in stream.tolist():
        ps.append(monitor.add(score))
        states.append(monitor.state())
    found = streams.online_p_values(calibration, stream, 5)
    assert found.tolist() == ps
    [alarmed_at], [warned] = streams.notices(found[None])
    assert alarmed_at == states[-1].alarmed_at
    assert np.cumsum(warned).tolist() == [state.warnings for state in states]
    assert states[-1].warnings > 1


def test_calibration_scores_may_be_a_list_and_none_may_be_nan() -> None:
    scores = np.random.default_rng(0).random(20)
    one, other = DriftMonitor(scores), DriftMonitor(scores.tolist())
    assert [one.add(value) for value in (0.2, 0.9)] == [other.add(value) for value in (0.2, 0.9)]
    for wrong in (math.nan, math.inf):
        with pytest.raises(CalibrationError, match="finite"):
            DriftMonitor([0.1, wrong])
        with pytest.raises(CalibrationError, match="finite"):
            one.add(wrong)
    assert one.state().images == 2


def test_what_is_said_to_be_noticed_is_noticed_by_the_monitor() -> None:
    """The table against the monitor itself: half OOD with 50 calibration images, and a tenth that 50 do not notice."""
    from offaxis.calibration.drift import noticed

    delays = pytest.importorskip("benchmarks.drift_notice", reason="run from the project's folder").delays
    found = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        monitor = DriftMonitor(random.normal(size=50))
        while not monitor.state().alarm and monitor.state().images < 300:
            monitor.add(float(random.normal() + 2.33 * (random.uniform() < 0.5)))
        found.append(monitor.state().images)
    assert 15 <= np.median(found) <= 50
    assert np.median(delays(50, 0.5, 0.95, streams=20, length=300)) == pytest.approx(np.median(found), rel=0.5)
    assert np.isfinite(delays(50, 0.1, 0.95, streams=20, length=600)).mean() < 0.75
    said = noticed(50, 0.95)
    assert "50 % OOD after about 27 images; smaller shares late or never" in said
    assert "More calibration images notice more" in said
    assert "5 % OOD after about 204 images" in noticed(5000, 0.97)
    assert "hardly any share" in noticed(50, 0.6)
