"""Paper Figs. 3 and 4: detectors tuned on another set than they are tested on; images with and without their frame."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from numpy.typing import ArrayLike

from offaxis.errors import ArgumentError
from offaxis.reports.figures.style import (
    INK,
    TICK,
    blank,
    distinct,
    legend_below,
    mark,
    name_ticks,
    one_panel,
    picture,
    styled,
    wrapped,
)

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
    places = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, (title, bars) in zip(places, panels.items(), strict=True):
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
    for axes, (title, rows) in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels.items(), strict=True):
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
    places = figure.subplots(1, len(panels), squeeze=False)[0]
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
    figure.colorbar(image, ax=list(places), label=label, shrink=0.9)
    figure.set_figheight(1.5 + 0.3 * len(assumed))
    return figure


def _sets_in(panels: Mapping[str, Mapping[str, Row]]) -> tuple[list[str], list[str]]:
    """Return the tested and the assumed sets of all panels, in their order."""
    tested = dict.fromkeys(name for rows in panels.values() for row in rows.values() for name in row)
    return list(tested), list(dict.fromkeys(name for rows in panels.values() for name in rows))


def _add_line(axes: Axes, row: Row, names: Sequence[str], **look: object) -> Line2D:
    """Draw a line over the names that the row has; the others are left out."""
    shown = [place for place, name in enumerate(names) if name in row]
    values = [row[names[place]] for place in shown]
    line = Line2D(shown, values, markeredgecolor="white", markeredgewidth=0.5)
    line.set(**look)
    return axes.add_line(line)


def _space_out(axes: Axes, names: Sequence[str], width: float, margin: float) -> None:
    """Give each name its place on the x axis, and the values a margin above and below."""
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.autoscale_view(scalex=False)
    axes.margins(y=margin)
    name_ticks(axes, names, width - 0.8)


FRAME_TILE, FRAME_LEFT = 0.95, 1.15
"""Inches: an image, and the space for a row's name."""


@styled
def frames(sets: Mapping[str, tuple[Sequence[ArrayLike], Sequence[ArrayLike]]]) -> Figure:
    """Draw for each set a row of images with their frame and, below, the same images without it, to the same scale.

    Args:
        sets: name -> (images with the frame, the same without), each as ``style.picture`` takes them.
    """
    for name, (framed, free) in sets.items():
        if len(framed) != len(free):
            raise ArgumentError(
                f"Expected each image of {name!r} with and without its frame but got {len(framed)} with and "
                f"{len(free)} without."
            )
    columns = max(len(framed) for framed, _ in sets.values())
    step = FRAME_TILE + 0.1
    width, height = FRAME_LEFT + columns * step, len(sets) * (2 * step + 0.2) + 0.1
    figure = blank(width, height, arranged=False)
    top = height - 0.1
    for name, rows in sets.items():
        largest = max(max(picture(image).shape[:2]) for images in rows for image in images)
        for words, images in zip(("as published", "without frame"), rows, strict=True):
            label = f"{wrapped(name, 16, 2)}\n{words}"
            place = (FRAME_LEFT - 0.1) / width, (top - FRAME_TILE / 2) / height
            figure.text(*place, label, ha="right", va="center", size=8)
            for column, image in enumerate(images):
                pixels = picture(image)
                tall, wide = (FRAME_TILE * size / largest for size in pixels.shape[:2])
                left = FRAME_LEFT + column * step + (FRAME_TILE - wide) / 2
                bottom = top - FRAME_TILE + (FRAME_TILE - tall) / 2
                axes = figure.add_axes((left / width, bottom / height, wide / width, tall / height))
                axes.imshow(pixels, aspect="auto")
                axes.set_axis_off()
            top -= step
        top -= 0.2
    return figure
