"""A name or a path -> images."""

import hashlib
from pathlib import Path
from typing import Any

import torch

from offaxis.datasets import embedded
from offaxis.datasets.archive import is_archive, unpack
from offaxis.datasets.catalogue import CATALOGUE, Entry, Split
from offaxis.datasets.decode import size_of
from offaxis.datasets.folder import Files, Reading, find_images, read_all, read_lazily
from offaxis.datasets.image_set import ImageSet, TensorSet
from offaxis.datasets.match import Shape, fit_batch
from offaxis.datasets.noise import GaussianNoise, UniformNoise
from offaxis.datasets.parts import hold_out
from offaxis.datasets.relations import check_pair
from offaxis.datasets.root import data_root, known
from offaxis.errors import ArgumentError, DataError

MEMORY_LIMIT = 2 * 2**30  # bytes of pixels: larger sets stay in their files

_SPLIT_FOLDERS: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "test": ("test", "val", "valid", "validation"),
}


def load(
    name: str | Path,
    split: Split = "test",
    *,
    root: Path | str | None = None,
    like: ImageSet | None = None,
    size: int | tuple[int, int] | None = None,
    seed: int = 0,
    count: int | None = None,
    skip_bad: bool = False,
    holdout: float | None = None,
    in_memory: bool | None = None,
    workers: int | None = None,
    force: bool = False,
) -> ImageSet:
    """Read a set of the catalogue, or a folder or archive of images.

    Args:
        name: in the catalogue; or a path. A folder per class is a labelled set. Folders ``train`` and ``test`` inside
            are its splits; where there are none, the whole folder is the test split, and ``holdout`` makes two of it.
        split: "train" or "test".
        root: where the catalogue's sets are kept; else ``OFFAXIS_DATA``, else the user's cache folder.
        like: the ID set. Size and colour are matched to it (see :mod:`offaxis.datasets.match`), and a pair that makes
            no sense is refused. Framed crops stay 36x36 beside an ID set of 32x32.
        size: height and width, where neither ``like`` nor the set itself says it.
        seed: of noise, of crops and of ``holdout``.
        count: how many images, for sets that are made.
        skip_bad: leave out files that are damaged or no images; they are listed in ``skipped``.
        holdout: the share of a folder that is its test split.
        in_memory: True to decode all now, False to decode as it goes; by default whatever fits in 2 GiB is decoded.
        workers: threads that decode.
        force: take a pair that is refused.

    Returns:
        The images: uint8 (N, c, h, w), or float32 in [0, 1] for noise.

    Raises:
        ArgumentError: there is no such set.
        DataError: it is not on this machine, or a file is bad; the message says which and what to do.
    """
    if split not in ("train", "test"):
        raise ArgumentError(f"Expected split to be 'train' or 'test' but got {split!r}.")
    path = Path(name).expanduser()
    if str(name) not in CATALOGUE and path.exists():
        return _own(path, split, _wanted(like, size), seed, skip_bad, holdout, in_memory, workers)
    entry = known(str(name))
    if split not in entry.counts:
        raise DataError(f"{entry.title} has no {split} split: it has {' and '.join(entry.counts)}.")
    if like is not None:
        check_pair(like.name, entry.name, force)
    shape = _shape(entry, like, size)
    if not entry.layouts:
        return _made(entry, split, shape, count, seed)
    found = entry.find(data_root(root), split)
    if found is None:
        raise DataError(_missing(entry, split, data_root(root)))
    layout, paths = found
    content = layout.read(paths)
    if isinstance(content, TensorSet):
        content.name = entry.name
        return _in_memory(content, shape)
    return _files(
        entry.name,
        content,
        _reading(shape, entry.native_size, entry.trim, workers),
        skip_bad or entry.skip_bad,
        in_memory,
    )


def _wanted(like: ImageSet | None, size: int | tuple[int, int] | None) -> Shape | None:
    if size is not None:
        height, width = (size, size) if isinstance(size, int) else size
        return (3 if like is None else like.shape[0], height, width)
    return None if like is None else like.shape


def _shape(entry: Entry, like: ImageSet | None, size: int | tuple[int, int] | None) -> Shape:
    wanted = _wanted(like, size)
    if wanted is None:
        return entry.shape
    if size is None and entry.framed and wanted[1:] == (32, 32):
        return (wanted[0], *entry.shape[1:])
    return wanted if like is not None else (entry.shape[0], *wanted[1:])


