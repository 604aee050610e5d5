"""A folder of image files -> images, decoded at once or when they are read, by several workers."""

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

from offaxis.data.decode import OTHER_SUFFIXES, SUFFIXES, decode, printable
from offaxis.data.images import ImageSet, Skipped, TensorSet
from offaxis.data.transforms import Resize, Shape, check_shape, fit, resize_rule
from offaxis.errors import DataError
from offaxis.progress import count

# files that operating systems leave behind, besides those whose names start with a dot
IGNORED = frozenset({"thumbs.db", "desktop.ini", "__macosx"})


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

    def without(self, skipped: Sequence[Skipped]) -> "Files":
        """Return the same files without these."""
        left_out = {bad.path for bad in skipped}
        kept = [i for i, path in enumerate(self.paths) if printable(path) not in left_out]
        return replace(self.only(kept), skipped=(*self.skipped, *skipped))

    def only(self, indices: Sequence[int]) -> "Files":
        """Return the files at these indices."""
        labels = None if self.labels is None else tuple(self.labels[i] for i in indices)
        return replace(self, paths=tuple(self.paths[i] for i in indices), labels=labels)


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
    present = _present(folder, skip_bad)
    skipped = [
        Skipped(printable(path), "a folder that cannot be read" if path.is_dir() else "not an image file")
        for path in present
        if path.suffix.lower() not in SUFFIXES
    ]
    if skipped and not skip_bad:
        converted = "convert it to JPEG" if Path(skipped[0].path).suffix.lower() in OTHER_SUFFIXES else "remove it"
        raise DataError(
            f"{skipped[0].path} is not an image file that is read here ({', '.join(sorted(SUFFIXES))}), and {folder} may hold "
            f"nothing else (such files: {len(skipped)}): {converted}, or skip bad files (skip_bad=True, --skip-bad)."
        )
    paths = tuple(path for path in present if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise DataError(f"Expected images in {folder} but there are none ({', '.join(sorted(SUFFIXES))}).")
    tops = [path.relative_to(folder).parts for path in paths]
    inside = sorted({parts[0] for parts in tops if len(parts) > 1})
    several = len(inside) > 1 or (bool(inside) and inside[0] in classes)
    if not several or any(len(parts) == 1 for parts in tops):
        return Files(paths=paths, sorted_by_class=bool(inside), skipped=tuple(skipped))
    left_out = {bad.path for bad in skipped}
    empty = _check_class_folders(folder, inside, skip_bad or bool(classes))
    skipped += [bad for bad in empty if bad.path not in left_out]
    names = tuple(classes or inside)
    unknown = [name for name in inside if name not in names]
    if unknown:
        raise DataError(
            f"Expected in {folder} only classes that there are in training ({', '.join(names[:8])}"
            f"{', ...' if len(names) > 8 else ''}) but got {unknown[0]}: take it out, or add it to the training images."
        )
    number = {name: label for label, name in enumerate(names)}
    labels = tuple(number[parts[0]] for parts in tops)
    return Files(paths=paths, labels=labels, classes=names, sorted_by_class=True, skipped=tuple(skipped))


def _present(folder: Path, skip_bad: bool) -> list[Path]:
    """Return the files below a folder in order, and the folders there that cannot be read where bad files are skipped."""
    present = sorted(map(Path, walk(folder)))
    closed = [path for path in present if path.suffix.lower() not in SUFFIXES and path.is_dir()]
    if closed and not skip_bad:
        raise DataError(
            f"{printable(closed[0])} cannot be read: change its permissions, remove it, or skip bad files (skip_bad=True, "
            "--skip-bad)."
        )
    return present


def _check_class_folders(folder: Path, classes: Sequence[str], skip_empty: bool) -> list[Skipped]:
    """Refuse class names that cannot be stored, and class folders without an image unless they are to be listed."""
    for name in classes:
        if printable(name) != name:
            raise DataError(f"Expected class names in UTF-8 but {printable(folder / name)} is not: rename the folder.")
    empty = [
        Skipped(printable(entry), "a class folder without an image")
        for entry in sorted(folder.iterdir())
        if entry.is_dir() and not ignored(entry.name) and entry.name not in classes
    ]
    if empty and not skip_empty:
        raise DataError(
            f"Expected images in every class folder but {empty[0].path} has none: add images, remove the folder, or skip "
            "such (skip_bad=True, --skip-bad)."
        )
    return empty


def find_classes(folder: Path, skip_bad: bool = False) -> tuple[str, ...]:
    """Return the classes that ``find_images`` finds in a folder, whatever else lies there; none where it has no labels.

    Raises:
        DataError: a folder in it cannot be read and ``skip_bad`` is False.
    """
    images = (p.relative_to(folder).parts for p in _present(folder, skip_bad) if p.suffix.lower() in SUFFIXES)
    inside = {parts[0] if len(parts) > 1 else "" for parts in images}
    return () if "" in inside or len(inside) < 2 else tuple(sorted(inside))


def ignored(name: str) -> bool:
    """Tell whether a file or folder of this name is no part of a set."""
    return name.startswith(".") or name.lower() in IGNORED


def has_images(folder: Path) -> bool:
    """Tell whether there is an image file in a folder or in the folders in it, as far as they can be read."""
    return any(Path(path).suffix.lower() in SUFFIXES for path in walk(folder))


def walk(folder: Path | str) -> Iterator[str]:
    """Yield the path of every file below a folder that is not ignored, by name; a folder that cannot be read is one of them.

    Links to folders are followed once the folders themselves are read, so that no link takes their images from them; no
    folder is entered twice, and none that contains the first.
    """
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


MEMORY_LIMIT = 2 * 2**30  # bytes of pixels: larger sets stay in their files


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How each file becomes an image.

    Attributes:
        shape: (channels, height, width) that is given.
        resize: how images come to that size, ``"crop"`` or ``"stretch"``.
        native: (height, width) that every file must have, or None where any will do.
        trim: pixels cut off each side before anything else.
        workers: threads that decode.
    """

    shape: Shape
    resize: Resize = "stretch"
    native: tuple[int, int] | None = None
    trim: int = 0
    workers: int = min(8, os.cpu_count() or 1)

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
        check_shape(reading.shape)
        super().__init__(name, None if files.labels is None else torch.tensor(files.labels), files.classes)
        self.files = files
        self.reading = reading
        self.sorted_by_class = files.sorted_by_class
        self.skipped = files.skipped

    def __len__(self) -> int:
        return len(self.files.paths)

    @property
    def shape(self) -> Shape:
        """(channels, height, width)."""
        return self.reading.shape

    def batch(self, indices: Tensor) -> Tensor:
        """Decode the images at these indices: uint8 (B, c, h, w)."""
        return next(self.stream([indices]))

    def stream(self, indices: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield a batch for each tensor of indices, in order; the next two are decoded while one is used."""
        with ThreadPoolExecutor(self.reading.workers) as pool:
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


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """When files are decoded, and what is done with bad ones.

    Attributes:
        skip_bad: whether files that cannot be read are left out and listed.
        in_memory: all now (True), each when it is read (False), or now if all fit in ``MEMORY_LIMIT`` (None).
        workers: threads; None for one a core, at most 8.
        cache: keep decoded pixels on disk; what is kept already is used in any case, unless ``in_memory`` is False.
    """

    skip_bad: bool = False
    in_memory: bool | None = None
    workers: int | None = None
    cache: bool = False

    def also_skipping_bad(self, skip_bad: bool) -> "Decoding":
        """Return the same, with bad files skipped also where ``skip_bad`` is True."""
        return replace(self, skip_bad=self.skip_bad or skip_bad)


def decoded(
    name: str,
    files: Files,
    shape: Shape,
    decoding: Decoding,
    *,
    resize: str | None = None,
    native: tuple[int, int] | None = None,
    trim: int = 0,
    part: Tensor | None = None,
) -> ImageSet:
    """Make the set of these files, or of a part of them, in memory or lazily.

    Args:
        name: of the set.
        files: the files.
        shape: that is given.
        decoding: when they are decoded, and what is done with bad ones.
        resize: see :class:`Reading`, as for ``native`` and ``trim``.
        native: (height, width) of every file, or None.
        trim: pixels cut off each side.
        part: the indices of the files that are wanted; the others are not decoded.
    """
    reading = Reading(
        shape=shape,
        resize=resize_rule(shape, resize),
        native=native,
        trim=trim,
        workers=decoding.workers or Reading.workers,
    )
    if decoding.in_memory is not False:
        from offaxis.data.pixel_cache import read_cached  # which imports this module

        kept = read_cached(name, files, reading, decoding.skip_bad, decoding.cache)
        if kept is not None:
            return kept if part is None else _kept_part(kept, files, part)
    files = files if part is None else files.only(part.tolist())
    fits = len(files.paths) * int(np.prod(shape)) <= MEMORY_LIMIT
    now = decoding.in_memory or (decoding.in_memory is None and fits)
    return (read_all if now else read_lazily)(name, files, reading, decoding.skip_bad)


def _kept_part(kept: TensorSet, files: Files, part: Tensor) -> ImageSet:
    """Return those images of a part of the files that are among the kept ones, which are the files without bad ones."""
    left_out = {bad.path for bad in kept.skipped}
    good = torch.tensor([printable(path) not in left_out for path in files.paths])
    images = kept.subset((good.cumsum(0) - 1)[part[good[part]]])
    wanted = {printable(files.paths[i]) for i in part[~good[part]].tolist()}
    images.skipped = (*files.skipped, *(bad for bad in kept.skipped if bad.path in wanted))
    return images


def read_all(name: str, files: Files, reading: Reading, skip_bad: bool = False) -> TensorSet:
    """Decode every file now: uint8 (N, c, h, w) in memory.

    Raises:
        DataError: a file is bad and ``skip_bad`` is False, or all are bad.
    """
    images = torch.empty(len(files.paths), *reading.shape, dtype=torch.uint8)
    target, bad = images.numpy(), []
    for row, result in enumerate(attempts(files, reading)):
        if isinstance(result, DataError):
            if not skip_bad:
                raise stopped_by(result)
            bad.append(Skipped(printable(files.paths[row]), str(result)))
        else:
            target[row - len(bad)] = result
    files = some_left(name, files, bad)
    return labelled(name, images[: len(files.paths)], files)


def labelled(name: str, images: Tensor, files: Files) -> TensorSet:
    """Return decoded images as a set, with the labels and the description of their files."""
    labels = None if files.labels is None else torch.tensor(files.labels)
    result = TensorSet(name, images, labels, files.classes)
    result.sorted_by_class, result.skipped = files.sorted_by_class, files.skipped
    return result


def read_lazily(name: str, files: Files, reading: Reading, skip_bad: bool = False) -> FolderSet:
    """Make a set that decodes files when they are read; to skip bad files, every file is tried once now."""
    if skip_bad:
        bad = [
            Skipped(printable(path), str(result))
            for path, result in zip(files.paths, attempts(files, reading), strict=True)
            if isinstance(result, DataError)
        ]
        files = some_left(name, files, bad)
    return FolderSet(name, files, reading)


def attempts(files: Files, reading: Reading) -> Iterator[NDArray[np.uint8] | DataError]:
    """Decode every file, several at a time, in order: its pixels, or what is wrong with it."""

    def attempt(path: Path) -> NDArray[np.uint8] | DataError:
        try:
            return reading.image(path)
        except DataError as error:
            return error

    with ThreadPoolExecutor(reading.workers) as pool:
        try:
            for start in range(0, len(files.paths), 1024):  # a window, so that decoded images do not pile up
                for result in pool.map(attempt, files.paths[start : start + 1024]):
                    count(1, "images read")
                    yield result
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def stopped_by(error: DataError) -> DataError:
    """Return the error of a bad file with the way to go on without it."""
    return DataError(f"{error} To go on without such files and list them: --skip-bad (skip_bad=True).")


def some_left(name: str, files: Files, bad: list[Skipped]) -> Files:
    """Return the files without bad ones; raise DataError where none is left."""
    if len(bad) == len(files.paths):
        raise DataError(f"None of the {len(bad)} files of {name} can be read; the first: {bad[0].reason}")
    return files.without(bad) if bad else files
