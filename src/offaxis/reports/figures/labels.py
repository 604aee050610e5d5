"""Names on figures: short enough to fit, still different from each other, and never read as formulae."""

import math
import textwrap
from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
    name = " ".join(str(name).split())
    if len(name) <= limit:
        return plain(name)
    tail = (limit - 1) // 2
    return plain(name[: limit - 1 - tail] + "…" + name[-tail:])


def distinct(names: Sequence[str], limit: int = 28) -> list[str]:
    """All names shortened; where two would become the same they stay in full."""
    short = [shorten(name, limit) for name in names]
    return [text if short.count(text) == 1 else plain(name) for text, name in zip(short, names, strict=True)]


def wrapped(text: str, width: int, lines: int = 3) -> str:
    """A text on at most so many lines of so many letters."""
    return plain_lines(textwrap.wrap(" ".join(text.split()), width, max_lines=lines, placeholder="…"))


def plain_lines(lines: Sequence[str]) -> str:
    """Lines drawn literally, one under the other."""
    return "\n".join(plain(line) for line in lines)


def name_ticks(axes: Axes, names: Sequence[str], inches: float) -> None:
    """Put names under the axis at 0, 1, 2, ...; turned where they would run into each other."""
    short = distinct(names, 22)
    room = inches / max(1, len(names))
    turned = max(map(len, short)) * 0.9 * LETTER > room
    axes.set_xticks(range(len(names)), short, rotation=40 if turned else 0, ha="right" if turned else "center")
    if turned:
        for label in axes.get_xticklabels():
            label.set_rotation_mode("anchor")
    axes.tick_params(axis="x", length=0)


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
