"""A name, a folder or an archive -> images."""

import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypedDict

import torch

from offaxis.data import embedded
from offaxis.data.catalogue import CATALOGUE, Entry, Split, cache_folder, check_pair, data_root, known
from offaxis.data.containers import ignored, is_archive, unpack
from offaxis.data.decode import SUFFIXES, printable, size_of
from offaxis.data.embedded import GaussianNoise, UniformNoise
from offaxis.data.folder import Files, Reading, find_classes, find_images, has_images, images_of_files
from offaxis.data.images import ImageSet, TensorSet, drop_copies, held_out_indices, image_hashes
from offaxis.data.publishers import READERS
from offaxis.data.transforms import Shape, match, resize_rule
from offaxis.errors import ArgumentError, DataError, at_least_one

NOISE: dict[str, Callable[..., ImageSet]] = {
    "gaussian": GaussianNoise,
    "gaussian-025": partial(GaussianNoise, std=0.25),
    "uniform": UniformNoise,
}

_SPLIT_FOLDERS: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "test": ("test", "val", "valid", "validation"),
}


def own_path(name: str | Path) -> Path:
    """Return the path that a name may be, with ``~`` for a user's home.

    Raises:
        ArgumentError: it is empty, or there is no such user.
    """
    if not str(name):
        raise ArgumentError("Expected the name of a set or a path but got an empty text: write . for this folder.")
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise ArgumentError(
            f"Expected a path but there is no such user as in {name}: write ./{name} for a folder."
        ) from error


def own_splits(path: Path) -> tuple[Split, ...]:
    """Return the splits that a folder or an archive has folders for; one without such is a test split as a whole."""
    return tuple(_split_folders(_opened(path))) or ("test",)


def own_files(path: Path, split: Split, skip_bad: bool, holdout: float | None) -> tuple[Files, bool]:
    """Return the files of a split, and whether the split is yet to be held out of them.

    Raises:
        ArgumentError: ``holdout`` is given and there is a folder for test images.
        DataError: the split has no folder and is not held out of anything, or a file is bad.
    """
    folder = _opened(path)
    own = _split_folders(folder)
    divided = "test" not in own and holdout is not None
    place = own.get("train", folder) if divided else own.get(split)
    if place is None and (own or split == "train"):
        only = "".join(f", only {folder.name}" for folder in own.values())
        share = (
            ", or give the share to hold out for testing (--holdout 0.2 in the shell, holdout=0.2 in Python)"
            if "test" not in own
            else ""
        )
        raise DataError(
            f"Expected a folder {split} in {path} but there is none{only}: put the images to train on into {path / 'train'} "
            f"and those to test on into {path / 'test'}{share}."
        )
    if holdout is not None and not divided:
        raise ArgumentError(
            f"Expected no share to hold out (--holdout, holdout=) beside {printable(own['test'])}, whose images are the test "
            "images: leave the share out, or move that folder elsewhere."
        )
    classes = find_classes(own["train"], skip_bad) if split == "test" and "train" in own else ()
    return find_images(place or folder, skip_bad, classes), divided


class _Rules(TypedDict):
    """How the images of a folder are read and divided; see :func:`load_images`."""

    resize: str | None
    holdout: float | None
    seed: int
    skip_bad: bool


def _load_own(path: Path, split: Split, shape: Shape | None, in_memory: bool | None, rules: _Rules) -> ImageSet:
    """Read a folder or an archive of images; see :func:`load_images`. Without a shape, all must have one size."""
    holdout, seed, skip_bad = rules["holdout"], rules["seed"], rules["skip_bad"]
    files, divided = own_files(path, split, skip_bad, holdout)
    name = Path(os.path.abspath(path)).name  # noqa: PTH100 - that of "." too, and of a link its own
    native = None
    if shape is None:
        native = _common_size(files, skip_bad)
        shape = (3, *native)
    if divided and holdout is not None:  # of all files, bad ones too: the same split whether they are skipped or not
        labels = torch.tensor(files.labels or [0] * len(files.paths))
        parts = held_out_indices(labels, files.classes or (name,), holdout, seed)
        files = files.only(parts[0 if split == "train" else 1].tolist())
    reading = Reading(shape=shape, resize=resize_rule(shape, rules["resize"]), native=native)
    images = images_of_files(name, files, reading, skip_bad=skip_bad, in_memory=in_memory)
    images.path = printable(path.resolve())
    options: dict[str, Any] = {"size": list(shape[1:]), "resize": reading.resize}
    options |= {"skip_bad": True} if skip_bad else {}
    images.options = options | ({"holdout": holdout, "seed": seed} if divided else {})
    return images


