"""A name, a folder or an archive -> images."""

import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from offaxis.data import embedded
from offaxis.data.archive import is_archive, unpack
from offaxis.data.catalogue import CATALOGUE, Entry, Split, cache_folder, check_pair, data_root, known
from offaxis.data.decode import SUFFIXES, printable, size_of
from offaxis.data.embedded import GaussianNoise, UniformNoise
from offaxis.data.folder import Decoding, Files, decoded, find_classes, find_images, has_images, ignored
from offaxis.data.images import ImageSet, TensorSet
from offaxis.data.publishers import (
    read_cifar10_binary,
    read_cifar10_pickled,
    read_cifar100_binary,
    read_cifar100_pickled,
    read_food101,
    read_gtsrb_test,
    read_gtsrb_training,
    read_idx_pair,
    read_images,
    read_parent_folder,
    read_stl10,
    read_svhn,
)
from offaxis.data.splits import held_out_indices
from offaxis.data.transforms import Shape, check_shape, fit_batch, match, resize_rule
from offaxis.errors import ArgumentError, DataError, at_least_one

# (files, further arguments) -> images in memory, or the list of image files; nothing in a file is ever executed.
# A file that is not what it should be is named in a DataError.
READERS: dict[str, Callable[..., TensorSet | Files]] = {
    "cifar10-binary": read_cifar10_binary,
    "cifar10-pickled": read_cifar10_pickled,
    "cifar100-binary": read_cifar100_binary,
    "cifar100-pickled": read_cifar100_pickled,
    "folder": read_images,
    "food101": read_food101,
    "gtsrb-test": read_gtsrb_test,
    "gtsrb-training": read_gtsrb_training,
    "idx": read_idx_pair,
    "parent-folder": read_parent_folder,
    "stl10": read_stl10,
    "svhn": read_svhn,
}
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


def load_own(
    path: Path,
    split: Split,
    shape: Shape | None,
    decoding: Decoding,
    *,
    resize: str | None = None,
    holdout: float | None = None,
    seed: int = 0,
) -> ImageSet:
    """Read a folder or an archive of images; see :func:`load_images`.

    Args:
        path: the folder or the archive.
        split: the folder inside that is taken, where there are such.
        shape: what all are matched to; None where they have one size, which is then kept.
        decoding: when they are decoded, and what is done with bad ones.
        resize: how they come to the shape: ``"crop"`` or ``"stretch"``; None for the default of that size.
        holdout: the share that is the test split, where there is no folder for it.
        seed: of the shuffle that chooses it.

    Raises:
        ArgumentError: ``holdout`` is given and there is a folder for test images.
        DataError: the split has no folder and is not held out of anything, or a file is bad.
    """
    files, divided = own_files(path, split, decoding.skip_bad, holdout)
    name = Path(os.path.abspath(path)).name  # noqa: PTH100 - that of "." too, and of a link its own
    native = None
    if shape is None:
        native = _common_size(files, decoding.skip_bad)
        shape = (3, *native)
    place, part = 0 if split == "train" else 1, None
    if divided and holdout is not None:  # of all files, bad ones too: the same split whether they are skipped or not
        labels = torch.tensor(files.labels or [0] * len(files.paths))
        part = held_out_indices(labels, files.classes or (name,), holdout, seed)[place]
    images = decoded(name, files, shape, decoding, resize=resize, native=native, part=part)
    options: dict[str, Any] = {"size": list(shape[1:]), "resize": resize_rule(shape, resize)}
    options |= {"skip_bad": True} if decoding.skip_bad else {}
    options |= {"holdout": holdout, "seed": seed} if divided else {}
    images.path = printable(path.resolve())
    images.options = options
    return images


