"""Images and features in pictures: sheets, frames, feature space (paper Fig. 6), and the cosine head (Fig. 2)."""

import math
from collections.abc import Mapping, Sequence
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


def picture(image: ArrayLike) -> NDArray[np.float64]:
    """Return an image as float64 (h, w, 3) in [0, 1].

    Args:
        image: uint8, or floating-point in [0, 1]; (h, w), (h, w, c) or (c, h, w) with one or three channels.
    """
    array = np.asarray(image)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim == 3 and array.shape[2] not in (1, 3) and array.shape[0] in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[2] not in (1, 3) or 0 in array.shape:
        raise ArgumentError(
            f"Expected an image of shape (h, w), (h, w, c) or (c, h, w) with 1 or 3 channels but got {np.shape(image)}."
        )
    pixels = array.astype(np.float64) / 255 if array.dtype == np.uint8 else array.astype(np.float64)
    if not np.isfinite(pixels).all() or pixels.min() < 0 or pixels.max() > 1:
        raise ArgumentError(
            f"Expected an image of bytes, or of numbers from 0 to 1, but got {array.dtype} with values from "
            f"{pixels.min():g} to {pixels.max():g}. Undo the normalisation first."
        )
    return np.broadcast_to(pixels, (*pixels.shape[:2], 3))


TILE, GAP, LINE, TITLE, EDGE = 0.86, 0.14, 0.125, 0.34, 0.12
"""Inches: an image, the space beside it, a line of its caption, a group's title, the margin."""


@styled
def image_sheet(groups: Mapping[str, Sequence[tuple[ArrayLike, str]]], columns: int = 8) -> Figure:
    """Draw groups of images, each under its title, each image over its caption; images are not smoothed.

    Args:
        groups: title -> (image, caption) pairs. An image is what ``picture`` takes.
        columns: images in a row, at most.
    """
    columns = min(columns, max(map(len, groups.values())))
    captions = {title: [wrapped(caption, 15) for _, caption in images] for title, images in groups.items()}
    lines = max(len(text.splitlines()) for texts in captions.values() for text in texts)
    row = TILE + GAP + lines * LINE
    height = 2 * EDGE + sum(TITLE + row * math.ceil(len(images) / columns) for images in groups.values())
    width = max(2 * EDGE + columns * (TILE + GAP) - GAP, 3.2)
    figure = blank(width, height, arranged=False)
    top = height - EDGE
    for title, images in groups.items():
        head = wrapped(title, int(width * 10), 1)
        figure.text(EDGE / width, (top - 0.06) / height, head, va="top", fontweight="bold")
        top -= TITLE
        for place, (image, _) in enumerate(images):
            left, bottom = EDGE + place % columns * (TILE + GAP), top - place // columns * row - TILE
            axes = figure.add_axes((left / width, bottom / height, TILE / width, TILE / height))
            axes.imshow(picture(image))
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(visible=True, color=FAINT, linewidth=0.5)
            axes.set_xlabel(captions[title][place], fontsize=6.5, labelpad=2, linespacing=1.1)
        top -= row * math.ceil(len(images) / columns)
    return figure


FRAME_TILE, FRAME_LEFT = 0.95, 1.15
"""Inches: an image, and the space for a row's name."""


@styled
def frames(sets: Mapping[str, tuple[Sequence[ArrayLike], Sequence[ArrayLike]]]) -> Figure:
    """Draw for each set a row of images with their frame and, below, the same images without it, to the same scale.

    Args:
        sets: name -> (images with the frame, the same without), each as ``picture`` takes them.
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


CLASS_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
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
        marker = CLASS_MARKERS[place % len(CLASS_MARKERS)]
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
        place.set(xticks=[], yticks=[])
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
    look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 9, "color": INK, "linewidth": 1}
    axes.add_patch(FancyArrowPatch(way[-1], last, shrinkA=0, shrinkB=0, **look))
