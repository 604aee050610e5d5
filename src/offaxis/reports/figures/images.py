"""Images in rows: with a line below each, or with and without their black frame (the supplement's last figure)."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from offaxis.errors import ArgumentError
from offaxis.reports.figures.labels import not_empty, picture, wrapped
from offaxis.reports.figures.style import FAINT, blank, styled

TILE, GAP, LINE, TITLE, EDGE = 0.86, 0.14, 0.125, 0.34, 0.12
"""Inches: an image, the space beside it, a line of its caption, a group's title, the margin."""

Captioned = tuple[ArrayLike, str]


@styled
def image_sheet(groups: Mapping[str, Sequence[Captioned]], columns: int = 8) -> Figure:
    """Draw groups of images, each under its title, each image over its caption; images are not smoothed.

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


TILE, LEFT = 0.95, 1.15


@styled
def frames(sets: Mapping[str, tuple[Sequence[ArrayLike], Sequence[ArrayLike]]]) -> Figure:
    """Draw for each set a row of images with their frame and, below, the same images without it, to the same scale.

    Args:
        sets: name -> (images with the frame, the same without), each as ``pictures.picture`` takes them.
    """
    not_empty("the sets", sets)
    for name, (framed, free) in sets.items():
        not_empty(f"the images of {name!r}", framed)
        if len(framed) != len(free):
            raise ArgumentError(
                f"Expected each image of {name!r} with and without its frame but got {len(framed)} with and "
                f"{len(free)} without."
            )
    columns = max(len(framed) for framed, _ in sets.values())
    step = TILE + 0.1
    width, height = LEFT + columns * step, len(sets) * (2 * step + 0.2) + 0.1
    figure = blank(width, height, arranged=False)
    top = height - 0.1
    for name, rows in sets.items():
        largest = max(max(picture(image).shape[:2]) for images in rows for image in images)
        for words, images in zip(("as published", "without frame"), rows, strict=True):
            label = f"{wrapped(name, 16, 2)}\n{words}"
            figure.text((LEFT - 0.1) / width, (top - TILE / 2) / height, label, ha="right", va="center", size=8)
            for column, image in enumerate(images):
                pixels = picture(image)
                tall, wide = (TILE * size / largest for size in pixels.shape[:2])
                left = LEFT + column * step + (TILE - wide) / 2
                bottom = top - TILE + (TILE - tall) / 2
                axes = figure.add_axes((left / width, bottom / height, wide / width, tall / height))
                axes.imshow(pixels, aspect="auto")
                axes.set_axis_off()
            top -= step
        top -= 0.2
    return figure
