"""Scores in pictures: histograms (paper Fig. 1), bars and lines over sets (Figs. 3, 4), scales (Fig. 5), ROC and more."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import NullFormatter, NullLocator
from numpy.typing import ArrayLike, NDArray

from offaxis.errors import ArgumentError
from offaxis.metrics import auroc, reliability_bins, risk_coverage, roc_curve
from offaxis.reports.figures.style import (
    FAINT,
    ID,
    INK,
    OOD,
    TICK,
    blank,
    distinct,
    legend_below,
    mark,
    name_ticks,
    one_panel,
    panel_grid,
    shortened,
    styled,
    wrapped,
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


ROC_POINTS = 400
MOST_AREAS = 6


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
    letters = int(size * 9)
    titles = [wrapped(name, letters, 3) for name in shortened(list(panels), 2 * letters)]
    for position, (axes, title, curves) in enumerate(zip(places, titles, panels.values(), strict=True)):
        axes.plot([0, 1], [0, 1], **CHANCE)
        axes.axhline(0.95, **CHANCE)
        for name, scores in curves.items():
            number = detectors.index(name)
            spaced = (0.02 + 0.017 * (number % 10), 0.19)
            axes.plot(
                *roc_curve(*scores, ROC_POINTS), **mark(number).stroke, markevery=spaced, markersize=4, label=name
            )
        if len(detectors) <= MOST_AREAS:
            areas = [f"{100 * auroc(*scores):.1f}" for scores in curves.values()]
            shown = [handles[name] for name in curves]
            axes.legend(shown, areas, loc="lower right", handlelength=3, fontsize=7.5, labelspacing=0.25, borderpad=0.1)
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
        sizes = 10 + 220 * share
        axes.scatter(confidence, accuracy, s=sizes, color=look.colour, marker=look.marker, linewidth=0, zorder=3)
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
        look = mark(place)
        handles += axes.plot(
            *zip(*sorted(row.items()), strict=True), color=look.colour, marker=look.marker, markersize=6
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
        style: dict[str, Any] = {"markersize": 6, "mec": "white", "linewidth": 2}
        looks = map(mark, range(len(kinds)))
        handles = [Line2D([], [], color=look.colour, marker=look.marker, **style) for look in looks]
        legend_below(figure, handles, [kind or "not said" for kind in kinds])
        figure.set_figheight(1.2 + 0.27 * len(means))
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_color(INK)
    return figure


def mean_ranks(
    values: Mapping[str, Mapping[str, float]], higher_is_better: bool = True, alpha: float = 0.05
) -> tuple[dict[str, float], float]:
    """Rank detectors on each set, and return their mean ranks, the best first, and Nemenyi's critical difference.

    Two detectors whose mean ranks differ by less are not told apart at level ``alpha`` (Demsar 2006).

    Args:
        values: detector -> set -> value; sets that one of them lacks do not count.
        higher_is_better: whether the largest value has rank 1, else the smallest.
        alpha: level of the test of all pairs together.
    """
    from scipy.stats import rankdata, studentized_range  # takes a second to import, and few need it

    shared = [name for name in next(iter(values.values())) if all(name in row for row in values.values())]
    if len(values) < 2 or not shared:
        raise ArgumentError("Expected at least two detectors to draw and a set that all of them have.")
    matrix = np.array([[row[name] for name in shared] for row in values.values()])
    ranks = rankdata(-matrix if higher_is_better else matrix, axis=0).mean(1)
    apart = studentized_range.ppf(1 - alpha, len(values), np.inf) * math.sqrt(
        len(values) * (len(values) + 1) / (12 * len(shared))
    )
    means = {name: float(rank) for name, rank in zip(values, ranks, strict=True)}
    return dict(sorted(means.items(), key=lambda item: item[1])), float(apart)


@styled
def critical_difference(
    values: Mapping[str, Mapping[str, float]], higher_is_better: bool = True, alpha: float = 0.05
) -> Figure:
    """Draw detectors by their mean rank over sets; a bar joins those that Nemenyi's test does not tell apart.

    Args:
        values: detector -> set -> value; sets that one of them lacks do not count.
        higher_is_better: whether the largest value has rank 1, else the smallest.
        alpha: level of the test of all pairs together.
    """
    ranks, apart = mean_ranks(values, higher_is_better, alpha)
    names, places = list(ranks), list(ranks.values())
    groups = [
        (first, max(n for n, rank in enumerate(places) if rank - places[first] <= apart)) for first in range(len(names))
    ]
    joined = [(a, b) for n, (a, b) in enumerate(groups) if b > a and all(b > end for _, end in groups[:n])]
    figure, axes = one_panel(
        6.4, 1.3 + 0.27 * len(names) + 0.1 * len(joined), ("mean rank over sets, 1 is best", ""), "x"
    )
    for place, rank in enumerate(places):
        axes.plot([rank], [place], color=INK, marker="o", markersize=6, markeredgecolor="white", zorder=3)
        axes.plot([1, rank], [place, place], color=FAINT, linewidth=0.8)
        axes.text(1.01, place, f"{rank:.2f}", transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    for number, (a, b) in enumerate(joined):
        axes.plot(
            [places[a], places[b]],
            [len(names) + 0.5 * number] * 2,
            color=mark(0).colour,
            linewidth=4,
            solid_capstyle="butt",
        )
    below = len(names) + 0.5 * len(joined)
    axes.plot([1, 1 + apart], [below, below], color=INK, marker="|", linewidth=1.2)
    axes.text(1 + apart, below, f"  critical difference {apart:.2f}", va="center", fontsize=8)
    axes.set_yticks(range(len(names)), distinct(names, 34))
    axes.set_ylim(below + 0.6, -0.6)
    axes.set_xlim(0.9, max(len(names), 1 + apart) + 0.1)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return figure


def _limits(bounds: Sequence[float], most: float | None) -> tuple[float, float]:
    low, high = min(bounds), max(bounds)
    room = max(0.05 * (high - low), 0.5 if high - low < 1 else 0.0)
    right = high + room
    return low - room, right if most is None or high > most else min(right, most + 0.25 * room)


Bars = Mapping[str, Mapping[str, tuple[float, float]]]
"""Method -> set -> (mean, standard deviation)."""


@styled
def less_biased_bars(panels: Mapping[str, Bars], label: str = "AUROC (%)", bottom: float | None = None) -> Figure:
    """Draw a bar for each method over each set, with the standard deviation as an error bar; a panel for each network.

    Args:
        panels: title -> method -> set -> (mean, deviation). In the paper's figure a set is the one that was assumed, and
            the numbers are over all others. A method may lack a set: its place stays empty.
        label: what the numbers are.
        bottom: where the axis begins; a round number below all bars unless given.
    """
    methods = list(dict.fromkeys(method for bars in panels.values() for method in bars))
    sets = {title: list(dict.fromkeys(name for row in bars.values() for name in row)) for title, bars in panels.items()}
    values = [value for bars in panels.values() for row in bars.values() for value in row.values()]
    low, high = min(mean - std for mean, std in values), max(mean for mean, _ in values)
    start = min(50.0, 10 * math.floor(low / 10)) if bottom is None else bottom
    most = max(map(len, sets.values()))
    width = min(max(3.6, 1.0 + 0.17 * most * (len(methods) + 1)), 11.0)
    figure = blank(width, 1.95 * len(panels) + 0.1)
    for axes, (title, bars) in zip(panel_grid(figure, len(panels), 1), panels.items(), strict=True):
        _draw_bars(axes, bars, methods, sets[title])
        name_ticks(axes, sets[title], (width - 0.8) * len(sets[title]) / most)  # turned in all panels or in none
        axes.set_title(wrapped(title, int(width * 11), 2))
        axes.set_ylabel(label)
        axes.set_ylim(max(0.0, start) if low >= 0 else start, 100.6 if high <= 100 else None)
        axes.grid(axis="y")
    looks = map(mark, range(len(methods)))
    legend_below(figure, [Patch(facecolor=m.colour, edgecolor="white", hatch=m.hatch) for m in looks], methods)
    return figure


def _draw_bars(axes: Axes, bars: Bars, methods: list[str], sets: list[str]) -> None:
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


Row = Mapping[str, float]


@styled
def dependency(
    tuned: Mapping[str, Row],
    free: Row,
    tuned_name: str = "mahalanobis",
    free_name: str = "cosine",
    label: str = "AUROC (%)",
) -> Figure:
    """Draw a tuned detector over the sets it was tuned on (solid) and one without tuning (broken), paper Fig. 4.

    Args:
        tuned: tested set -> assumed set -> value.
        free: tested set -> value of the detector without hyperparameters.
        tuned_name: what the first is called.
        free_name: what the second is called.
        label: what the numbers are.
    """
    assumed = list(dict.fromkeys(name for row in tuned.values() for name in row))
    width = min(max(4.0, 1.0 + 0.42 * len(assumed)), 9.0)
    figure, axes = one_panel(width, 2.6, ("tuned on", label), "y")
    handles, names = [], []
    for place, (tested, row) in enumerate(tuned.items()):
        look = mark(place)
        handles.append(_add_line(axes, row, assumed, color=look.colour, marker=look.marker))
        names.append(f"{tuned_name} on {tested}")
        if tested in free:
            ends = [-0.45, len(assumed) - 0.55]
            level = [free[tested]] * 2
            handles += axes.plot(ends, level, color=look.colour, linestyle="--", marker=look.marker, mec="white")
            names.append(f"{free_name} on {tested}")
    _space_out(axes, assumed, width, margin=0.08)
    legend_below(figure, handles, names)
    return figure


@styled
def dependency_full(panels: Mapping[str, Mapping[str, Row]], label: str = "AUROC (%)") -> Figure:
    """Draw every assumed set as a line over every tested set, a panel for each detector: the supplement's figure.

    Args:
        panels: detector -> assumed set -> tested set -> value.
        label: what the numbers are.
    """
    tested, assumed = _sets_in(panels)
    width = min(max(4.6, 1.2 + 0.5 * len(tested)), 9.0)
    figure = blank(width, 2.3 * len(panels) + 0.3)
    handles: dict[str, Line2D] = {}
    for axes, (title, rows) in zip(panel_grid(figure, len(panels), 1), panels.items(), strict=True):
        for name, row in rows.items():
            look = mark(assumed.index(name)).stroke
            handles[name] = _add_line(axes, row, tested, **look, linewidth=1.2, markersize=4)
        _space_out(axes, tested, width, margin=0.06)
        axes.set_title(wrapped(title, int(width * 11), 1))
        axes.set_ylabel(label)
        axes.grid(axis="both")
    axes.set_xlabel("tested on (a line is the set it was tuned on)")
    legend_below(figure, [handles[name] for name in assumed], assumed)
    return figure


@styled
def dependency_matrix(panels: Mapping[str, Mapping[str, Row]], label: str = "AUROC (%)") -> Figure:
    """Draw the same numbers as squares, for many sets: a row is the assumed set, a column the tested set.

    Args:
        panels: detector -> assumed set -> tested set -> value.
        label: what the numbers are.
    """
    tested, assumed = _sets_in(panels)
    blocks = np.array(
        [[[rows.get(a, {}).get(t, np.nan) for t in tested] for a in assumed] for rows in panels.values()], np.float64
    )
    high = float(np.nanmax(blocks))
    low = min(high - 1, float(np.nanmin(blocks)))
    each = 1.9 + 0.36 * len(tested)
    figure = blank(max(each * len(panels), 3.2), 1.0)
    places = panel_grid(figure, len(panels), len(panels))
    for axes, title, block in zip(places, panels, blocks, strict=True):
        image = axes.imshow(block, cmap="cividis", vmin=low, vmax=high, aspect="auto")
        for (row, column), value in np.ndenumerate(block):
            if np.isfinite(value):
                colour = "white" if value < (low + high) / 2 else "black"
                shown = axes.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=7, color=colour)
                shown.set_in_layout(False)  # inside its square; measuring hundreds takes long
        name_ticks(axes, tested, 0.36 * len(tested))
        axes.set_yticks(range(len(assumed)), distinct(assumed, TICK))
        axes.tick_params(length=0)
        axes.set_title(wrapped(title, int(each * 9), 2))
        axes.set_xlabel("tested on")
        axes.spines[:].set_visible(False)
    places[0].set_ylabel("tuned on")
    figure.colorbar(image, ax=places, label=label, shrink=0.9)
    figure.set_figheight(1.5 + 0.3 * len(assumed))
    return figure


def _sets_in(panels: Mapping[str, Mapping[str, Row]]) -> tuple[list[str], list[str]]:
    """Return the tested and the assumed sets of all panels, in their order."""
    tested = dict.fromkeys(name for rows in panels.values() for row in rows.values() for name in row)
    return list(tested), list(dict.fromkeys(name for rows in panels.values() for name in rows))


def _add_line(axes: Axes, row: Row, names: Sequence[str], **look: Any) -> Line2D:
    """Draw a line over the names that the row has; the others are left out."""
    shown = [place for place, name in enumerate(names) if name in row]
    values = [row[names[place]] for place in shown]
    [line] = axes.plot(shown, values, markeredgecolor="white", markeredgewidth=0.5, **look)
    return line


def _space_out(axes: Axes, names: Sequence[str], width: float, margin: float) -> None:
    """Give each name its place on the x axis, and the values a margin above and below."""
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.autoscale_view(scalex=False)
    axes.margins(y=margin)
    name_ticks(axes, names, width - 0.8)