def _made(entry: Entry, split: Split, shape: Shape, count: int | None, seed: int) -> ImageSet:
    number = count or entry.counts[split]
    channels, height, width = shape
    if entry.name == "uniform":
        return UniformNoise(number, shape, seed)
    if entry.kind == "noise":
        return GaussianNoise(number, shape, 0.25 if entry.name == "gaussian-025" else 1.0, seed)
    if entry.name in embedded.STRANGERS:
        made = embedded.STRANGERS[entry.name](number, max(height, width), channels, seed)
    else:
        made = embedded.digits(split) if entry.name == "digits" else embedded.small_digits(split)
    return _in_memory(made, shape)


def _in_memory(images: TensorSet, shape: Shape) -> TensorSet:
    if images.shape == shape:
        return images
    pixels = torch.empty(len(images), *shape, dtype=images.images.dtype)
    for rows in torch.arange(len(images)).split(1024):  # a window, so that no second copy of all is made
        pixels[rows] = fit_batch(images.images[rows], shape)
    matched = TensorSet(images.name, pixels, images.labels, images.classes)
    matched.sorted_by_class, matched.skipped = images.sorted_by_class, images.skipped
    return matched


def _reading(shape: Shape, native: tuple[int, int] | None, trim: int, workers: int | None) -> Reading:
    extra: dict[str, Any] = {} if workers is None else {"workers": workers}
    return Reading(shape, native, trim, **extra)


def _files(name: str, files: Files, reading: Reading, skip_bad: bool, in_memory: bool | None) -> ImageSet:
    fits = len(files.paths) * int(torch.Size(reading.shape).numel()) <= MEMORY_LIMIT
    read = read_all if in_memory or (in_memory is None and fits) else read_lazily
    return read(name, files, reading, skip_bad)


def _own(
    path: Path,
    split: Split,
    wanted: Shape | None,
    seed: int,
    skip_bad: bool,
    holdout: float | None,
    in_memory: bool | None,
    workers: int | None,
) -> ImageSet:
    name = path.name
    folder = _unpacked(path) if path.is_file() else path
    own_split = next((folder / f for f in _SPLIT_FOLDERS[split] if (folder / f).is_dir()), None)
    if own_split is None and split == "train" and holdout is None:
        raise DataError(
            f"Expected a folder train in {path} but there is none: put the images to train on into {path / 'train'} and "
            f"those to test on into {path / 'test'}, or give the share to hold out for testing (holdout=0.2)."
        )
    files = find_images(own_split or folder, skip_bad)
    native = None
    if wanted is None:
        height, width = _common_size(files, skip_bad)
        wanted, native = (3, height, width), (height, width)
    images = _files(name, files, _reading(wanted, native, 0, workers), skip_bad, in_memory)
    if own_split is not None or holdout is None:
        return images
    return hold_out(images, holdout, seed)[0 if split == "train" else 1]


def _common_size(files: Files, skip_bad: bool) -> tuple[int, int]:
    """(height, width) of the first image that can be read: all others must have it too."""
    for path in files.paths:
        try:
            width, height = size_of(path)
        except DataError:
            if not skip_bad:
                raise
        else:
            return height, width
    raise DataError(f"None of the {len(files.paths)} files can be read; the first is {files.paths[0]}.")


def _unpacked(path: Path) -> Path:
    """The folder into which an archive was unpacked, once for each of its versions."""
    if not is_archive(path):
        raise DataError(f"Expected a folder or an archive of images but {path} is neither.")
    state = path.stat()
    version = hashlib.sha256(f"{path.resolve()} {state.st_size} {state.st_mtime_ns}".encode()).hexdigest()[:16]
    folder = data_root() / "unpacked" / f"{path.name.split('.')[0]}-{version}"
    if not (folder / ".whole").exists():
        unpack(path, folder)
        (folder / ".whole").touch()
    inside = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    while len(inside) == 1 and inside[0].is_dir():
        folder = inside[0]
        inside = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return folder


def _missing(entry: Entry, split: Split, root: Path) -> str:
    if entry.downloads and entry.downloads[0].urls:
        advice = f"Get it with: offaxis data get {entry.name}"
    else:
        advice = f"It cannot be fetched by a program; get it from {entry.homepage}."
    places = " or ".join(str(root / folder) for folder in entry.layouts[0].folders[:2])
    return (
        f"{entry.title} ({split}) is not below {root}. {advice}. "
        f"Or put it there as its publisher lays it out, in {places}; or name another root with --data or OFFAXIS_DATA."
    )
