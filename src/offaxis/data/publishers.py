"""Readers of the publishers' files: CIFAR, STL-10, SVHN (MATLAB), IDX (MNIST and similar), and folders with lists (GTSRB)."""

import csv
import gzip
import io
import math
import pickle
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from offaxis.data.folder import Files, find_images
from offaxis.data.images import TensorSet
from offaxis.errors import DataError


def _read_records(
    paths: Sequence[Path], label_bytes: int, shape: tuple[int, int, int]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read labels, uint8 (N, label_bytes), and images, uint8 (N, *shape), of all files in order."""
    record = label_bytes + math.prod(shape)
    parts = []
    for path in paths:
        content = np.fromfile(path, np.uint8)
        if len(content) == 0 or len(content) % record:
            raise DataError(
                f"Expected records of {record:,} bytes in {path} but its {len(content):,} bytes are no multiple of that: "
                "the file is truncated, or of another kind; get it again."
            )
        parts.append(content.reshape(-1, record))
    rows = np.concatenate(parts)
    return rows[:, :label_bytes], rows[:, label_bytes:].reshape(-1, *shape)


def _check_labels(labels: NDArray[np.generic], classes: int, path: Path) -> None:
    """Raise DataError unless every label is from 0 to classes - 1."""
    if labels.size and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise DataError(
            f"Expected labels from 0 to {classes - 1} in {path} but got {labels.min()} to {labels.max()}: "
            "the file is damaged or of another kind."
        )


CIFAR_SHAPE = (3, 32, 32)
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _binary(paths: Sequence[Path], name: str, label_bytes: int, classes: int, names_file: str) -> TensorSet:
    labels, images = _read_records(paths, label_bytes, CIFAR_SHAPE)
    fine = labels[:, -1]  # CIFAR-100 has the superclass before it
    _check_labels(fine, classes, paths[0])
    names_path = paths[0].parent / names_file
    names = _read_text(names_path).split() if names_path.exists() else []
    return _cifar_set(name, images, fine, classes, names)


def _pickled(paths: Sequence[Path], name: str, key: str, classes: int, meta_file: str, meta_key: str) -> TensorSet:
    images, labels = [], []
    for path in paths:
        content = read_pickle(path)
        pixels, numbers = content.get("data"), content.get(key)
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3072,):
            got = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
            raise DataError(f"Expected images as uint8 (N, 3072) under 'data' in {path} but got {got}.")
        fits = isinstance(numbers, list) and len(numbers) == len(pixels)
        if not fits or not all(isinstance(label, int) and 0 <= label < 2**31 for label in numbers or ()):
            raise DataError(f"Expected a list of {len(pixels)} numbers under '{key}' in {path}: the file is damaged.")
        images.append(pixels)
        labels.append(np.array(numbers, np.int64))
        _check_labels(labels[-1], classes, path)
    meta = paths[0].parent / meta_file
    names = read_pickle(meta).get(meta_key, []) if meta.exists() else []
    if not isinstance(names, list) or not all(isinstance(n, str | bytes) for n in names):
        got = f"a {type(names).__name__}" if not isinstance(names, list) else "other things in it"
        raise DataError(f"Expected a list of names under '{meta_key}' in {meta} but got {got}: get it again.")
    class_names = [n.decode("latin1") if isinstance(n, bytes) else n for n in names]
    pixels = np.concatenate(images).reshape(-1, *CIFAR_SHAPE)
    return _cifar_set(name, pixels, np.concatenate(labels), classes, class_names)


def _cifar_set(
    name: str, images: NDArray[np.uint8], labels: NDArray[np.generic], classes: int, names: Sequence[str]
) -> TensorSet:
    if len(names) != classes:
        names = CIFAR10_CLASSES if classes == 10 else [str(number) for number in range(classes)]
    return TensorSet(name, torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)), names)


read_cifar10_binary = partial(_binary, name="cifar10", label_bytes=1, classes=10, names_file="batches.meta.txt")
read_cifar100_binary = partial(_binary, name="cifar100", label_bytes=2, classes=100, names_file="fine_label_names.txt")
read_cifar10_pickled = partial(
    _pickled, name="cifar10", key="labels", classes=10, meta_file="batches.meta", meta_key="label_names"
)
read_cifar100_pickled = partial(
    _pickled, name="cifar100", key="fine_labels", classes=100, meta_file="meta", meta_key="fine_label_names"
)


def read_pickle(path: Path) -> dict[str, Any]:
    """Read the dictionary in a pickle that holds arrays, numbers, text, lists and dictionaries alone; its keys as text.

    Raises:
        DataError: it holds anything else, or is damaged. Nothing in it was executed.
    """
    try:
        found = _ArrayUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises many kinds of errors
        raise DataError(
            f"Expected a data file of arrays, numbers, text and containers but {path} is refused: it is damaged, or asks for "
            f"something else ({str(error)[:200]}); get it again."
        ) from error
    if not isinstance(found, dict):
        raise DataError(f"Expected a dictionary in {path} but got {type(found).__name__}.")
    return {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in found.items()}


def _load_bytearray(unpickler: Any) -> None:
    """Read the bytes, and then make a bytearray of them."""
    (length,) = struct.unpack("<Q", unpickler.read(8))
    data = unpickler.read(length)
    if len(data) < length:
        raise pickle.UnpicklingError("it is cut off")
    unpickler.append(bytearray(data))


class _ArrayUnpickler(pickle._Unpickler):
    """An unpickler that knows the functions below and no other name.

    It is Python's own in Python: that in C makes a table as long as the largest number in a file says. Nor is a bytearray made
    before its bytes are there.
    """

    dispatch: ClassVar[dict[int, Any]] = {**pickle._Unpickler.dispatch, pickle.BYTEARRAY8[0]: _load_bytearray}

    def find_class(self, module: str, name: str) -> Any:
        """Return the function of this name, or raise UnpicklingError."""
        if (module, name) == ("numpy", "ndarray"):
            return None  # named as the kind of an array, never called
        known = {"dtype": _plain_dtype, "encode": _latin1, "_reconstruct": _empty_array, "_frombuffer": _from_buffer}
        if module.partition(".")[0] not in ("numpy", "_codecs") or name not in known:
            raise pickle.UnpicklingError(f"the name {module}.{name}")
        return known[name]


def _plain_dtype(name: str | bytes, *_: object) -> "np.dtype[Any]":
    text = name.decode("latin1") if isinstance(name, bytes) else name
    if text not in ("b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"):
        raise pickle.UnpicklingError(
            f"an array of {text!r:.40}" if isinstance(text, str) else "an array without a type"
        )
    return np.dtype(text)


def _latin1(text: str, _: str) -> bytes:
    return text.encode("latin1")


def _empty_array(*_: object) -> NDArray[Any]:
    return np.empty(0, np.uint8)  # which takes shape, type and bytes from its state


def _from_buffer(data: bytes, dtype: "np.dtype[Any]", shape: tuple[int, ...], order: Any) -> NDArray[Any]:
    return np.frombuffer(data, dtype).reshape(shape, order=order)


STL10_CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")


def read_stl10(paths: Sequence[Path]) -> TensorSet:
    """Read a file of images and one of labels: uint8 (N, 3, 96, 96).

    Raises:
        DataError: a file is truncated, or they do not belong together.
    """
    _, columns = _read_records(paths[:1], 0, (3, 96, 96))
    labels = np.fromfile(paths[1], np.uint8).astype(np.int64) - 1
    if len(labels) != len(columns):
        raise DataError(f"Expected {len(columns)} labels in {paths[1]} but got {len(labels)}: get both files again.")
    _check_labels(labels, 10, paths[1])
    images = torch.from_numpy(columns).transpose(2, 3)
    return TensorSet("stl10", images, torch.from_numpy(labels), STL10_CLASSES)


def read_svhn(paths: Sequence[Path]) -> TensorSet:
    """Read one .mat file: uint8 (N, 3, 32, 32), with label 0 for the digit 0 (10 in the file).

    Raises:
        DataError: it is no MATLAB file, is damaged, truncated or too large, or holds something else.
    """
    path = paths[0]
    try:
        found = dict(_read_mat(path))
    except (KeyError, ValueError, struct.error, zlib.error) as error:
        raise DataError(f"{path} is no MATLAB file, or is damaged or truncated ({error}): get it again.") from error
    pixels, column = found.get("X", np.empty(0)), found.get("y", np.empty(0))
    if pixels.shape[:-1] != (32, 32, 3) or column.shape != (pixels.shape[-1], 1):
        shapes = " and ".join(f"{name} {array.shape}" for name, array in found.items()) or "nothing"
        raise DataError(f"Expected X (32, 32, 3, N) and y (N, 1) in {path} but got {shapes}: it is another file.")
    if pixels.dtype != np.uint8:
        raise DataError(f"Expected images of bytes in {path} but got {pixels.dtype}.")
    labels = column.reshape(-1).astype(np.int64)
    labels[labels == 10] = 0
    _check_labels(labels, 10, path)
    images = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    return TensorSet("svhn", torch.from_numpy(images), torch.from_numpy(labels), list("0123456789"))


# How MATLAB stores the numbers of an array, and what it took them for: doubles that are small are stored as bytes.
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_TAKEN = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}


def _read_mat(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield (name, array) of each array of numbers in a MATLAB file of version 5; scipy's reader crashes on damaged ones."""
    data, place = memoryview(path.read_bytes()), 128
    order = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}[bytes(data[124:128])]
    while place < len(data):
        kind, length = struct.unpack_from(f"{order}II", data, place)
        place += 8 + length
        element = data[place - length : place]
        if kind == 15:  # compressed
            inflate = zlib.decompressobj()
            element = memoryview(inflate.decompress(element, max(_FREE_BYTES, _MAX_RATIO * len(data))))
            if not inflate.eof:
                raise ValueError("a compressed array has no end, or is too large")
            kind, length = struct.unpack_from(f"{order}II", element)
            element = element[8 : 8 + length]
        if kind != 14 or len(element) != length:
            raise ValueError(f"an element of type {kind} and {len(element):,} bytes")
        (_, flags), (_, shape), (_, name), (stored, values) = islice(_array_parts(element, order), 4)
        taken = _TAKEN[struct.unpack(f"{order}II", flags)[0] & 0xFF]
        array = np.frombuffer(values, f"{order}{_STORED[stored]}")
        yield (
            bytes(name).decode("latin1"),
            array.reshape(np.frombuffer(shape, f"{order}i4"), order="F").astype(taken, copy=False),
        )


