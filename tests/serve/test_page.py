"""The service's page in a real browser, with a real model: files, errors, maps, filters, keyboard, phone, dark mode."""

import base64
import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from offaxis import Model
from offaxis.data import load_images, match
from offaxis.explain import with_examples
from offaxis.model import Verdict
from offaxis.serve.queue import Limits
from tests.browser import complaints, show_as
from tests.models import World, write_images
from tests.serve.serving import png, running

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver

pytestmark = pytest.mark.browser

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


@pytest.fixture
def page(browser: "WebDriver", model: Model) -> Iterator["WebDriver"]:
    with running(model) as (address, _):
        browser.get(address)
        wait(browser, lambda: "classes" in text(browser, "about"))
        yield browser
        assert [message for message in complaints(browser) if "422" not in message] == []


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
    assert ("Like the training" in text(page, "verdict")) == (prediction.verdict.value == "in-distribution")
    assert len(page.find_elements("css selector", "#histogram rect")) == 40
    place = float(page.find_element("css selector", "#histogram .mark").get_attribute("x1"))
    assert 10 <= place <= 700
    nearest = page.find_elements("css selector", "#nearest li")
    assert nearest[0].text.split() == [prediction.class_name, f"{prediction.cosine:.3f}"]
    assert "No images have been counted" in text(page, "drift")


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
    page.find_element("id", "count").click()
    page.find_element("id", "folder").send_keys(str(tmp_path / "folder"))
    wait(page, lambda: "120 of 120 checked" in text(page, "progress"), 90)
    wait(page, lambda: "has left the training distribution" in text(page, "drift"))
    assert page.find_element("css selector", "#drift-line .alarm").is_displayed()
    assert "drift alarm at image" in text(page, "report")
    page.find_element("id", "reset").click()
    page.switch_to.alert.accept()
    wait(page, lambda: "No images have been counted" in text(page, "drift"))


@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_is_cut_off_on_a_phone(page: "WebDriver", world: World, width: int) -> None:
    show_as(page, width)
    drop(page, [("a-very-long-name-" + 20 * "of-a-file-" + ".png", png(world.test, i)) for i in range(20)])
    wait(page, lambda: "20 of 20 checked" in text(page, "progress"))
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    for button in page.find_elements("css selector", ".buttons button"):
        assert button.size["height"] >= 44


def pixels(page: "WebDriver") -> list[int]:
    """The picture that is shown, as RGBA bytes."""
    found: list[int] = page.execute_script(
        "const c = document.getElementById('picture');"
        "return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
    )
    return found


def test_the_map_lies_over_the_picture_and_a_slider_fades_it(page: "WebDriver", model: Model, world: World) -> None:
    drop(page, [("x.png", png(world.test, 0))])
    wait(page, lambda: "the mean over the map is" in text(page, "map-caption"))
    cosine = model.predict(png(world.test, 0))[0].cosine
    assert f"{cosine:.3f}" in text(page, "map-caption")
    slider = page.find_element("id", "map-strength")
    assert slider.is_displayed()
    tinted = pixels(page)
    set_value = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', { bubbles: true }))"
    page.execute_script(set_value, slider, 0)
    plain = pixels(page)
    assert all(plain[i] == plain[i + 1] == plain[i + 2] for i in range(0, len(plain), 4))  # a grey digit
    assert tinted != plain
    page.execute_script(set_value, slider, 55)
    assert pixels(page) == tinted
    page.find_element("id", "count").click()
    drop(page, [("x.png", png(world.test, 0))])
    wait(page, lambda: "over 1 images" in text(page, "drift"))  # the request for the map is not counted


def test_the_nearest_calibration_images_are_shown_where_they_are_kept(
    browser: "WebDriver", model: Model, world: World
) -> None:
    with running(with_examples(model, world.calibration, 20)) as (address, _):
        browser.get(address)
        wait(browser, lambda: "classes" in text(browser, "about"))
        drop(browser, [("x.png", png(world.test, 0))])
        wait(browser, lambda: len(browser.find_elements("css selector", "#example-list img")) == 3)
        letters = match(load_images("letters", count=20), world.test.shape)
        browser.find_element("id", "count").click()
        drop(browser, [(f"{number}.png", png(letters, number)) for number in range(20)])
        wait(browser, lambda: len(browser.find_elements("css selector", "#unusual-list img")) > 0)
        assert browser.find_element("css selector", "#example-list img").get_attribute("naturalWidth") == "8"


def test_one_of_several_models_is_chosen(browser: "WebDriver", model: Model, world: World) -> None:
    other = replace(model, classes=tuple(f"new-{name}" for name in model.classes))
    with running({"old": model, "new": other}) as (address, _):
        browser.get(address)
        wait(browser, lambda: "classes" in text(browser, "about"))
        wait(browser, lambda: len(browser.find_elements("css selector", "#models option")) == 2)
        browser.find_element("css selector", "#models option:nth-child(2)").click()
        wait(browser, lambda: browser.execute_script("return model.classes[0]").startswith("new-"))
        drop(browser, [("x.png", png(world.test, 0))])
        wait(browser, lambda: text(browser, "class").startswith("new-"))


