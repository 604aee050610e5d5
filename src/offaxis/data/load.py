"""A name or a path -> images."""

from pathlib import Path

import torch

from offaxis.data import embedded
from offaxis.data.catalogue import CATALOGUE, Entry, Split
from offaxis.data.folder import Decoding, decoded
from offaxis.data.image_set import ImageSet, TensorSet
from offaxis.data.match import Shape, fit_batch
from offaxis.data.noise import GaussianNoise, UniformNoise
from offaxis.data.own import load_own
from offaxis.data.relations import check_pair
from offaxis.data.root import data_root, known
from offaxis.errors import ArgumentError, DataError


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
            are its splits; where there are none, the whole folder is the test split. Where there is no ``test``,
            ``holdout`` makes two of the whole folder, or of ``train``.
        split: "train" or "test".
        root: where the catalogue's sets are kept; else ``OFFAXIS_DATA``, else the user's cache folder.
        like: the ID set. Size and colour are matched to it (see :mod:`offaxis.data.match`), and a pair that makes
            no sense is refused. Framed crops stay 36x36 beside an ID set of 32x32.
        size: height and width, where neither ``like`` nor the set itself says it.
        seed: of noise, of crops and of ``holdout``.
        count: how many images, for sets that are made.
        skip_bad: leave out files that are damaged or no images; they are listed in ``skipped``.
        holdout: the share of a folder that is its test split, where it has no folder for that.
        in_memory: True to decode all now, False to decode as it goes; by default whatever fits in 2 GiB is decoded.
        workers: threads that decode.
        force: take a pair that is refused.

    Returns:
        The images: uint8 (N, c, h, w), or float32 in [0, 1] for noise.

    Raises:
        ArgumentError: there is no such set, or the size is below 1.
        DataError: it is not on this machine, or a file is bad; the message says which and what to do.
    """
    if split not in ("train", "test"):
        raise ArgumentError(f"Expected split to be 'train' or 'test' but got {split!r}.")
    path = Path(name).expanduser()
    how = Decoding(skip_bad, in_memory, workers)
    if str(name) not in CATALOGUE and path.exists():
        return load_own(path, split, _wanted(like, size), how, holdout, seed)
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
    return decoded(entry.name, content, shape, how.sparing(entry.skip_bad), entry.native_size, entry.trim)


def _wanted(like: ImageSet | None, size: int | tuple[int, int] | None) -> Shape | None:
    if size is not None:
        height, width = (size, size) if isinstance(size, int) else size
        if min(height, width) < 1:
            raise ArgumentError(f"Expected a size of at least 1 pixel but got {size}.")
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
