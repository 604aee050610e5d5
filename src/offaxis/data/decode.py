"""Image files -> pixels, or an error that names the file."""

import base64
import importlib.util
import io
import math
import os
import re
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageOps

from offaxis.errors import DataError, MissingPackageError, OffaxisError

MAX_PIXELS = 64_000_000  # 8,000 x 8,000: larger ones are refused before they are decoded
MAX_BYTES = 256 * 2**20
MAX_SCANS = 100  # of a JPEG, each of which passes over all pixels; programs write 10 or so
SECONDS, PIXELS_A_SECOND = 2.0, 8_000_000  # processor time that an image may take to decode: the sum of both
_SCAN = re.compile(rb"\xff\xda\x00(?:\x08\x01|\x0a\x02|\x0c\x03|\x0e\x04)")

_PROGRESSIVE = re.compile(rb"\xff\xc2\x00[\x0b\x0e\x11\x14][\x08\x0c]")

# Formats that Pillow decodes itself. Those that would start other programs or are not images are left out.
FORMATS = ["PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM", "TIFF"]
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff"}
# formats of telephones and cameras that must be converted first
OTHER_SUFFIXES = {".heic", ".heif", ".avif", ".jxl", ".jp2", ".dng", ".cr2", ".cr3", ".nef", ".arw"}
for _format, _suffixes, _module in (("HEIF", {".heic", ".heif"}, "pillow_heif"), ("AVIF", {".avif"}, "PIL._avif")):
    if importlib.util.find_spec(_module) is not None:
        FORMATS.append(_format)
        SUFFIXES |= _suffixes
        OTHER_SUFFIXES -= _suffixes


class _Timed(io.BytesIO):
    """The bytes of an image, which can be read for so long: the work of a decoder that takes longer ends at its next read."""

    def allow(self, seconds: float) -> None:
        """Start the clock, the processor time of this thread."""
        self._seconds, self._end = seconds, time.thread_time() + seconds

    def read(self, size: int | None = -1) -> bytes:
        if time.thread_time() > self._end:
            raise TimeoutError(f"decoding took more than {self._seconds:.0f} seconds")
        return super().read(size)


