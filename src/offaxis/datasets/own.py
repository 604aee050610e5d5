"""A user's own folder or archive of images."""

import hashlib
from pathlib import Path

from offaxis.datasets.archive import is_archive, unpack
from offaxis.datasets.catalogue import Split
from offaxis.datasets.decode import size_of
from offaxis.datasets.files import Files, find_classes, find_images
from offaxis.datasets.folder import Decoding, decoded
from offaxis.datasets.image_set import ImageSet
from offaxis.datasets.match import Shape
from offaxis.datasets.parts import hold_out
from offaxis.datasets.root import cache_folder
from offaxis.errors import DataError

_SPLIT_FOLDERS: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "test": ("test", "val", "valid", "validation"),
}


def own_splits(path: Path) -> tuple[Split, ...]:
    """The splits that a folder has folders for; a folder without such is a test split as a whole."""
    found = tuple(split for split, names in _SPLIT_FOLDERS.items() if any((path / name).is_dir() for name in names))
    return found or ("test",)


def load_own(
    path: Path, split: Split, shape: Shape | None, how: Decoding, holdout: float | None = None, seed: int = 0
) -> ImageSet:
    """The images of a folder or an archive; see :func:`~offaxis.datasets.load.load`.

    Args:
        path: the folder or the archive.
        split: the folder inside that is taken, where there are such.
        shape: what all are matched to; None where they have one size, which is then kept.
        how: when they are decoded, and what becomes of bad ones.
        holdout: the share that is the test split, where there are no folders for splits.
        seed: of the shuffle that chooses it.
    """
    folder = _unpacked(path) if path.is_file() else path
    own_split = next((folder / f for f in _SPLIT_FOLDERS[split] if (folder / f).is_dir()), None)
    if own_split is None and split == "train" and holdout is None:
        raise DataError(
            f"Expected a folder train in {path} but there is none: put the images to train on into {path / 'train'} and "
            f"those to test on into {path / 'test'}, or give the share to hold out for testing (holdout=0.2)."
        )
    files = find_images(own_split or folder, how.skip_bad, _training_classes(folder) if split == "test" else ())
    native = None
    if shape is None:
        native = _common_size(files, how.skip_bad)
        shape = (3, *native)
    images = decoded(path.name, files, shape, how, native)
    if own_split is not None or holdout is None:
        return images
    return hold_out(images, holdout, seed)[0 if split == "train" else 1]


def _training_classes(folder: Path) -> tuple[str, ...]:
    """The classes by which the labels of every split are numbered; none where there is no folder for training."""
    training = next((folder / name for name in _SPLIT_FOLDERS["train"] if (folder / name).is_dir()), None)
    return () if training is None else find_classes(training)


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
    folder = cache_folder() / "unpacked" / f"{path.name.split('.')[0]}-{version}"
    if not (folder / ".whole").exists():
        unpack(path, folder)
        (folder / ".whole").touch()
    inside = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    while len(inside) == 1 and inside[0].is_dir():
        folder = inside[0]
        inside = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return folder
