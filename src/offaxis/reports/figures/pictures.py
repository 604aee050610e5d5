"""Images as matplotlib takes them."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offaxis.errors import ArgumentError


def picture(image: ArrayLike) -> NDArray[np.float64]:
    """An image as float64 (h, w, 3) in [0, 1].

    Args:
        image: uint8, or floating-point in [0, 1]; (h, w), (h, w, c) or (c, h, w) with one or three channels.
    """
    array = np.asarray(image)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim == 3 and array.shape[2] not in (1, 3) and array.shape[0] in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[2] not in (1, 3) or 0 in array.shape:
        raise ArgumentError(
            f"Expected an image of shape (h, w), (h, w, c) or (c, h, w) with 1 or 3 channels but got {np.shape(image)}."
        )
    pixels = array.astype(np.float64) / 255 if array.dtype == np.uint8 else array.astype(np.float64)
    if not np.isfinite(pixels).all() or pixels.min() < 0 or pixels.max() > 1:
        raise ArgumentError(
            f"Expected an image of bytes, or of numbers from 0 to 1, but got {array.dtype} with values from "
            f"{pixels.min():g} to {pixels.max():g}. Undo the normalisation first."
        )
    return np.broadcast_to(pixels, (*pixels.shape[:2], 3))