def own_files(path: Path, split: Split, skip_bad: bool, holdout: float | None) -> tuple[Files, bool]:
    """Return the files of a split, and whether the split is yet to be held out of them."""
    folder = _opened(path)
    own = _split_folders(folder)
    divided = "test" not in own and holdout is not None
    place = own.get("train", folder) if divided else own.get(split)
    if place is None:
        if own or split == "train":
            raise DataError(_no_split(path, split, own))
        place = folder
    if holdout is not None and not divided:
        raise ArgumentError(
            f"Expected no share to hold out (--holdout, holdout=) beside {printable(own['test'])}, whose images are the test "
            "images: leave the share out, or move that folder elsewhere."
        )
    classes = find_classes(own["train"], skip_bad) if split == "test" and "train" in own else ()
    return find_images(place, skip_bad, classes), divided


def _is_own(name: str | Path, path: Path) -> bool:
    """Tell whether a name is a folder or an archive of the user's: a text that is a name of the catalogue is not."""
    return path.exists() and (isinstance(name, Path) or name not in CATALOGUE)


def has_mixed_sizes(path: Path, split: Split, skip_bad: bool = False) -> bool:
    """Tell whether the files of a folder or an archive have different sizes, by their headers."""
    sizes = set()
    for file in own_files(path, split, skip_bad, None)[0].paths:
        try:
            sizes.add(size_of(file))
        except DataError:
            if not skip_bad:
                raise
        if len(sizes) > 1:
            return True
    return False


def own_classes(name: str | Path, *, skip_bad: bool = False, holdout: float | None = None) -> tuple[str, ...] | None:
    """Return the classes to train on of a folder or an archive, no image decoded; None for a set of the catalogue.

    Raises:
        DataError: there are fewer than two.
    """
    path = own_path(name)
    if not _is_own(name, path):
        return None
    found = own_files(path, "train", skip_bad, holdout)[0]
    if not found.classes:
        raise DataError(f"Expected at least two classes to train on, {_unsorted(path, 'train', found)}.")
    return found.classes


def check_classes(name: str | Path, images: ImageSet, *, skip_bad: bool = False, holdout: float | None = None) -> None:
    """Refuse test images of a folder or an archive that have no classes.

    Raises:
        DataError: they have none.
    """
    path = own_path(name)
    if images.labels is None and _is_own(name, path):
        found = own_files(path, "test", skip_bad, holdout)[0]
        raise DataError(f"Expected the classes of the test images, {_unsorted(path, 'test', found)}.")


def _unsorted(path: Path, split: Split, found: Files) -> str:
    folder = _opened(path)
    place = _split_folders(folder).get(split, folder)
    loose = next((file for file in found.paths if file.parent == place), None)
    return (
        f"each a folder of images, but {printable(place)} has "
        f"{'one alone' if loose is None else f'images beside the folders ({printable(loose)})'}: sort the images into a "
        "folder for each class"
    )


def _split_folders(folder: Path) -> dict[Split, Path]:
    """Return the folder of each split that has one; Train is as good as train.

    Raises:
        DataError: the folder cannot be read, or it may be that its train, test or valid is a class.
    """
    try:
        return _present_splits(folder)
    except OSError as error:
        place = printable(error.filename or folder)
        raise DataError(f"{place} cannot be read ({error.strerror}): change its permissions.") from error


def _present_splits(folder: Path) -> dict[Split, Path]:
    known = {name for names in _SPLIT_FOLDERS.values() for name in names}
    entries = sorted(folder.iterdir()) if folder.is_dir() else []  # of Train and train the latter
    present = {entry.name.lower(): entry for entry in entries if entry.name.lower() in known and entry.is_dir()}
    folders_of = {
        split: [present[name] for name in names if name in present] for split, names in _SPLIT_FOLDERS.items()
    }
    found = {split: folders[0] for split, folders in folders_of.items() if folders}
    if len(found) == 1:
        others = [entry for entry in entries if entry.name.lower() not in known and not ignored(entry.name)]
        _check_no_class(folder, next(iter(found.values())), [entry for entry in others if entry.is_dir()])
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


