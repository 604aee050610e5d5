"""Paper Fig. 5: what a fixed scale costs, and what the predicted one gives."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, NullLocator

from offaxis.errors import ArgumentError
from offaxis.reports.figures.checks import not_empty, number
from offaxis.reports.figures.labels import legend_below, legend_height
from offaxis.reports.figures.style import blank, mark, styled


@styled
def fixed_scale(
    curves: Mapping[str, Mapping[float, float]],
    predicted: Mapping[str, float] | None = None,
    label: str = "AUROC (%)",
) -> Figure:
    """A quality over the scale that was fixed, for each ID set; what the predicted scale gives is a broken line.

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
