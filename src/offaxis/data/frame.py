"""Black frames: what makes images easy to tell apart for no good reason."""

from dataclasses import dataclass

import torch
from torch import Tensor

from offaxis.data.image_set import ImageSet

ALMOST_ALL = 0.99


@dataclass(frozen=True)
class Frame:
    """The black border that the images of a set have in common.

    Attributes:
        width: pixels that are black on all four sides of nearly all images; 0 where there is no such border.
        share: the part of the images that have it.
        sharp: the part of the images whose black border is exactly that wide. Near 1 it is a frame around pictures;
            well below, the pictures merely have dark margins, as centred digits do.
    """

    width: int
    share: float
    sharp: float

    @property
    def found(self) -> bool:
        """Whether it is a frame: a border of one width around nearly all images."""
        return self.width > 0 and self.sharp >= 0.9


def border_widths(images: Tensor, black: int = 0) -> Tensor:
    """(B, c, h, w) uint8, or float32 in [0, 1] -> int64 (B,): how many rings of pixels from outside are black.

    A ring is black where no channel is above ``black`` (of 255). An image that is black all over counts as -1.
    """
    height, width = images.shape[2:]
    level = black if images.dtype == torch.uint8 else black / 255
    rows, columns = torch.arange(height), torch.arange(width)
    to_edge = torch.minimum(
        torch.minimum(rows, rows.flip(0))[:, None], torch.minimum(columns, columns.flip(0))[None, :]
    )
    nowhere = max(height, width)
    lit = (images > level).any(dim=1)
    nearest = torch.where(lit, to_edge, nowhere).flatten(1).amin(1)
    return torch.where(nearest == nowhere, -1, nearest)


def common_frame(widths: Tensor) -> Frame:
    """The frame of a set from the border widths (N,) of its images; images that are black all over do not count."""
    widths = widths[widths >= 0]
    if not len(widths):
        return Frame(0, 0.0, 0.0)
    # the widest border that almost all images have
    width = int(widths.sort().values[int((1 - ALMOST_ALL) * len(widths))])
    share = (widths >= width).double().mean().item()
    return Frame(width, share, (widths == width).double().mean().item())


def find_frame(images: ImageSet, black: int = 0, batch: int = 1024) -> Frame:
    """The black frame that the images of a set have in common, if any."""
    return common_frame(torch.cat([border_widths(pixels, black) for pixels in images.batches(batch)]))
