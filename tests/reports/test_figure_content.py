"""What is drawn is what was given."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from numpy.typing import ArrayLike

from offaxis.errors import ArgumentError
from offaxis.metrics import auroc
from offaxis.reports import figures
from offaxis.reports.figures.style import distinct

Row = np.ndarray[tuple[int], np.dtype[np.float64]]
SETS = [f"set {number}" for number in range(13)]


def scores(seed: int, mean: float = 0.0, count: int = 200) -> Row:
    return np.random.default_rng(seed).normal(mean, 1, count)


def areas(axes: Axes) -> list[float]:
    filled = [patch for patch in axes.patches if isinstance(patch, StepPatch) and patch.get_fill()]
    return [float(np.sum(values * np.diff(edges))) for values, edges, _ in (patch.get_data() for patch in filled)]


def below(x: Row, y: Row) -> float:
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2))


def legend_names(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize(
    ("known", "other"),
    [
        (scores(0), scores(1, 3, 500)),
        (np.full(5, 0.7), np.full(9, 0.7)),
        (np.full(5, 1e9), scores(1)),
        (scores(0).astype(np.float32) * 1e-3 + 0.1, np.array([0.1])),
        (np.zeros(3), scores(2)),
        (np.array([1e-300]), np.array([0.0])),
    ],
)
def test_histograms_have_area_one(known: Row, other: Row) -> None:
    figure = figures.histograms([figures.Panel("network", known, other, "digits", "letters", "maximum logit")] * 3)
    assert len(figure.axes) == 3
    for axes in figure.axes:
        assert areas(axes) == pytest.approx([1, 1])
        assert axes.get_xlabel() == "maximum logit"


def test_the_histograms_peaks_are_where_the_scores_are() -> None:
    axes = figures.histograms([figures.Panel("n", np.full(5, 0.7), np.full(9, 0.7))]).axes[0]
    values, edges, _ = next(patch for patch in axes.patches if isinstance(patch, StepPatch)).get_data()
    peak = int(np.argmax(values))
    assert edges[peak] < 0.7 < edges[peak + 1]


def test_the_area_under_a_roc_curve_is_the_auroc() -> None:
    for known, other in ((scores(0), scores(1, 1)), (np.round(scores(0)), np.round(scores(1, 1))), ([1.0], [1.0])):
        line = figures.roc({"set": {"cosine": (known, other)}}).axes[0].get_lines()[2]
        false, true = np.asarray(line.get_xydata()).T
        assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
        assert below(false, true) == pytest.approx(auroc(known, other))


def test_roc_panels() -> None:
    pair = scores(0, count=3000), scores(1, 1, 3000)
    figure = figures.roc({name: {"cosine": pair, "odin": pair} for name in SETS})
    assert [axes.get_title("left") for axes in figure.axes] == SETS
    assert legend_names(figure) == ["cosine", "odin"]
    line = figure.axes[0].get_lines()[2]
    false, true = np.asarray(line.get_xydata()).T
    assert len(false) <= 400
    assert below(false, true) == pytest.approx(auroc(*pair), abs=1e-3)
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [f"{100 * auroc(*pair):.1f}"] * 2


def test_the_ranking_is_ordered_and_drawn_to_scale() -> None:
    figure = figures.ranking({"b": (80.0, 70.0, 85.0), "a": (99.0, 98.0, 100.0)}, {"a": "none", "b": "tuned"})
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert [line.get_xdata()[0] for line in axes.get_lines()[1::2]] == [99.0, 80.0]  # type: ignore[index]
    assert list(axes.get_lines()[2].get_xdata()) == [70.0, 85.0]  # type: ignore[arg-type]
    assert legend_names(figure) == ["none", "tuned"]
    assert axes.get_xlim()[1] < 101
    errors = figures.ranking({"b": (20.0, 15.0, 30.0), "a": (1.0, 0.0, 2.0)}, higher_is_better=False)
    assert [label.get_text() for label in errors.axes[0].get_yticklabels()] == ["a", "b"]


def test_bars_are_as_high_as_the_means() -> None:
    bars = {
        "cosine": {name: (90.0 + number / 2, 1.0) for number, name in enumerate(SETS)},
        "odin": {name: (60.0 + number, float(number)) for number, name in enumerate(SETS[:-1])},
    }
    figure = figures.less_biased_bars({"DenseNet": bars, "WRN": {"cosine": bars["cosine"]}})
    assert [axes.get_title("left") for axes in figure.axes] == ["DenseNet", "WRN"]
    for axes, expected in zip(figure.axes, (bars, {"cosine": bars["cosine"], "odin": {}}), strict=True):
        drawn = [container for container in axes.containers if isinstance(container, BarContainer)]
        for container, row in zip(drawn, expected.values(), strict=True):
            assert [patch.get_height() for patch in container] == [mean for mean, _ in row.values()]
            assert container.errorbar is not None or not row
        assert [label.get_text() for label in axes.get_xticklabels()] == SETS
        assert axes.get_ylim()[0] <= 50


def test_dependency_lines_are_the_numbers_given() -> None:
    tuned = {"TIN": {name: 90.0 - number for number, name in enumerate(SETS)}, "F": {SETS[0]: 50.0}}
    figure = figures.dependency(tuned, {"TIN": 95.8}, "mahalanobis", "cosine")
    first, broken, second = figure.axes[0].get_lines()
    assert list(first.get_ydata()) == list(tuned["TIN"].values())  # type: ignore[arg-type]
    assert list(broken.get_ydata()) == [95.8, 95.8]  # type: ignore[arg-type]
    assert broken.get_linestyle() == "--"
    assert list(second.get_xdata()) == [0]  # type: ignore[arg-type]
    assert legend_names(figure) == ["mahalanobis on TIN", "cosine on TIN", "mahalanobis on F"]


def test_the_full_dependency_has_a_line_for_each_assumed_set() -> None:
    panels = {kind: {a: {b: 60.0 + len(a) for b in SETS} for a in SETS} for kind in ("Mahalanobis", "ODIN")}
    figure = figures.dependency_full(panels)
    assert [len(axes.get_lines()) for axes in figure.axes] == [13, 13]
    assert legend_names(figure) == SETS
    matrix = figures.dependency_matrix({"ODIN": {"a": {"a": 99.0, "b": 51.0}, "b": {"b": 98.0}}})
    written = {text.get_text() for text in matrix.axes[0].texts}
    assert written == {"99", "51", "98"}


def test_fixed_scales_stand_on_their_numbers() -> None:
    figure = figures.fixed_scale({"cifar10": {128: 62.0, 16: 94.0, 32: 96.5}}, {"cifar10": 95.2})
    axes = figure.axes[0]
    curve, line = axes.get_lines()
    assert list(curve.get_xdata()) == [16, 32, 128]  # type: ignore[arg-type]
    assert list(curve.get_ydata()) == [94.0, 96.5, 62.0]  # type: ignore[arg-type]
    assert line.get_ydata()[0] == 95.2  # type: ignore[index]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["16", "32", "128"]


def test_reliability_of_a_network_that_is_as_often_right_as_it_says() -> None:
    confidence = np.repeat([0.25, 0.75], 100)
    correct = np.concatenate([np.arange(100) < 25, np.arange(100) < 75])
    line = figures.reliability({"n": (confidence, correct)}).axes[0].get_lines()[1]
    assert line.get_xydata() == pytest.approx(np.array([[0.25, 0.25], [0.75, 0.75]]))
    certain = figures.reliability({"n": ([1.0, 1.0], [1, 1])}).axes[0].get_lines()[1]
    assert certain.get_xydata() == pytest.approx(np.array([[1.0, 1.0]]))


def test_risk_over_coverage_with_ties() -> None:
    def curve(values: ArrayLike, correct: ArrayLike) -> tuple[Row, Row]:
        line = figures.risk_coverage_curves({"n": (values, correct)}).axes[0].get_lines()[0]
        coverage, risk = np.asarray(line.get_xydata()).T
        return coverage, risk / 100

    coverage, risk = curve([0.1, 0.2, 0.2, 0.9], [True, True, False, False])
    assert coverage == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert risk[[0, 2, 3]] == pytest.approx([0, 1 / 3, 1 / 2])
    assert risk[1] == pytest.approx(1 / 4)  # one of two tied images, of which one is wrong
    _, constant = curve(np.zeros(4), [1, 0, 1, 1])
    assert constant == pytest.approx([0.25] * 4)


def test_long_names_are_shortened_but_stay_different() -> None:
    first, second = "experiments/wide-resnet/the-first-of-them/x", "experiments/wide-resnet/another-not-of-them/x"
    assert len(distinct([first])[0]) == 28
    assert distinct([first, second], 20) == ["…the-first-of-them/x", "…other-not-of-them/x"]
    for limit in (6, 10, 20, 30, 60):
        cut = distinct([first, second, "short", f"{first}/y", f"x{first}"], limit)
        assert len(set(cut)) == 5
        assert max(map(len, cut)) <= limit
    assert distinct(["same", "same"]) == ["same", "same"]
    figure = figures.ranking(
        {first: (90.0, 89.0, 91.0), "a_$b$": (1.0, 0.0, 2.0), "_hidden": (50.0, 50.0, 50.0), "": (2, 1, 3)}
    )
    written = [label.get_text().strip() for label in figure.axes[0].get_yticklabels()]
    assert written[1:] == ["_hidden", "(no name)", r"a_\$b\$"]
    assert "…" in written[0]


def test_names_in_other_scripts_do_not_stop_a_report() -> None:
    assert "<svg" in figures.as_svg(figures.ranking({"数字 🙂": (90.0, 89.0, 91.0)}))


def test_the_critical_difference_is_that_of_the_published_table() -> None:
    values = {f"d{n}": {f"s{s}": 90.0 - n for s in range(30)} for n in range(5)}
    ranks, apart = figures.mean_ranks(values)
    assert list(ranks.values()) == [1, 2, 3, 4, 5]
    assert apart == pytest.approx(2.728 * (5 * 6 / (6 * 30)) ** 0.5, abs=5e-4)  # q of 0.05 and five classifiers: 2.728
    tied = {"a": {"s": 1.0, "t": 2.0}, "b": {"s": 1.0, "t": 1.0, "u": 9.0}}
    assert figures.mean_ranks(tied)[0] == {"a": 1.25, "b": 1.75}
    assert figures.mean_ranks(tied, higher_is_better=False)[0] == {"b": 1.25, "a": 1.75}
    with pytest.raises(ArgumentError, match="a set that all"):
        figures.critical_difference({"a": {"s": 1.0}, "b": {"t": 1.0}})
