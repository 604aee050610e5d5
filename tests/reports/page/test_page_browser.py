"""The page in real headless Chromium: it sorts, draws, fits and asks for nothing from outside."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser import complaints, show_as

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver

pytestmark = pytest.mark.browser


def look(browser: "WebDriver", page: Path, script: str) -> Any:
    """Run a script in the page, which must load and run without an error, and return what it returns."""
    browser.get(page.as_uri())
    found = browser.execute_script(script)
    assert complaints(browser) == []
    return found


def test_a_click_on_a_head_sorts_a_table(page: Path, browser: "WebDriver") -> None:
    script = """
      const table = document.querySelector('table.sortable[id^=sets]'), button = table.querySelectorAll('thead button')[2];
      const column = () => [...table.tBodies[0].rows].map(r => +r.cells[2].dataset.v);
      const head = button.parentElement, before = column();
      button.click(); const down = column(), first = head.getAttribute('aria-sort');
      button.click(); const up = column(), second = head.getAttribute('aria-sort');
      table.querySelector('thead button').click();
      return {before, down, up, first, second, names: [...table.tBodies[0].rows].map(r => r.cells[0].textContent)};"""
    found = look(browser, page, script)
    assert found["down"] == sorted(found["before"], reverse=True)
    assert found["up"] == sorted(found["before"])
    assert (found["first"], found["second"]) == ("descending", "ascending")
    assert found["names"] == sorted(found["names"])


def test_choosing_draws_histograms_curves_and_images(page: Path, browser: "WebDriver") -> None:
    script = """
      const section = document.querySelector('section'), box = section.querySelector('.controls');
      const count = what => section.querySelectorAll('.panels ' + what).length;
      const start = [count('.panel'), count('svg'), box.querySelector('.method').value];
      const network = box.querySelector('.network'); network.value = 'wrn-10-1 linear';
      network.dispatchEvent(new Event('change'));
      const kind = box.querySelector('.kind'); kind.value = 'roc'; kind.dispatchEvent(new Event('change'));
      return {start, after: [count('svg'), box.querySelector('.method').value], rects: count('rect'),
        images: [...document.querySelectorAll('.strip img')].map(i => i.src.slice(0, 15))};"""
    found = look(browser, page, script)
    assert found["start"] == [3, 6, "cosine"]
    assert found["after"][0] == 3
    assert found["after"][1] != "cosine"
    assert found["rects"] == 0
    assert found["images"] == ["data:image/png;"] * 12


@pytest.mark.parametrize("width", [1400, 400])
def test_it_fits_and_asks_for_nothing_from_outside(page: Path, browser: "WebDriver", width: int) -> None:
    script = """
      return {wide: document.documentElement.scrollWidth,
        asked: performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith('data:'))};"""
    show_as(browser, width)
    found = look(browser, page, script)
    assert found["wide"] <= width
    assert found["asked"] == []
