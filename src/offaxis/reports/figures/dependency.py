"""Paper Fig. 4 and the supplement's full version: what tuning on the wrong set does."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from offaxis.reports.figures.checks import not_empty, number
from offaxis.reports.figures.labels import distinct, legend_below, legend_height, name_ticks, tick_height, wrapped
from offaxis.reports.figures.style import blank, mark, styled

Row = Mapping[str, float]


@styled
def dependency(
    tuned: Mapping[str, Row],
    free: Row,
    tuned_name: str = "mahalanobis",
    free_name: str = "cosine",
    label: str = "AUROC (%)",
) -> Figure:
    """A tuned detector over the sets it was tuned on (solid) and one that needs no tuning (broken), paper Fig. 4.

    Args:
        tuned: tested set -> assumed set -> value.
        free: tested set -> value of the detector without hyperparameters.
        tuned_name: what the first is called.
        free_name: what the second is called.
        label: what the numbers are.
    """
    not_empty("the tested sets", tuned)
    assumed = list(dict.fromkeys(name for row in tuned.values() for name in row))
    not_empty("the assumed sets", assumed)
    handles, names = [], []
    width = min(max(4.0, 1.0 + 0.42 * len(assumed)), 9.0)
    figure = blank(width, 3.0)
    axes = figure.subplots()
    for place, (tested, row) in enumerate(tuned.items()):
        look = mark(place)
        line = _line(row, assumed, f"{tuned_name}, {tested}", look.colour, look.marker)
        axes.add_line(line)
        handles.append(line)
        names.append(f"{tuned_name} on {tested}")
        if tested in free:
            value = number(f"{free_name}, {tested}", free[tested])
            ends = [-0.45, len(assumed) - 0.55]
            handles += axes.plot(ends, [value] * 2, color=look.colour, linestyle="--", marker=look.marker, mec="white")
            names.append(f"{free_name} on {tested}")
    figure.set_figheight(2.6 + tick_height(assumed, width - 0.8) + legend_height(names, width))
    axes.set_xlim(-0.5, len(assumed) - 0.5)
    axes.autoscale_view(scalex=False)
    axes.margins(y=0.08)
    name_ticks(axes, assumed, width - 0.8)
    axes.set_xlabel("tuned on")
    axes.set_ylabel(label)
    axes.grid(axis="y")
    legend_below(figure, handles, names)
    return figure


@styled
def dependency_full(panels: Mapping[str, Mapping[str, Row]], label: str = "AUROC (%)") -> Figure:
    """Every assumed set as a line over every tested set, a panel for each detector: the supplement's figure.

    Args:
        panels: detector -> assumed set -> tested set -> value.
        label: what the numbers are.
    """
    tested, assumed = _names(panels)
    width = min(max(4.6, 1.2 + 0.5 * len(tested)), 9.0)
    each = 2.3 + tick_height(tested, width - 0.8)
    figure = blank(width, each * len(panels) + legend_height(assumed, width) + 0.3)
    handles: dict[str, Line2D] = {}
    for axes, (title, rows) in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels.items(), strict=True):
        for name, row in rows.items():
            look = mark(assumed.index(name))
            line = _line(row, tested, f"{title}, {name}", look.colour, look.marker)
            line.set(linestyle=look.line, linewidth=1.2, markersize=4)
            handles[name] = axes.add_line(line)
        axes.set_xlim(-0.5, len(tested) - 0.5)
        axes.autoscale_view(scalex=False)
        axes.margins(y=0.06)
        name_ticks(axes, tested, width - 0.8)
        axes.set_title(wrapped(title, int(width * 11), 1))
        axes.set_ylabel(label)
        axes.grid(axis="both")
    axes.set_xlabel("tested on (a line is the set it was tuned on)")
    legend_below(figure, [handles[name] for name in assumed], assumed)
    return figure


@styled
def dependency_matrix(panels: Mapping[str, Mapping[str, Row]], label: str = "AUROC (%)") -> Figure:
    """The same numbers as squares, for many sets: a row is the set it was tuned on, a column the set it met.

    Args:
        panels: detector -> assumed set -> tested set -> value.
        label: what the numbers are.
    """
    tested, assumed = _names(panels)
    values = {
        title: np.array([[_value(title, rows, name, other) for other in tested] for name in assumed])
        for title, rows in panels.items()
    }
    high = max(float(np.nanmax(block)) for block in values.values())
    low = min(high - 1, *(float(np.nanmin(block)) for block in values.values()))
    each = 1.9 + 0.36 * len(tested)
    figure = blank(max(each * len(panels), 3.2), 1.5 + 0.3 * len(assumed))
    places = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, block) in zip(places, values.items(), strict=True):
        image = axes.imshow(block, cmap="cividis", vmin=low, vmax=high, aspect="auto")
        for row, column in np.ndindex(*block.shape):
            if np.isfinite(block[row, column]):
                dark = block[row, column] < (low + high) / 2
                text = f"{block[row, column]:.0f}"
                axes.text(column, row, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")
        name_ticks(axes, tested, 0.36 * len(tested))
        axes.set_yticks(range(len(assumed)), distinct(assumed, 22))
        axes.tick_params(length=0)
        axes.set_title(wrapped(title, int(each * 9), 2))
        axes.set_xlabel("tested on")
        axes.spines[:].set_visible(False)
    places[0].set_ylabel("tuned on")
    figure.colorbar(image, ax=list(places), label=label, shrink=0.9)
    return figure


def _names(panels: Mapping[str, Mapping[str, Row]]) -> tuple[list[str], list[str]]:
    not_empty("the detectors", panels)
    for title, rows in panels.items():
        not_empty(f"the assumed sets of {title!r}", rows)
    tested = list(dict.fromkeys(name for rows in panels.values() for row in rows.values() for name in row))
    not_empty("the tested sets", tested)
    return tested, list(dict.fromkeys(name for rows in panels.values() for name in rows))


def _line(row: Row, names: list[str], what: str, colour: str, marker: str) -> Line2D:
    """A line over the names that the row has; the others are left out."""
    shown = [place for place, name in enumerate(names) if name in row]
    values = [number(f"{what} over {names[place]}", row[names[place]]) for place in shown]
    return Line2D(shown, values, color=colour, marker=marker, markeredgecolor="white", markeredgewidth=0.5)


def _value(title: str, rows: Mapping[str, Row], assumed: str, tested: str) -> float:
    if tested not in rows.get(assumed, {}):
        return float("nan")
    return number(f"{title}, {assumed} over {tested}", rows[assumed][tested])
