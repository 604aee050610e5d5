"""Scores in pictures: histograms (paper Fig. 1), ROC and risk curves, reliability, fixed scales (Fig. 5), ranks, images."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, NullLocator
from numpy.typing import ArrayLike, NDArray

from offaxis.errors import ArgumentError
from offaxis.metrics import auroc, reliability_bins, risk_coverage, roc_curve
from offaxis.reports.figures.style import (
    FAINT,
    ID,
    INK,
    OOD,
    blank,
    distinct,
    legend_below,
    mark,
    one_panel,
    panel_grid,
    picture,
    styled,
    wrapped,
    wrapped_names,
)

WIDTH = 3.9
CHANCE: dict[str, Any] = {"color": FAINT, "linewidth": 0.8, "linestyle": ":"}
"""How lines of reference are drawn."""


@dataclass(frozen=True)
class Panel:
    """One pair of histograms.

    Attributes:
        title: what stands above it, for instance the network.
        id_scores: (N,) values for ID images.
        ood_scores: (M,) values for others.
        id_name: the ID set.
        ood_name: the other.
        label: what the values are.
    """

    title: str
    id_scores: ArrayLike
    ood_scores: ArrayLike
    id_name: str = "ID"
    ood_name: str = "OOD"
    label: str = "maximum cosine"


@styled
def histograms(panels: Sequence[Panel], columns: int = 2, bins: int = 50) -> Figure:
    """Draw overlaid histograms of area 1 of ID and OOD values, a panel for each pair.

    Args:
        panels: what to draw, row by row.
        columns: panels in a row, at most.
        bins: of each panel, over the range of both rows of values.
    """
    columns = min(columns, len(panels))
    figure = blank(3.4 * columns, 2.6 * math.ceil(len(panels) / columns))
    for axes, panel in zip(panel_grid(figure, len(panels), columns), panels, strict=True):
        sets = [np.asarray(scores, np.float64) for scores in (panel.id_scores, panel.ood_scores)]
        edges = _shared_edges(np.concatenate(sets), bins)
        names = distinct([panel.id_name, panel.ood_name], 34)
        for scores, look, name in zip(sets, (ID, OOD), names, strict=True):
            heights = np.histogram(scores, edges)[0] / (len(scores) * np.diff(edges))
            axes.stairs(heights, edges, label=name, fill=True, fc=look.colour, ec="white", alpha=0.65, hatch=look.hatch)
            axes.stairs(heights, edges, color=look.colour, linewidth=1.2)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(bottom=0)
        axes.set_title(wrapped(panel.title, 36, lines=2))
        axes.set_xlabel(wrapped(panel.label, 40))
        axes.set_ylabel("density")
        axes.grid(axis="y")
        side_by_side = 2 if sum(map(len, names)) < 24 else 1
        axes.legend(
            loc="upper center",
            bbox_to_anchor=(0.45, -0.24),
            ncols=side_by_side,
            handlelength=1.8,
            columnspacing=1.4,
            borderpad=0,
        )
    return figure


def _shared_edges(scores: NDArray[np.float64], bins: int) -> NDArray[np.float64]:
    """Return edges (bins + 1,) that cover all scores; equal ones get one bin of a sensible width in the middle."""
    low, high = scores.min(), scores.max()
    if high - low < max(1.0, abs(low), abs(high)) * 1e-6:
        middle, half = (low + high) / 2, max(0.5, 0.1 * max(abs(low), abs(high)))
        low, high = middle - half, middle + half
        bins += 1 - bins % 2  # an odd number: the scores are in the middle of a bin, not on an edge
    return np.linspace(low, high, bins + 1)


_POINTS = 400
_LISTED = 6


@styled
def roc(panels: Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]], columns: int = 4) -> Figure:
    """Draw ROC curves of several detectors, a panel for each OOD set; the numbers inside are the AUROCs in percent.

    Args:
        panels: OOD set -> detector -> (ID scores, OOD scores), larger = more out-of-distribution.
        columns: panels in a row, at most.
    """
    detectors = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    handles = {name: Line2D([], [], **mark(n).stroke, markersize=4) for n, name in enumerate(detectors)}
    columns = min(columns, len(panels))
    size = 2.35 if columns > 1 else 3.6
    figure = blank(max(size * columns, 4.2), (size + 0.3) * math.ceil(len(panels) / columns))
    places = panel_grid(figure, len(panels), columns)
    titles = wrapped_names(list(panels), int(size * 9))
    for position, (axes, title, curves) in enumerate(zip(places, titles, panels.values(), strict=True)):
        axes.plot([0, 1], [0, 1], **CHANCE)
        axes.axhline(0.95, **CHANCE)
        for name, scores in curves.items():
            number = detectors.index(name)
            spaced = (0.02 + 0.017 * (number % 10), 0.19)
            axes.plot(*roc_curve(*scores, _POINTS), **mark(number).stroke, markevery=spaced, markersize=4, label=name)
        if len(detectors) <= _LISTED:
            areas = [f"{100 * auroc(*scores):.1f}" for scores in curves.values()]
            axes.legend(
                [handles[name] for name in curves],
                areas,
                loc="lower right",
                handlelength=3.0,
                fontsize=7.5,
                labelspacing=0.25,
                borderpad=0.1,
            )
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.005)
        axes.set_aspect("equal")
        axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        axes.set_yticks([0, 0.5, 0.95], ["0", "0.5", "0.95"])
        axes.set_title(title)
        if position + columns >= len(panels):
            axes.set_xlabel("OOD accepted")
        if position % columns == 0:
            axes.set_ylabel("ID accepted (TPR)")
    legend_below(figure, list(handles.values()), detectors)
    return figure


@styled
def reliability(networks: Mapping[str, tuple[ArrayLike, ArrayLike]], bins: int = 15) -> Figure:
    """Draw accuracy over confidence, in bins of equal width; a calibrated network lies on the diagonal.

    Args:
        networks: name -> (probability of the predicted class (N,), whether it was right (N,)).
        bins: between 0 and 1; empty ones are left out, and a point is the larger the more images it stands for.
    """
    figure, axes = one_panel(WIDTH, 3.6, ("confidence", "accuracy"))
    axes.plot([0, 1], [0, 1], **CHANCE)
    handles = []
    for place, (given, right) in enumerate(networks.values()):
        confidence, accuracy, share = reliability_bins(given, right, bins)
        look = mark(place)
        axes.plot(confidence, accuracy, color=look.colour, linestyle=look.line, linewidth=1)
        axes.scatter(
            confidence, accuracy, s=10 + 220 * share, color=look.colour, marker=look.marker, linewidth=0, zorder=3
        )
        handles.append(Line2D([], [], **look.stroke))
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_aspect("equal")
    legend_below(figure, handles, list(networks))
    return figure


@styled
def risk_coverage_curves(networks: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> Figure:
    """Draw the error rate among the images that are answered over the share that is answered, lowest scores first.

    Args:
        networks: name -> (scores (N,), larger = more out-of-distribution; whether the prediction was correct (N,)).
    """
    figure, axes = one_panel(WIDTH, 2.9, ("share of images answered", "errors among them (%)"))
    handles = []
    for place, (scores, right) in enumerate(networks.values()):
        ranks = np.unique(scores, return_inverse=True)[1]
        coverage, risk = risk_coverage(1 - ranks / len(ranks), right)
        handles += axes.plot(coverage, 100 * risk, **mark(place).stroke, markevery=(0.02, 0.17))
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    legend_below(figure, handles, list(networks))
    return figure


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
    scales = sorted({scale for row in curves.values() for scale in row})
    if scales[0] <= 0:
        raise ArgumentError(f"Expected scales above 0 but got {scales[0]}.")
    figure, axes = one_panel(4.4, 3.0, ("scale $s$", label), "y")
    handles: list[Line2D] = []
    names: list[str] = []
    for place, (name, row) in enumerate(curves.items()):
        look, ordered = mark(place), sorted(row)
        handles += axes.plot(
            ordered, [row[scale] for scale in ordered], color=look.colour, marker=look.marker, markersize=6
        )
        names.append(f"{name}, fixed")
        if predicted and name in predicted:
            line = "--" if place % 2 == 0 else ":"
            handles.append(axes.axhline(predicted[name], color=look.colour, linestyle=line, linewidth=1.3))
            names.append(f"{name}, predicted")
    axes.set_xscale("log", base=2)
    axes.set_xlim(scales[0] / 1.3, scales[-1] * 1.3)
    axes.set_xticks(scales, [f"{scale:g}" for scale in scales], rotation=40 if len(scales) > 9 else 0)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(y=0.08)
    legend_below(figure, handles, names)
    return figure


@styled
def ranking(
    means: Mapping[str, tuple[float, float, float]],
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
    best_first = sorted(means, key=lambda name: means[name][0], reverse=higher_is_better)
    said = dict.fromkeys(best_first, "") | dict(states or {})
    kinds = sorted({said[name] for name in best_first})  # so that two pictures agree
    figure, axes = one_panel(6.4, 0.9 + 0.27 * len(means), (label, ""))
    for place, name in enumerate(best_first):
        mean, low, high = means[name]
        look = mark(kinds.index(said[name]))
        axes.plot([low, high], [place, place], color=look.colour, linewidth=2.2, solid_capstyle="butt")
        axes.plot([mean], [place], color=look.colour, marker=look.marker, markersize=7, markeredgecolor="white")
        axes.text(1.01, place, f"{mean:.2f}", transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    axes.set_yticks(range(len(means)), distinct(best_first, 34))
    axes.set_ylim(len(means) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(_limits([bound for _, *bounds in means.values() for bound in bounds], most))
    if states:
        handles = [
            Line2D([], [], color=m.colour, marker=m.marker, markersize=6, mec="white", linewidth=2)
            for m in map(mark, range(len(kinds)))
        ]
        legend_below(figure, handles, [kind or "not said" for kind in kinds])
        figure.set_figheight(1.2 + 0.27 * len(means))
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_color(INK)
    return figure


def _limits(bounds: Sequence[float], most: float | None) -> tuple[float, float]:
    low, high = min(bounds), max(bounds)
    room = max(0.05 * (high - low), 0.5 if high - low < 1 else 0.0)
    right = high + room
    return low - room, right if most is None or high > most else min(right, most + 0.25 * room)


TILE, GAP, LINE, TITLE, EDGE = 0.86, 0.14, 0.125, 0.34, 0.12
"""Inches: an image, the space beside it, a line of its caption, a group's title, the margin."""


