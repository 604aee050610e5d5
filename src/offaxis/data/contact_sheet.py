"""Many images on one page."""

import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from offaxis.data.image_set import ImageSet
from offaxis.errors import ArgumentError
from offaxis.files import replacing

_GAP = 6
_BACKGROUND = (120, 140, 170)  # neither black nor grey, so that frames and margins show


def contact_sheet(images: ImageSet, count: int = 100, tile: int = 64) -> Image.Image:
    """Evenly spaced images of a set as a page, row by row; small ones are enlarged without smoothing.

    Args:
        images: the set.
        count: how many at most.
        tile: the least height and width of an image on the page, in pixels.
    """
    if count < 1 or tile < 1:
        raise ArgumentError(f"Expected a positive count and tile but got {count} and {tile}.")
    chosen = torch.linspace(0, len(images) - 1, min(count, len(images))).round().long().unique()
    pixels = images.batch(chosen)
    if pixels.dtype != torch.uint8:
        pixels = pixels.mul(255).round().to(torch.uint8)
    pixels = pixels.expand(-1, 3, -1, -1)
    scale = max(1, math.ceil(tile / min(pixels.shape[2:])))
    tiles = pixels.permute(0, 2, 3, 1).repeat_interleave(scale, 1).repeat_interleave(scale, 2).numpy()
    columns = math.ceil(math.sqrt(len(tiles)))
    rows = math.ceil(len(tiles) / columns)
    height, width = tiles.shape[1] + _GAP, tiles.shape[2] + _GAP
    page = np.empty((rows * height + _GAP, columns * width + _GAP, 3), np.uint8)
    page[:] = _BACKGROUND
    for number, image in enumerate(tiles):
        top, left = number // columns * height + _GAP, number % columns * width + _GAP
        page[top : top + image.shape[0], left : left + image.shape[1]] = image
    return Image.fromarray(page)


def write_contact_sheet(images: ImageSet, path: Path, count: int = 100, tile: int = 64) -> None:
    """Write the page as a PNG file, whole or not at all."""
    page = contact_sheet(images, count, tile)
    with replacing(path) as temporary:
        page.save(temporary, format="PNG")
