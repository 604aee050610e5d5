"""Image files -> pixels, or an error that names the file."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from offaxis.errors import DataError

MAX_PIXELS = 64_000_000  # 8,000 x 8,000: larger ones are refused before they are decoded
MAX_BYTES = 256 * 2**20

# Formats that Pillow decodes itself. Those that would start other programs or are not images are left out.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM", "TIFF")
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff"})


def decode(source: Path | bytes, name: str | None = None, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode an image completely: mode L (grey) or RGB, 8 bits a channel.

    Transparency is dropped, 16-bit grey is scaled to 8 bits, of an animation the first frame counts, and rotation marks
    of cameras (EXIF) are not applied.

    Args:
        source: a file, or its bytes.
        name: what an error calls it; the path unless given.
        max_pixels: the largest width x height that is decoded.

    Raises:
        DataError: not an image, damaged, truncated or too large.
    """
    called = name or (str(source) if isinstance(source, Path) else "the image")
    return decode_opened(open_image(source, called, max_pixels), called)


def decode_opened(image: Image.Image, called: str = "the image") -> Image.Image:
    """Decode an image that ``open_image`` opened, as ``decode`` does.

    Raises:
        DataError: damaged or truncated; the message calls it ``called``.
    """
    try:
        image.load()
        return eight_bits(image, called)
    except DataError:
        raise
    except Exception as error:  # decoders raise many kinds of errors
        raise DataError(f"{called} is damaged or truncated ({error}): replace it or leave it out.") from error


def size_of(path: Path, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Read (width, height) from the file's header alone.

    Raises:
        DataError: not an image, or too large.
    """
    return open_image(path, str(path), max_pixels).size


def open_image(source: Path | bytes, called: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read the header of an image: its size and mode are known, its pixels are not decoded yet.

    Raises:
        DataError: not an image, or too large.
    """
    try:
        length = source.stat().st_size if isinstance(source, Path) else len(source)
        if length > MAX_BYTES:
            raise DataError(f"{called} has {length:,} bytes, more than the {MAX_BYTES:,} that an image file may have.")
        data = source.read_bytes() if isinstance(source, Path) else source
    except OSError as error:
        raise DataError(f"{called} cannot be read ({error.strerror}).") from error
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"{called} is too large to be decoded ({error}).") from error
    except Exception as error:  # decoders raise many kinds of errors
        raise DataError(
            f"Expected an image ({', '.join(FORMATS)}) but {called} is none, or is damaged at its start."
        ) from error
    width, height = image.size
    if width * height > max_pixels:
        raise DataError(f"{called} is {width}x{height}, more than the {max_pixels:,} pixels that are decoded.")
    return image


def eight_bits(image: Image.Image, called: str = "the image") -> Image.Image:
    """Convert an image to mode L or RGB, 8 bits a channel.

    Raises:
        DataError: its values are floating-point numbers, whose range is unknown, or do not fit in 16 bits.
    """
    if image.mode in ("L", "RGB"):
        return image
    if image.mode == "F":
        raise DataError(
            f"Expected whole numbers of 8 or 16 bits but {called} has floating-point values: scale them to 0 to 255 and "
            "save them with 8 bits."
        )
    if image.mode.startswith("I"):
        values = np.asarray(image)  # 16 or 32 bits a pixel, as they are stored
        if values.min() < 0 or values.max() > 65535:
            raise DataError(
                f"Expected grey values that fit in 16 bits but {called} has values from {values.min()} to {values.max()}: "
                "convert it or leave it out."
            )
        return Image.fromarray((values >> 8).astype(np.uint8))
    if image.mode in ("1", "LA", "La"):
        return image.convert("L")
    if image.mode == "P":
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")
