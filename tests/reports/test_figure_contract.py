"""What holds for every figure."""

import base64
import hashlib
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from offaxis.errors import StorageError
from offaxis.reports import figures
from offaxis.reports.figures import as_png_data_uri, as_svg, save_figure
from offaxis.reports.figures.style import mark, settings

Draw = Callable[[], Figure]


def test_equal_input_gives_equal_files(draw: Draw, tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    first, second = save_figure(draw(), tmp_path / "a", dpi=60), save_figure(draw(), tmp_path / "b", dpi=60)
    assert [path.name for path in first] == ["a.svg", "a.png"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert b"<dc:date>" not in first[0].read_bytes()
    with Image.open(first[1]) as pixels:
        assert min(pixels.size) > 50
    assert dict(mpl.rcParams) == before


def test_saving_twice_changes_nothing(draw: Draw) -> None:
    figure = draw()
    assert as_svg(figure) == as_svg(figure)


def test_nothing_is_cut_off(draw: Draw) -> None:
    figure = draw()
    with settings():
        figure.draw_without_rendering()
        drawn = figure.get_tightbbox()
    assert min(drawn.x0, drawn.y0) > -0.02
    assert drawn.x1 < figure.get_figwidth() + 0.02
    assert drawn.y1 < figure.get_figheight() + 0.02


def test_an_element_for_a_page(draw: Draw) -> None:
    element = as_svg(draw(), 'what "it" shows', prefix="f1-")
    root = ET.fromstring(element)
    assert root.tag.endswith("svg")
    assert root.get("aria-label") == 'what "it" shows'
    assert root.get("width") is None
    assert root.get("viewBox")
    names = {part.get("id") for part in root.iter() if part.get("id")}
    assert all(name and name.startswith("f1-") for name in names)
    for part in root.iter():
        for key, value in part.attrib.items():
            if key.endswith("href") and value.startswith("#"):
                assert value[1:] in names
    assert "<metadata>" not in element


def test_a_data_uri_holds_a_png() -> None:
    head, _, body = as_png_data_uri(figures.head_diagram(), dpi=50).partition(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(body).startswith(b"\x89PNG")


def test_pyplot_is_not_even_imported() -> None:
    program = (
        "import sys\nfrom offaxis.reports.figures import head_diagram, as_svg\n"
        "as_svg(head_diagram())\nassert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_users_own_settings_change_nothing() -> None:
    plain = hashlib.sha256(as_svg(figures.head_diagram()).encode()).digest()
    with mpl.rc_context({"font.size": 30, "svg.fonttype": "none", "axes.facecolor": "red"}):
        assert hashlib.sha256(as_svg(figures.head_diagram()).encode()).digest() == plain


def test_a_suffix_is_not_doubled_and_dots_are_kept(tmp_path: Path) -> None:
    figure = figures.ranking({"cosine": (1.0, 1.0, 1.0)})
    assert [path.name for path in save_figure(figure, tmp_path / "x.svg", 40)] == ["x.svg", "x.png"]
    assert [path.name for path in save_figure(figure, str(tmp_path / "v0.4"), 40)] == ["v0.4.svg", "v0.4.png"]


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError):
        save_figure(figures.ranking({"cosine": (1.0, 1.0, 1.0)}), tmp_path / "file" / "figure")


def test_series_differ_in_more_than_colour() -> None:
    marks = [mark(number) for number in range(40)]
    assert len({(one.colour, one.line) for one in marks}) == 40
    assert len({(one.line, one.marker) for one in marks[:35]}) == 35
    for one, other in pairwise(marks):
        assert one.line != other.line
        assert one.marker != other.marker
        assert one.hatch != other.hatch
        assert abs(_lightness(one.colour) - _lightness(other.colour)) > 0.03


def _lightness(colour: str) -> float:
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return float(np.dot((0.299, 0.587, 0.114), (red, green, blue)))