@styled
def image_sheet(groups: Mapping[str, Sequence[tuple[ArrayLike, str]]], columns: int = 8) -> Figure:
    """Draw groups of images, each under its title, each image over its caption; images are not smoothed.

    Args:
        groups: title -> (image, caption) pairs. An image is what ``style.picture`` takes.
        columns: images in a row, at most.
    """
    columns = min(columns, max(map(len, groups.values())))
    captions = {title: [wrapped(caption, 15) for _, caption in images] for title, images in groups.items()}
    lines = max(len(text.splitlines()) for texts in captions.values() for text in texts)
    row = TILE + GAP + lines * LINE
    height = 2 * EDGE + sum(TITLE + row * math.ceil(len(images) / columns) for images in groups.values())
    width = max(2 * EDGE + columns * (TILE + GAP) - GAP, 3.2)
    figure = blank(width, height, arranged=False)
    top = height - EDGE
    for title, images in groups.items():
        head = wrapped(title, int(width * 10), 1)
        figure.text(EDGE / width, (top - 0.06) / height, head, va="top", fontweight="bold")
        top -= TITLE
        for place, (image, _) in enumerate(images):
            left, bottom = EDGE + place % columns * (TILE + GAP), top - place // columns * row - TILE
            axes = figure.add_axes((left / width, bottom / height, TILE / width, TILE / height))
            _show_image(axes, image, captions[title][place])
        top -= row * math.ceil(len(images) / columns)
    return figure


def _show_image(axes: Axes, image: ArrayLike, caption: str) -> None:
    axes.imshow(picture(image))
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set(visible=True, color=FAINT, linewidth=0.5)
    axes.set_xlabel(caption, fontsize=6.5, labelpad=2, linespacing=1.1)
