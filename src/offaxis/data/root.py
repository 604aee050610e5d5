"""Where sets are kept on this machine, and what a name means."""

import difflib
import os
from pathlib import Path

import pooch

from offaxis.data.catalogue import CATALOGUE, Entry
from offaxis.errors import ArgumentError


def data_root(root: Path | str | None = None) -> Path:
    """The folder that holds the sets: what is given, else ``OFFAXIS_DATA``, else the user's cache folder."""
    return Path(root or os.environ.get("OFFAXIS_DATA") or cache_folder()).expanduser()


def cache_folder() -> Path:
    """The user's cache folder for offaxis."""
    return Path(pooch.os_cache("offaxis"))


def known(name: str, catalogue: dict[str, Entry] = CATALOGUE) -> Entry:
    """The entry of a name.

    Raises:
        ArgumentError: there is none; the message has the nearest names.
    """
    try:
        return catalogue[name]
    except KeyError:
        near = difflib.get_close_matches(name, catalogue, 3, 0.5)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ArgumentError(
            f"Expected the name of a set (see: offaxis data list), or a folder or archive of images, but got {name!r}.{hint}"
        ) from None
