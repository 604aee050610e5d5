"""Paper Fig. 3: how good detectors are when they were tuned on another set than they meet."""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from offaxis.errors import ArgumentError
from offaxis.reports.figures.checks import not_empty, number
from offaxis.reports.figures.labels import legend_below, legend_height, name_ticks, tick_height, wrapped
from offaxis.reports.figures.style import INK, blank, mark, styled

Bars = Mapping[str, Mapping[str, tuple[float, float]]]
"""Method -> set -> (mean, standard deviation)."""


@styled
def less_biased_bars(panels: Mapping[str, Bars], label: str = "AUROC (%)", bottom: float | None = None) -> Figure:
    """A bar for each method over each set, with the standard deviation as an error bar; a panel for each network.

    Args:
        panels: title -> method -> set -> (mean, deviation). In the paper's figure a set is the one that was assumed, and
            the numbers are over all others. A method may lack a set: its place stays empty.
        label: what the numbers are.
        bottom: where the axis begins; a round number below all bars unless given.
    """
    not_empty("the panels", panels)
    methods = list(dict.fromkeys(method for bars in panels.values() for method in bars))
    not_empty("the methods", methods)
    sets = {title: list(dict.fromkeys(name for row in bars.values() for name in row)) for title, bars in panels.items()}
    for title, names in sets.items():
        not_empty(f"the sets of {title!r}", names)
    most = max(map(len, sets.values()))
    width = min(max(3.6, 1.0 + 0.17 * most * (len(methods) + 1)), 11.0)
    below = sum(tick_height(names, (width - 0.8) * len(names) / most) for names in sets.values())
    figure = blank(width, 1.95 * len(panels) + below + legend_height(methods, width) + 0.1)
    checked = {title: _checked(title, bars) for title, bars in panels.items()}
    low = min(mean - std for bars in checked.values() for row in bars.values() for mean, std in row.values())
    high = max(mean for bars in checked.values() for row in bars.values() for mean, _ in row.values())
    start = min(50.0, 10 * math.floor(low / 10)) if bottom is None else bottom
    places = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, (title, bars) in zip(places, checked.items(), strict=True):
        _panel(axes, bars, methods, sets[title])
        name_ticks(axes, sets[title], (width - 0.8) * len(sets[title]) / most)  # turned in all panels or in none
        axes.set_title(wrapped(title, int(width * 11), 2))
        axes.set_ylabel(label)
        axes.set_ylim(max(0.0, start) if low >= 0 else start, 100.6 if high <= 100 else None)
        axes.grid(axis="y")
    legend_below(figure, [_patch(place) for place in range(len(methods))], methods)
    return figure


def _panel(axes: Axes, bars: Bars, methods: list[str], sets: list[str]) -> None:
    thick = 0.82 / len(methods)
    for place, method in enumerate(methods):
        row = bars.get(method, {})
        shown = [number for number, name in enumerate(sets) if name in row]
        look = mark(place)
        drawn = axes.bar(
            np.array(shown, dtype=float) + (place - (len(methods) - 1) / 2) * thick,
            [row[sets[number]][0] for number in shown],
            thick,
            yerr=[row[sets[number]][1] for number in shown],
            facecolor=look.colour,
            edgecolor="white",
            hatch=look.hatch,
            linewidth=0.4,
            error_kw={"ecolor": INK, "elinewidth": 0.9, "capsize": 1.5},
            label=method,
        )
        if drawn.errorbar is not None:
            for part in drawn.errorbar.get_children():
                part.set_path_effects([withStroke(linewidth=2.4, foreground="white")])  # seen on dark bars too
    axes.set_xlim(-0.6, len(sets) - 0.4)


def _patch(place: int) -> Patch:
    return Patch(facecolor=mark(place).colour, edgecolor="white", hatch=mark(place).hatch)


def _checked(title: str, bars: Bars) -> Bars:
    checked: dict[str, dict[str, tuple[float, float]]] = {}
    for method, row in bars.items():
        for name, (mean, std) in row.items():
            what = f"{title} / {method} / {name}"
            bar = number(f"the mean of {what}", mean), number(f"the deviation of {what}", std)
            if bar[1] < 0:
                raise ArgumentError(f"Expected a deviation of at least 0 for {what} but got {std}.")
            checked.setdefault(method, {})[name] = bar
    return checked
