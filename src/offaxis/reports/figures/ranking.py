"""Ranking of detectors by a mean, with intervals."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from offaxis.errors import ArgumentError
from offaxis.reports.figures.labels import distinct, legend_below, not_empty, number
from offaxis.reports.figures.style import INK, blank, mark, styled

Interval = tuple[float, float, float]


@styled
def ranking(
    means: Mapping[str, Interval],
    states: Mapping[str, str] | None = None,
    label: str = "mean AUROC (%)",
    most: float | None = 100.0,
    higher_is_better: bool = True,
) -> Figure:
    """Draw a dot and an interval for each detector, the best on top.

    Args:
        means: detector -> (mean, low, high).
        states: detector -> a word that is shown by colour and marker, for instance how its hyperparameters were set.
        label: what the numbers are.
        most: what no number can exceed, so that the axis ends there.
        higher_is_better: whether the largest mean is on top, else the smallest.
    """
    not_empty("the detectors", means)
    rows = {name: _checked(name, interval) for name, interval in means.items()}
    best_first = sorted(rows, key=lambda name: -rows[name][0] if higher_is_better else rows[name][0])
    kinds = sorted({(states or {}).get(name, "") for name in best_first})  # so that two pictures agree
    figure = blank(6.4, 0.9 + 0.27 * len(rows) + (0.3 if states else 0))
    axes = figure.subplots()
    for place, name in enumerate(best_first):
        mean, low, high = rows[name]
        look = mark(kinds.index((states or {}).get(name, "")))
        axes.plot([low, high], [place, place], color=look.colour, linewidth=2.2, solid_capstyle="butt")
        axes.plot([mean], [place], color=look.colour, marker=look.marker, markersize=7, markeredgecolor="white")
        axes.text(1.01, place, f"{mean:.2f}", transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), distinct(best_first, 34))
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(_limits([bound for _, *bounds in rows.values() for bound in bounds], most))
    axes.set_xlabel(label)
    axes.grid(axis="both")
    if states:
        handles = [
            Line2D(
                [], [], color=mark(n).colour, marker=mark(n).marker, markersize=6, markeredgecolor="white", linewidth=2
            )
            for n in range(len(kinds))
        ]
        legend_below(figure, handles, [kind or "not said" for kind in kinds])
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_color(INK)
    return figure


def _limits(bounds: list[float], most: float | None) -> tuple[float, float]:
    low, high = min(bounds), max(bounds)
    room = max(0.05 * (high - low), 0.5 if high - low < 1 else 0.0)
    right = high + room
    return low - room, right if most is None or high > most else min(right, most + 0.25 * room)


def _checked(name: str, interval: Interval) -> Interval:
    mean, low, high = (number(f"the interval of {name!r}", value) for value in interval)
    if not low <= mean <= high:
        raise ArgumentError(f"Expected (mean, low, high) with low <= mean <= high for {name!r} but got {interval}.")
    return mean, low, high