def _array_parts(element: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Yield (type, bytes) of the parts of an array: flags, shape, name and numbers."""
    place = 0
    while True:
        kind, length = struct.unpack_from(f"{order}II", element, place)
        if kind >> 16:  # a short part, within its tag
            yield kind & 0xFFFF, element[place + 4 : place + 4 + (kind >> 16)]
            place += 8
        else:
            yield kind, element[place + 8 : place + 8 + length]
            place += 8 + -(-length // 8) * 8


_FREE_BYTES, _MAX_RATIO = 2**26, 20  # what inflates to more than both, so many times its file, is refused


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of bytes, gzipped or not: a uint8 array of the shape that its header gives.

    Raises:
        DataError: it is no IDX file of bytes, holds less or more than its header says, or claims too much.
    """
    with path.open("rb") as plain:
        gzipped = plain.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path, "rb") if gzipped else path.open("rb") as file:
            magic = file.read(4)
            if len(magic) != 4 or magic[:3] != b"\x00\x00\x08" or not 1 <= magic[3] <= 4:
                raise DataError(f"Expected an IDX file of bytes but {path} begins with {magic.hex(' ') or 'nothing'}.")
            shape = struct.unpack(f">{magic[3]}I", file.read(4 * magic[3]))
            expected, most = math.prod(shape), max(_FREE_BYTES, _MAX_RATIO * path.stat().st_size)
            if expected > most:
                raise DataError(
                    f"{path} claims {expected:,} bytes, more than the {most:,} that are read of such a file."
                )
            content = bytearray(file.read(expected + 1))
    except (gzip.BadGzipFile, EOFError, zlib.error, struct.error) as error:
        raise DataError(f"{path} is damaged or truncated ({error}): get it again.") from error
    if len(content) != expected:
        came = "more" if len(content) > expected else f"{len(content):,}"
        raise DataError(f"Expected {expected:,} bytes after the header of {path} but there are {came}: get it again.")
    return np.frombuffer(content, np.uint8).reshape(shape)


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
    _check_labels(labels, len(classes), paths[1])
    pixels = torch.from_numpy(images[:, None])
    return TensorSet(paths[0].parent.name, pixels, torch.from_numpy(labels.astype(np.int64)), classes)


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
