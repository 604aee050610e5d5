"""Fonts, sizes and the marks that tell series apart, for all figures.

Colours are those of Okabe and Ito, which the colour-blind tell apart, in an order in which neighbours differ in
lightness too; line style, marker and hatch change with them, so that nothing is lost in grey. Nothing here or in the
figures touches matplotlib's global settings or pyplot.
"""

import base64
import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from html import escape
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib.style
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.typing import LineStyleType

from offaxis.files import replacing

P = ParamSpec("P")

INK = "#222222"
"""Text and axes."""
FAINT = "#8a8a8a"
"""Lines of reference: chance, a threshold."""

_SETTINGS: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, so a figure is the same on every machine
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "hatch.linewidth": 0.7,
    "image.interpolation": "nearest",
    "image.cmap": "gray",
    "svg.hashsalt": "offaxis",  # else every file has other names inside
    "svg.fonttype": "path",
}


@dataclass(frozen=True)
class Mark:
    """The look of one series: colour, and line, marker and hatch that tell it apart without colour."""

    colour: str
    line: LineStyleType
    marker: str
    hatch: str


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
    return Mark(
        _COLOURS[number % len(_COLOURS)],
        _LINES[number % len(_LINES)],
        _MARKERS[number % len(_MARKERS)],
        _HATCHES[number % len(_HATCHES)],
    )


@contextmanager
def settings() -> Iterator[None]:
    """Apply our settings over matplotlib's defaults, not the user's, until the end of the block."""
    with matplotlib.style.context(["default", _SETTINGS]), warnings.catch_warnings():
        # a name in a script that the font lacks is drawn as boxes: no reason to stop a report
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw under our settings, and make room for labels once and for all: a figure is then the same however often saved."""

    @wraps(draw)
    def within(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with settings():
            figure = draw(*args, **kwargs)
            engine = figure.get_layout_engine()
            if engine is not None:
                engine.execute(figure)  # what draw_without_rendering does, without drawing
                figure.set_layout_engine("none")
            return figure

    return within


def blank(width: float, height: float, *, arranged: bool = True) -> Figure:
    """Return an empty figure of this size in inches; ``arranged`` lets matplotlib make room for labels."""
    return Figure(figsize=(width, height), layout="constrained" if arranged else None)


def save_figure(figure: Figure, stem: str | Path, dpi: int = 200) -> tuple[Path, Path]:
    """Write ``stem.svg`` (vector) and ``stem.png``, each whole or not at all; equal figures give equal files.

    Returns:
        The two paths, SVG first.

    Raises:
        StorageError: the folder cannot be written to or the disk is full.
    """
    stem = Path(stem)
    if stem.suffix.lower() in (".svg", ".png"):
        stem = stem.with_suffix("")
    vector, pixels = stem.with_name(stem.name + ".svg"), stem.with_name(stem.name + ".png")
    for path, content in ((vector, _svg(figure)), (pixels, _png(figure, dpi))):
        with replacing(path) as temporary:
            temporary.write_bytes(content)
    return vector, pixels


def as_svg(figure: Figure, description: str = "", prefix: str = "") -> str:
    """Return an ``<svg>`` element for a page: as wide as there is room, at most its own size.

    Args:
        figure: the figure.
        description: what a screen reader says in its place.
        prefix: put before every id inside; give each figure of a page its own, so that none refers to another's parts.
    """
    text = _svg(figure).decode()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], count=1, flags=re.DOTALL)
    if prefix:
        text = re.sub(r'(\bid="|href="#|url\(#)', lambda found: found[0] + prefix, text)
    opening, rest = text[: text.index(">")], text[text.index(">") :]
    opening = re.sub(r' (width|height)="[^"]*"', "", opening)
    width = figure.get_figwidth() * 96
    attributes = (
        f' role="img" aria-label="{escape(description)}" style="width:100%;max-width:{width:.0f}px;height:auto"'
    )
    return opening + attributes + rest


def as_png_data_uri(figure: Figure, dpi: int = 150) -> str:
    """Return the figure as ``data:image/png;base64,...``, for the ``src`` of an ``<img>``."""
    return "data:image/png;base64," + base64.b64encode(_png(figure, dpi)).decode()


def _svg(figure: Figure) -> bytes:
    with settings():
        buffer = io.BytesIO()
        # what savefig does, without its extra drawing that finds out how large everything is: a second for a large figure
        canvas: Any = FigureCanvasSVG(figure)
        dpi = figure.dpi  # which print_svg changes
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": "offaxis"})
        figure.dpi = dpi
    return buffer.getvalue()


def _png(figure: Figure, dpi: int) -> bytes:
    with settings():
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()
