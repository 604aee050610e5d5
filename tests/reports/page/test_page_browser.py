"""The page in real headless Chromium: it sorts, draws, fits and asks for nothing from outside."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt install chromium)"),
]
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--virtual-time-budget=3000",
]


def look(page: Path, folder: Path, script: str, width: int = 1400) -> Any:
    """Run a script in the page, which returns something that JSON can hold."""
    errors = '<script>window.errors=[];addEventListener("error",e=>errors.push(e.message));</script>'
    tail = (
        f"<script>const answer=(()=>{{{script}}})();const out=document.createElement('pre');out.id='answer';"
        "out.textContent=JSON.stringify({answer,errors});document.body.append(out);</script>"
    )
    text = page.read_text().replace("<head>", "<head>" + errors).replace("</body>", tail + "</body>")
    copy = folder / f"looked-at-{width}.html"
    copy.write_text(text)
    assert CHROMIUM
    command = [CHROMIUM, *QUIET, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900", "--dump-dom"]
    done = subprocess.run([*command, copy.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="answer">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-500:]
    said = json.loads(unescape(found[1]))
    assert said["errors"] == []
    return said["answer"]


def test_a_click_on_a_head_sorts_a_table(page: Path, tmp_path: Path) -> None:
    script = """
      const table = document.querySelector('table.sortable[id^=sets]'), button = table.querySelectorAll('thead button')[2];
      const column = () => [...table.tBodies[0].rows].map(r => +r.cells[2].dataset.v);
      const head = button.parentElement, before = column();
      button.click(); const down = column(), first = head.getAttribute('aria-sort');
      button.click(); const up = column(), second = head.getAttribute('aria-sort');
      table.querySelector('thead button').click();
      return {before, down, up, first, second, names: [...table.tBodies[0].rows].map(r => r.cells[0].textContent)};"""
    found = look(page, tmp_path, script)
    assert found["down"] == sorted(found["before"], reverse=True)
    assert found["up"] == sorted(found["before"])
    assert (found["first"], found["second"]) == ("descending", "ascending")
    assert found["names"] == sorted(found["names"])


def test_choosing_draws_histograms_curves_and_images(page: Path, tmp_path: Path) -> None:
    script = """
      const section = document.querySelector('section'), box = section.querySelector('.controls');
      const count = what => section.querySelectorAll('.panels ' + what).length;
      const start = [count('.panel'), count('svg'), box.querySelector('.method').value];
      const network = box.querySelector('.network'); network.value = 'wrn-10-1 linear';
      network.dispatchEvent(new Event('change'));
      const kind = box.querySelector('.kind'); kind.value = 'roc'; kind.dispatchEvent(new Event('change'));
      return {start, after: [count('svg'), box.querySelector('.method').value], rects: count('rect'),
        images: [...document.querySelectorAll('.strip img')].map(i => i.src.slice(0, 15))};"""
    found = look(page, tmp_path, script)
    assert found["start"] == [3, 6, "cosine"]
    assert found["after"][0] == 3
    assert found["after"][1] != "cosine"
    assert found["rects"] == 0
    assert found["images"] == ["data:image/png;"] * 12


@pytest.mark.parametrize("width", [1400, 400])
def test_it_fits_and_asks_for_nothing_from_outside(page: Path, tmp_path: Path, width: int) -> None:
    script = """
      return {wide: document.documentElement.scrollWidth, room: innerWidth,
        asked: performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith('data:'))};"""
    found = look(page, tmp_path, script, width)
    assert found["wide"] <= found["room"]
    assert found["asked"] == []
