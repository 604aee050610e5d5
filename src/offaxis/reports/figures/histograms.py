"""Scores in pictures: histograms of ID and OOD images (paper Fig. 1), detectors ranked, images with their scores."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from offaxis.errors import ArgumentError
from offaxis.reports.figures.labels import (
    Row,
    density,
    distinct,
    grid,
    legend_below,
    not_empty,
    number,
    numbers,
    picture,
    shared_edges,
    wrapped,
)
from offaxis.reports.figures.style import FAINT, ID, INK, OOD, Mark, blank, mark, styled

WIDTH = 3.4


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
    not_empty("the panels", panels)
    columns = max(1, min(columns, len(panels)))
    rows = math.ceil(len(panels) / columns)
    figure = blank(WIDTH * columns, 2.6 * rows)
    for place, panel in zip(grid(figure, len(panels), columns), panels, strict=True):
        known = numbers(f"the ID values of {panel.title!r}", panel.id_scores)
        other = numbers(f"the OOD values of {panel.title!r}", panel.ood_scores)
        overlaid(place, known, other, shared_edges(known, other, bins), distinct([panel.id_name, panel.ood_name], 34))
        place.set_title(wrapped(panel.title, 36, lines=2))
        place.set_xlabel(wrapped(panel.label, 40))
        place.set_ylabel("density")
        place.grid(axis="y")
        _legend(place)
    return figure


def overlaid(axes: Axes, known: Row, other: Row, edges: Row, names: Sequence[str]) -> None:
    """Draw two translucent histograms of area 1: ID in solid dark, OOD in light hatching."""
    for scores, look, name in ((known, ID, names[0]), (other, OOD, names[1])):
        _area(axes, density(scores, edges), edges, look, name)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(bottom=0)


def _area(axes: Axes, heights: Row, edges: Row, mark: Mark, name: str) -> None:
    axes.stairs(
        heights, edges, fill=True, facecolor=mark.colour, edgecolor="white", alpha=0.65, hatch=mark.hatch, label=name
    )
    axes.stairs(heights, edges, color=mark.colour, linewidth=1.2)


def _legend(axes: Axes) -> None:
    letters = sum(len(text) for text in axes.get_legend_handles_labels()[1])
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.45, -0.24),
        ncols=2 if letters < 24 else 1,
        handlelength=1.8,
        columnspacing=1.4,
        borderpad=0,
    )


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


TILE, GAP, LINE, TITLE, EDGE = 0.86, 0.14, 0.125, 0.34, 0.12
"""Inches: an image, the space beside it, a line of its caption, a group's title, the margin."""

Captioned = tuple[ArrayLike, str]


@styled
def image_sheet(groups: Mapping[str, Sequence[Captioned]], columns: int = 8) -> Figure:
    """Draw groups of images, each under its title, each image over its caption; images are not smoothed.

    Args:
        groups: title -> (image, caption) pairs. An image is what ``labels.picture`` takes.
        columns: images in a row, at most.
    """
    not_empty("the groups", groups)
    for title, images in groups.items():
        not_empty(f"the images of {title!r}", images)
    columns = max(1, min(columns, max(map(len, groups.values()))))
    captions = {
        title: [wrapped(caption, 15) if caption else "" for _, caption in images] for title, images in groups.items()
    }
    lines = max((text.count("\n") + 1 if text else 0) for texts in captions.values() for text in texts)
    row = TILE + GAP + lines * LINE
    height = 2 * EDGE + sum(TITLE + row * math.ceil(len(images) / columns) for images in groups.values())
    width = max(2 * EDGE + columns * (TILE + GAP) - GAP, 3.2)
    figure = blank(width, height, arranged=False)
    top = height - EDGE
    for title, images in groups.items():
        figure.text(
            EDGE / width, (top - 0.06) / height, wrapped(title, int(width * 10), 1), va="top", fontweight="bold"
        )
        top -= TITLE
        for place, (image, _) in enumerate(images):
            left = EDGE + place % columns * (TILE + GAP)
            bottom = top - place // columns * row - TILE
            axes = figure.add_axes((left / width, bottom / height, TILE / width, TILE / height))
            axes.imshow(picture(image))
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set(visible=True, color=FAINT, linewidth=0.5)
            axes.set_xlabel(captions[title][place], fontsize=6.5, labelpad=2, linespacing=1.1)
        top -= row * math.ceil(len(images) / columns)
    return figure