def decode(source: Path | str | bytes, name: str | None = None, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode an image completely, as a browser shows it on a white page: mode L (grey) or RGB, 8 bits a channel.

    The orientation that cameras record (EXIF) is applied, transparent pixels show white, CMYK becomes RGB by the file's
    colour profile, 16 bits become 8, and of an animation the first frame counts.

    Args:
        source: a file, or its bytes.
        name: what an error calls it; the path unless given.
        max_pixels: the largest width x height that is decoded.

    Raises:
        DataError: not an image, damaged, truncated, too large or too slow to decode, or its values have an unknown range.
    """
    called = name or ("the image" if isinstance(source, bytes) else printable(source))
    return decode_opened(open_image(source, called, max_pixels), called)


def decode_opened(image: Image.Image, called: str = "the image") -> Image.Image:
    """Decode an image that ``open_image`` opened, as ``decode`` does.

    Raises:
        DataError: damaged or truncated; the message calls it ``called``.
    """
    try:
        if isinstance(stream := getattr(image, "fp", None), _Timed):
            stream.allow(SECONDS + image.width * image.height / PIXELS_A_SECOND)
        image.load()
        return eight_bits(image, called)
    except DataError:
        raise
    except Exception as error:  # decoders raise many kinds of errors
        raise DataError(f"{called} is damaged or truncated ({error}): replace it or leave it out.") from error


def size_of(path: Path) -> tuple[int, int]:
    """Read (width, height) from the file's header alone, as the image is shown (EXIF orientation).

    Raises:
        DataError: not an image, or too large.
    """
    image = open_image(path, printable(path))
    width, height = image.size
    turned = image.format != "TIFF" and _orientation(image) >= 5  # Pillow turns TIFF images itself
    return (height, width) if turned else (width, height)


def printable(path: Path | str) -> str:
    r"""Return a path as text that can be printed and stored: bytes that are not UTF-8 become ``\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def open_image(source: Path | str | bytes, called: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read the header of an image: its size and mode are known, its pixels are not decoded yet.

    Raises:
        DataError: not an image, or too large.
    """
    try:
        data = source if isinstance(source, bytes) else _read(source, called)
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        raise DataError(f"{called} cannot be read ({getattr(error, 'strerror', None) or error}).") from error
    if data.startswith(b"\xff\xd8") and len([*islice(_SCAN.finditer(data), MAX_SCANS + 1)]) > MAX_SCANS:
        raise DataError(f"{called} has more than {MAX_SCANS} scans, which no program writes: save it again.")
    stream = _Timed(data)
    stream.allow(SECONDS)
    kind = data[8:12].decode("latin1") if data[4:8] == b"ftyp" else ""
    try:
        if kind and _pixels_of_tiles(data) > max_pixels:
            raise DataError(
                f"{called} has tiles of more than the {max_pixels:,} pixels that are decoded: leave it out."
            )
        if kind in _HEIF and "HEIF" in FORMATS:
            import pillow_heif

            pillow_heif.register_heif_opener(thumbnails=False, decode_threads=1)
        image = Image.open(stream, formats=FORMATS)
    except DataError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"{called} is too large to be decoded ({error}).") from error
    except Exception as error:  # decoders raise many kinds of errors
        if advice := other_format({"avif": ".avif"}.get(kind, ".heic" if kind in _HEIF else "")):
            raise DataError(f"{called} is an image of another format: {advice}.") from error
        raise DataError(
            f"Expected an image ({', '.join(FORMATS)}) but {called} is none, or is damaged at its start."
        ) from error
    if image.format == "TIFF" and "jpeg" in str(image.info.get("compression")) and _PROGRESSIVE.search(data):
        raise DataError(f"{called} is a TIFF of progressive JPEGs, which no program writes: save it again.")
    width, height = image.size
    if width * height > max_pixels:
        raise DataError(
            f"{called} is {width}x{height}, more than the {max_pixels:,} pixels that are decoded: shrink it or leave it out."
        )
    return image


_HEIF = frozenset({"heic", "heix", "heim", "heis", "hevc", "hevx", "mif1", "msf1"})  # at the start of a file


def _pixels_of_tiles(data: bytes) -> int:
    """Count the pixels that an image of HEIF or AVIF decodes for its tiles: a tile may stand in it thousands of times."""
    areas, of_item, tiles = list[int](), dict[int, int](), dict[int, tuple[int, ...]]()
    parts = [part for kind, meta in _boxes(memoryview(data)) if kind == b"meta" for part in _boxes(meta[4:])]
    properties = [part for kind, inside in parts if kind == b"iprp" for part in _boxes(inside)]
    for inside in (inside for kind, inside in properties if kind == b"ipco"):
        areas += [math.prod(struct.unpack_from(">II", x, 4)) if kind == b"ispe" else 0 for kind, x in _boxes(inside)]
    for inside in (inside for kind, inside in properties if kind == b"ipma"):
        reader, number, index = io.BytesIO(inside[8:]), "I" if inside[0] else "H", "H" if inside[3] & 1 else "B"
        for _ in range(*struct.unpack_from(">I", inside, 4)):
            item, count = struct.unpack(f">{number}B", reader.read(struct.calcsize(f">{number}B")))
            numbers = struct.unpack(f">{count}{index}", reader.read(count * struct.calcsize(index)))
            own = [
                areas[n - 1] for n in (n & (0x7FFF if index == "H" else 0x7F) for n in numbers) if 0 < n <= len(areas)
            ]
            of_item[item] = max([of_item.get(item, 0), *own])
    for version, inside in ((inside[0], inside) for kind, inside in parts if kind == b"iref"):
        for item, others in (_reference(part, version) for kind, part in _boxes(inside[4:]) if kind == b"dimg"):
            tiles[item] = (*tiles.get(item, ()), *others)

    @cache
    def decoded(item: int) -> int:
        return sum(map(decoded, tiles[item])) if item in tiles else of_item.get(item, 0)

    return max(map(decoded, tiles), default=0)


def _boxes(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield (kind, content) of the boxes of an ISO media file, or of what is inside one."""
    place = 0
    while place + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        head = 16 if length == 1 else 8
        length = struct.unpack_from(">Q", data, place + 8)[0] if length == 1 else length or len(data) - place
        yield kind, data[place + head : place + max(head, length)]
        place += max(head, length)


def _reference(part: memoryview, version: int) -> tuple[int, tuple[int, ...]]:
    """Return an item and those that it is made of."""
    number = "I" if version else "H"
    item, count = struct.unpack_from(f">{number}H", part)
    return item, struct.unpack_from(f">{count}{number}", part, struct.calcsize(f">{number}H"))


def other_format(suffix: str) -> str | None:
    """Return what to do about images of this suffix, a format that is not read here; None of others."""
    if suffix not in OTHER_SUFFIXES:
        return None
    package = {".heic": "pip install 'offaxis[heic]'", ".heif": "pip install 'offaxis[heic]'"}
    package[".avif"] = "pip install --upgrade pillow"
    return f"{package[suffix]}, or convert it to JPEG" if suffix in package else "convert it to JPEG"


def is_remote(path: Path | str) -> bool:
    """Tell whether a text is an address that fsspec reads, such as ``s3://bucket/folder``."""
    return isinstance(path, str) and "://" in path


@contextmanager
def remote_files(address: str) -> Iterator[tuple[Any, str]]:
    """Give the file system of an address and the path in it; what fails in the block is a DataError that names the address.

    Raises:
        MissingPackageError: fsspec, or what it needs for this kind of address, is not installed.
    """
    try:
        import fsspec

        yield fsspec.core.url_to_fs(address)
    except ImportError as error:
        raise MissingPackageError(
            f"{address} is read by fsspec, where a package is not installed ({error}): pip install 'offaxis[remote]'."
        ) from error
    except OffaxisError:
        raise
    except Exception as error:  # of the many services behind it
        raise DataError(f"{address} cannot be read ({str(error) or type(error).__name__}).") from error


def _read(path: Path | str, called: str) -> bytes:
    if is_remote(path):
        with remote_files(str(path)) as (system, place), system.open(place) as remote:
            if len(data := remote.read(MAX_BYTES + 1)) > MAX_BYTES:
                raise DataError(f"{called} has more than the {MAX_BYTES:,} bytes that an image file may have.")
            return bytes(data)
    about = os.stat(path)  # noqa: PTH116 - once for each of millions
    if not stat.S_ISREG(about.st_mode):
        raise DataError(f"Expected an image but {called} is no plain file: to read it might never end.")
    if about.st_size > MAX_BYTES:
        raise DataError(
            f"{called} has {about.st_size:,} bytes, more than the {MAX_BYTES:,} that an image file may have."
        )
    with open(path, "rb", 0) as file:  # noqa: PTH123
        return file.read()


def eight_bits(image: Image.Image, called: str = "the image") -> Image.Image:
    """Convert an image to mode L or RGB, 8 bits a channel, upright and without transparency (see ``decode``).

    Raises:
        DataError: its values are floating-point numbers or 32-bit integers, whose range is unknown.
    """
    if _orientation(image) > 1:
        image = ImageOps.exif_transpose(image)
    if image.mode in ("L", "RGB") and "transparency" not in image.info:
        return image
    if image.mode == "F":
        raise DataError(
            f"Expected whole numbers of 8 or 16 bits but {called} has floating-point values: scale them to 0 to 255 and "
            "save them with 8 bits."
        )
    if image.mode.startswith("I"):
        return _from_sixteen_bits(image, called)
    if image.mode == "CMYK":
        return _from_cmyk(image)
    if image.mode == "1" and "transparency" not in image.info:
        return image.convert("L")
    if image.mode in ("1", "L", "LA", "La"):
        return _on_white(image.convert("LA"), "L")
    if image.mode in ("P", "PA", "RGB", "RGBA", "RGBa"):
        return _on_white(image.convert("RGBA"), "RGB")
    return image.convert("RGB")


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8; 1 where there is none, or none that can be read, as browsers do."""
    try:
        if image.format == "PNG":
            image.load()  # it may follow the pixels
        if _EXIF.isdisjoint(image.info) and not hasattr(image, "tag_v2"):
            return 1  # as most images; the rest takes a while
        found = image.getexif().get(0x0112, 1)
    except Exception:  # Pillow raises many kinds of errors for damaged EXIF data
        return 1
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


_EXIF = frozenset({"exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp"})


def _on_white(image: Image.Image, mode: str) -> Image.Image:
    """Return an image with an alpha channel as it looks on a white page."""
    page = Image.new(mode, image.size, "white")
    page.paste(image.convert(mode), mask=image.getchannel("A"))
    return page


def _from_sixteen_bits(image: Image.Image, called: str) -> Image.Image:
    """Return the upper 8 of 16 bits of grey; older versions of Pillow give them as 32-bit integers."""
    if image.mode == "I" and image.format not in ("PNG", "PPM"):
        raise DataError(
            f"Expected whole numbers of 8 or 16 bits but {called} has 32-bit integers, whose range is unknown: scale them to "
            "0 to 255 and save them with 8 bits."
        )
    values = np.asarray(image)
    transparent = image.info.get("transparency")
    grey = (values >> 8).clip(0, 255).astype(np.uint8)
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey)


_MAX_PROFILE = 2**24


def _from_cmyk(image: Image.Image) -> Image.Image:
    profile = image.info.get("icc_profile", b"")
    if 0 < len(profile) <= _MAX_PROFILE:
        try:
            shown = ImageCms.profileToProfile(
                image, ImageCms.ImageCmsProfile(io.BytesIO(profile)), ImageCms.createProfile("sRGB"), outputMode="RGB"
            )
        except (ImageCms.PyCMSError, OSError, TypeError, ValueError):
            shown = None  # a damaged profile counts as none
        if shown is not None:
            return shown
    return image.convert("RGB")


def thumbnail_uri(pixels: NDArray[np.uint8], side: int = 128) -> str:
    """Return pixels (c, h, w), one channel or three, as a data: URI of a JPEG file whose longer side is at most ``side``."""
    image, out = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)), io.BytesIO()
    image.thumbnail((side, side))
    image.save(out, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"
