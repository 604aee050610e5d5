"""The site: built without a warning; in a browser without a network it can be searched, and fits wide and narrow windows."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser import complaints, show_as
from tests.waiting import eventually

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver

ROOT = Path(__file__).parents[1]
PAGES = ("index", "tutorials/photographs", "concepts", "reference/api", "reference/detectors", "comparison", "results")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="needs offaxis[docs]")
    folder = tmp_path_factory.mktemp("site")
    settings = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=ROOT,
        env=settings,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_it_builds_without_a_warning_and_has_what_is_made_from_the_code(site: Path) -> None:
    texts = {
        page: (site / f"{page}.html").read_text(encoding="utf-8")
        for page in (*PAGES, "reference/cli", "reference/datasets")
    }
    assert "Train the head of a classifier" in (site / "reference" / "modules.html").read_text(encoding="utf-8")
    assert "Calibrate a trained network" in texts["reference/api"]
    assert "two-cosines" in texts["reference/detectors"]
    assert "cifar100" in texts["reference/datasets"]
    assert "offaxis doctor" in texts["reference/cli"]
    assert "[0.2.0]" in (site / "changelog.html").read_text(encoding="utf-8")
    assert not any("fonts.googleapis" in text or "unpkg.com" in text for text in texts.values())


@pytest.mark.browser
def test_pages_fit_wide_and_narrow_windows_in_light_and_dark(site: Path, browser: "WebDriver") -> None:
    # the site keeps the last scheme there, and writes it at some moment after a page has been opened
    forget = {"source": "try { localStorage.clear() } catch {}"}
    browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", forget)  # type: ignore[attr-defined]
    for width in (1400, 400):
        for scheme, name in (("light", "default"), ("dark", "slate")):
            show_as(browser, width, scheme)
            for page in PAGES:
                browser.get((site / f"{page}.html").as_uri())
                found = browser.execute_script(
                    "return [document.documentElement.scrollWidth, document.body.dataset.mdColorScheme]"
                )
                assert found[0] <= width, (page, width, scheme)  # nothing is wider than the window
                assert found[1] == name
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [each["params"]["request"]["url"] for each in sent if each["method"] == "Network.requestWillBeSent"]
    assert urls  # the log is kept
    own = ("file:", "data:", "about:", "chrome:", "chrome-untrusted:")  # the last two are the browser's new tab
    assert [url for url in urls if not url.startswith(own)] == []
    assert complaints(browser) == []


@pytest.mark.browser
def test_it_is_searched_without_a_network_and_without_a_server(site: Path, browser: "WebDriver") -> None:
    browser.get((site / "reference" / "api.html").as_uri())
    box = browser.find_element("css selector", "input.md-search__input")
    box.click()
    box.send_keys("calibration")

    def found() -> bool:
        titles = browser.find_elements("css selector", ".md-search-result__item h1")
        return any("calibration" in title.text for title in titles)

    assert eventually(found, 30)