def _no_split(path: Path, split: Split, own: dict[Split, Path]) -> str:
    only = "".join(f", only {folder.name}" for folder in own.values())
    share = (
        ""
        if "test" in own
        else ", or give the share to hold out for testing (--holdout 0.2 in the shell, holdout=0.2 in Python)"
    )
    return (
        f"Expected a folder {split} in {path} but there is none{only}: put the images to train on into {path / 'train'} and "
        f"those to test on into {path / 'test'}{share}."
    )


def _common_size(files: Files, skip_bad: bool) -> tuple[int, int]:
    """Return (height, width) of the first image, or, where bad files are skipped, that of most images."""
    if not skip_bad:
        width, height = size_of(files.paths[0])
        return height, width
    sizes: Counter[tuple[int, int]] = Counter()
    for path in files.paths:
        with suppress(DataError):
            sizes[size_of(path)] += 1
    if not sizes:
        raise DataError(f"None of the {len(files.paths)} files can be read; the first is {files.paths[0]}.")
    width, height = sizes.most_common(1)[0][0]
    return height, width


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
    like: ImageSet | None = None,
    size: int | Sequence[int] | None = None,
    resize: str | None = None,
    seed: int = 0,
    count: int | None = None,
    skip_bad: bool = False,
    holdout: float | None = None,
    in_memory: bool | None = None,
    workers: int | None = None,
    cache: bool = False,
    force: bool = False,
) -> ImageSet:
    """Read a set of the catalogue, or a folder or archive of images.

    Args:
        name: in the catalogue; or a path. A folder per class is a labelled set. Folders ``train`` and ``test`` inside
            are its splits; where there are none, the whole folder is the test split. Where there is no ``test``,
            ``holdout`` makes two of the whole folder, or of ``train``.
        split: "train" or "test".
        root: where the catalogue's sets are kept; else ``OFFAXIS_DATA``, else the user's cache folder.
        like: the ID set. Size and colour are matched to it (see :mod:`offaxis.data.transforms`), and a pair that makes
            no sense is refused. Framed crops stay 36x36 beside an ID set of 32x32.
        size: height and width, where neither ``like`` nor the set itself says it.
        resize: how images come to another size: ``"crop"`` (short side to the size, centre crop) or ``"stretch"``; by
            default crop for sizes above 64 pixels.
        seed: of noise, of crops and of ``holdout``.
        count: how many images, for sets that are generated.
        skip_bad: leave out files that are damaged or no images; they are listed in ``skipped``.
        holdout: the share of a folder that is its test split, where it has no folder for that.
        in_memory: True to decode all files now, False to decode them when they are read; by default now if they fit in
            2 GiB.
        workers: threads that decode.
        cache: keep the decoded pixels on disk, memory-mapped, so that they are decoded once (``offaxis data clean``).
        force: accept a pair that is refused.

    Returns:
        The images: uint8 (N, c, h, w), or float32 in [0, 1] for noise.

    Raises:
        ArgumentError: there is no such set, the size is below 1, or ``holdout`` is given where there are test images already.
        DataError: it is not on this machine, or a file is bad; the message says which and what to do.
    """
    if split not in ("train", "test"):
        raise ArgumentError(f"Expected split to be 'train' or 'test' but got {split!r}.")
    path = own_path(name)
    if count is not None:
        at_least_one("count", count)
    if workers is not None:
        at_least_one("workers", workers)
    size = None if size is None else _pixels(size)
    decoding = Decoding(skip_bad=skip_bad, in_memory=in_memory, workers=workers, cache=cache)
    if _is_own(name, path):
        shape = _requested_shape(like, size)
        return load_own(path, split, shape, decoding, resize=resize, holdout=holdout, seed=seed)
    entry = known(str(name))
    if path.is_dir() and path.resolve().parent != data_root(root).resolve() and has_images(path):
        warnings.warn(
            f"{name} is taken for the set of the catalogue, not for the folder of that name: write ./{name} for the folder.",
            stacklevel=2,
        )
    if holdout is not None:
        raise ArgumentError(
            f"Expected no share to hold out (--holdout, holdout=) beside {entry.name}, whose test images are known: "
            "leave the share out."
        )
    if split not in entry.counts:
        raise DataError(f"{entry.title} has no {split} split: it has {' and '.join(entry.counts)}.")
    if like is not None:
        check_pair(like.name, entry.name, force)
    shape = _shape(entry, like, size)
    images = _load_entry(entry, split, shape, decoding, root=root, resize=resize, count=count, seed=seed)
    given = {"size": size if size is None or isinstance(size, int) else list(size), "resize": resize}
    images.options = {key: value for key, value in given.items() if value is not None}
    return images


