"""Helpers for figures: names that fit and are drawn literally, checked numbers, pixels, bins."""

import math
import textwrap
from collections.abc import Collection, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from offaxis.errors import ArgumentError

LETTER = 0.083
"""About the width of a letter of a legend, in inches."""
LEGEND = 32
"""Letters of a name in a legend, at most."""


def plain(name: str) -> str:
    """Escape a name so that matplotlib draws it literally, with dollars and a leading underscore."""
    text = " ".join(str(name).split()).replace("$", r"\$") or "(no name)"
    return " " + text if text.startswith("_") else text


def distinct(names: Sequence[str], limit: int = 28) -> list[str]:
    """Shorten names to at most ``limit`` characters so that all stay different, numbered where that cannot be.

    Examples:
        >>> distinct(["runs/wide-resnet-28-10-cosine-seed-3"], 20)
        ['runs/wide-…ne-seed-3']
    """
    return [plain(name) for name in _cut(names, limit)]


def wrapped(text: str, width: int, lines: int = 3) -> str:
    """Wrap a text on at most ``lines`` lines of ``width`` characters."""
    return plain_lines(textwrap.wrap(" ".join(text.split()), width, max_lines=lines, placeholder="…"))


def wrapped_names(names: Sequence[str], width: int, lines: int = 2) -> list[str]:
    """Wrap names on at most ``lines`` lines of ``width`` characters so that all stay different."""
    return [wrapped(name, width, lines + 1) for name in _cut(names, width * lines)]


def _cut(names: Sequence[str], limit: int) -> list[str]:
    whole = [" ".join(str(name).split()) for name in names]
    for cut in (_without_middle, _without_start, _without_end):
        short = [cut(name, limit) for name in whole]
        if len(set(short)) == len(set(whole)):
            return short
    return [f"{_without_end(name, limit - 4)} #{place}" for place, name in enumerate(whole, 1)]


def _without_middle(name: str, limit: int) -> str:
    name = " ".join(str(name).split())
    tail = (limit - 1) // 2
    return name if len(name) <= limit else name[: limit - 1 - tail] + "…" + name[-tail:]


def _without_start(name: str, limit: int) -> str:
    return name if len(name) <= limit else "…" + name[1 - limit :]


def _without_end(name: str, limit: int) -> str:
    return name if len(name) <= limit else name[: limit - 1] + "…"


def plain_lines(lines: Sequence[str]) -> str:
    """Join lines, each escaped so that it is drawn literally."""
    return "\n".join(plain(line) for line in lines)


def name_ticks(axes: Axes, names: Sequence[str], inches: float) -> None:
    """Put names under the axis at 0, 1, 2, ...; rotated where they would overlap."""
    turned = _turned(names, inches)
    axes.set_xticks(
        range(len(names)), distinct(names, 22), rotation=40 if turned else 0, ha="right" if turned else "center"
    )
    if turned:
        for label in axes.get_xticklabels():
            label.set_rotation_mode("anchor")
    axes.tick_params(axis="x", length=0)


def tick_height(names: Sequence[str], inches: float) -> float:
    """Return the inches that ``name_ticks`` takes."""
    return 0.15 + (0.05 * max(map(len, distinct(names, 22))) if _turned(names, inches) else 0.05)


def _turned(names: Sequence[str], inches: float) -> bool:
    return max(map(len, distinct(names, 22))) * 0.9 * LETTER > inches / max(1, len(names))


def legend_columns(names: Sequence[str], width: float) -> int:
    """Return how many names a legend of this width in inches holds side by side."""
    entry = max(map(len, distinct(names, LEGEND))) * LETTER + 0.55
    return max(1, min(len(names), int(width / entry)))


def legend_height(names: Sequence[str], width: float) -> float:
    """Return the inches that ``legend_below`` takes."""
    return 0.1 + 0.185 * math.ceil(len(names) / legend_columns(names, width))


def legend_below(figure: Figure, handles: Sequence[Artist], names: Sequence[str]) -> None:
    """Draw a legend under the whole figure, in as many columns as fit."""
    columns = legend_columns(names, figure.get_figwidth())
    short = distinct(names, LEGEND)
    figure.legend(handles, short, loc="outside lower center", ncols=columns, handlelength=3.2, columnspacing=1.6)


def grid(figure: Figure, count: int, columns: int) -> list[Axes]:
    """Return ``count`` axes, row by row; the last row may be shorter."""
    rows = math.ceil(count / columns)
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    for place in places[count:]:
        place.remove()
    return places[:count]


def not_empty(what: str, things: Collection[object]) -> None:
    """Raise ArgumentError where a collection is empty."""
    if len(things) == 0:
        raise ArgumentError(f"Expected at least one of {what} to draw but got none.")


def numbers(what: str, values: ArrayLike) -> NDArray[np.float64]:
    """Return a row of numbers as float64 (N,), once all are finite."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ArgumentError(
            f"Expected {what} to be a non-empty row of numbers but got an array of shape {array.shape}."
        )
    wrong = array.size - int(np.count_nonzero(np.isfinite(array)))
    if wrong:
        raise ArgumentError(
            f"Expected {what} to be finite but {wrong} of {array.size} are NaN or infinite. Leave them out, or look for "
            "what made them."
        )
    return array


def number(what: str, value: float) -> float:
    """Return a number, once it is finite."""
    return float(numbers(what, [value])[0])


def flags(what: str, values: ArrayLike, length: int) -> NDArray[np.bool_]:
    """Return a row of booleans (length,)."""
    array = np.asarray(values)
    if array.shape != (length,):
        raise ArgumentError(f"Expected {what} to have shape ({length},) but got {array.shape}.")
    if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
        raise ArgumentError(f"Expected {what} to be true or false but got other values.")
    return array.astype(np.bool_)


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


Row = NDArray[np.float64]


def shared_edges(first: Row, second: Row, bins: int) -> Row:
    """Return edges (bins + 1,) that cover both rows.

    Equal scores get one bin of a sensible width in the middle.
    """
    low, high = min(first.min(), second.min()), max(first.max(), second.max())
    least = max(1.0, abs(low), abs(high)) * 1e-6
    if high - low < least:
        middle, half = (low + high) / 2, max(0.5, 0.1 * max(abs(low), abs(high)))
        low, high = middle - half, middle + half
        bins += 1 - bins % 2  # an odd number: the scores are in the middle of a bin, not on an edge
    return np.linspace(low, high, bins + 1)


def density(scores: Row, edges: Row) -> Row:
    """Compute the heights (bins,) of a histogram of area 1; values beyond the edges count in the outermost bins."""
    counts = np.histogram(np.clip(scores, edges[0], edges[-1]), edges)[0]
    heights: Row = counts / (len(scores) * np.diff(edges))
    return heights
