"""A folder of image files -> images, decoded at once or when they are read, by several threads."""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offaxis.data.containers import ignored, walk
from offaxis.data.decode import SUFFIXES, decode, other_format, printable
from offaxis.data.images import ImageSet, Skipped, TensorSet
from offaxis.data.transforms import Resize, Shape, check_shape, fit
from offaxis.errors import DataError
from offaxis.progress import count


@dataclass(frozen=True, kw_only=True)
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

    def only(self, indices: Sequence[int], skipped: Sequence[Skipped] = ()) -> "Files":
        """Return the files at these indices, with more that are left out."""
        paths = tuple(self.paths[i] for i in indices)
        labels = None if self.labels is None else tuple(self.labels[i] for i in indices)
        return replace(self, paths=paths, labels=labels, skipped=(*self.skipped, *skipped))


def find_images(folder: Path, skip_bad: bool = False, classes: Sequence[str] = ()) -> Files:
    """List all images of a folder and the folders in it, by name; one folder a class gives labels.

    Classes are the folders directly inside, where there are at least two (or one of a known name) and no image lies
    beside them.

    Args:
        folder: where to look.
        skip_bad: leave out files that are no images.
        classes: the names of the labels in their order, where other images have set it; else the folders by name.

    Raises:
        DataError: there is no image, a file is none or a folder cannot be read and ``skip_bad`` is False, or a class folder
            is none of ``classes``, is empty or has a name that is not UTF-8.
    """
    images, others = _list_files(folder, skip_bad)
    skipped = [
        Skipped(printable(path), "a folder that cannot be read" if path.is_dir() else "not an image file")
        for path in others
    ]
    if others and not skip_bad:
        converted = other_format(others[0].suffix.lower()) or "remove it"
        raise DataError(
            f"{skipped[0].path} is not an image file that is read here ({', '.join(sorted(SUFFIXES))}), and {folder} may hold "
            f"nothing else (such files: {len(skipped)}): {converted}, or skip bad files (skip_bad=True, --skip-bad)."
        )
    if not images:
        raise DataError(f"Expected images in {folder} but there are none ({', '.join(sorted(SUFFIXES))}).")
    tops = [path.relative_to(folder).parts for path in images]
    inside = sorted({parts[0] for parts in tops if len(parts) > 1})
    several = len(inside) > 1 or (bool(inside) and inside[0] in classes)
    if not several or any(len(parts) == 1 for parts in tops):
        return Files(paths=tuple(images), sorted_by_class=bool(inside), skipped=tuple(skipped))
    for name in inside:
        if printable(name) != name:
            raise DataError(f"Expected class names in UTF-8 but {printable(folder / name)} is not: rename the folder.")
    listed = {bad.path for bad in skipped}
    empty = [
        printable(entry)
        for entry in sorted(folder.iterdir())
        if entry.is_dir() and not ignored(entry.name) and entry.name not in inside and printable(entry) not in listed
    ]
    if empty and not (skip_bad or classes):
        raise DataError(
            f"Expected images in every class folder but {empty[0]} has none: add images, remove the folder, or skip such "
            "(skip_bad=True, --skip-bad)."
        )
    skipped += [Skipped(path, "a class folder without an image") for path in empty]
    names = tuple(classes or inside)
    unknown = [name for name in inside if name not in names]
    if unknown:
        some = f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
        raise DataError(
            f"Expected in {folder} only classes that there are in training ({some}) but got {unknown[0]}: take it out, or add "
            "it to the training images."
        )
    number = {name: label for label, name in enumerate(names)}
    labels = tuple(number[parts[0]] for parts in tops)
    return Files(paths=tuple(images), labels=labels, classes=names, sorted_by_class=True, skipped=tuple(skipped))


def _list_files(folder: Path, skip_bad: bool) -> tuple[list[Path], list[Path]]:
    """List the image files below a folder, and what else is there, folders that cannot be read among it, in order."""
    present = sorted(map(Path, walk(folder)))
    others = [path for path in present if path.suffix.lower() not in SUFFIXES]
    closed = [] if skip_bad else [path for path in others if path.is_dir()]
    if closed:
        raise DataError(
            f"{printable(closed[0])} cannot be read: change its permissions, or skip bad files (skip_bad=True, --skip-bad)."
        )
    return [path for path in present if path.suffix.lower() in SUFFIXES], others


def find_classes(folder: Path, skip_bad: bool = False) -> tuple[str, ...]:
    """Return the classes that ``find_images`` finds in a folder, whatever else lies there; none where it has no labels.

    Raises:
        DataError: a folder in it cannot be read and ``skip_bad`` is False.
    """
    tops = (path.relative_to(folder).parts for path in _list_files(folder, skip_bad)[0])
    inside = {parts[0] if len(parts) > 1 else "" for parts in tops}
    return () if "" in inside or len(inside) < 2 else tuple(sorted(inside))


def has_images(folder: Path) -> bool:
    """Tell whether there is an image file in a folder or in the folders in it, as far as they can be read."""
    return any(Path(path).suffix.lower() in SUFFIXES for path in walk(folder))


