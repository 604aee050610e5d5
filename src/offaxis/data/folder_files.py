"""Which image files a set is made of, before any is decoded."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from offaxis.data.decode import SUFFIXES
from offaxis.data.image_set import Skipped
from offaxis.errors import DataError

IGNORED = frozenset(
    {"thumbs.db", "desktop.ini", "__macosx"}
)  # what systems leave behind, beside names with a dot first


@dataclass(frozen=True)
class Files:
    """Image files in order, before any is decoded.

    Attributes:
        paths: the files.
        labels: one a file, or None.
        classes: the names of the labels.
        sorted_by_class: whether files of one kind follow one another.
        skipped: files that are left out already.
    """

    paths: tuple[Path, ...]
    labels: tuple[int, ...] | None = None
    classes: tuple[str, ...] = ()
    sorted_by_class: bool = False
    skipped: tuple[Skipped, ...] = ()

    def without(self, skipped: Sequence[Skipped]) -> "Files":
        """The same files but these."""
        left_out = {bad.path for bad in skipped}
        kept = [i for i, path in enumerate(self.paths) if str(path) not in left_out]
        labels = None if self.labels is None else tuple(self.labels[i] for i in kept)
        paths = tuple(self.paths[i] for i in kept)
        return Files(paths, labels, self.classes, self.sorted_by_class, (*self.skipped, *skipped))


def find_images(folder: Path, skip_bad: bool = False, classes: Sequence[str] = ()) -> Files:
    """All files of a folder and the folders in it, by name; one folder a class gives labels.

    Classes are the folders directly inside, where there are at least two (or one of a known name) and no image lies
    beside them.

    Args:
        folder: where to look.
        skip_bad: leave out files that are no images.
        classes: the names of the labels in their order, where other images have set it; else the folders by name.

    Raises:
        DataError: there is no image, a file is none and ``skip_bad`` is False, or a folder is none of ``classes``.
    """
    found = sorted(_walk(folder))
    skipped = [Skipped(str(path), "not an image file") for path in found if path.suffix.lower() not in SUFFIXES]
    if skipped and not skip_bad:
        raise DataError(
            f"{skipped[0].path} is not an image file, and {folder} may hold nothing else "
            f"(such files: {len(skipped)}): remove it, or ask for bad files to be skipped."
        )
    paths = tuple(path for path in found if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise DataError(f"Expected images in {folder} but there are none ({', '.join(sorted(SUFFIXES))}).")
    tops = [path.relative_to(folder).parts for path in paths]
    inside = sorted({parts[0] for parts in tops if len(parts) > 1})
    several = len(inside) > 1 or (bool(inside) and inside[0] in classes)
    if not several or any(len(parts) == 1 for parts in tops):
        return Files(paths, sorted_by_class=bool(inside), skipped=tuple(skipped))
    known = tuple(classes or inside)
    strange = [name for name in inside if name not in known]
    if strange:
        raise DataError(
            f"Expected in {folder} only classes that there are in training ({', '.join(known[:8])}"
            f"{', ...' if len(known) > 8 else ''}) but got {strange[0]}: take it out, or add it to the training images."
        )
    number = {name: label for label, name in enumerate(known)}
    labels = tuple(number[parts[0]] for parts in tops)
    return Files(paths, labels, known, True, tuple(skipped))


def find_classes(folder: Path) -> tuple[str, ...]:
    """The classes that ``find_images`` finds in a folder, whatever else lies there; none where it finds no labels."""
    images = (path.relative_to(folder).parts for path in _walk(folder) if path.suffix.lower() in SUFFIXES)
    inside = {parts[0] if len(parts) > 1 else "" for parts in images}
    return () if "" in inside or len(inside) < 2 else tuple(sorted(inside))


def ignored(name: str) -> bool:
    """Whether a file or folder of this name is no part of a set."""
    return name.startswith(".") or name.lower() in IGNORED


def _walk(folder: Path) -> Iterator[Path]:
    """Every file below a folder that is not to be ignored; links are followed, but no folder is entered twice."""
    entered = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        here = Path(place)
        if here.resolve() in entered:
            folders.clear()
            continue
        entered.add(here.resolve())
        folders[:] = [name for name in folders if not ignored(name)]
        yield from (here / name for name in names if not ignored(name))
