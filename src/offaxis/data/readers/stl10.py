"""STL-10's binary files: 96 x 96 images, columns first, with labels from 1 to 10."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from offaxis.data.binary_formats import check_labels, read_records
from offaxis.data.image_set import TensorSet
from offaxis.errors import DataError

CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")


def read_stl10(paths: Sequence[Path]) -> TensorSet:
    """A file of images and one of labels -> uint8 (N, 3, 96, 96).

    Raises:
        DataError: a file is truncated, or they do not belong together.
    """
    _, columns = read_records(paths[:1], 0, (3, 96, 96))
    labels = np.fromfile(paths[1], np.uint8).astype(np.int64) - 1
    if len(labels) != len(columns):
        raise DataError(f"Expected {len(columns)} labels in {paths[1]} but got {len(labels)}: get both files again.")
    check_labels(labels, 10, paths[1])
    images = torch.from_numpy(columns).transpose(2, 3)
    return TensorSet("stl10", images, torch.from_numpy(labels), CLASSES)