def _is_own(name: str | Path, path: Path) -> bool:
    """Tell whether a name is a folder or an archive of the user's: a text that is a name of the catalogue is not."""
    return path.exists() and (isinstance(name, Path) or name not in CATALOGUE)


def _sizes(files: Files, skip_bad: bool) -> Iterator[tuple[int, int]]:
    """Yield (width, height) of each file by its header, leaving out bad files where they are skipped."""
    for path in files.paths:
        try:
            yield size_of(path)
        except DataError:
            if not skip_bad:
                raise


def has_mixed_sizes(path: Path, split: Split, skip_bad: bool = False) -> bool:
    """Tell whether the files of a folder or an archive have different sizes, by their headers."""
    sizes = _sizes(own_files(path, split, skip_bad, None)[0], skip_bad)
    first = next(sizes, None)
    return any(size != first for size in sizes)


def _common_size(files: Files, skip_bad: bool) -> tuple[int, int]:
    """Return (height, width) of the first image, or, where bad files are skipped, that of most images."""
    sizes = _sizes(files, skip_bad)
    most = Counter(sizes).most_common(1) if skip_bad else [(next(sizes), 1)]
    if not most:
        raise DataError(f"None of the {len(files.paths)} files can be read; the first is {files.paths[0]}.")
    width, height = most[0][0]
    return height, width


def own_classes(
    name: str | Path, split: Split = "train", *, skip_bad: bool = False, holdout: float | None = None
) -> tuple[str, ...] | None:
    """Return the classes of a folder or an archive, no image decoded; None for a set of the catalogue.

    Raises:
        DataError: it has no folder for each class, of at least two.
    """
    path = own_path(name)
    if not _is_own(name, path):
        return None
    found = own_files(path, split, skip_bad, holdout)[0]
    if not found.classes:
        folder = _opened(path)
        place = _split_folders(folder).get(split, folder)
        loose = next((file for file in found.paths if file.parent == place), None)
        raise DataError(
            f"Expected {'at least two classes to train on' if split == 'train' else 'the classes of the test images'}, each a "
            f"folder of images, but {printable(place)} has "
            f"{'one alone' if loose is None else f'images beside the folders ({printable(loose)})'}: sort the images into a "
            "folder for each class."
        )
    return found.classes


