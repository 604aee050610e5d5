"""What all figures share: fonts, the marks that tell series apart, names that fit, legends, and how a figure is saved.

Colours are those of Okabe and Ito, which the colour-blind tell apart, in an order in which neighbours differ in
lightness too; line style, marker and hatch change with them, so that nothing is lost in grey. Nothing here or in the
figures touches matplotlib's global settings or pyplot.
"""

import base64
import inspect
import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from functools import wraps
from html import escape
from numbers import Real
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib.style
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure, FigureBase
from matplotlib.typing import LineStyleType

from offaxis.errors import ArgumentError
from offaxis.files import replacing

P = ParamSpec("P")

INK = "#222222"
"""Text and axes."""
FAINT = "#8a8a8a"
"""Lines of reference: chance, a threshold."""

STYLE = "offaxis.reports.figures.offaxis"
"""Fonts, lines and grids: ``offaxis.mplstyle`` in this folder."""


@dataclass(frozen=True)
class Mark:
    """The look of one series: colour, and line, marker and hatch that tell it apart without colour."""

    colour: str
    line: LineStyleType
    marker: str
    hatch: str

    @property
    def stroke(self) -> dict[str, Any]:
        """Return the look as matplotlib takes it for a line with markers."""
        return {"color": self.colour, "linestyle": self.line, "marker": self.marker}


ID = Mark("#0b4f94", "-", "o", "")
"""Images that the network was trained for."""
OOD = Mark("#f0a13c", "--", "^", "////")
"""Images that it was not trained for."""

