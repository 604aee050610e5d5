"""IDX, the format of MNIST and its relatives, plain or gzipped."""

import gzip
import zlib
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from offaxis.data.binary_formats import check_labels
from offaxis.data.image_set import TensorSet
from offaxis.errors import DataError

MAX_BYTES = 4 * 2**30


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file of bytes -> uint8 array of the shape that its header gives.

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
            if expected > MAX_BYTES:
                raise DataError(f"{path} claims {expected:,} bytes, more than the {MAX_BYTES:,} that are read.")
            array = np.empty(expected, np.uint8)
            here = _fill(array, file)
            more = file.read(1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged or truncated ({error}): get it again.") from error
    if more or here != expected:
        came = "more" if more else f"{here:,}"
        raise DataError(f"Expected {expected:,} bytes after the header of {path} but there are {came}: get it again.")
    return array.reshape(shape)


def _fill(array: NDArray[np.uint8], file: gzip.GzipFile | BufferedReader) -> int:
    """Read into an array piece by piece, so that nothing is in memory twice; the number of bytes that came."""
    here = 0
    while here < len(array):
        piece = file.read(min(2**20, len(array) - here))
        if not piece:
            break
        array[here : here + len(piece)] = np.frombuffer(piece, np.uint8)
        here += len(piece)
    return here


def write_idx(array: NDArray[np.uint8]) -> bytes:
    """The IDX file of an array of bytes with 1 to 4 dimensions."""
    header = b"\x00\x00\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return header + array.tobytes()


def read_idx_pair(paths: Sequence[Path], name: str, classes: Sequence[str]) -> TensorSet:
    """A file of images (N, h, w) and one of labels (N,) -> uint8 (N, 1, h, w).

    Raises:
        DataError: the files do not belong together.
    """
    images, labels = read_idx(paths[0]), read_idx(paths[1])
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise DataError(
            f"Expected images (N, h, w) in {paths[0]} and N labels in {paths[1]} but got {images.shape} and {labels.shape}."
        )
    check_labels(labels, len(classes), paths[1])
    return TensorSet(name, torch.from_numpy(images[:, None]), torch.from_numpy(labels.astype(np.int64)), classes)
