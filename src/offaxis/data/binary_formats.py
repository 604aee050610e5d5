"""Files of equal records: some label bytes, then the planes of one image."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offaxis.errors import DataError
from offaxis.files import replacing

_CHUNK = 1000  # records read at a time: the images are never in memory twice


def read_records(
    paths: Sequence[Path], label_bytes: int, shape: tuple[int, int, int]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Labels, uint8 (N, label_bytes), and images, uint8 (N, *shape), of all files in order.

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
                wanted = min(_CHUNK, count - start)
                chunk = np.fromfile(file, np.uint8, wanted * record)
                if len(chunk) != wanted * record:
                    raise DataError(f"{path} ended while it was read, at record {start} of {count}: read it again.")
                rows = chunk.reshape(wanted, record)
                labels[row : row + wanted] = rows[:, :label_bytes]
                images[row : row + wanted] = rows[:, label_bytes:]
                row += wanted
    return labels, images.reshape(-1, *shape)


def _count(path: Path, record: int) -> int:
    length = path.stat().st_size
    if length == 0 or length % record:
        raise DataError(
            f"Expected records of {record:,} bytes in {path} but its {length:,} bytes are no multiple of that: "
            "the file is truncated, or of another kind; get it again."
        )
    return length // record


def check_labels(labels: NDArray[np.generic], classes: int, path: Path) -> None:
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
