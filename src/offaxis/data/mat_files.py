"""SVHN's cropped digits: MATLAB files with X (32, 32, 3, N) and y (N, 1)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from offaxis.data.binary_formats import check_label_range
from offaxis.data.image_set import TensorSet
from offaxis.errors import DataError


def read_svhn(paths: Sequence[Path]) -> TensorSet:
    """One .mat file -> uint8 (N, 3, 32, 32), with label 0 for the digit 0 (10 in the file).

    Raises:
        DataError: it is no MATLAB file, is truncated, or holds something else.
    """
    from scipy.io import loadmat, whosmat

    path = paths[0]
    try:
        shapes = {name: shape for name, shape, _ in whosmat(str(path))}
        count = shapes["X"][3] if len(shapes.get("X", ())) == 4 else -1
        if shapes.get("X", ())[:3] != (32, 32, 3) or shapes.get("y") != (count, 1):
            raise DataError(
                f"Expected X (32, 32, 3, N) and y (N, 1) in {path} but got {shapes or 'nothing'}: it is another file."
            )
        content = loadmat(str(path), variable_names=["X", "y"])
        pixels, labels = content["X"], content["y"].reshape(-1).astype(np.int64)
    except DataError:
        raise
    except Exception as error:  # the reader stumbles anywhere in a damaged file
        raise DataError(f"{path} is no MATLAB file, or is damaged or truncated ({error}): get it again.") from error
    if pixels.dtype != np.uint8:
        raise DataError(f"Expected images of bytes in {path} but got {pixels.dtype}.")
    labels[labels == 10] = 0
    check_label_range(labels, 10, path)
    images = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    return TensorSet("svhn", torch.from_numpy(images), torch.from_numpy(labels), list("0123456789"))
