"""What comes into a figure: names that fit and are never read as formulae, numbers that are checked, pixels, bins."""

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
    """A name as matplotlib draws it literally: dollars are no formulae, a leading underscore hides nothing."""
    text = " ".join(str(name).split()).replace("$", r"\$") or "(no name)"
    return " " + text if text.startswith("_") else text


def shorten(name: str, limit: int = 28) -> str:
    """A name with its middle left out where it is longer than ``limit``: names often differ at their ends.

    Example:
        >>> shorten("runs/wide-resnet-28-10-cosine-seed-3", 20)
        'runs/wide-…ne-seed-3'
    """
    return plain(_without_middle(name, limit))


def distinct(names: Sequence[str], limit: int = 28) -> list[str]:
    """All names, none longer than ``limit``, all still different: cut where they are alike, numbered where nothing helps."""
    return [plain(name) for name in _cut(names, limit)]


def wrapped(text: str, width: int, lines: int = 3) -> str:
    """A text on at most so many lines of so many letters."""
    return plain_lines(textwrap.wrap(" ".join(text.split()), width, max_lines=lines, placeholder="…"))


def wrapped_names(names: Sequence[str], width: int, lines: int = 2) -> list[str]:
    """Names on at most so many lines of so many letters, all still different."""
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
    """Lines drawn literally, one under the other."""
    return "\n".join(plain(line) for line in lines)


def name_ticks(axes: Axes, names: Sequence[str], inches: float) -> None:
    """Put names under the axis at 0, 1, 2, ...; turned where they would run into each other."""
    turned = _turned(names, inches)
    axes.set_xticks(
        range(len(names)), distinct(names, 22), rotation=40 if turned else 0, ha="right" if turned else "center"
    )
    if turned:
        for label in axes.get_xticklabels():
            label.set_rotation_mode("anchor")
    axes.tick_params(axis="x", length=0)


def tick_height(names: Sequence[str], inches: float) -> float:
    """The inches that ``name_ticks`` takes."""
    return 0.15 + (0.05 * max(map(len, distinct(names, 22))) if _turned(names, inches) else 0.05)


def _turned(names: Sequence[str], inches: float) -> bool:
    return max(map(len, distinct(names, 22))) * 0.9 * LETTER > inches / max(1, len(names))


def legend_columns(names: Sequence[str], width: float) -> int:
    """How many names a legend holds side by side in so many inches."""
    entry = max(map(len, distinct(names, LEGEND))) * LETTER + 0.55
    return max(1, min(len(names), int(width / entry)))


def legend_height(names: Sequence[str], width: float) -> float:
    """The inches that ``legend_below`` takes."""
    return 0.1 + 0.185 * math.ceil(len(names) / legend_columns(names, width))


def legend_below(figure: Figure, handles: Sequence[Artist], names: Sequence[str]) -> None:
    """A legend under the whole figure, in as many columns as fit."""
    columns = legend_columns(names, figure.get_figwidth())
    short = distinct(names, LEGEND)
    figure.legend(handles, short, loc="outside lower center", ncols=columns, handlelength=3.2, columnspacing=1.6)


def grid(figure: Figure, count: int, columns: int) -> list[Axes]:
    """So many axes, row by row, and nothing where the last row has no more."""
    rows = math.ceil(count / columns)
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    for place in places[count:]:
        place.remove()
    return places[:count]


def not_empty(what: str, things: Collection[object]) -> None:
    """Refuse nothing at all."""
    if len(things) == 0:
        raise ArgumentError(f"Expected at least one of {what} to draw but got none.")


def numbers(what: str, values: ArrayLike) -> NDArray[np.float64]:
    """A row of finite numbers, as float64 (N,)."""
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
    """A finite number."""
    return float(numbers(what, [value])[0])


def flags(what: str, values: ArrayLike, length: int) -> NDArray[np.bool_]:
    """A row of yes and no, bool (length,)."""
    array = np.asarray(values)
    if array.shape != (length,):
        raise ArgumentError(f"Expected {what} to have shape ({length},) but got {array.shape}.")
    if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
        raise ArgumentError(f"Expected {what} to be true or false but got other values.")
    return array.astype(np.bool_)


def picture(image: ArrayLike) -> NDArray[np.float64]:
    """An image as float64 (h, w, 3) in [0, 1].

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


def shared_edges(first: Row, second: Row, bins: int, tails: float = 0.0) -> Row:
    """Edges (bins + 1,) that cover both rows, or all but a share ``tails`` of each row at either end.

    Equal scores get one bin of a sensible width in the middle.
    """
    low = min(np.quantile(first, tails), np.quantile(second, tails))
    high = max(np.quantile(first, 1 - tails), np.quantile(second, 1 - tails))
    least = max(1.0, abs(low), abs(high)) * 1e-6
    if high - low < least:
        middle, half = (low + high) / 2, max(0.5, 0.1 * max(abs(low), abs(high)))
        low, high = middle - half, middle + half
        bins += 1 - bins % 2  # an odd number: the scores are in the middle of a bin, not on an edge
    return np.linspace(low, high, bins + 1)


def density(scores: Row, edges: Row) -> Row:
    """Heights (bins,) of a histogram of area 1; what lies beyond the edges counts in the outermost bins."""
    counts = np.histogram(np.clip(scores, edges[0], edges[-1]), edges)[0]
    heights: Row = counts / (len(scores) * np.diff(edges))
    return heights
