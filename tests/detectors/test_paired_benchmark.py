"""The helper behind every published ratio."""

import time

import pytest

paired = pytest.importorskip("benchmarks.paired", reason="run from the project's folder")


def test_the_interval_is_that_of_the_sign_test() -> None:
    assert paired.interval([float(i) for i in range(1, 31)]) == (10, 21)  # the textbook ranks for 30 values
    assert paired.interval([float(i) for i in range(1, 7)]) == (1, 6)
    assert paired.interval([1.0, 2.0]) == (1, 2)


def test_the_ratio_is_about_what_it_should_be() -> None:
    ratio = paired.paired(lambda: time.sleep(0.02), lambda: time.sleep(0.01), rounds=7)
    assert 1.2 < ratio.median < 3
    assert ratio.low <= ratio.median <= ratio.high
    assert ratio.rounds == 7
    assert "over 7 rounds" in str(ratio)