MEMORY_LIMIT = 2 * 2**30  # bytes of pixels: larger sets stay in their files
_THREADS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How each file becomes an image.

    Attributes:
        shape: (channels, height, width) that is given.
        resize: how images come to that size, ``"crop"`` or ``"stretch"``.
        native: (height, width) that every file must have, or None where any will do.
        trim: pixels cut off each side before anything else.
    """

    shape: Shape
    resize: Resize = "stretch"
    native: tuple[int, int] | None = None
    trim: int = 0

    def __post_init__(self) -> None:
        check_shape(self.shape)

    def image(self, path: Path) -> NDArray[np.uint8]:
        """Decode a file and match it to the shape: uint8 (c, h, w).

        Raises:
            DataError: the file is damaged, is no image or has another size than it must have; it is named.
        """
        image = decode(path)
        width, height = image.size
        if self.native is not None and (height, width) != self.native:
            raise DataError(
                f"Expected images of one size, {self.native[1]}x{self.native[0]} as the first, but {printable(path)} is "
                f"{width}x{height}: give the size that all images shall have (--size 224 in the shell, size=224 in Python), "
                "or remove it."
            )
        if self.trim:
            image = image.crop((self.trim, self.trim, width - self.trim, height - self.trim))
        return fit(image, self.shape, self.resize)


class FolderSet(ImageSet):
    """Images that stay in their files until they are read."""

    def __init__(self, name: str, files: Files, reading: Reading) -> None:
        labels = None if files.labels is None else torch.tensor(files.labels)
        super().__init__(name, reading.shape, labels, files.classes)
        self.files = files
        self.reading = reading
        self.sorted_by_class = files.sorted_by_class
        self.paths, self.skipped = files.paths, files.skipped

    def __len__(self) -> int:
        return len(self.files.paths)

    def batch(self, indices: Tensor) -> Tensor:
        """Decode the images at these indices: uint8 (B, c, h, w)."""
        return next(self.stream([indices]))

    def stream(self, indices: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield a batch for each tensor of indices, in order; the next two are decoded while one is used."""
        with ThreadPoolExecutor(_THREADS) as pool:
            waiting: deque[list[Future[NDArray[np.uint8]]]] = deque()
            try:
                for chosen in indices:
                    numbers = torch.arange(len(self))[chosen].tolist()
                    waiting.append([pool.submit(self.reading.image, self.files.paths[i]) for i in numbers])
                    if len(waiting) > 2:
                        yield self._gather(waiting.popleft())
                while waiting:
                    yield self._gather(waiting.popleft())
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _gather(self, images: list[Future[NDArray[np.uint8]]]) -> Tensor:
        batch = torch.empty(len(images), *self.shape, dtype=torch.uint8)
        target = batch.numpy()
        for row, image in enumerate(images):
            target[row] = image.result()
        return batch


def images_of_files(
    name: str, files: Files, reading: Reading, *, skip_bad: bool = False, in_memory: bool | None = None
) -> ImageSet:
    """Make the set of these files.

    Args:
        name: of the set.
        files: the files.
        reading: how each becomes an image.
        skip_bad: leave out files that cannot be read, and list them: every file is tried once now.
        in_memory: decode all now (True), each when it is read (False), or now if all fit in ``MEMORY_LIMIT`` (None).

    Raises:
        DataError: a file that is decoded now is bad and ``skip_bad`` is False, or all are bad.
    """
    size = int(np.prod(reading.shape))
    now = in_memory or (in_memory is None and len(files.paths) * size <= MEMORY_LIMIT)
    if not (now or skip_bad):
        return FolderSet(name, files, reading)
    images = torch.empty(len(files.paths) if now else 0, *reading.shape, dtype=torch.uint8)
    target, kept, bad = images.numpy(), list[int](), list[Skipped]()
    for row, result in enumerate(_attempts(files.paths, reading)):
        if isinstance(result, DataError):
            if not skip_bad:
                raise DataError(f"{result} To go on without such files and list them: --skip-bad (skip_bad=True).")
            bad.append(Skipped(printable(files.paths[row]), str(result)))
        else:
            if now:
                target[len(kept)] = result
            kept.append(row)
    if not kept:
        raise DataError(f"None of the {len(bad)} files of {name} can be read; the first: {bad[0].reason}")
    lazy = FolderSet(name, files.only(kept, bad) if bad else files, reading)
    if not now:
        return lazy
    loaded = TensorSet(name, images[: len(kept)], lazy.labels, lazy.classes)
    loaded.describe_like(lazy)
    return loaded


def _attempts(paths: Sequence[Path], reading: Reading) -> Iterator[NDArray[np.uint8] | DataError]:
    """Decode every file, several at a time, in order: its pixels, or what is wrong with it."""

    def attempt(path: Path) -> NDArray[np.uint8] | DataError:
        try:
            return reading.image(path)
        except DataError as error:
            return error

    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            for start in range(0, len(paths), 1024):  # a window, so that decoded images do not pile up
                for result in pool.map(attempt, paths[start : start + 1024]):
                    count(1, "images read")
                    yield result
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
