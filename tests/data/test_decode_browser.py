"""Image files beside a real browser: the pixels that Chromium paints on a white page are those that are decoded."""

import base64
import io
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageOps

from offaxis.data.decode import decode

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver

pytestmark = pytest.mark.browser

PAINT = """
const done = arguments[arguments.length - 1];
const image = new Image();
image.onerror = () => done(null);
image.onload = () => {
  const canvas = document.createElement("canvas");
  canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
  const paint = canvas.getContext("2d");
  paint.fillStyle = "white"; paint.fillRect(0, 0, canvas.width, canvas.height);
  paint.drawImage(image, 0, 0);
  done([canvas.width, canvas.height, Array.from(paint.getImageData(0, 0, canvas.width, canvas.height).data)]);
};
image.src = arguments[0];
"""


def _scene(height: int = 32, width: int = 48) -> Image.Image:
    """Make a smooth picture with every colour: its left and its upper part differ."""
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([x * 255 / width, y * 255 / height, 128 + 100 * np.sin(x / 7)], 2)
    return Image.fromarray(pixels.astype(np.uint8))


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format=kind, **options)
    return file.getvalue()


def _turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return _saved(_scene(), "JPEG", quality=95, exif=exif)


def _with_alpha(mode: str) -> Image.Image:
    image = _scene().convert(mode[:-1] if mode != "PA" else "RGB")
    image.putalpha(Image.fromarray(np.tile(np.linspace(0, 255, 48).astype(np.uint8), (32, 1))))
    return image


def _transparent_palette() -> bytes:
    return _saved(_scene().quantize(16), "PNG", transparency=3)


def _deep_grey() -> bytes:
    return _saved(Image.fromarray((np.mgrid[0:32, 0:48][1] * 1365).astype(np.uint16)), "PNG")


CASES: dict[str, tuple[Callable[[], bytes], int]] = {
    # name: how the file is made, largest difference of a pixel in 255 (JPEG and WebP decoders round differently)
    "JPEG": (lambda: _saved(_scene(), "JPEG", quality=95), 4),
    **{f"EXIF {number}": ((lambda n: lambda: _turned(n))(number), 4) for number in range(1, 9)},
    "grey JPEG": (lambda: _saved(_scene().convert("L"), "JPEG", quality=95), 2),
    "CMYK JPEG": (lambda: _saved(_scene().convert("CMYK"), "JPEG", quality=95), 6),
    "16-bit PNG": (_deep_grey, 1),
    "palette": (lambda: _saved(_scene().quantize(16), "PNG"), 0),
    "palette with transparency": (_transparent_palette, 0),
    "GIF": (lambda: _saved(_scene().quantize(16), "GIF"), 0),
    "1 bit": (lambda: _saved(_scene().convert("1"), "PNG"), 0),
    "RGBA": (lambda: _saved(_with_alpha("RGBA"), "PNG"), 1),
    "LA": (lambda: _saved(_with_alpha("LA"), "PNG"), 1),
    "WebP with alpha": (lambda: _saved(_with_alpha("RGBA"), "WEBP", lossless=True), 1),
    "WebP": (lambda: _saved(_scene(), "WEBP", quality=90), 8),
    "BMP": (lambda: _saved(_scene(), "BMP"), 0),
    "sRGB profile": (lambda: _saved(_scene(), "PNG", icc_profile=_srgb()), 1),
}


def _srgb() -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


@pytest.fixture
def paint(browser: "WebDriver") -> Callable[[bytes], NDArray[np.uint8] | None]:
    """Return a function that paints a file in the browser: uint8 (h, w, 3), or None where it shows no image."""
    browser.get("about:blank")

    def painted(data: bytes) -> NDArray[np.uint8] | None:
        kind = str(Image.open(io.BytesIO(data)).format).lower()
        found = browser.execute_async_script(PAINT, f"data:image/{kind};base64,{base64.b64encode(data).decode()}")
        if found is None:
            return None
        width, height, values = found
        return np.array(values, np.uint8).reshape(height, width, 4)[:, :, :3]

    return painted


@pytest.mark.parametrize("name", CASES)
def test_files_come_out_as_a_browser_shows_them(name: str, paint: Callable[[bytes], NDArray[np.uint8] | None]) -> None:
    make, most = CASES[name]
    data = make()
    shown = paint(data)
    assert shown is not None, f"the browser shows no {name}"
    ours = np.asarray(decode(data).convert("RGB"))
    assert ours.shape == shown.shape
    assert int(np.abs(ours.astype(int) - shown).max()) <= most


def test_the_comparison_would_see_a_difference(paint: Callable[[bytes], NDArray[np.uint8] | None]) -> None:
    shown = paint(_turned(6))
    assert shown is not None
    mirrored = np.asarray(ImageOps.mirror(decode(_turned(6)).convert("RGB")))
    assert int(np.abs(mirrored.astype(int) - shown).max()) > 60
