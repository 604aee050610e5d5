"""What holds several images: folders, archives, films, Parquet tables, arrays; here, or in a bucket or at an address by fsspec.

Nothing is unpacked to be read, and one image is in memory at a time.
"""

import os
import re
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, groupby
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offaxis.data.catalogue import HALF
from offaxis.data.decode import MAX_BYTES, MAX_PIXELS, SUFFIXES, is_remote, remote_files
from offaxis.errors import DataError, MissingPackageError, OffaxisError, StorageError, positive
from offaxis.files import is_regular

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
FILMS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mp4", ".mkv": "matroska", ".webm": "matroska", ".avi": "avi"}
"""The names of films, and how each is read: a file that is something else, such as a list of other files, is refused."""
INSIDE = "::"  # between a file and an image in it
MAX_UNPACKED = 32 * 2**30  # bytes of all files of an archive
MAX_FILES = 5_000_000
_FREE_BYTES, _MAX_RATIO = 2**30, 200  # a bomb is both large and very much larger than its archive
_SIDECARS = 64  # files of one name that are held until it is known whether an image is among them


# files that operating systems leave behind, besides those whose names start with a dot
IGNORED = frozenset({"thumbs.db", "desktop.ini", "__macosx"})


class ImageSource(NamedTuple):
    """One image before it is decoded.

    Attributes:
        name: the path of a file; ``archive::path``, ``film.mp4::12.00s`` or ``table.parquet::number`` of one inside a file.
        source: the path of the file, its bytes, or pixels or a feature vector.
        reason: why it cannot be decoded, where that is known already.
    """

    name: str
    source: str | bytes | NDArray[Any] | None
    reason: str | None = None


def is_archive(path: Path | str) -> bool:
    """Tell whether a file has the name of an archive."""
    return str(path).lower().endswith(ARCHIVE_SUFFIXES)


def holds_several(file: str) -> bool:
    """Tell whether a file has the name of an archive, a film, a Parquet table or an array of NumPy."""
    return is_archive(file) or Path(file).suffix.lower() in (*FILMS, ".parquet", ".npy")


def images_in(file: str, every: float = 1.0) -> Iterator[ImageSource]:
    """Yield the images of a file: itself, or all that it holds; where that fails, an entry with the reason ends them.

    Args:
        file: its path, or an address that fsspec reads, such as ``s3://bucket/shard-000.tar``.
        every: seconds between two frames of a film.
    """
    found = None
    try:
        for found in _images_in(file, every):
            yield found
        if found is None and not is_archive(file):
            yield ImageSource(file, None, "it has no rows")
    except (OffaxisError, OSError) as error:
        yield ImageSource(file, None, str(error))


def _images_in(file: str, every: float) -> Iterator[ImageSource]:
    suffix = Path(file).suffix.lower()
    if not holds_several(file):
        yield ImageSource(file, file)
    elif is_archive(file):
        yield from _archive_images(file)
    elif suffix in FILMS:
        for seconds, pixels in film_frames(file, every):
            yield ImageSource(f"{file}{INSIDE}{seconds:.2f}s", pixels)
    elif suffix == ".parquet":
        for number, data in enumerate(parquet_images(file)):
            yield ImageSource(f"{file}{INSIDE}{number}", data, "the row has no image" if data is None else None)
    else:
        for number, row in enumerate(chain.from_iterable(read_rows(file))):
            yield ImageSource(f"{file}{INSIDE}{number}", np.array(row))


def _archive_images(archive: str) -> Iterator[ImageSource]:
    """Yield the files of an archive but those beside an image of the same name, such as a label in a WebDataset's sample."""
    members = (member for member in read_each(archive, MAX_BYTES) if not ignored(member[0].rpartition("/")[2]))
    for _, sample in groupby(members, lambda member: re.sub(r"\.[^/]*$", "", member[0])):
        images, others = 0, list[ImageSource]()
        for name, data in sample:
            reason = f"it has more than {MAX_BYTES:,} bytes" if data is None else None
            source = ImageSource(f"{archive}{INSIDE}{name}", data, reason)
            is_image = Path(name).suffix.lower() in SUFFIXES
            images += is_image
            if is_image or len(others) >= _SIDECARS:
                yield source
            else:
                others.append(source)
        yield from () if images else others


def film_frames(film: str | Path, every: float = 1.0) -> Iterator[tuple[float, NDArray[np.uint8]]]:
    """Yield a frame of a film for each ``every`` seconds, upright: (its time in seconds, uint8 (h, w, 3) RGB).

    Raises:
        MissingPackageError: PyAV is not installed.
        DataError: it is no film, is damaged or has no pictures; the frames before that have been given.
    """
    positive("every", every)
    try:
        import av
    except ImportError as error:
        raise MissingPackageError(
            f"{film} is a film, whose frames PyAV reads, which is not installed: pip install 'offaxis[video]'."
        ) from error
    due = -float("inf")
    with (
        _naming(film, "film"),
        _opened_file(film) as file,
        av.open(file, format=FILMS[Path(film).suffix.lower()]) as container,
    ):
        for frame in container.decode(video=0):
            seconds = frame.time or 0.0
            if seconds < due:
                continue
            if frame.width * frame.height > MAX_PIXELS:
                raise ValueError(f"its frames are {frame.width}x{frame.height}")
            due = (seconds // every + 1) * every
            yield seconds, np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90))


