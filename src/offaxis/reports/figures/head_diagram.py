"""Paper Fig. 2: the cosine head, which replaces a network's output layer."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

from offaxis.reports.figures.style import FAINT, ID, INK, blank, styled

_PALE, _BLUE, _ORANGE = "#f2f2f2", "#dbe8f5", "#fdebd0"
Point = tuple[float, float]


@styled
def head_diagram() -> Figure:
    """Draw any network above and, below, the cosine head that replaces its output layer."""
    figure = blank(7.4, 4.0, arranged=False)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 74)
    axes.set_ylim(0, 40)
    axes.set_axis_off()
    _network(axes)
    for above, below in (((44.5, 30.7), (1.2, 25.6)), ((55.5, 30.7), (72.8, 25.6))):
        axes.plot(*zip(above, below, strict=True), color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
    _box(axes, (37, 13.3), 71.6, 24.6, "", fill="white", edge=FAINT, linestyle=(0, (4, 3)))
    _head(axes)
    return figure


def _network(axes: Axes) -> None:
    middle = 34.0
    for x, width, words in (
        (6.5, 9, "image"),
        (21.5, 14, "any network\nwithout its\noutput layer"),
        (36, 8, "pooling"),
        (67, 11, "class\nprobabilities"),
    ):
        _box(axes, (x, middle), width, 6.6, words, edge=_PALE if words == "image" else INK)
    _box(axes, (50, middle), 11, 6.6, "output\nlayer", fill="white", linestyle=(0, (4, 3)), fontweight="bold")
    _path(axes, (11, middle), (14.5, middle))
    _path(axes, (28.5, middle), (32, middle))
    _path(axes, (40, middle), (44.5, middle))
    _path(axes, (55.5, middle), (61.5, middle))
    axes.text(42.2, middle + 1.0, r"$\mathbf{f}$", ha="center", fontsize=10)


def _head(axes: Axes) -> None:
    above, below, join = 20.6, 6.0, 38.4
    axes.text(4.2, 13.3, r"$\mathbf{f}$", ha="center", va="center", fontsize=13)
    _path(axes, (5.6, 14.2), (8.6, 14.2), (8.6, above), (10.6, above))
    _path(axes, (5.6, 12.4), (8.6, 12.4), (8.6, below), (10.6, below))
    _box(
        axes,
        (17.3, above),
        13.4,
        5.6,
        "angle to each class\n" + r"$\mathbf{w}_i^{\top}\mathbf{f}\;/\;\|\mathbf{w}_i\|\,\|\mathbf{f}\|$",
        fill=_BLUE,
    )
    _box(axes, (15.2, below), 9.2, 5.2, r"$\mathbf{w}_s^{\top}\mathbf{f}+b_s$", fill=_ORANGE)
    _box(axes, (25.1, below), 7.2, 5.2, "BN", fill=_ORANGE)
    _box(axes, (33.4, below), 6.2, 5.2, "exp", fill=_ORANGE)
    _path(axes, (19.8, below), (21.5, below))
    _path(axes, (28.7, below), (30.3, below))
    _path(axes, (24, above), (join, above), (join, 14.9))
    _path(axes, (36.5, below), (join, below), (join, 11.7))
    axes.text(26.2, above + 0.8, r"$\cos\theta_1,\,\ldots,\,\cos\theta_C$", fontsize=9.5)
    axes.text(join + 0.8, 8.4, r"scale $s > 0$", fontsize=9.5)
    axes.add_patch(Circle((join, 13.3), 1.6, facecolor="white", edgecolor=INK, linewidth=1))
    axes.text(join, 13.2, r"$\times$", ha="center", va="center", fontsize=13)
    _path(axes, (40, 13.3), (49.2, 13.3))
    axes.text(44.4, 14.1, r"$s\,\cos\theta_i$", ha="center", fontsize=9.5)
    _box(axes, (53.6, 13.3), 8.8, 5.2, "softmax", fill=_PALE)
    _path(axes, (58, 13.3), (60.9, 13.3))
    _box(axes, (66.4, 13.3), 11, 5.2, "which class,\nhow sure", fill="white")
    _path(axes, (join, above), (49.2, above))
    _box(axes, (53.6, above), 8.8, 5.2, "largest", fill=_BLUE)
    _path(axes, (58, above), (60.9, above))
    _box(
        axes,
        (66.4, above),
        11,
        5.2,
        "in-distribution\nor OOD",
        fill=ID.colour,
        edge=ID.colour,
        color="white",
        fontweight="bold",
    )
    axes.text(17.3, above - 4.1, "no bias, no weight decay", ha="center", fontsize=7.5, color="#555555")
    axes.text(15.2, below - 3.9, "one linear unit", ha="center", fontsize=7.5, color="#555555")
    axes.text(
        48.4, 5.2, "trained with cross-entropy alone;\nnothing is tuned on OOD images", fontsize=8, color="#555555"
    )
    axes.plot([join], [above], marker="o", markersize=3, color=INK)


def _box(axes: Axes, centre: Point, width: float, height: float, words: str, **look: Any) -> None:
    x, y = centre
    patch = FancyBboxPatch(
        (x - width / 2, y - height / 2),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.9",
        facecolor=look.pop("fill", _PALE),
        edgecolor=look.pop("edge", INK),
        linestyle=look.pop("linestyle", "-"),
        linewidth=1,
    )
    axes.add_patch(patch)
    axes.text(x, y, words, ha="center", va="center", **{"fontsize": 8.5, **look})


def _path(axes: Axes, *points: Point) -> None:
    """Draw a line from point to point that ends in an arrow."""
    *way, last = points
    axes.plot(*zip(*way, strict=True), color=INK, linewidth=1, solid_joinstyle="miter")
    axes.add_patch(
        FancyArrowPatch(way[-1], last, arrowstyle="-|>", mutation_scale=9, color=INK, linewidth=1, shrinkA=0, shrinkB=0)
    )