_COLOURS = ("#0072b2", "#e69f00", "#333333", "#56b4e9", "#d55e00", "#cc79a7", "#009e73", "#b8a900")
_LINES: tuple[LineStyleType, ...] = ("-", "--", "-.", (0, (1, 1.2)), (0, (5, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "X", "P")
_HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "oo", "++++", "||||")


def mark(number: int) -> Mark:
    """Return the look of the series with this number; no two of the first 40 share colour and line style."""
    looks: tuple[Sequence[Any], ...] = (_COLOURS, _LINES, _MARKERS, _HATCHES)
    return Mark(*(each[number % len(each)] for each in looks))


@contextmanager
def settings() -> Iterator[None]:
    """Apply our settings over matplotlib's defaults, not the user's, until the end of the block."""
    with matplotlib.style.context(["default", STYLE]), warnings.catch_warnings():
        # a name in a script that the font lacks is drawn as boxes: no reason to stop a report
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Check what is to be drawn, and draw it under our settings.

    Room for labels is made once and for all, so that a figure is the same however often it is saved.
    """
    parameters = inspect.signature(draw)

    @wraps(draw)
    def within(*args: P.args, **kwargs: P.kwargs) -> Figure:
        for place, (name, value) in enumerate(parameters.bind(*args, **kwargs).arguments.items()):
            if not place or value:  # only what comes first cannot be left out
                _check_drawable(name, value)
        with settings():
            figure = draw(*args, **kwargs)
            engine = figure.get_layout_engine()
            if engine is not None:
                engine.execute(figure)  # what draw_without_rendering does, without drawing
                figure.set_layout_engine("none")
            return figure

    return within


def _check_drawable(what: str, value: Any) -> None:
    """Raise ArgumentError where there is nothing to draw, or a number that is none, at any depth."""
    if isinstance(value, str):
        return
    parts = vars(value) if is_dataclass(value) else value
    if isinstance(parts, Sequence) and not all(isinstance(part, Real) for part in parts):
        parts = dict(enumerate(parts))
    if isinstance(parts, Mapping) and parts:
        for name, part in parts.items():
            _check_drawable(f"{what}[{name!r}]", part)
        return
    array = np.asarray([] if isinstance(parts, Mapping) else parts, np.float64)
    wrong = array.size - int(np.count_nonzero(np.isfinite(array)))
    if not array.size or wrong:
        found = f"{wrong} of {array.size} are NaN or infinite" if wrong else "there are none"
        raise ArgumentError(f"Expected finite numbers to draw in {what} but {found}.")


def blank(width: float, height: float, *, arranged: bool = True) -> Figure:
    """Return an empty figure of this size in inches; ``arranged`` lets matplotlib make room for labels."""
    return Figure(figsize=(width, height), layout="constrained" if arranged else None)


def one_panel(width: float, height: float, labels: tuple[str, str], grid: Any = "both") -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes, their labels (x, y), and lines along ``grid``."""
    figure = blank(width, height)
    axes = figure.subplots()
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.grid(axis=grid)
    return figure, axes


def panel_grid(figure: Figure, count: int, columns: int) -> list[Axes]:
    """Return ``count`` axes, row by row; the last row may be shorter."""
    places = list(figure.subplots(math.ceil(count / columns), columns, squeeze=False).flat)
    for place in places[count:]:
        place.remove()
    return places[:count]


# names ---------------------------------------------------------------------------------------------------------------

LETTER = 0.083
"""About the width of a letter of a legend, in inches."""
LEGEND = 32
"""Letters of a name in a legend, at most."""
TICK = 22
"""Letters of a name under an axis, at most."""


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
    return [plain(name) for name in shortened(names, limit)]


def wrapped(text: str, width: int, lines: int = 3) -> str:
    """Wrap a text on at most ``lines`` lines of ``width`` characters, drawn literally."""
    return "\n".join(map(plain, textwrap.wrap(" ".join(text.split()), width, max_lines=lines, placeholder="…")))


def shortened(names: Sequence[str], limit: int) -> list[str]:
    """Leave out the middle of long names; their beginning, where that makes some equal, or else number them."""
    whole = [" ".join(str(name).split()) for name in names]
    for kept in ((limit - 1) // 2, limit - 1):  # letters of the end
        short = [n if len(n) <= limit else f"{n[: limit - 1 - kept]}…{n[len(n) - kept :]}" for n in whole]
        if len(set(short)) == len(set(whole)):
            return short
    return [f"{n if len(n) <= limit - 4 else f'{n[: limit - 5]}…'} #{place}" for place, n in enumerate(whole, 1)]


def name_ticks(axes: Axes, names: Sequence[str], inches: float) -> None:
    """Put names under the axis at 0, 1, 2, ..., rotated where they would overlap, and make the figure higher by as much."""
    short = distinct(names, TICK)
    longest = max(map(len, short))
    turned = longest * 0.9 * LETTER > inches / len(names)
    axes.set_xticks(range(len(names)), short, rotation=40 if turned else 0, ha="right" if turned else "center")
    if turned:
        for label in axes.get_xticklabels():
            label.set_rotation_mode("anchor")
    axes.tick_params(axis="x", length=0)
    _heighten(axes.figure, 0.15 + (0.05 * longest if turned else 0.05))


def legend_below(figure: Figure, handles: Sequence[Artist], names: Sequence[str]) -> None:
    """Draw a legend under the whole figure, in as many columns as fit, and make the figure higher by as much."""
    short = distinct(names, LEGEND)
    entry = max(map(len, short)) * LETTER + 0.55
    columns = max(1, min(len(names), int(figure.get_figwidth() / entry)))
    figure.legend(handles, short, loc="outside lower center", ncols=columns, handlelength=3.2, columnspacing=1.6)
    _heighten(figure, 0.1 + 0.185 * math.ceil(len(names) / columns))


def _heighten(figure: FigureBase, inches: float) -> None:
    assert isinstance(figure, Figure)
    figure.set_figheight(figure.get_figheight() + inches)


# files ---------------------------------------------------------------------------------------------------------------


def save_figure(
    figure: Figure, stem: str | Path, dpi: int = 200, formats: Sequence[str] = ("svg", "png")
) -> tuple[Path, ...]:
    """Write ``stem.svg`` (vector), ``stem.png`` or ``stem.pdf``, each whole or not at all; equal figures give equal files.

    Returns:
        A path for each of the formats.

    Raises:
        StorageError: the folder cannot be written to or the disk is full.
    """
    stem = Path(stem)
    if stem.suffix.lower() in (".svg", ".png"):
        stem = stem.with_suffix("")
    paths = tuple(stem.with_name(f"{stem.name}.{name}") for name in formats)
    for path, name in zip(paths, formats, strict=True):
        content = _svg_bytes(figure) if name == "svg" else _bytes(figure, dpi, name)
        with replacing(path) as temporary:
            temporary.write_bytes(content)
    return paths


def as_svg(figure: Figure, description: str = "", prefix: str = "") -> str:
    """Return an ``<svg>`` element for a page: as wide as there is room, at most its own size.

    Args:
        figure: the figure.
        description: what a screen reader says in its place.
        prefix: put before every id inside; give each figure of a page its own, so that none refers to another's parts.
    """
    text = _svg_bytes(figure).decode()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], count=1, flags=re.DOTALL)
    if prefix:
        text = re.sub(r'(\bid="|href="#|url\(#)', lambda found: found[0] + prefix, text)
    opening, _, rest = text.partition(">")
    opening = re.sub(r' (width|height)="[^"]*"', "", opening)
    style = f"width:100%;max-width:{figure.get_figwidth() * 96:.0f}px;height:auto"
    return f'{opening} role="img" aria-label="{escape(description)}" style="{style}">{rest}'


def as_png_data_uri(figure: Figure, dpi: int = 150) -> str:
    """Return the figure as ``data:image/png;base64,...``, for the ``src`` of an ``<img>``."""
    return "data:image/png;base64," + base64.b64encode(_bytes(figure, dpi, "png")).decode()


def _svg_bytes(figure: Figure) -> bytes:
    with settings():
        buffer = io.BytesIO()
        # what savefig does, without its extra drawing that finds out how large everything is: a second for a large figure
        canvas: Any = FigureCanvasSVG(figure)
        dpi = figure.dpi  # which print_svg changes
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": "offaxis"})
        figure.dpi = dpi
    return buffer.getvalue()


def _bytes(figure: Figure, dpi: int, name: str) -> bytes:
    with settings():
        buffer = io.BytesIO()
        metadata = {"CreationDate": None} if name == "pdf" else {"Software": None}
        figure.savefig(buffer, format=name, dpi=dpi, metadata=metadata)
    return buffer.getvalue()
