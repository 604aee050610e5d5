"""A figure -> files and pieces of pages."""

import base64
import io
import re
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from offaxis.files import replacing
from offaxis.reports.figures.style import settings


def save(figure: Figure, stem: str | Path, dpi: int = 200) -> tuple[Path, Path]:
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
    """An ``<svg>`` element for a page: as wide as there is room, at most its own size.

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
    """The figure as ``data:image/png;base64,...``, for the ``src`` of an ``<img>``."""
    return "data:image/png;base64," + base64.b64encode(_png(figure, dpi)).decode()


def _svg(figure: Figure) -> bytes:
    with settings():
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "offaxis"})
    return buffer.getvalue()


def _png(figure: Figure, dpi: int) -> bytes:
    with settings():
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()
