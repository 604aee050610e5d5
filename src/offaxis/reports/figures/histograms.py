"""Paper Fig. 1: histograms of the largest logit or cosine, for ID and OOD images."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from offaxis.reports.figures.labels import Row, density, distinct, grid, not_empty, numbers, shared_edges, wrapped
from offaxis.reports.figures.style import ID, OOD, Mark, blank, styled

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
    for scores, mark, name in ((known, ID, names[0]), (other, OOD, names[1])):
        _area(axes, density(scores, edges), edges, mark, name)
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