def _split_folders(folder: Path) -> dict[Split, Path]:
    """Return the folder of each split that has one; Train is as good as train.

    Raises:
        DataError: the folder cannot be read, or it may be that its train, test or valid is a class.
    """
    try:
        entries = sorted(entry for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
        present = {entry.name.lower(): entry for entry in entries}  # of Train and train the latter
        places = {
            split: next((present[name] for name in names if name in present), None)
            for split, names in _SPLIT_FOLDERS.items()
        }
        found = {split: place for split, place in places.items() if place is not None}
        if len(found) == 1:
            known_names = {name for names in _SPLIT_FOLDERS.values() for name in names}
            others = [entry for entry in entries if entry.name.lower() not in known_names and not ignored(entry.name)]
            _check_no_class(folder, next(iter(found.values())), others)
    except OSError as error:
        place = printable(error.filename or folder)
        raise DataError(f"{place} cannot be read ({error.strerror}): change its permissions.") from error
    return found


def _check_no_class(folder: Path, split: Path, others: list[Path]) -> None:
    """Refuse a folder with the name of a split that may be a class: images lie in it, and in other folders beside it.

    Beside a folder for the other split, or with folders in it, it is a split whatever lies there too.
    """
    if not others or not any(entry.suffix.lower() in SUFFIXES for entry in split.iterdir()):
        return
    classes = [printable(entry.name) for entry in others if has_images(entry)]
    if classes:
        more = f" and {len(classes) - 3} more" if len(classes) > 3 else ""
        raise DataError(
            f"Expected in {printable(folder)} the folders train and test, or a folder for each class, but got {split.name}, "
            f"which is the name of a split, beside {', '.join(classes[:3])}{more}: if it is a class, rename it, or move all of "
            f"them into {printable(folder / 'train')}; if it is a split, move the others elsewhere."
        )


def _opened(path: Path) -> Path:
    """Return the folder itself, or that into which an archive was unpacked, once for each of its versions."""
    if not path.is_file():
        return path
    if not is_archive(path):
        raise DataError(f"Expected a folder or an archive of images but {path} is neither.")
    state = path.stat()
    version = hashlib.sha256(f"{path.resolve()} {state.st_size} {state.st_mtime_ns}".encode()).hexdigest()[:16]
    folder = cache_folder() / "unpacked" / f"{path.name.split('.')[0]}-{version}"
    if not (folder / ".whole").exists():
        unpack(path, folder)
        (folder / ".whole").touch()
    while not _split_folders(folder):
        inside = [entry for entry in folder.iterdir() if not ignored(entry.name)]
        if len(inside) != 1 or not inside[0].is_dir():
            break
        folder = inside[0]
    return folder


def load_images(
    name: str | Path,
    split: Split = "test",
    *,
    root: Path | str | None = None,
    like: ImageSet | Shape | None = None,
    size: int | Sequence[int] | None = None,
    resize: str | None = None,
    seed: int = 0,
    count: int | None = None,
    skip_bad: bool = False,
    holdout: float | None = None,
    in_memory: bool | None = None,
    drop_duplicates: bool = False,
) -> ImageSet:
    """Read a set of the catalogue, or a folder or archive of images.

    Args:
        name: in the catalogue; or a path. A folder per class is a labelled set. Folders ``train`` and ``test`` inside
            are its splits; where there are none, the whole folder is the test split. Where there is no ``test``,
            ``holdout`` makes two of the whole folder, or of ``train``.
        split: "train" or "test".
        root: where the catalogue's sets are kept; else ``OFFAXIS_DATA``, else the user's cache folder.
        like: the ID set, or its shape. Size and colour are matched to it (see :mod:`offaxis.data.transforms`), and beside an
            ID set a pair that makes no sense is refused. Framed crops stay 36x36 beside an ID set of 32x32.
        size: height and width, where neither ``like`` nor the set itself says it.
        resize: how images come to another size: ``"crop"`` (short side to the size, centre crop) or ``"stretch"``; by
            default crop for sizes above 64 pixels.
        seed: of noise, of crops and of ``holdout``.
        count: how many images, for sets that are generated.
        skip_bad: leave out files that are damaged or no images; they are listed in ``skipped``.
        holdout: the share of a folder that is its test split, where it has no folder for that.
        in_memory: True to decode all files now, False to decode them when they are read; by default now if they fit in
            2 GiB.
        drop_duplicates: leave images out of the test split of a folder that are, pixel for pixel, among its training images;
            they are listed in ``skipped``.

    Returns:
        The images: uint8 (N, c, h, w), or float32 in [0, 1] for noise.

    Raises:
        ArgumentError: there is no such set, the size is below 1, or ``holdout`` is given where there are test images already.
        DataError: it is not on this machine, or a file is bad; the message says which and what to do.
    """
    if split not in ("train", "test"):
        raise ArgumentError(f"Expected split to be 'train' or 'test' but got {split!r}.")
    path = own_path(name)
    size = None if size is None else _pixels(size)
    if count is not None:
        at_least_one("count", count)
    shape = _requested_shape(like.shape if isinstance(like, ImageSet) else like, size)
    if _is_own(name, path):
        rules = _Rules(resize=resize, holdout=holdout, seed=seed, skip_bad=skip_bad)
        images = _load_own(path, split, shape, in_memory, rules)
        if drop_duplicates:
            images.options = {**images.options, "drop_duplicates": True}
            training = (
                load_images(path, "train", size=images.shape[1:], in_memory=False, **rules) if split == "test" else None
            )
            images = images if training is None else drop_copies(images, image_hashes(training))
        return images
    entry, place = known(str(name)), data_root(root)
    if path.is_dir() and path.resolve().parent != place.resolve() and has_images(path):
        warnings.warn(
            f"{name} is taken for the set of the catalogue, not for the folder of that name: write ./{name} for the folder.",
            stacklevel=2,
        )
    if holdout is not None:
        raise ArgumentError(
            f"Expected no share to hold out (--holdout, holdout=) beside {entry.name}, whose test images are known: leave "
            "the share out."
        )
    if split not in entry.counts:
        raise DataError(f"{entry.title} has no {split} split: it has {' and '.join(entry.counts)}.")
    if isinstance(like, ImageSet):
        check_pair(like.name, entry.name)
    shape = entry.shape if shape is None else shape
    if size is None and entry.framed and shape[1:] == (32, 32):
        shape = (shape[0], *entry.shape[1:])
    elif size is not None and like is None:
        shape = (entry.shape[0], *shape[1:])
    content = _read_published(entry, split, place) if entry.layouts else _generate(entry, split, shape, count, seed)
    if isinstance(content, Files):
        reading = Reading(shape=shape, resize=resize_rule(shape, resize), native=entry.native_size, trim=entry.trim)
        images = images_of_files(entry.name, content, reading, skip_bad=skip_bad or entry.skip_bad, in_memory=in_memory)
    else:
        content.name = entry.name
        images = match(content, shape, resize)
        if in_memory is not False and images is not content:  # else a few are shown: those alone are resized
            images = _read_all(images)
    given = {"size": list(size) if isinstance(size, tuple) else size, "resize": resize}
    images.options = {key: value for key, value in given.items() if value is not None}
    return images


def _read_published(entry: Entry, split: Split, root: Path) -> TensorSet | Files:
    """Read a set of the catalogue from its publisher's files, or list them."""
    location = entry.find(root, split)
    if location is not None:
        layout, paths = location
        return READERS[layout.reader](paths, **layout.arguments)
    layout = next(layout for layout in entry.layouts if split in layout.files)
    places = " or ".join(str(root / folder) for folder in layout.folders[:2])
    fetched = any(download.urls for download in entry.downloads)
    advice = (
        f"run: offaxis data get {entry.name}" if fetched else f"it is at {entry.homepage} (no program can fetch it)"
    )
    raise DataError(
        f"{entry.title} ({split}) is not on this machine. To get it, {advice}\n"
        f"Or put its files into {places} as its publisher lays them out, or name another root: --data or OFFAXIS_DATA."
    )


def _pixels(size: int | Sequence[int]) -> int | tuple[int, int]:
    """Return a size as plain numbers, one or (height, width), or raise ArgumentError."""
    given: Any = size
    pair = isinstance(given, list | tuple) and len(given) == 2
    try:
        numbers = [at_least_one("size", number) for number in (given if pair else [given])]
    except ArgumentError:
        raise ArgumentError(
            f"Expected a size of at least 1 pixel, or a height and a width, but got {size!r}."
        ) from None
    return (numbers[0], numbers[1]) if pair else numbers[0]


def _requested_shape(like: Shape | None, size: int | tuple[int, int] | None) -> Shape | None:
    """Return the shape of the ID set, with the size that is given; colour where there is no ID set."""
    if size is None:
        return like
    return (3 if like is None else like[0], *((size, size) if isinstance(size, int) else size))


def _generate(entry: Entry, split: Split, shape: Shape, count: int | None, seed: int) -> ImageSet:
    number, (channels, height, width) = count or entry.counts[split], shape
    if entry.name in NOISE:
        return NOISE[entry.name](number, shape, seed=seed)
    if entry.name in embedded.EMBEDDED_OOD:
        return embedded.EMBEDDED_OOD[entry.name](number, max(height, width), channels, seed)
    return embedded.digits(split) if entry.name == "digits" else embedded.small_digits(split)


def _read_all(images: ImageSet) -> TensorSet:
    """Read all images now, a window at a time, so that no second copy of all is made."""
    windows = torch.arange(len(images)).split(1024)
    parts = images.stream(windows)
    first = next(parts)
    pixels = torch.empty(len(images), *images.shape, dtype=first.dtype)
    for rows, part in zip(windows, chain([first], parts), strict=True):
        pixels[rows] = part
    return TensorSet(images.name, pixels, images.labels, images.classes)
