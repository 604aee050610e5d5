"""Every kind of damage that bytes can take."""

import io
import json
import random
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from PIL import Image

from offaxis import bundle as bundles
from offaxis.data.decode import FORMATS
from offaxis.errors import OffaxisError

if "HEIF" in FORMATS:
    import pillow_heif

    pillow_heif.register_heif_opener()

Counts = dict[str, int]


def try_inputs(
    make: Callable[[random.Random], tuple[Path, object]],
    read: Callable[[Path], object],
    count: int,
    seed: int,
    refusal: type[OffaxisError] = OffaxisError,
) -> Counts:
    """Read ``count`` inputs; each must be read or be refused by a sentence that names the file.

    Args:
        make: writes an input and returns its file and what to say of it where something else happens.
        read: reads a file.
        count: how many.
        seed: of the chance that ``make`` gets.
        refusal: what is raised for a file that is refused.
    """
    chance, counts = random.Random(seed), {"read": 0, "refused": 0}
    for number in range(count):
        path, what = make(chance)
        try:
            read(path)
            counts["read"] += 1
        except refusal as error:
            if str(path) not in str(error):
                raise AssertionError(f"input {number} of seed {seed} is not named: {error}") from error
            counts["refused"] += 1
        except BaseException as error:
            raise AssertionError(f"input {number} of seed {seed}, {what}: {error!r}") from error
    return counts


def picture(chance: random.Random) -> bytes:
    """A small whole image of a random format, size and colour; some JPEGs have many scans."""
    mode, size = chance.choice(("L", "RGB")), (chance.randrange(1, 40), chance.randrange(1, 40))
    pixels = chance.randbytes(size[0] * size[1] * len(mode))
    out, kind = io.BytesIO(), chance.choice(FORMATS)
    scans = chance.choice((0, 0, 50, 20_000)) if kind == "JPEG" else 0
    options = (
        {"progressive": True} if scans else {"compression": "jpeg"} if kind == "TIFF" and chance.random() < 0.5 else {}
    )
    Image.frombytes(mode, size, pixels).save(out, kind, **options)
    data = out.getvalue()
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * scans + data[-2:] if scans else data


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The bytes cut off, with some changed, with a piece replaced, repeated (perhaps thousands of times) or taken out."""
    found = bytearray(data)
    kind = chance.randrange(6)
    start = chance.randrange(len(found))
    if kind == 0:
        del found[start:]
    elif kind == 1:
        for _ in range(chance.choice((1, 8, 64))):
            found[chance.randrange(len(found))] = chance.randrange(256)
    elif kind == 2:
        found[start : start + 100] = chance.randbytes(chance.randrange(200))
    elif kind == 3:
        found[start:start] = found[start : start + 50]
    elif kind == 4:
        found[start:start] = found[start : start + chance.randrange(1, 50)] * chance.choice((10, 10_000))
    else:
        del found[start : start + chance.randrange(1, 40)]
    return bytes(found)


def flipped(data: bytes, chance: random.Random, start: int = 0, end: int | None = None) -> bytes:
    """The bytes with one bit changed, between ``start`` and ``end``."""
    found = bytearray(data)
    found[chance.randrange(start, len(data) if end is None else end)] ^= 1 << chance.randrange(8)
    return bytes(found)


def rewritten(
    bundle: Path, path: Path, change: Mapping[str, object], sign: bool = True, *, replace: bool = False
) -> Path:
    """A bundle whose manifest says something else, with a checksum that is right unless ``sign`` is False.

    ``change`` is added to the manifest, or with ``replace`` is the whole of it.
    """
    with zipfile.ZipFile(bundle) as pack:
        files = {name: pack.read(name) for name in pack.namelist()}
    manifest = dict(change) if replace else {**json.loads(files[bundles.MANIFEST]), **change}
    if sign:
        manifest["sha256"] = bundles.manifest_digest(manifest)
    files[bundles.MANIFEST] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as pack:
        for name, data in files.items():
            pack.writestr(name, data)
    return path