def test_filters_by_verdict_and_the_table(page: "WebDriver", model: Model, world: World, tmp_path: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    letters = match(load_images("letters", count=12), world.test.shape)
    files = [(f"digit-{i}.png", png(world.test, i)) for i in range(12)]
    files += [(f"letter-{i}.png", png(letters, i)) for i in range(12)] + [("=bad,.png", b"nothing")]
    page.execute_cdp_cmd("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    drop(page, files)
    wait(page, lambda: "24 of 25 checked, 1 failed" in text(page, "progress"))
    verdicts = {name: model.predict(data)[0].verdict.value for name, data in files[:-1]}
    out = [name for name, verdict in verdicts.items() if verdict == "out-of-distribution"]
    assert 0 < len(out) < 24
    assert f"{24 - len(out)} like the training images, {len(out)} unlike, 1 unreadable" in text(page, "counts")

    def shown() -> list[str]:
        names = "return [...document.querySelectorAll('#strip li:not([hidden]) button')].map((button) => button.title)"
        found: list[str] = page.execute_script(names)
        return found

    assert len(shown()) == 25
    page.find_element("css selector", "#filters input[value=out]").click()
    assert shown() == out
    page.find_element("css selector", "#all-files summary").click()
    rows = page.find_elements("css selector", "#rows tr:not([hidden])")
    assert [row.find_element("tag name", "td").text for row in rows] == out
    rows[0].click()
    assert text(page, "name") == out[0]
    body = page.find_element("tag name", "body")
    for key, name in ((Keys.ARROW_RIGHT, out[1]), (Keys.END, out[-1]), (Keys.HOME, out[0]), (Keys.ARROW_LEFT, out[0])):
        body.send_keys(key)
        assert text(page, "name") == name  # keys stay within the filter
    assert read_table(page, tmp_path)[1:] == [[name, "out-of-distribution", ""] for name in out]
    page.find_element("css selector", "#filters input[value=all]").click()
    rows_of_all = read_table(page, tmp_path)
    assert [row[:2] for row in rows_of_all[1:-1]] == [[name, verdict] for name, verdict in verdicts.items()]
    assert rows_of_all[-1][0] == "'=bad,.png"  # no formula for a spreadsheet
    assert "Expected an image" in rows_of_all[-1][2]


def read_table(page: "WebDriver", folder: Path) -> list[list[str]]:
    """Download the table and return name, verdict and error of each row."""
    file = folder / "offaxis.csv"
    file.unlink(missing_ok=True)
    page.find_element("id", "download").click()
    wait(page, lambda: file.exists() and file.stat().st_size > 0)
    rows = list(csv.reader(io.StringIO(file.read_text(encoding="utf-8"), newline="")))
    places = [rows[0].index(column) for column in ("name", "verdict", "error")]
    return [[row[place] for place in places] for row in rows]


def contrast(first: str, second: str) -> float:
    """The contrast of two colours, rgb(r, g, b), by the rule of WCAG."""

    def luminance(colour: str) -> float:
        shares = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(page: "WebDriver", world: World, scheme: str) -> None:
    show_as(page, scheme=scheme)
    drop(page, [("x.png", png(world.test, 0)), ("bad.png", b"nothing")])
    wait(page, lambda: "1 of 2 checked" in text(page, "progress"))
    style = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    ground = page.execute_script(style, "#result", "backgroundColor")
    assert (contrast(ground, "rgb(0, 0, 0)") < 3) == (scheme == "dark")
    for part in ("#verdict", "#name", "#counts", "#map-caption", "#progress", "#drift", "dt"):
        assert contrast(page.execute_script(style, part, "color"), ground) >= 4.5, part


def photograph(seed: int) -> bytes:
    """A JPEG file of the size that cameras make, turned by its EXIF orientation."""
    random = np.random.default_rng(seed)
    small = Image.fromarray(random.integers(0, 256, (30, 40, 3), np.uint8))
    out, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    small.resize((1600, 1200)).save(out, "JPEG", exif=exif, quality=70)
    return out.getvalue()


def test_many_photographs_at_once(page: "WebDriver", tmp_path: Path) -> None:
    """Their thumbnails are small, the picture has their proportions, upright, and no more of them is kept whole."""
    for number in range(40):
        (tmp_path / f"{number:02}.jpg").write_bytes(photograph(number % 5))
    page.find_element("id", "folder").send_keys(str(tmp_path))
    wait(page, lambda: "40 of 40 checked" in text(page, "progress"), 60)
    sizes = (
        "return [...document.querySelectorAll('#strip img')].map((image) => [image.naturalWidth, image.naturalHeight])"
    )
    wait(page, lambda: all(size == [144, 192] for size in page.execute_script(sizes)))
    assert len(page.execute_script(sizes)) == 40
    picture = page.find_element("id", "picture")
    wait(page, lambda: [picture.get_attribute("width"), picture.get_attribute("height")] == ["540", "720"])
    assert page.execute_script("return seen.filter((entry) => entry.bitmap).length") == 1


def test_the_page_of_scores_lays_maps_over_images(
    browser: "WebDriver", model: Model, world: World, tmp_path: Path
) -> None:
    from offaxis.options import ScoreOptions
    from offaxis.score import score_images

    write_images(tmp_path / "images", world.test, 6)
    model.save(tmp_path / "x.oax")
    options = ScoreOptions(bundle=tmp_path / "x.oax", out=str(tmp_path / "scores.csv"), quiet=True)
    score_images(model, options, [str(tmp_path / "images")])
    browser.get((tmp_path / "scores.html").as_uri())
    opacity = "return getComputedStyle(document.querySelector('.map')).opacity"
    assert browser.execute_script(opacity) == "0.6"
    slider = browser.find_element("id", "strength")
    browser.execute_script("arguments[0].value = 0; arguments[0].dispatchEvent(new Event('input'))", slider)
    assert browser.execute_script(opacity) == "0"
    widths = "(picture) => [...picture.children].map((image) => image.getBoundingClientRect().width)"
    boxes = browser.execute_script(f"return [...document.querySelectorAll('.picture')].map({widths})")
    assert len(boxes) == 6
    assert all(image == over > 0 for image, over in boxes)
    browser.find_elements("css selector", "th button")[0].click()
    first = browser.find_element("css selector", "tbody tr td:nth-child(2)").text
    assert first.endswith("000.png")


def test_the_page_of_scores_is_sorted_by_every_column(browser: "WebDriver", model: Model, tmp_path: Path) -> None:
    from offaxis.score import RowCounts, write_score_page

    rows = [
        ("b.png", "cat", Verdict.OUT, 9.0, 0.01, 9.5e-05),
        ("a.png", "dog", Verdict.IN, 0.2, 0.5, 0.9),
        ("d.png", "ant", Verdict.OUT, 0.1, 0.2, 0.43),
        ("c.png", "dog", Verdict.IN, -10.0, 9.9e-05, 1.0),
    ]
    names = ("path", "class", "verdict", "score", "p_value", "probability")
    top = [dict(zip(names, (*row[:2], row[2].value, *row[3:]), strict=True)) for row in rows]
    write_score_page({**RowCounts(4).summary(model), "top": top}, tmp_path / "x.html", "x", model)
    browser.get((tmp_path / "x.html").as_uri())
    for place, button in enumerate(browser.find_elements("css selector", "th button"), 2):
        cells = f"return [...document.querySelectorAll('tbody td:nth-child({place})')].map((cell) => cell.textContent)"
        for reverse in (False, True):
            button.click()
            shown = browser.execute_script(cells)
            assert shown == sorted(shown, key=str if place < 5 else float, reverse=reverse)
            assert len(set(shown)) > 1


def test_the_page_asks_for_the_token(browser: "WebDriver", model: Model, world: World) -> None:
    with running(model, token="secret") as (address, _):
        browser.get(address)
        wait(browser, lambda: browser.find_element("id", "token").is_displayed())
        browser.find_element("id", "token").send_keys("secret\n")
        wait(browser, lambda: "classes" in text(browser, "about"))
        drop(browser, [("x.png", png(world.test, 0))])
        wait(browser, lambda: "1 of 1 checked" in text(browser, "progress"))


def test_the_page_sends_no_more_than_the_service_takes(browser: "WebDriver", model: Model, world: World) -> None:
    with running(model, Limits(images=4)) as (address, _):
        browser.get(address)
        wait(browser, lambda: "classes" in text(browser, "about"))
        drop(browser, [(f"{i}.png", png(world.test, i)) for i in range(5)])
        wait(browser, lambda: text(browser, "progress") == "5 of 5 checked")


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


@pytest.mark.parametrize("count", [1, 3])
def test_a_service_that_stops_is_shown(browser: "WebDriver", model: Model, world: World, count: int) -> None:
    with running(model) as (address, _):
        browser.get(address)
        wait(browser, lambda: "No images have been counted" in text(browser, "drift"))
    drop(browser, [(f"{i}.png", png(world.test, i)) for i in range(count)])
    wait(browser, lambda: text(browser, "progress") == "The service cannot be reached.")
    assert "cannot be reached" in text(browser, "drift")


def test_nothing_is_loaded_from_other_sites(page: "WebDriver") -> None:
    loaded = page.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert loaded
    assert all(name.startswith((page.current_url, "data:")) for name in loaded)
