"""The service's page in a real browser, with a real model: drop, paste, several files, errors, keyboard, phone."""

import base64
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offaxis import Model
from offaxis.data import load_images, match
from offaxis.server.body import Limits
from tests.models import World, write_images
from tests.server.serving import png, running

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver

pytestmark = pytest.mark.browser
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

# A drop as the browser makes it: a DataTransfer with files, given as (name, base64).
DROP = """
const transfer = new DataTransfer();
for (const [name, text] of arguments[0]) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  transfer.items.add(new File([bytes], name, { type: "image/png" }));
}
const event = arguments[1] === "paste"
  ? new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true })
  : new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true });
document.body.dispatchEvent(event);
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator["WebDriver"]:
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield chrome
    finally:
        chrome.quit()


@pytest.fixture
def page(browser: "WebDriver", model: Model) -> Iterator["WebDriver"]:
    with running(model) as (address, _):
        browser.set_window_size(1400, 1000)
        browser.get(address)
        wait(browser, lambda: "classes" in text(browser, "about"))
        browser.get_log("browser")
        yield browser
        complaints = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert [entry for entry in complaints if "422" not in entry] == []


def wait(browser: "WebDriver", condition: Callable[[], bool], seconds: float = 15) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, seconds, 0.05).until(lambda _: condition())


def text(browser: "WebDriver", name: str) -> str:
    shown: str = browser.find_element("id", name).text
    return shown


def drop(browser: "WebDriver", files: list[tuple[str, bytes]], how: str = "drop") -> None:
    browser.execute_script(DROP, [(name, base64.b64encode(data).decode()) for name, data in files], how)


def test_a_dropped_image_gets_its_verdict(page: "WebDriver", model: Model, world: World) -> None:
    drop(page, [("seven.png", png(world.test, 0))])
    wait(page, lambda: "1 of 1 checked" in text(page, "progress"))
    prediction = model.predict(png(world.test, 0))[0]
    assert text(page, "class") == prediction.class_name
    assert text(page, "name") == "seven.png"
    assert text(page, "cosine") == f"{prediction.cosine:.3f}"
    assert text(page, "p-value") == f"{prediction.p_value:.3f}"
    assert ("In-distribution" in text(page, "verdict")) == (prediction.verdict.value == "in-distribution")
    assert len(page.find_elements("css selector", "#histogram rect")) == 40
    place = float(page.find_element("css selector", "#histogram .mark").get_attribute("x1"))
    assert 10 <= place <= 700
    nearest = page.find_elements("css selector", "#nearest li")
    assert nearest[0].text.split() == [prediction.class_name, f"{prediction.cosine:.3f}"]
    assert "over 1 images" in text(page, "drift")


def test_a_pasted_image_is_checked(page: "WebDriver", world: World) -> None:
    drop(page, [("image.png", png(world.test, 3))], "paste")
    wait(page, lambda: "1 of 1 checked" in text(page, "progress"))


def test_an_error_is_shown_and_the_page_continues(page: "WebDriver", world: World) -> None:
    drop(page, [("bad.png", b"nothing")])
    wait(page, lambda: "Expected an image" in text(page, "progress"))
    assert "Expected an image" in text(page, "verdict")
    drop(page, [("good.png", png(world.test, 1)), ("bad.png", b"nothing")])
    wait(page, lambda: "1 of 2 checked, 1 failed" in text(page, "progress"))
    assert "2 unreadable" in text(page, "counts")


def test_names_are_text_and_never_markup(page: "WebDriver", world: World) -> None:
    name = "<img src=x onerror=document.title='broken'>.png"
    drop(page, [(name, png(world.test, 1))])
    wait(page, lambda: text(page, "name") == name)
    assert page.title == "offaxis"


def test_several_files_by_keyboard(page: "WebDriver", world: World, tmp_path: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    paths = write_images(tmp_path, world.test, 12)
    page.find_element("id", "files").send_keys("\n".join(map(str, paths)))
    wait(page, lambda: "12 of 12 checked" in text(page, "progress"))
    assert len(page.find_elements("css selector", "#strip button")) == 12
    assert text(page, "name") == "011.png"
    body = page.find_element("tag name", "body")
    body.send_keys(Keys.ARROW_LEFT)
    assert text(page, "name") == "010.png"
    body.send_keys(Keys.ARROW_RIGHT)
    assert text(page, "name") == "011.png"
    page.execute_script("document.querySelector('#strip button').focus()")
    page.switch_to.active_element.send_keys(Keys.ENTER)
    assert text(page, "name") == "000.png"
    body.send_keys(Keys.TAB)  # focus moves on, and is visible
    assert page.execute_script("return document.activeElement.tagName") == "BUTTON"


def test_a_folder_and_the_drift_line(page: "WebDriver", world: World, tmp_path: Path) -> None:
    ood_images = match(load_images("letters", count=120), world.test.shape)
    write_images(tmp_path / "folder", ood_images, 120)
    page.find_element("id", "folder").send_keys(str(tmp_path / "folder"))
    wait(page, lambda: "120 of 120 checked" in text(page, "progress"), 40)
    wait(page, lambda: "has left the training distribution" in text(page, "drift"))
    assert page.find_element("css selector", "#drift-line .alarm").is_displayed()


@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_is_cut_off_on_a_phone(page: "WebDriver", world: World, width: int) -> None:
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    try:
        drop(page, [("a-very-long-name-" + 20 * "of-a-file-" + ".png", png(world.test, i)) for i in range(20)])
        wait(page, lambda: "20 of 20 checked" in text(page, "progress"))
        assert page.execute_script("return document.documentElement.scrollWidth") <= width
        for button in page.find_elements("css selector", ".buttons button"):
            assert button.size["height"] >= 44
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_page_asks_for_the_token(browser: "WebDriver", model: Model, world: World) -> None:
    with running(model, token="secret") as (address, _):
        browser.get(address)
        wait(browser, lambda: browser.find_element("id", "token").is_displayed())
        browser.find_element("id", "token").send_keys("secret\n")
        wait(browser, lambda: "classes" in text(browser, "about"))
        drop(browser, [("x.png", png(world.test, 0))])
        wait(browser, lambda: "1 of 1 checked" in text(browser, "progress"))
        browser.get_log("browser")


def test_the_page_sends_no_more_than_the_service_takes(browser: "WebDriver", model: Model, world: World) -> None:
    with running(model, Limits(images=4)) as (address, _):
        browser.get(address)
        wait(browser, lambda: "classes" in text(browser, "about"))
        drop(browser, [(f"{i}.png", png(world.test, i)) for i in range(5)])
        wait(browser, lambda: text(browser, "progress") == "5 of 5 checked")
        browser.get_log("browser")


@pytest.mark.parametrize("per_class", [False, True])
def test_a_threshold_is_drawn_where_there_is_one_for_all(
    browser: "WebDriver", world: World, leave_out: Model, per_class: bool
) -> None:
    calibration = replace(leave_out.calibration, per_class=per_class, alpha=0.1)  # of scores: it has no cosine
    with running(replace(leave_out, calibration=calibration)) as (address, _):
        browser.get(address)
        wait(browser, lambda: "classes" in text(browser, "about"))
        drop(browser, [("x.png", png(world.test, 0))])
        wait(browser, lambda: text(browser, "progress") == "1 of 1 checked")
        assert ("dashed" in text(browser, "where-caption")) == (not per_class)
        assert len(browser.find_elements("css selector", "#histogram .limit")) == (0 if per_class else 1)
        browser.get_log("browser")


@pytest.mark.parametrize("count", [1, 3])
def test_a_service_that_stops_is_shown(browser: "WebDriver", model: Model, world: World, count: int) -> None:
    with running(model) as (address, _):
        browser.get(address)
        wait(browser, lambda: "No images yet" in text(browser, "drift"))
    drop(browser, [(f"{i}.png", png(world.test, i)) for i in range(count)])
    wait(browser, lambda: text(browser, "progress") == "The service cannot be reached.")
    assert "cannot be reached" in text(browser, "drift")
    browser.get_log("browser")


def test_nothing_is_loaded_from_other_sites(page: "WebDriver") -> None:
    loaded = page.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert loaded
    assert all(name.startswith((page.current_url, "data:")) for name in loaded)