IMAGE_COLUMNS = ("image", "img", "image_bytes", "bytes", "content", "jpg", "png")


def parquet_images(file: str | Path) -> Iterator[bytes | None]:
    """Yield the images of a Parquet table, the bytes of a file in each row, or None for a row without one.

    They are in the only column of bytes, or in one that is called as ``IMAGE_COLUMNS`` says; a column of Hugging Face's images,
    which holds bytes beside a path, is one too.

    Raises:
        MissingPackageError: pyarrow is not installed.
        DataError: it is no Parquet file, is damaged or has no column of images.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise MissingPackageError(
            f"{file} needs pyarrow, which is not installed: pip install 'offaxis[parquet]'."
        ) from error

    def of_bytes(kind: Any) -> bool:
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    with _naming(file, "Parquet table"), _opened_file(file) as opened:
        table = pyarrow.parquet.ParquetFile(opened)
        fields = list(table.schema_arrow)
        inner = {
            field.name
            for field in fields
            if pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0
        }
        found = [field.name for field in fields if field.name in inner or of_bytes(field.type)]
        column = next((name for name in (*IMAGE_COLUMNS, *found[:1]) if name in found), None)
        if column is None or (len(found) > 1 and column not in IMAGE_COLUMNS):
            raise DataError(
                f"Expected a column of bytes, each an image file, called {', '.join(IMAGE_COLUMNS)}, but {file} has "
                f"{', '.join(field.name for field in fields) or 'no columns'}: rename the column of the images to image."
            )
        for part in table.iter_batches(batch_size=16, columns=[column]):
            values = part.column(0).field("bytes") if column in inner else part.column(0)
            yield from (value.as_py() for value in values)


def ignored(name: str) -> bool:
    """Tell whether a file or folder of this name is no part of a set."""
    return name.startswith(".") or name.lower() in IGNORED


def walk(folder: Path | str) -> Iterator[str]:
    """Yield the path of every file below a folder that is not ignored, by name; a folder that cannot be read is one of them.

    An address such as ``s3://bucket/folder`` gives those of the files in it, or itself where it is a file.
    Links to folders are followed once the folders themselves are read, so that no link takes their images from them; no
    folder is entered twice, and none that contains the first.
    """
    if is_remote(folder):
        with remote_files(str(folder)) as (system, place):
            if str(folder).startswith("http") or system.isfile(place):
                yield str(folder)
                return
            for inside, _, names in system.walk(place, on_error="raise"):
                if not any(map(ignored, PurePosixPath(inside).relative_to(place).parts)):
                    yield from (system.unstrip_protocol(f"{inside}/{name}") for name in names if not ignored(name))
        return
    root, entered = os.path.realpath(folder), set[str]()
    links: list[str] = []

    def below(place: str) -> Iterator[str]:
        real = os.path.realpath(place)
        if real in entered or Path(real) in Path(root).parents:
            return
        entered.add(real)
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError:
            yield place
            return
        for entry in entries:
            if ignored(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from below(entry.path)
            elif entry.is_symlink() and Path(entry.path).is_dir():
                links.append(entry.path)
            else:
                yield entry.path

    yield from below(os.fspath(folder))
    while links:
        yield from below(links.pop(0))


def read_rows(path: str | Path) -> Iterator[NDArray[Any]]:
    """Read the array of a .npy file, feature vectors (N, d) or pixels, a megabyte of rows at a time.

    The file is not mapped into memory: where it is truncated meanwhile, as by a program that saves it again, the system would
    kill this process.

    Raises:
        DataError: there is no such file, it is no array of numbers with two dimensions or more, or it became shorter.
    """
    rows = _map_rows(path)
    size = int(np.prod(rows.shape[1:]))
    step = max(1, 2**20 // (rows.itemsize * size)) if rows.flags.c_contiguous else max(1, len(rows))  # Fortran's order
    with Path(path).open("rb") as file:
        file.seek(rows.offset)
        for start in range(0, len(rows), step):
            count = min(step, len(rows) - start)
            numbers = np.fromfile(file, rows.dtype, count * size)
            if len(numbers) < count * size:
                raise DataError(
                    f"Expected {len(rows)} rows but {path} became shorter while it was read: score it again."
                )
            yield numbers.reshape((count, *rows.shape[1:]), order="C" if rows.flags.c_contiguous else "F")


def _map_rows(path: str | Path) -> "np.memmap[Any, Any]":
    """Return the array of a .npy file with its header checked and nothing of it read."""
    expected = (
        "Expected a .npy file of feature vectors (N, d), or of images, as numpy.save writes an array of numbers, but"
    )
    if Path(path).exists() and not is_regular(Path(path)):
        raise DataError(f"{expected} {path} is no plain file: to read it might never end.")
    try:
        with np.errstate(over="ignore"):  # of the size, where the shape is absurd: the file is too short for it
            rows = np.load(path, mmap_mode="c", allow_pickle=False)
    except Exception as error:  # a damaged header raises many kinds of errors
        reason = str(error).partition(" If you trust")[0][:200]
        raise DataError(f"{expected} {path} cannot be read ({reason}).") from error
    if not isinstance(rows, np.memmap):
        raise DataError(f"{expected} {path} holds an archive of arrays.")
    if rows.ndim < 2 or rows.dtype.kind not in "fiu" or 0 in rows.shape[1:]:  # rows of no bytes may be any number
        raise DataError(
            f"{expected} {path} holds an array of {rows.dtype} of shape {rows.shape}: save x.astype('float32'), a vector as a "
            "row, x.reshape(1, -1)."
        )
    return rows


@contextmanager
def _opened_file(file: str | Path) -> Iterator[IO[bytes]]:
    """Open a file here or, by fsspec, elsewhere, for reading at any place."""
    if is_remote(file):
        with remote_files(str(file)) as (system, place), system.open(place) as remote:
            yield remote
        return
    if Path(file).exists() and not is_regular(Path(file)):
        raise DataError(f"Expected a file but {file} is no plain file: to read it might never end.")
    with Path(file).open("rb") as here:
        yield here


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar or zip archive into a folder; nothing is written anywhere else, and nothing half.

    Only plain files and folders are taken. Files that are there already are replaced once all could be unpacked. Folders
    appear whole; one that was there before holds a file ``HALF`` until all has been added to it.

    Raises:
        DataError: it is damaged or truncated, is too large, or holds links, devices or names that lead elsewhere.
        StorageError: the folder cannot be written to.
    """
    try:
        most = min(MAX_UNPACKED, max(_FREE_BYTES, _MAX_RATIO * archive.stat().st_size))
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as temporary, _naming(archive, "archive"):
            total = 0
            for count, (name, size, file) in enumerate(_members(archive)):
                total += size
                if total > most or count >= MAX_FILES:
                    raise DataError(
                        f"{archive} is refused: unpacked it would be more than {most:,} bytes or {MAX_FILES:,} files."
                    )
                target = Path(temporary) / _safe(name, archive)
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as out:
                    shutil.copyfileobj(file, out, 2**20)
                if target.stat().st_size != size:
                    raise DataError(f"{archive} is truncated or damaged at {name}: get it again.")
            _move(Path(temporary), folder, archive)
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


