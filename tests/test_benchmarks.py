"""The helper behind every published ratio, and that every benchmark can be imported."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

paired = pytest.importorskip("benchmarks.paired", reason="run from the project's folder")
NAMES = sorted(path.stem for path in (Path(__file__).parents[1] / "benchmarks").glob("[a-z]*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_can_be_imported(name: str) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    assert f"benchmarks.{name}" in (module.__doc__ or ""), "its docstring says how to run it"


def test_the_interval_is_that_of_the_sign_test() -> None:
    assert paired.interval([float(i) for i in range(1, 31)]) == (10, 21)  # the textbook ranks for 30 values
    assert paired.interval([float(i) for i in range(1, 7)]) == (1, 6)
    assert paired.interval([1.0, 2.0]) == (1, 2)


def test_the_ratio_is_that_of_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that only the two runs move."""
    now, calls = 0.0, list[str]()

    def run(name: str, seconds: float) -> None:
        nonlocal now
        now += seconds
        calls.append(name)

    monkeypatch.setattr(paired, "time", SimpleNamespace(perf_counter=lambda: now))
    ratio = paired.paired(lambda: run("a", 2.0), lambda: run("b", 1.0), rounds=7, warm_up=1)
    assert (ratio.low, ratio.median, ratio.high) == (2, 2, 2)
    assert (ratio.seconds_a, ratio.seconds_b) == (2, 1)
    assert ratio.rounds == 7
    assert "over 7 rounds" in str(ratio)
    assert "".join(calls) == "ab" + "abba" * 3 + "ab"  # which goes first alternates
