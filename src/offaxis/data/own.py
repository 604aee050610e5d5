"""A user's own folder or archive of images."""

import hashlib
from collections import Counter
from contextlib import suppress
from pathlib import Path

from offaxis.data.archive import is_archive, unpack
from offaxis.data.catalogue import Split
from offaxis.data.decode import size_of
from offaxis.data.folder import Decoding, decoded
from offaxis.data.folder_files import Files, find_classes, find_images, ignored
from offaxis.data.image_set import ImageSet
from offaxis.data.match import Shape
from offaxis.data.root import cache_folder
from offaxis.data.splits import hold_out
from offaxis.errors import DataError

_SPLIT_FOLDERS: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "test": ("test", "val", "valid", "validation"),
}


def own_splits(path: Path) -> tuple[Split, ...]:
    """The splits that a folder or an archive has folders for; one without such is a test split as a whole."""
    return tuple(_split_folders(_opened(path))) or ("test",)


def load_own(
    path: Path, split: Split, shape: Shape | None, how: Decoding, holdout: float | None = None, seed: int = 0
) -> ImageSet:
    """The images of a folder or an archive; see :func:`~offaxis.data.load.load`.

    Args:
        path: the folder or the archive.
        split: the folder inside that is taken, where there are such.
        shape: what all are matched to; None where they have one size, which is then kept.
        how: when they are decoded, and what becomes of bad ones.
        holdout: the share that is the test split, where there is no folder for it.
        seed: of the shuffle that chooses it.

    Raises:
        DataError: the split has no folder and is not held out of anything, or a file is bad.
    """
    folder = _opened(path)
    own = _split_folders(folder)
    divided = "test" not in own and holdout is not None
    place = own.get("train", folder) if divided else own.get(split)
    if place is None:
        if own or split == "train":
            raise DataError(_no_split(path, split, own))
        place = folder
    classes = find_classes(own["train"]) if split == "test" and "train" in own else ()
    files = find_images(place, how.skip_bad, classes)
    native = None
    if shape is None:
        native = _common_size(files, how.skip_bad)
        shape = (3, *native)
    images = decoded(path.name, files, shape, how, native)
    if not divided or holdout is None:
        return images
    return hold_out(images, holdout, seed)[0 if split == "train" else 1]


def _split_folders(folder: Path) -> dict[Split, Path]:
    """The folder of each split that has one."""
    found = {
        split: [folder / name for name in names if (folder / name).is_dir()] for split, names in _SPLIT_FOLDERS.items()
    }
    return {split: folders[0] for split, folders in found.items() if folders}


def _no_split(path: Path, split: Split, own: dict[Split, Path]) -> str:
    only = "".join(f", only {folder.name}" for folder in own.values())
    share = "" if "test" in own else ", or give the share to hold out for testing (holdout=0.2)"
    return (
        f"Expected a folder {split} in {path} but there is none{only}: put the images to train on into {path / 'train'} and "
        f"those to test on into {path / 'test'}{share}."
    )


def _common_size(files: Files, skip_bad: bool) -> tuple[int, int]:
    """(height, width) of the first image, which all others must have too; or that of most, where the others are left out."""
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
    """The folder itself, or that into which an archive was unpacked, once for each of its versions."""
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