def _load_entry(
    entry: Entry,
    split: Split,
    shape: Shape,
    decoding: Decoding,
    *,
    root: Path | str | None,
    resize: str | None,
    count: int | None,
    seed: int,
) -> ImageSet:
    """Read or generate a set of the catalogue, matched to a shape."""
    if not entry.layouts:
        return _generate(entry, split, shape, resize, count, seed)
    location = entry.find(data_root(root), split)
    if location is None:
        raise DataError(_missing(entry, split, data_root(root)))
    layout, paths = location
    content = READERS[layout.reader](paths, **layout.arguments)
    if isinstance(content, TensorSet):
        content.name = entry.name
        if decoding.in_memory is False:  # a few images of it are shown: resize those alone
            return match(content, shape, resize)
        return _in_memory(content, shape, resize)
    decoding = decoding.also_skipping_bad(entry.skip_bad)
    return decoded(entry.name, content, shape, decoding, resize=resize, native=entry.native_size, trim=entry.trim)


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


def _requested_shape(like: ImageSet | None, size: int | Sequence[int] | None) -> Shape | None:
    shape = None if like is None else like.shape
    if size is not None:
        height, width = (size, size) if isinstance(size, int) else size
        shape = (3 if like is None else like.shape[0], height, width)
    if shape is not None:
        check_shape(shape)
    return shape


def _shape(entry: Entry, like: ImageSet | None, size: int | Sequence[int] | None) -> Shape:
    requested = _requested_shape(like, size)
    if requested is None:
        return entry.shape
    if size is None and entry.framed and requested[1:] == (32, 32):
        return (requested[0], *entry.shape[1:])
    return requested if like is not None else (entry.shape[0], *requested[1:])


def _generate(entry: Entry, split: Split, shape: Shape, resize: str | None, count: int | None, seed: int) -> ImageSet:
    number = count or entry.counts[split]
    channels, height, width = shape
    if entry.name in NOISE:
        return NOISE[entry.name](number, shape, seed=seed)
    if entry.name in embedded.EMBEDDED_OOD:
        images = embedded.EMBEDDED_OOD[entry.name](number, max(height, width), channels, seed)
    else:
        images = embedded.digits(split) if entry.name == "digits" else embedded.small_digits(split)
    return _in_memory(images, shape, resize)


def _in_memory(images: TensorSet, shape: Shape, resize: str | None) -> TensorSet:
    if images.shape == shape:
        return images
    pixels = torch.empty(len(images), *shape, dtype=images.images.dtype)
    for rows in torch.arange(len(images)).split(1024):  # a window, so that no second copy of all is made
        pixels[rows] = fit_batch(images.images[rows], shape, resize)
    matched = TensorSet(images.name, pixels, images.labels, images.classes)
    matched.describe_like(images)
    return matched


def _missing(entry: Entry, split: Split, root: Path) -> str:
    layout = next(layout for layout in entry.layouts if split in layout.files)
    places = " or ".join(str(root / folder) for folder in layout.folders[:2])
    fetched = any(download.urls for download in entry.downloads)
    advice = (
        f"run: offaxis data get {entry.name}" if fetched else f"it is at {entry.homepage} (no program can fetch it)"
    )
    return (
        f"{entry.title} ({split}) is not on this machine. To get it, {advice}\n"
        f"Or put its files into {places} as its publisher lays them out, or name another root: --data or OFFAXIS_DATA."
    )
