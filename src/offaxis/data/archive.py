"""Tar and zip archives, unpacked and read without trusting them."""

import lzma
import os
import shutil
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from offaxis.errors import DataError, StorageError
from offaxis.files import is_regular

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
MAX_BYTES = 32 * 2**30
MAX_FILES = 5_000_000
_DAMAGE = (  # what the readers of archives raise; a RuntimeError is an encrypted one
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    LookupError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,  # a name that is no text
)
HALF = ".half-unpacked"
"""A file of this name lies in a folder for as long as an archive is being unpacked into what was there before."""
_FREE_BYTES, _MAX_RATIO = 2**30, 200  # a bomb is both large and very much larger than its archive


@dataclass(frozen=True)
class ArchiveLimits:
    """What an archive may hold at most.

    Attributes:
        bytes: unpacked, all files together.
        files: how many.
    """

    bytes: int = MAX_BYTES
    files: int = MAX_FILES


def is_archive(path: Path | str) -> bool:
    """Tell whether a file has the name of an archive."""
    return str(path).lower().endswith(SUFFIXES)


def unpack(archive: Path, folder: Path, limits: ArchiveLimits | None = None) -> None:
    """Unpack a tar or zip archive into a folder; nothing is written anywhere else, and nothing half.

    Only plain files and folders are taken. Files that are there already are replaced once all could be unpacked. Folders
    appear whole; one that was there before holds a file ``HALF`` until all has been added to it.

    Raises:
        DataError: it is damaged or truncated, is too large, or holds links, devices or names that lead elsewhere.
        StorageError: the folder cannot be written to.
    """
    limits = limits or ArchiveLimits()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as temporary:
            room = Path(temporary)
            _unpack_into(archive, room, limits)
            _move(room, folder, archive)
    except OSError as error:
        raise StorageError(f"{archive} could not be unpacked into {folder} ({error.strerror or error}).") from error


def _move(source: Path, target: Path, archive: Path) -> None:
    """Move a file or a folder in one step; where the folder is there already, move what is in it."""
    if not (source.is_dir() and target.is_dir()):
        source.replace(target)
        return
    mark = target / HALF
    mark.write_text(
        f"{archive} was not unpacked to its end: unpack it again, or remove this file if nothing is missing.\n"
    )
    for entry in sorted(source.iterdir()):
        _move(entry, target / entry.name, archive)
    mark.unlink()


def read_member(archive: Path, name: str, max_bytes: int = 2**30) -> bytes:
    """Read one file of an archive.

    Raises:
        DataError: it is not there, is too large, or the archive is damaged.
    """
    for member, size, file in _members(archive):
        if member == name:
            if size > max_bytes:
                raise DataError(f"{name} in {archive} has {size:,} bytes, more than the {max_bytes:,} expected.")
            with _naming(archive):
                return file.read()
    raise DataError(f"Expected a file {name} in {archive} but there is none.")


def read_each(archive: Path, max_bytes: int) -> Iterator[tuple[str, bytes | None]]:
    """Yield (name, content) of every plain file of an archive in order, without unpacking it; None where too large.

    Raises:
        DataError: it is damaged, or holds links or devices; what came before has been given.
    """
    for name, size, file in _members(archive):
        with _naming(archive):
            yield name, file.read(max_bytes) if size <= max_bytes else None


def _unpack_into(archive: Path, room: Path, limits: ArchiveLimits) -> None:
    most = min(limits.bytes, max(_FREE_BYTES, _MAX_RATIO * archive.stat().st_size))
    total = 0
    for count, (name, size, file) in enumerate(_members(archive)):
        total += size
        if total > most or count >= limits.files:
            raise DataError(
                f"{archive} is refused: unpacked it would be more than {most:,} bytes or {limits.files:,} files."
            )
        target = room / _safe(name, archive)
        target.parent.mkdir(parents=True, exist_ok=True)
        with _naming(archive), target.open("wb") as out:
            shutil.copyfileobj(file, out, 2**20)
        if target.stat().st_size != size:
            raise DataError(f"{archive} is truncated or damaged at {name}: get it again.")


def _members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield (name, size, open file) of every plain file, in order."""
    if archive.exists() and not is_regular(archive):
        raise DataError(f"Expected an archive but {archive} is no plain file: to read it might never end.")
    if archive.suffix.lower() == ".zip":
        with _naming(archive), zipfile.ZipFile(archive) as content:
            for info in content.infolist():
                if not info.is_dir():
                    if (info.external_attr >> 16) & 0o170000 == 0o120000:
                        raise DataError(f"{archive} is refused: {info.filename} is a link.")
                    with content.open(info) as file:
                        yield info.filename, info.file_size, file
    else:
        with _naming(archive), tarfile.open(archive) as pack:
            for member in pack:
                if member.isdir():
                    continue
                plain = pack.extractfile(member) if member.isfile() else None
                if plain is None:
                    raise DataError(f"{archive} is refused: {member.name} is a link or a device.")
                yield member.name, member.size, plain
            _check_end(pack, archive)


def _check_end(pack: tarfile.TarFile, archive: Path) -> None:
    """Check that a tar archive ends with a block of zeros; one that was cut between two files does not."""
    assert pack.fileobj is not None
    pack.fileobj.seek(pack.offset)
    if pack.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise DataError(f"{archive} is truncated: it has no end. Get it again.")


def _safe(name: str, archive: Path) -> PurePosixPath:
    path = PurePosixPath(name)
    drive = name[1:2] == ":" or (os.name == "nt" and ":" in name)  # elsewhere a name may hold the time of day
    if path.is_absolute() or ".." in path.parts or "\\" in name or drive or "\0" in name or not path.parts:
        raise DataError(f"{archive} is refused: the name {name!r} leads out of its folder.")
    return path


@contextmanager
def _naming(archive: Path) -> Iterator[None]:
    """Turn damage that is met while reading into an error that names the archive."""
    try:
        yield
    except _DAMAGE as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{archive} is no archive, or is damaged or truncated ({reason}): get it again.") from error
    except OSError as error:
        if error.errno is None:  # gzip, bzip2 and lzma report damage as an OSError without a number
            raise DataError(f"{archive} is damaged or truncated ({error}): get it again.") from error
        raise
