"""The supplement's last figure: cropped images as they were published, and without their black frame."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from offaxis.errors import ArgumentError
from offaxis.reports.figures.checks import not_empty
from offaxis.reports.figures.labels import wrapped
from offaxis.reports.figures.pictures import picture
from offaxis.reports.figures.style import blank, styled

TILE, LEFT = 0.95, 1.15


@styled
def frames(sets: Mapping[str, tuple[Sequence[ArrayLike], Sequence[ArrayLike]]]) -> Figure:
    """For each set a row of images with their frame and, below, the same images without it, to the same scale.

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
