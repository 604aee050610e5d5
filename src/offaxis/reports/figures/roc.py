"""ROC curves, a panel for each OOD set."""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from offaxis.metrics import auroc
from offaxis.reports.figures.bins import Row
from offaxis.reports.figures.checks import not_empty, numbers
from offaxis.reports.figures.labels import grid, legend_below, legend_height, wrapped_names
from offaxis.reports.figures.style import FAINT, blank, mark, styled

_POINTS = 400
_LISTED = 6


def roc_curve(id_scores: ArrayLike, ood_scores: ArrayLike) -> tuple[Row, Row]:
    """The shares of OOD and of ID images that are accepted, for every threshold from strict to lenient.

    Scores are larger for stranger images; ID is positive; tied scores are one step. The area below is the AUROC.
    """
    known, other = np.sort(numbers("the ID scores", id_scores)), np.sort(numbers("the OOD scores", ood_scores))
    thresholds = np.unique(np.concatenate([known, other]))
    false, true = (np.append(0.0, np.searchsorted(row, thresholds, "right") / len(row)) for row in (other, known))
    return false, true


@styled
def roc(panels: Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]], columns: int = 4) -> Figure:
    """ROC curves of several detectors, a panel for each OOD set; the numbers inside are the AUROCs in percent.

    Args:
        panels: OOD set -> detector -> (ID scores, OOD scores), larger = stranger.
        columns: panels in a row, at most.
    """
    not_empty("the OOD sets", panels)
    detectors = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    not_empty("the detectors", detectors)
    columns = max(1, min(columns, len(panels)))
    size = 2.35 if columns > 1 else 3.6
    width = max(size * columns, 4.2)
    figure = blank(width, (size + 0.3) * math.ceil(len(panels) / columns) + legend_height(detectors, width))
    places = grid(figure, len(panels), columns)
    titles = wrapped_names(list(panels), int(size * 9))
    for number, (place, title, curves) in enumerate(zip(places, titles, panels.values(), strict=True)):
        _panel(place, curves, detectors)
        place.set_title(title)
        if number + columns >= len(panels):
            place.set_xlabel("OOD accepted")
        if number % columns == 0:
            place.set_ylabel("ID accepted (TPR)")
    legend_below(figure, [_handle(number, detectors) for number in range(len(detectors))], detectors)
    return figure


def _panel(axes: Axes, curves: Mapping[str, tuple[ArrayLike, ArrayLike]], detectors: list[str]) -> None:
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8, linestyle=":")
    axes.axhline(0.95, color=FAINT, linewidth=0.8, linestyle=":")
    handles, areas = [], []
    for name, (known, other) in curves.items():
        place = detectors.index(name)
        look = mark(place)
        false, true = _thinned(*roc_curve(known, other))
        axes.plot(
            false,
            true,
            color=look.colour,
            linestyle=look.line,
            marker=look.marker,
            markevery=(0.02 + 0.017 * (place % 10), 0.19),
            markersize=4,
            label=name,
        )
        handles.append(_handle(place, detectors))
        areas.append(f"{100 * auroc(known, other):.1f}")
    if len(detectors) <= _LISTED:
        axes.legend(handles, areas, loc="lower right", handlelength=3.0, fontsize=7.5, labelspacing=0.25, borderpad=0.1)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.005)
    axes.set_aspect("equal")
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.set_yticks([0, 0.5, 0.95], ["0", "0.5", "0.95"])


def _handle(number: int, detectors: list[str]) -> Line2D:
    look = mark(number)
    return Line2D(
        [], [], color=look.colour, linestyle=look.line, marker=look.marker, markersize=4, label=detectors[number]
    )


def _thinned(false: Row, true: Row) -> tuple[Row, Row]:
    """As many points as an eye can tell, evenly spread along the curve, its ends among them."""
    if len(false) <= _POINTS:
        return false, true
    along = false + true
    chosen = np.unique(np.searchsorted(along, np.linspace(along[0], along[-1], _POINTS)))
    return false[chosen], true[chosen]
