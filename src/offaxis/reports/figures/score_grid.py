"""Score histograms, a small one for each detector and set."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import ArrayLike

from offaxis.reports.figures.histograms import overlaid
from offaxis.reports.figures.labels import not_empty, numbers, shared_edges, wrapped_names
from offaxis.reports.figures.style import ID, OOD, blank, styled

WIDE, HIGH, LEFT, TOP, BOTTOM, GAP = 1.25, 0.62, 1.25, 0.5, 0.62, 0.12
"""Inches: a histogram, the names beside and above, the legend below, the space between two."""
TAILS = 0.005


@styled
def score_grid(detectors: Mapping[str, tuple[ArrayLike, Mapping[str, ArrayLike]]], bins: int = 40) -> Figure:
    """Histograms of area 1: a column for each detector, a row for each OOD set, ID in dark and OOD in light.

    What lies beyond the outermost half percent at either end counts in the outermost bins, so that a few wild scores do
    not flatten the rest.

    Args:
        detectors: name -> (ID scores, OOD set -> OOD scores), larger = stranger.
        bins: of each histogram.
    """
    not_empty("the detectors", detectors)
    sets = list(dict.fromkeys(name for _, others in detectors.values() for name in others))
    not_empty("the OOD sets", sets)
    width = max(LEFT + len(detectors) * (WIDE + GAP), 3.4)
    height = TOP + len(sets) * (HIGH + GAP) + BOTTOM
    figure = blank(width, height, arranged=False)
    titles = wrapped_names(list(detectors), 15)
    for column, (name, (known_scores, others)) in enumerate(detectors.items()):
        known = numbers(f"the ID scores of {name!r}", known_scores)
        left = LEFT + column * (WIDE + GAP)
        figure.text((left + WIDE / 2) / width, 1 - 0.3 / height, titles[column], ha="center", va="center", size=8)
        for row, other_name in enumerate(sets):
            if other_name not in others:
                continue
            other = numbers(f"the scores of {name!r} on {other_name!r}", others[other_name])
            bottom = height - TOP - (row + 1) * (HIGH + GAP) + GAP
            axes = figure.add_axes((left / width, bottom / height, WIDE / width, HIGH / height))
            overlaid(axes, known, other, shared_edges(known, other, bins, TAILS), ("ID", "OOD"))
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines["left"].set_visible(False)
    for row, other_name in enumerate(wrapped_names(sets, 16)):
        middle = height - TOP - (row + 0.5) * (HIGH + GAP)
        figure.text((LEFT - 0.1) / width, middle / height, other_name, ha="right", va="center", size=8)
    looks = [Patch(facecolor=mark.colour, edgecolor="white", hatch=mark.hatch, alpha=0.65) for mark in (ID, OOD)]
    figure.legend(looks, ["ID", "OOD"], loc="lower center", ncols=2, bbox_to_anchor=(0.5, 0.22 / height))
    figure.text(0.5, 0.1 / height, "score: stranger to the right", ha="center", va="bottom", size=8)
    return figure
