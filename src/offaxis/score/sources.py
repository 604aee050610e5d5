"""Paths -> work units: images, folders and archives, always in the same order."""

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from offaxis.data.archive import is_archive, read_each
from offaxis.data.decode import MAX_BYTES, SUFFIXES
from offaxis.data.folder import IGNORED
from offaxis.data.vectors import read_rows
from offaxis.errors import DataError

T = TypeVar("T")
INSIDE = "::"  # between an archive and a file in it


@dataclass(frozen=True)
class WorkUnit:
    """The work of one worker at a time: some files, or one archive.

    Attributes:
        paths: the files; or the archive alone.
        archive: whether it is an archive, or a .npy file of rows.
    """

    paths: tuple[str, ...]
    archive: bool = False


class ImageSource(NamedTuple):
    """One image before it is decoded.

    Attributes:
        name: the path in its row, or ``archive::path`` for a file in an archive, ``file.npy::number`` for a row of an array.
        source: the path of the file, its bytes, or the row: feature vectors, or pixels.
        reason: why it cannot be decoded, where that is known already.
    """

    name: str
    source: str | bytes | NDArray[Any] | None
    reason: str | None = None


def files(paths: Iterable[str]) -> Iterator[str]:
    """Yield the files behind paths in order; folders are walked by name, links to folders in them are not followed."""
    for path in paths:
        try:
            folder = Path(path).is_dir()
        except OSError:
            folder = False  # its row has the reason
        if folder:
            yield from _walk(path)
        else:
            yield path


def units(files: Iterable[str], batch: int) -> Iterator[WorkUnit]:
    """Yield work units in order: ``batch`` files at a time, each archive by itself."""
    waiting: list[str] = []
    for path in files:
        if is_archive(path) or is_array(path):
            if waiting:
                yield WorkUnit(tuple(waiting))
                waiting = []
            yield WorkUnit((path,), archive=True)
            continue
        waiting.append(path)
        if len(waiting) == batch:
            yield WorkUnit(tuple(waiting))
            waiting = []
    if waiting:
        yield WorkUnit(tuple(waiting))


def readable(name: str) -> str:
    r"""Return a name as valid text; bytes that are not UTF-8 are escaped, as in ``caf\xe9.png``."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def place_of(name: str) -> tuple[str, bool]:
    """Return where the image of a row is: (its file, False), or (the archive or .npy file that holds it, True)."""
    pieces = name.split(INSIDE)
    for count in range(1, 1 if _is_file(_on_disk(name)) else len(pieces)):
        archive = _on_disk(INSIDE.join(pieces[:count]))  # folders may be called a::b too
        if (is_archive(archive) or is_array(archive)) and _is_file(archive):
            return archive, True
    return _on_disk(name), False


def batches(
    unit: WorkUnit, batch: int, known: Callable[[str], bool] | None = None
) -> Iterator[tuple[ImageSource, ...]]:
    """Yield the images of a unit, ``batch`` at a time; of an archive without those whose name is ``known``."""
    if not unit.archive:
        return parts((ImageSource(path, path) for path in unit.paths), batch)
    path = unit.paths[0]
    inside = _rows_of(path) if is_array(path) else _inside(path)
    return parts((item for item in inside if known is None or not known(item.name)), batch)


def is_array(path: str) -> bool:
    """Return whether a file has the name of an array of NumPy."""
    return path.lower().endswith(".npy")


def parts(of: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """Yield the elements of an iterable, ``size`` at a time."""
    rest = iter(of)
    while part := tuple(islice(rest, size)):
        yield part


def _on_disk(name: str) -> str:
    """Return the path whose ``readable`` form this is."""
    if _is_file(name):
        return name
    return re.sub(r"\\x([89a-f][0-9a-f])", lambda found: chr(0xDC00 + int(found[1], 16)), name)


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:  # longer than a name may be, as files in archives can have
        return False


def _walk(folder: str) -> Iterator[str]:
    """Yield the files below a folder by name, folder by folder, without a list of all."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        yield folder  # its row has the reason
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name.lower() in IGNORED:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)
        else:
            yield entry.path


def why_unreadable(path: str) -> str | None:
    """Return why a path leads to no plain file; None where it does."""
    try:
        kind = Path(path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "there is no such file"
    except (OSError, ValueError) as error:
        return f"this cannot be read ({getattr(error, 'strerror', None) or error})"
    if stat.S_ISDIR(kind):
        return "this is a link to a folder, which is not followed: name the folder itself"
    return None if stat.S_ISREG(kind) else "this is no file that can be read"


def _inside(archive: str) -> Iterator[ImageSource]:
    try:
        for name, data in read_each(Path(archive), MAX_BYTES):
            last = name.rpartition("/")[2]
            if last.startswith(".") or last.lower() in IGNORED:
                continue
            called = f"{archive}{INSIDE}{name}"
            if data is None:
                yield ImageSource(called, None, f"it has more than {MAX_BYTES:,} bytes")
            else:
                yield ImageSource(called, data)
    except (DataError, OSError) as error:
        yield ImageSource(archive, None, str(error))


def _rows_of(file: str) -> Iterator[ImageSource]:
    """Yield the rows of an array, numbered from 0, without reading it as a whole."""
    number = -1
    try:
        for number, row in enumerate(chain.from_iterable(read_rows(file))):
            yield ImageSource(f"{file}{INSIDE}{number}", np.array(row))
        if number < 0:
            yield ImageSource(file, None, "it has no rows")
    except (DataError, OSError) as error:
        yield ImageSource(file, None, str(error))


def is_image_name(name: str) -> bool:
    """Return whether a name has the suffix of an image file."""
    return Path(name).suffix.lower() in SUFFIXES
