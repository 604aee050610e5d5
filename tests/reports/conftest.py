"""Figures in small, for the tests that all must pass."""

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.figure import Figure

from offaxis.reports import figures

Draw = Callable[[], Figure]
LONG = "runs/a-very-long-name-of-a-network-that-goes-on-and-on/seed-3"


def spread(seed: int, mean: float = 0.0, count: int = 60) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng(seed).normal(mean, 1, count)


def space(title: str, seed: int = 0) -> figures.Space:
    rng = np.random.default_rng(seed)
    labels = np.arange(12) % 3
    return figures.Space(
        title,
        train=rng.normal(size=(12, 5)) + labels[:, None],
        train_labels=labels,
        test=rng.normal(size=(12, 5)) + labels[:, None],
        test_labels=labels,
        first=rng.normal(size=(9, 5)) - 3,
        second=rng.normal(size=(8, 5)) + 8,
    )


def _draws() -> dict[str, Draw]:
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    right = spread(5) < 1
    matrix = {"odin": {"a": {"a": 99.0, "b": 80.0}, "b": {"a": 70.0, "b": 98.0}}}
    return {
        "histograms": lambda: figures.histograms([figures.Panel("one", spread(0), spread(1, 3))]),
        "roc": lambda: figures.roc({"a": {"cosine": (spread(0), spread(1, 2))}}),
        "critical difference": lambda: figures.critical_difference(
            {f"detector {n}": {f"set {s}": 90.0 - n + (s * 7 + n * 3) % 5 for s in range(6)} for n in range(5)}
        ),
        "ranking": lambda: figures.ranking(
            {"cosine": (97.0, 96.0, 98.0), "odin": (90.0, 80.0, 95.0)}, {"odin": "tuned"}
        ),
        "image_sheet": lambda: figures.image_sheet({"highest": [(image, "0.93"), (image, "")]}),
        "head_diagram": figures.head_diagram,
        "less_biased_bars": lambda: figures.less_biased_bars({"wrn": {"cosine": {"a": (97.0, 1.0), "b": (90.0, 2.0)}}}),
        "dependency": lambda: figures.dependency({"a": {"a": 99.0, "b": 60.0}}, {"a": 95.0}),
        "dependency_full": lambda: figures.dependency_full(matrix),
        "dependency_matrix": lambda: figures.dependency_matrix(matrix),
        "fixed_scale": lambda: figures.fixed_scale({"cifar10": {16: 94.0, 32: 96.0}}, {"cifar10": 95.0}),
        "feature_spaces": lambda: figures.feature_spaces([space("standard"), space("cosine", 1)], "a", "b"),
        "frames": lambda: figures.frames({"tin": ([np.pad(image, ((2, 2), (2, 2), (0, 0)))], [image])}),
        "reliability": lambda: figures.reliability({"standard": (np.linspace(0, 1, 60), right)}),
        "risk_coverage_curves": lambda: figures.risk_coverage_curves({"standard": (spread(3), right)}),
    }


DRAWS = _draws()


@pytest.fixture(params=list(DRAWS))
def draw(request: pytest.FixtureRequest) -> Draw:
    return DRAWS[request.param]
