"""The method in pictures: where ID and OOD images lie in feature space (paper Fig. 6), and the cosine head (Fig. 2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from numpy.typing import ArrayLike, NDArray

from offaxis.errors import ArgumentError
from offaxis.reports.figures.style import FAINT, ID, INK, blank, legend_below, styled, wrapped

Points = NDArray[np.float64]


def subsample(count: int, limit: int, seed: int) -> NDArray[np.int64]:
    """Draw at most ``limit`` of ``count`` indices, in rising order; the same for the same seed."""
    if count <= limit:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, limit, replace=False))


def tsne(groups: Sequence[ArrayLike], seed: int = 0) -> list[Points]:
    """Put all groups (n_i, d) on one plane by one t-SNE; returns (n_i, 2) for each. The same seed gives the same points.

    Groups that are embedded together can be compared; those of two calls cannot.
    """
    from sklearn.manifold import TSNE  # takes a second to import, which other figures need not wait for

    arrays = [np.asarray(group, dtype=np.float64) for group in groups]
    shapes = ", ".join(str(array.shape) for array in arrays)
    if {array.ndim for array in arrays} != {2} or len({array.shape[1] for array in arrays}) != 1:
        raise ArgumentError(f"Expected groups of features of shape (n, d) with one d but got {shapes}.")
    together = np.concatenate(arrays)
    if len(together) < 4 or not np.isfinite(together).all():
        raise ArgumentError(f"Expected finite features of at least 4 images to put on a plane but got {shapes}.")
    spread = together.std()
    if spread == 0:
        points = np.zeros((len(together), 2))
    else:
        # a common scale keeps squared distances of tiny or huge features within floating-point range
        scaled = ((together - together.mean(axis=0)) / spread).astype(np.float32)
        init = "pca" if together.shape[1] > 1 else "random"
        perplexity = min(30.0, (len(together) - 1) / 3)
        points = TSNE(2, perplexity=perplexity, init=init, random_state=seed, n_jobs=1).fit_transform(scaled)
    ends = np.cumsum([len(array) for array in arrays])[:-1]
    return [part.astype(np.float64) for part in np.split(points, ends)]


_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_KNOWN, _FIRST, _SECOND = ("#8ab6d6", "o", 5.0), ("#b5400b", "^", 7.0), ("#1a1a1a", "x", 7.0)
"""Colour, marker and size of ID images and of the two OOD sets: pale, darker, darkest, also in grey."""


@dataclass(frozen=True)
class Space:
    """The features of one network, by kind of image.

    Attributes:
        title: the network, for instance ``standard`` or ``cosine``.
        train: (n, d) features of ID training images.
        train_labels: (n,) their classes.
        test: (m, d) features of ID test images.
        test_labels: (m,) their classes.
        first: (k, d) features of an OOD set.
        second: (l, d) features of another.
    """

    title: str
    train: ArrayLike
    train_labels: ArrayLike
    test: ArrayLike
    test_labels: ArrayLike
    first: ArrayLike
    second: ArrayLike

    @property
    def parts(self) -> list[tuple[ArrayLike, ArrayLike | None]]:
        """Return (features, classes or None) of each kind of image."""
        return [(self.train, self.train_labels), (self.test, self.test_labels), (self.first, None), (self.second, None)]


@styled
def feature_spaces(
    spaces: Sequence[Space], first_name: str, second_name: str, limit: int = 400, seed: int = 0
) -> Figure:
    """Draw a row for each network: ID training images, ID test images, these against one OOD set, another, and both.

    All images of a row are put on the plane by one t-SNE, so that its five panels show the same map.

    Args:
        spaces: the networks, in the paper the standard one above and the cosine one below.
        first_name: the first OOD set.
        second_name: the second.
        limit: images of each kind at most, chosen at random but always the same for a seed.
        seed: of the choice and of t-SNE.
    """
    figure = blank(9.6, 2.05 * len(spaces) + 0.265)
    places = figure.subplots(len(spaces), 5, squeeze=False)
    heads = ("ID, training", "ID, test", f"ID and {first_name}", f"ID and {second_name}", "ID and both")
    for space, axes in zip(spaces, places, strict=True):
        groups, labels = zip(*(_sample(*part, limit, seed) for part in space.parts), strict=True)
        on_train, on_test, on_first, on_second = maps = tsne(groups, seed)
        classes = np.unique(np.concatenate(labels[:2]))
        _draw_classes(axes[0], on_train, labels[0], classes)
        _draw_classes(axes[1], on_test, labels[1], classes)
        for place in (2, 3, 4):
            _draw_dots(axes[place], on_test, _KNOWN)
        for place, points, look in ((2, on_first, _FIRST), (3, on_second, _SECOND)):
            _draw_dots(axes[place], points, look)
            _draw_dots(axes[4], points, look)
        _limit_alike(axes, np.concatenate(maps))
        axes[0].set_ylabel(wrapped(space.title, 22, 2), fontweight="bold")
    for axes, head in zip(places[0], heads, strict=True):
        axes.set_title(wrapped(head, 21, 2), fontsize=8.5)
    looks = (_KNOWN, _FIRST, _SECOND)
    handles = [Line2D([], [], linestyle="", marker=m, color=colour, markersize=5.5) for colour, m, _ in looks]
    legend_below(figure, handles, ["ID, test", first_name, second_name])
    return figure


def _sample(features: ArrayLike, labels: ArrayLike | None, limit: int, seed: int) -> tuple[Points, NDArray[np.int64]]:
    array = np.asarray(features, dtype=np.float64)
    names = np.zeros(len(array), np.int64) if labels is None else np.asarray(labels, np.int64)
    chosen = subsample(len(array), limit, seed)
    return array[chosen], names[chosen]


def _draw_classes(axes: Axes, points: Points, labels: NDArray[np.int64], classes: NDArray[np.int64]) -> None:
    """Draw a colour and a marker for each class; with many classes, consecutive ones differ in both."""
    colours = colormaps["turbo"](np.linspace(0.03, 0.97, len(classes)))
    for place, label in enumerate(classes):
        marker = _MARKERS[place % len(_MARKERS)]
        x, y = points[labels == label].T
        axes.scatter(x, y, s=6, color=[colours[place]], marker=marker, linewidths=0)


def _draw_dots(axes: Axes, points: Points, look: tuple[str, str, float]) -> None:
    colour, marker, size = look
    x, y = points.T
    axes.scatter(x, y, s=size, color=colour, marker=marker, linewidths=0.8 if marker == "x" else 0)


def _limit_alike(axes: NDArray[np.object_], points: Points) -> None:
    """Set the same limits in every panel of a row, without ticks: only distances mean something."""
    low, high = points.min(axis=0), points.max(axis=0)
    room = 0.04 * np.maximum(high - low, 1.0)
    for place in axes:
        place.set_xlim(low[0] - room[0], high[0] + room[0])
        place.set_ylim(low[1] - room[1], high[1] + room[1])
        place.set_xticks([])
        place.set_yticks([])
        place.spines[:].set(visible=True, color="#bbbbbb")


_PALE, _BLUE, _ORANGE = "#f2f2f2", "#dbe8f5", "#fdebd0"
_BROKEN = (0, (4, 3))
Point = tuple[float, float]


@styled
def head_diagram() -> Figure:
    """Draw any network above and, below, the cosine head that replaces its output layer."""
    figure = blank(7.4, 4.0, arranged=False)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 74)
    axes.set_ylim(0, 40)
    axes.set_axis_off()
    _draw_network(axes)
    for above, below in (((44.5, 30.7), (1.2, 25.6)), ((55.5, 30.7), (72.8, 25.6))):
        axes.plot(*zip(above, below, strict=True), color=FAINT, linewidth=0.9, linestyle=_BROKEN)
    _draw_box(axes, (37, 13.3), (71.6, 24.6), "", fill="white", edge=FAINT, linestyle=_BROKEN)
    _draw_head(axes)
    return figure


def _draw_network(axes: Axes) -> None:
    middle = 34.0
    _draw_box(axes, (6.5, middle), (9, 6.6), "image", edge=_PALE)
    _draw_box(axes, (21.5, middle), (14, 6.6), "any network\nwithout its\noutput layer")
    _draw_box(axes, (36, middle), (8, 6.6), "pooling")
    _draw_box(axes, (67, middle), (11, 6.6), "class\nprobabilities")
    _draw_box(axes, (50, middle), (11, 6.6), "output\nlayer", fill="white", linestyle=_BROKEN, fontweight="bold")
    for start, end in ((11, 14.5), (28.5, 32), (40, 44.5), (55.5, 61.5)):
        _draw_path(axes, (start, middle), (end, middle))
    axes.text(42.2, middle + 1.0, r"$\mathbf{f}$", ha="center", fontsize=10)


def _draw_head(axes: Axes) -> None:
    above, middle, below, join = 20.6, 13.3, 6.0, 38.4
    cosine = r"$\mathbf{w}_i^{\top}\mathbf{f}\;/\;\|\mathbf{w}_i\|\,\|\mathbf{f}\|$"
    _draw_box(axes, (17.3, above), (13.4, 5.6), f"angle to each class\n{cosine}", fill=_BLUE)
    _draw_box(axes, (15.2, below), (9.2, 5.2), r"$\mathbf{w}_s^{\top}\mathbf{f}+b_s$", fill=_ORANGE)
    _draw_box(axes, (25.1, below), (7.2, 5.2), "BN", fill=_ORANGE)
    _draw_box(axes, (33.4, below), (6.2, 5.2), "exp", fill=_ORANGE)
    _draw_box(axes, (53.6, middle), (8.8, 5.2), "softmax")
    _draw_box(axes, (66.4, middle), (11, 5.2), "which class,\nhow sure", fill="white")
    _draw_box(axes, (53.6, above), (8.8, 5.2), "largest", fill=_BLUE)
    filled = {"fill": ID.colour, "edge": ID.colour, "color": "white", "fontweight": "bold"}
    _draw_box(axes, (66.4, above), (11, 5.2), "in-distribution\nor OOD", **filled)
    for points in (
        ((5.6, 14.2), (8.6, 14.2), (8.6, above), (10.6, above)),
        ((5.6, 12.4), (8.6, 12.4), (8.6, below), (10.6, below)),
        ((19.8, below), (21.5, below)),
        ((28.7, below), (30.3, below)),
        ((24, above), (join, above), (join, 14.9)),
        ((36.5, below), (join, below), (join, 11.7)),
        ((40, middle), (49.2, middle)),
        ((58, middle), (60.9, middle)),
        ((join, above), (49.2, above)),
        ((58, above), (60.9, above)),
    ):
        _draw_path(axes, *points)
    axes.add_patch(Circle((join, middle), 1.6, facecolor="white", edgecolor=INK, linewidth=1))
    axes.plot([join], [above], marker="o", markersize=3, color=INK)
    axes.text(4.2, middle, r"$\mathbf{f}$", ha="center", va="center", fontsize=13)
    axes.text(join, 13.2, r"$\times$", ha="center", va="center", fontsize=13)
    axes.text(26.2, above + 0.8, r"$\cos\theta_1,\,\ldots,\,\cos\theta_C$", fontsize=9.5)
    axes.text(join + 0.8, 8.4, r"scale $s > 0$", fontsize=9.5)
    axes.text(44.4, 14.1, r"$s\,\cos\theta_i$", ha="center", fontsize=9.5)
    small: dict[str, Any] = {"fontsize": 7.5, "color": "#555555"}
    axes.text(17.3, above - 4.1, "no bias, no weight decay", ha="center", **small)
    axes.text(15.2, below - 3.9, "one linear unit", ha="center", **small)
    trained = "trained with cross-entropy alone;\nnothing is tuned on OOD images"
    axes.text(48.4, 5.2, trained, fontsize=8, color="#555555")


def _draw_box(axes: Axes, centre: Point, size: Point, words: str, **look: Any) -> None:
    (x, y), (width, height) = centre, size
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


def _draw_path(axes: Axes, *points: Point) -> None:
    """Draw a line from point to point that ends in an arrow."""
    *way, last = points
    axes.plot(*zip(*way, strict=True), color=INK, linewidth=1, solid_joinstyle="miter")
    arrow = FancyArrowPatch(
        way[-1], last, arrowstyle="-|>", mutation_scale=9, color=INK, linewidth=1, shrinkA=0, shrinkB=0
    )
    axes.add_patch(arrow)
