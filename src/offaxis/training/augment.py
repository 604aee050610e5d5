"""Random crops and mirror images of whole batches, on the device that holds them."""

import torch
from torch import Generator, Tensor
from torch.nn import functional as F


def crop_and_flip(
    images: Tensor, padding: int, flip: bool, generator: Generator, start: int = 0, total: int | None = None
) -> Tensor:
    """Shift each image by up to ``padding`` pixels, filling with black, and mirror it or not, each at random.

    One gather does both, whatever the type and the device of the images.

    Args:
        images: (B, c, h, w), uint8 or float in [0, 1].
        padding: how many black pixels stand on each side of the image that the crop is taken from.
        flip: mirror half of the images.
        generator: where the random numbers come from, on the CPU.
        start: where these images begin in the global batch.
        total: the size of the global batch, None where this is all of it. Numbers are drawn for the whole, so that each
            image meets the same ones however many processes share it.
    """
    if not padding and not flip:
        return images
    batch, channels, height, width = images.shape
    draws = batch if total is None else total
    ours = slice(start, start + batch)
    offsets = torch.randint(0, 2 * padding + 1, (draws, 2), generator=generator)[ours]
    mirrored = (torch.rand(draws, generator=generator)[ours] < 0.5) & flip
    rows = offsets[:, :1] + torch.arange(height)
    columns = torch.arange(width).expand(batch, width)
    columns = offsets[:, 1:] + torch.where(mirrored[:, None], width - 1 - columns, columns)
    flat = rows[:, :, None] * (width + 2 * padding) + columns[:, None, :]
    index = flat.view(batch, 1, -1).to(images.device).expand(-1, channels, -1)
    padded = F.pad(images, (padding, padding, padding, padding))
    return padded.flatten(2).gather(2, index).view_as(images)
