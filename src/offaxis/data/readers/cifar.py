"""CIFAR-10 and CIFAR-100: the binary version and the pickled one."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offaxis.data.binary_formats import check_labels, read_records
from offaxis.data.image_set import TensorSet
from offaxis.data.pickles import read_pickle
from offaxis.errors import DataError

SHAPE = (3, 32, 32)
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _binary(paths: Sequence[Path], name: str, label_bytes: int, classes: int, names_file: str) -> TensorSet:
    labels, images = read_records(paths, label_bytes, SHAPE)
    fine = labels[:, -1]  # CIFAR-100 has the superclass first
    check_labels(fine, classes, paths[0])
    names_path = paths[0].parent / names_file
    names = names_path.read_text(encoding="utf-8").split() if names_path.exists() else []
    return _set(name, images, fine, names, classes)


def _pickled(paths: Sequence[Path], name: str, key: str, classes: int, meta_file: str, meta_key: str) -> TensorSet:
    images, labels = np.empty((0, 3072), np.uint8), np.empty(0, np.int64)
    for path in paths:
        batch_labels, batch = _batch(read_pickle(path), key, path)
        check_labels(batch_labels, classes, path)
        labels = np.concatenate([labels, batch_labels])
        images.resize((len(labels), 3072), refcheck=False)  # grows in place: the images are never in memory twice
        images[-len(batch) :] = batch
    meta = paths[0].parent / meta_file
    names = read_pickle(meta).get(meta_key, []) if meta.exists() else []
    return _set(
        name,
        images.reshape(-1, *SHAPE),
        labels,
        [n.decode("latin1") if isinstance(n, bytes) else str(n) for n in names],
        classes,
    )


def _batch(content: dict[str, Any], key: str, path: Path) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    images, labels = content.get("data"), content.get(key)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != 3072:
        got = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else type(images).__name__
        raise DataError(f"Expected images as uint8 (N, 3072) under 'data' in {path} but got {got}.")
    if not isinstance(labels, list) or len(labels) != len(images) or not all(isinstance(y, int) for y in labels):
        raise DataError(f"Expected a list of {len(images)} numbers under '{key}' in {path}: the file is damaged.")
    return np.array(labels, np.int64), images


def _set(
    name: str, images: NDArray[np.uint8], labels: NDArray[np.generic], names: Sequence[str], classes: int
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
