"""Curves: ROC, reliability, risk and coverage, and AUROC over a fixed scale (paper Fig. 5)."""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, NullLocator
from numpy.typing import ArrayLike

from offaxis.errors import ArgumentError
from offaxis.metrics import auroc, roc_curve
from offaxis.metrics import risk_coverage as risk_over_coverage
from offaxis.reports.figures.labels import (
    Row,
    flags,
    grid,
    legend_below,
    legend_height,
    not_empty,
    number,
    numbers,
    wrapped_names,
)
from offaxis.reports.figures.style import FAINT, blank, mark, styled

_POINTS = 400
_LISTED = 6


@styled
def roc(panels: Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]], columns: int = 4) -> Figure:
    """Draw ROC curves of several detectors, a panel for each OOD set; the numbers inside are the AUROCs in percent.

    Args:
        panels: OOD set -> detector -> (ID scores, OOD scores), larger = more out-of-distribution.
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
    for position, (place, title, curves) in enumerate(zip(places, titles, panels.values(), strict=True)):
        _panel(place, curves, detectors)
        place.set_title(title)
        if position + columns >= len(panels):
            place.set_xlabel("OOD accepted")
        if position % columns == 0:
            place.set_ylabel("ID accepted (TPR)")
    legend_below(figure, [_handle(position, detectors) for position in range(len(detectors))], detectors)
    return figure


def _panel(axes: Axes, curves: Mapping[str, tuple[ArrayLike, ArrayLike]], detectors: list[str]) -> None:
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8, linestyle=":")
    axes.axhline(0.95, color=FAINT, linewidth=0.8, linestyle=":")
    handles, areas = [], []
    for name, (known, other) in curves.items():
        place = detectors.index(name)
        look = mark(place)
        false, true = roc_curve(known, other, _POINTS)
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


def _handle(position: int, detectors: list[str]) -> Line2D:
    look = mark(position)
    return Line2D(
        [], [], color=look.colour, linestyle=look.line, marker=look.marker, markersize=4, label=detectors[position]
    )


WIDTH = 3.9


@styled
def reliability(networks: Mapping[str, tuple[ArrayLike, ArrayLike]], bins: int = 15) -> Figure:
    """Draw accuracy over confidence, in bins of equal width; a calibrated network lies on the diagonal.

    Args:
        networks: name -> (probability of the predicted class (N,), whether it was right (N,)).
        bins: between 0 and 1; empty ones are left out, and a point is the larger the more images it stands for.
    """
    not_empty("the networks", networks)
    figure = blank(WIDTH, 3.6 + legend_height(list(networks), WIDTH))
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8, linestyle=":")
    handles = []
    for place, (name, (given, right)) in enumerate(networks.items()):
        confidence = numbers(f"the confidences of {name!r}", given)
        if confidence.min() < 0 or confidence.max() > 1:
            raise ArgumentError(
                f"Expected the confidences of {name!r} to be probabilities but they go from {confidence.min():g} to "
                f"{confidence.max():g}."
            )
        correct = flags(f"the correctness of {name!r}", right, len(confidence))
        says, is_right, share = _binned(confidence, correct, bins)
        look = mark(place)
        axes.plot(says, is_right, color=look.colour, linestyle=look.line, linewidth=1)
        axes.scatter(says, is_right, s=10 + 220 * share, color=look.colour, marker=look.marker, linewidth=0, zorder=3)
        handles.append(Line2D([], [], color=look.colour, linestyle=look.line, marker=look.marker))
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_aspect("equal")
    axes.set_xlabel("confidence")
    axes.set_ylabel("accuracy")
    axes.grid(axis="both")
    legend_below(figure, handles, list(networks))
    return figure


@styled
def risk_coverage_curves(networks: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> Figure:
    """Draw the error rate among the images that are answered over the share that is answered, lowest scores first.

    Args:
        networks: name -> (scores (N,), larger = more out-of-distribution; whether the prediction was correct (N,)).
    """
    not_empty("the networks", networks)
    figure = blank(WIDTH, 2.9 + legend_height(list(networks), WIDTH))
    axes = figure.subplots()
    handles = []
    for place, (scores, right) in enumerate(networks.values()):
        look = mark(place)
        ordered = numbers("the scores", scores)
        ranks = np.unique(ordered, return_inverse=True)[1] / len(ordered)
        coverage, risk = risk_over_coverage(1 - ranks, flags("the correctness", right, len(ordered)))
        handles += axes.plot(
            coverage, 100 * risk, color=look.colour, linestyle=look.line, marker=look.marker, markevery=(0.02, 0.17)
        )
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("share of images answered")
    axes.set_ylabel("errors among them (%)")
    axes.grid(axis="both")
    legend_below(figure, handles, list(networks))
    return figure


def _binned(confidence: Row, correct: np.ndarray[tuple[int], np.dtype[np.bool_]], bins: int) -> tuple[Row, Row, Row]:
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    count = np.bincount(place, minlength=bins).astype(np.float64)
    some = count > 0
    says = np.bincount(place, confidence, bins)[some] / count[some]
    is_right = np.bincount(place, correct.astype(np.float64), bins)[some] / count[some]
    return says, is_right, count[some] / len(confidence)


@styled
def fixed_scale(
    curves: Mapping[str, Mapping[float, float]],
    predicted: Mapping[str, float] | None = None,
    label: str = "AUROC (%)",
) -> Figure:
    """Draw a metric over the fixed scale, for each ID set; the value with the predicted scale is a broken line.

    Args:
        curves: ID set -> scale -> value.
        predicted: ID set -> value with the predicted scale.
        label: what the numbers are.
    """
    not_empty("the ID sets", curves)
    scales = sorted({scale for row in curves.values() for scale in row})
    not_empty("the scales", scales)
    if scales[0] <= 0:
        raise ArgumentError(f"Expected scales above 0 but got {scales[0]}.")
    width = 4.4
    figure = blank(width, 3.0)
    axes = figure.subplots()
    handles: list[Line2D] = []
    names: list[str] = []
    for place, (name, row) in enumerate(curves.items()):
        look = mark(place)
        ordered = sorted(row)
        values = [number(f"{name} at scale {scale:g}", row[scale]) for scale in ordered]
        handles += axes.plot(ordered, values, color=look.colour, marker=look.marker, markersize=6)
        names.append(f"{name}, fixed")
        if predicted and name in predicted:
            value = number(f"{name} with the predicted scale", predicted[name])
            handles.append(
                axes.axhline(value, color=look.colour, linestyle="--" if place % 2 == 0 else ":", linewidth=1.3)
            )
            names.append(f"{name}, predicted")
    axes.set_xscale("log", base=2)
    axes.set_xlim(scales[0] / 1.3, scales[-1] * 1.3)
    axes.set_xticks(scales, [f"{scale:g}" for scale in scales], rotation=40 if len(scales) > 9 else 0)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(y=0.08)
    axes.set_xlabel("scale $s$")
    axes.set_ylabel(label)
    axes.grid(axis="y")
    figure.set_figheight(3.0 + legend_height(names, width))
    legend_below(figure, handles, names)
    return figure
