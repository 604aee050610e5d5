"""Files come out as a browser shows them: orientation, transparency, deep and printed colours; or with a sentence."""

import io
import os
import struct
import time
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps

from offaxis.data import load_images
from offaxis.data.decode import decode, decode_opened, eight_bits, open_image, size_of
from offaxis.errors import DataError


def _noise(height: int, width: int, channels: int = 3) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)
    return Image.fromarray(pixels if channels > 1 else pixels[:, :, 0])


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format=kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_that_a_camera_recorded_is_applied(kind: str, orientation: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    lossless = {"lossless": True} if kind == "WEBP" else {}
    data = _saved(_noise(40, 24), kind, exif=exif, **lossless)
    plain = decode(_saved(_noise(40, 24), kind, **lossless))
    plain.getexif()[0x0112] = orientation
    expected = np.asarray(ImageOps.exif_transpose(plain))
    shown = decode(data)
    np.testing.assert_array_equal(np.asarray(shown), expected)
    (tmp_path / "x").write_bytes(data)
    assert size_of(tmp_path / "x") == shown.size == ((40, 24) if orientation >= 5 else (24, 40))


def test_images_of_python_are_turned_too_and_only_once() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    opened = Image.open(io.BytesIO(_saved(_noise(40, 24), "PNG", exif=exif)))
    turned = eight_bits(opened)
    assert turned.size == (40, 24)
    assert eight_bits(turned).size == (40, 24)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("value", [0, 9, 65535])
def test_an_orientation_that_there_is_not_counts_as_none(value: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = value
    assert decode(_saved(_noise(40, 24), "PNG", exif=exif)).size == (24, 40)
    assert decode(_saved(_noise(40, 24), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\1damaged")).size == (24, 40)


def test_transparent_pixels_show_white() -> None:
    image = _noise(8, 8, 4)
    image.putalpha(Image.fromarray(np.repeat(np.array([[0, 255]], np.uint8), 8, 0).repeat(4, 1)))
    for kind in ("PNG", "WEBP", "TIFF"):
        shown = np.asarray(decode(_saved(image, kind, **({"lossless": True} if kind == "WEBP" else {}))))
        assert (shown[:, :4] == 255).all()
        np.testing.assert_array_equal(shown[:, 4:], np.asarray(image)[:, 4:, :3])
    grey = Image.merge("LA", [_noise(8, 8, 1), Image.new("L", (8, 8), 0)])
    assert np.asarray(decode(_saved(grey, "PNG"))).min() == 255
    half = Image.new("RGBA", (2, 2), (0, 0, 0, 128))
    assert np.asarray(decode(_saved(half, "PNG"))).tolist() == [[[127] * 3] * 2] * 2


@pytest.mark.parametrize(
    ("mode", "colour", "deep"), [("RGB", (9, 8, 7), 0), ("L", 9, 0), ("P", 0, 0), ("I;16", 900, 900)]
)
def test_a_colour_that_is_declared_transparent_shows_white(mode: str, colour: object, deep: int) -> None:
    deep_grey = Image.fromarray(np.full((4, 4), deep, np.uint16))
    image = deep_grey if mode == "I;16" else Image.new(mode, (4, 4), colour)  # type: ignore[arg-type]
    assert np.asarray(decode(_saved(image, "PNG", transparency=colour))).min() == 255
    assert np.asarray(decode(_saved(image, "PNG"))).max() < 255


def test_sixteen_bits_keep_their_upper_half() -> None:
    image = Image.fromarray(np.array([[0, 255, 256, 65535]], np.uint16))
    for kind in ("PNG", "TIFF", "PPM"):
        assert np.asarray(decode(_saved(image, kind))).tolist() == [[0, 0, 1, 255]]


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_values_of_unknown_range_are_refused(kind: type) -> None:
    with pytest.raises(DataError, match="8 or 16 bits but the scan has .*: scale them to 0 to 255"):
        decode(_saved(Image.fromarray(np.full((4, 4), 200, kind)), "TIFF"), "the scan")


def test_printed_colours_follow_their_profile_where_there_is_one() -> None:
    image = Image.new("CMYK", (8, 8), (255, 0, 0, 0))
    assert np.asarray(decode(_saved(image, "TIFF")))[0, 0].tolist() == [0, 255, 255]
    damaged = _saved(image, "TIFF", icc_profile=b"no profile at all")
    assert np.asarray(decode(damaged))[0, 0].tolist() == [0, 255, 255]
    rgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()  # of another kind of image
    assert np.asarray(decode(_saved(image, "TIFF", icc_profile=rgb)))[0, 0].tolist() == [0, 255, 255]


def test_names_that_are_not_utf8_are_refused_for_classes_and_escaped_elsewhere(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path)
    for name in (b"caf\xe9", b"tea"):
        os.mkdir(folder + b"/" + name)  # noqa: PTH102
        _noise(8, 8).save(Path(os.fsdecode(folder + b"/" + name + b"/0.png")))
    with pytest.raises(DataError, match=r"UTF-8 but .*caf\\xe9 is not: rename the folder"):
        load_images(tmp_path)
    bad = Path(os.fsdecode(folder + b"/tea/b\xe4d.png"))
    bad.write_bytes(b"no image")
    with pytest.raises(DataError, match=r"b\\xe4d\.png is none") as refused:
        load_images(tmp_path / "tea")
    str(refused.value).encode()  # it can be printed
    skipped = load_images(tmp_path / "tea", skip_bad=True)
    assert len(skipped) == 1
    assert skipped.skipped[0].path.endswith(r"b\xe4d.png")


def test_a_jpeg_of_thousands_of_scans_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    whole = _saved(Image.new("RGB", (4000, 4000)), "JPEG", progressive=True)
    last = whole[whole.rindex(b"\xff\xda") : -2]
    (tmp_path / "x.jpg").write_bytes(whole[:-2] + 20_000 * last + b"\xff\xd9")
    began = time.process_time()
    with pytest.raises(DataError, match=r"x\.jpg has more than 100 scans"):
        decode(tmp_path / "x.jpg")
    assert time.process_time() - began < 1
    assert decode(whole[:-2] + 5 * last + b"\xff\xd9").size == (4000, 4000)


def _tiff(width: int, height: int, rows: int, strip: bytes) -> bytes:
    """A TIFF whose strips of some rows are all one JPEG, which stands in it once."""
    count = -(-height // rows)
    place = 8 + 2 + 12 * 9 + 4
    data = place + 6 + 8 * count
    tags = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 3, place), (259, 3, 1, 7), (262, 3, 1, 6)]
    tags += [(273, 4, count, place + 6), (277, 3, 1, 3), (278, 4, 1, rows), (279, 4, count, place + 6 + 4 * count)]
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    numbers = struct.pack("<3H", 8, 8, 8) + struct.pack("<I", data) * count + struct.pack("<I", len(strip)) * count
    return struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4) + numbers + strip


def test_strips_of_a_tiff_that_are_progressive_are_refused() -> None:
    plain = _saved(_noise(16, 64), "JPEG", subsampling=0)
    assert decode(_tiff(64, 160, 16, plain)).size == (64, 160)
    slow = _saved(_noise(16, 4000), "JPEG", subsampling=0, progressive=True)
    last = slow[slow.rindex(b"\xff\xda") : -2]
    with pytest.raises(DataError, match="a TIFF of progressive JPEGs"):
        decode(_tiff(4000, 4000, 16, slow[:-2] + 80 * last + b"\xff\xd9"))


def _box(kind: bytes, *parts: bytes) -> bytes:
    return struct.pack(">I4s", 8 + sum(map(len, parts)), kind) + b"".join(parts)


def _grid(side: int, shown: int, made_of: list[int]) -> bytes:
    """The head of a HEIC whose item 2 shows so many pixels a side and is made of others; item 1 is an image."""
    sizes = b"".join(_box(b"ispe", bytes(4), struct.pack(">II", each, each)) for each in (side, shown))
    of_items = struct.pack(">IIHBBHBBB", 0, 2, 1, 1, 0x81, 2, 2, 0x82, 3)
    properties = _box(b"iprp", _box(b"ipco", sizes, _box(b"irot", b"\1")), _box(b"ipma", of_items))
    references = struct.pack(f">HH{len(made_of)}H", 2, len(made_of), *made_of)
    made = _box(b"iref", bytes(4), _box(b"dimg", references))
    return _box(b"ftyp", b"heic", bytes(4), b"mif1heic") + _box(b"meta", bytes(4), properties, made)


def test_tiles_that_are_decoded_again_and_again_are_refused() -> None:
    for made_of in ([1] * 65, [2]):  # 65 million pixels for one that is shown; an image that is made of itself
        with pytest.raises(
            DataError, match=r"tiles of more than the 64,000,000 pixels|none, or is damaged|of another format"
        ):
            decode(_grid(1000, 1000, made_of))
    for made_of in ([1] * 64, [1]):
        with pytest.raises(DataError, match="is none, or is damaged|of another format"):  # it holds no pixels
            decode(_grid(1000, 8000, made_of))


def _two_colours(kind: str) -> bytes:
    """100 x 60 pixels, red above and blue below, to be shown turned by a quarter: red on the right."""
    image = Image.new("RGB", (100, 60), "blue")
    image.paste("red", (0, 0, 100, 30))
    exif = Image.Exif()
    exif[0x0112] = 6
    return _saved(image, kind, exif=exif.tobytes(), quality=95)


@pytest.mark.thirdparty
@pytest.mark.parametrize("kind", ["HEIF", "AVIF"])
def test_photographs_of_telephones_are_read_upright(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("pillow_heif").register_heif_opener()
    data = _two_colours(kind)
    file = tmp_path / ("x.heic" if kind == "HEIF" else "x.avif")
    file.write_bytes(data)
    for shown in (decode(data), decode(file)):
        assert (shown.size, shown.mode) == ((60, 100), "RGB")
        left, right = (np.array(shown.getpixel(place)) for place in ((10, 50), (50, 50)))
        assert left[2] > 200 > 60 > left[0]
        assert right[0] > 200 > 60 > right[2]
    assert size_of(file) == (60, 100)
    assert load_images(tmp_path).shape == (3, 100, 60)
    for length in range(0, len(data), 97):
        with suppress(DataError):
            decode(data[:length])
    assert decode(file).size == (60, 100)


@pytest.mark.parametrize(("brand", "advice"), [(b"heic", r"offaxis\[heic\]"), (b"avif", "upgrade pillow")])
def test_formats_that_are_not_read_name_the_package(
    brand: bytes, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suffix = f".{brand.decode()}"
    monkeypatch.setattr("offaxis.data.decode.FORMATS", ["PNG", "JPEG"])
    monkeypatch.setattr("offaxis.data.decode.OTHER_SUFFIXES", {suffix})
    for name in ("decode", "folder"):
        monkeypatch.setattr(f"offaxis.data.{name}.SUFFIXES", {".png"})
    data = b"\0\0\0\x18ftyp" + brand + bytes(99)
    (tmp_path / f"x{suffix}").write_bytes(data)
    with pytest.raises(DataError, match=f"the image is an image of another format: pip install .*{advice}"):
        decode(data)
    with pytest.raises(DataError, match=f"not an image file that is read here.*pip install .*{advice}"):
        load_images(tmp_path)


def test_bytes_after_an_image_are_no_scans_of_it() -> None:
    film = np.random.default_rng(0).integers(0, 256, 2**24, np.uint8).tobytes()  # telephones append one
    assert film.count(b"\xff\xda") > 100
    assert decode(_saved(_noise(8, 8), "JPEG") + film).size == (8, 8)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_decoding_ends_at_its_deadline(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = _saved(_noise(400, 400), kind)
    monkeypatch.setattr("offaxis.data.decode.PIXELS_A_SECOND", 1e12)
    opened = open_image(data, "x")
    monkeypatch.setattr("offaxis.data.decode.SECONDS", 0.0)
    with pytest.raises(DataError, match="decoding took more than 0 seconds"):
        decode_opened(opened, "x")
    monkeypatch.setattr("offaxis.data.decode.SECONDS", 0.2)
    pieces = {"JPEG": b"\xff\xfe\x00\x02", "PNG": struct.pack(">I4sI", 0, b"abCd", zlib.crc32(b"abCd"))}
    start = 2 if kind == "JPEG" else 33
    began = time.process_time()
    with pytest.raises(DataError):
        decode(data[:start] + 2_000_000 * pieces[kind] + data[start:])
    assert time.process_time() - began < 1