def read_each(archive: Path | str, max_bytes: int) -> Iterator[tuple[str, bytes | None]]:
    """Yield (name, content) of every plain file of an archive in order, without unpacking it; None where too large.

    Raises:
        DataError: it is damaged, or holds links or devices; the files before that have been given.
    """
    with _naming(archive, "archive"):
        for name, size, file in _members(archive):
            yield name, file.read(max_bytes) if size <= max_bytes else None


def _members(archive: Path | str) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield (name, size, open file) of every plain file, in order."""
    with _opened_file(archive) as opened:
        if str(archive).lower().endswith(".zip"):
            content = zipfile.ZipFile(opened)
            for info in content.infolist():
                if (info.external_attr >> 16) & 0o170000 == 0o120000:
                    raise DataError(f"{archive} is refused: {info.filename} is a link.")
                if not info.is_dir():
                    with content.open(info) as file:
                        yield info.filename, info.file_size, file
            return
        with tarfile.open(fileobj=opened) as pack:
            for member in pack:
                plain = pack.extractfile(member) if member.isfile() else None
                if plain is not None:
                    yield member.name, member.size, plain
                elif not member.isdir():
                    raise DataError(f"{archive} is refused: {member.name} is a link or a device.")
            assert pack.fileobj is not None
            pack.fileobj.seek(pack.offset)
            if pack.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # cut between two files, it has no end
                raise DataError(f"{archive} is truncated: it has no end. Get it again.")


def _safe(name: str, archive: Path) -> PurePosixPath:
    path = PurePosixPath(name)
    drive = name[1:2] == ":" or (os.name == "nt" and ":" in name)  # elsewhere a name may hold the time of day
    if path.is_absolute() or ".." in path.parts or "\\" in name or drive or "\0" in name or not path.parts:
        raise DataError(f"{archive} is refused: the name {name!r} leads out of its folder.")
    return path


@contextmanager
def _naming(file: Path | str, kind: str) -> Iterator[None]:
    """Turn damage that is met while reading into an error that names the file."""
    try:
        yield
    except Exception as error:  # readers raise many kinds; errors of the disk have a number
        if isinstance(error, OffaxisError) or (type(error).__module__ == "builtins" and getattr(error, "errno", None)):
            raise
        reason = " ".join(str(error).split())
        raise DataError(f"{file} is no {kind}, or is damaged or truncated ({reason}): get it again.") from error
