"""Images with a line below each: the strangest, the most familiar."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from offaxis.reports.figures.checks import not_empty
from offaxis.reports.figures.labels import wrapped
from offaxis.reports.figures.pictures import picture
from offaxis.reports.figures.style import FAINT, blank, styled

TILE, GAP, LINE, TITLE, EDGE = 0.86, 0.14, 0.125, 0.34, 0.12
"""Inches: an image, the space beside it, a line of its caption, a group's title, the margin."""

Captioned = tuple[ArrayLike, str]


@styled
def image_sheet(groups: Mapping[str, Sequence[Captioned]], columns: int = 8) -> Figure:
    """Groups of images, each under its title, each image over its caption; images are not smoothed.

    Args:
        groups: title -> (image, caption) pairs. An image is what ``pictures.picture`` takes.
        columns: images in a row, at most.
    """
    not_empty("the groups", groups)
    for title, images in groups.items():
        not_empty(f"the images of {title!r}", images)
    columns = max(1, min(columns, max(map(len, groups.values()))))
    captions = {
        title: [wrapped(caption, 15) if caption else "" for _, caption in images] for title, images in groups.items()
    }
    lines = max((text.count("\n") + 1 if text else 0) for texts in captions.values() for text in texts)
    row = TILE + GAP + lines * LINE
    height = 2 * EDGE + sum(TITLE + row * math.ceil(len(images) / columns) for images in groups.values())
    width = max(2 * EDGE + columns * (TILE + GAP) - GAP, 3.2)
    figure = blank(width, height, arranged=False)
    top = height - EDGE
    for title, images in groups.items():
        figure.text(
            EDGE / width, (top - 0.06) / height, wrapped(title, int(width * 10), 1), va="top", fontweight="bold"
        )
        top -= TITLE
        for number, (image, _) in enumerate(images):
            left = EDGE + number % columns * (TILE + GAP)
            bottom = top - number // columns * row - TILE
            axes = figure.add_axes((left / width, bottom / height, TILE / width, TILE / height))
            axes.imshow(picture(image))
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set(visible=True, color=FAINT, linewidth=0.5)
            axes.set_xlabel(captions[title][number], fontsize=6.5, labelpad=2, linespacing=1.1)
        top -= row * math.ceil(len(images) / columns)
    return figure
