"""Is a network as often right as it says, and does it know where it is wrong?"""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from offaxis.errors import ArgumentError
from offaxis.reports.figures.bins import Row
from offaxis.reports.figures.checks import flags, not_empty, numbers
from offaxis.reports.figures.labels import legend_below, legend_height
from offaxis.reports.figures.style import FAINT, blank, mark, styled

WIDTH = 3.9


@styled
def reliability(networks: Mapping[str, tuple[ArrayLike, ArrayLike]], bins: int = 15) -> Figure:
    """Accuracy over confidence, in bins of equal width; on the diagonal a network is as often right as it says.

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
def risk_coverage(networks: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> Figure:
    """The share of errors among the images that are answered, over the share that is answered, most familiar first.

    Args:
        networks: name -> (scores (N,), larger = stranger; whether the prediction was right (N,)).
    """
    not_empty("the networks", networks)
    figure = blank(WIDTH, 2.9 + legend_height(list(networks), WIDTH))
    axes = figure.subplots()
    handles = []
    for place, (scores, right) in enumerate(networks.values()):
        look = mark(place)
        coverage, risk = risk_coverage_curve(scores, right)
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


def risk_coverage_curve(scores: ArrayLike, correct: ArrayLike) -> tuple[Row, Row]:
    """Coverage and risk for every threshold, strict first; images with equal scores are answered together."""
    order_by = numbers("the scores", scores)
    wrong = ~flags("the correctness", correct, len(order_by))
    order = np.argsort(order_by, kind="stable")
    ranked = order_by[order]
    last_of_ties = np.append(ranked[1:] != ranked[:-1], True)
    answered = np.arange(1, len(ranked) + 1)
    risk = np.cumsum(wrong[order]) / answered
    coverage = answered / len(ranked)
    return coverage[last_of_ties], risk[last_of_ties]


def _binned(confidence: Row, correct: np.ndarray[tuple[int], np.dtype[np.bool_]], bins: int) -> tuple[Row, Row, Row]:
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    count = np.bincount(place, minlength=bins).astype(np.float64)
    some = count > 0
    says = np.bincount(place, confidence, bins)[some] / count[some]
    is_right = np.bincount(place, correct.astype(np.float64), bins)[some] / count[some]
    return says, is_right, count[some] / len(confidence)
