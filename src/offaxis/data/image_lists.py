"""Readers of sets that are folders of images, some with lists beside them: Food-101, GTSRB."""

import csv
from collections.abc import Sequence
from pathlib import Path

from offaxis.data.folder import Files, find_images
from offaxis.errors import DataError

GTSRB_CLASSES = tuple(f"{number:05d}" for number in range(43))


def read_images(paths: Sequence[Path], skip_bad: bool = False) -> Files:
    """List the images of a folder, or of a folder per class."""
    return find_images(paths[0], skip_bad)


def read_parent_folder(paths: Sequence[Path]) -> Files:
    """List the images of the folder that holds these class folders."""
    return find_images(paths[0].parent)


def read_food101(paths: Sequence[Path]) -> Files:
    """List the images of Food-101: a list (``meta/test.txt``, lines such as ``apple_pie/1005649``) and the folder ``images``.

    Raises:
        DataError: the list is damaged, or an image in it is missing.
    """
    listing, folder = paths
    try:
        stems = listing.read_text(encoding="utf-8").split()
    except UnicodeDecodeError as error:
        raise DataError(f"{listing} is not text: unpack the archive again.") from error
    for stem in stems:
        if len(Path(stem).parts) != 2 or ".." in Path(stem).parts:
            raise DataError(f"Expected lines such as apple_pie/1005649 in {listing} but got {stem!r}.")
    labels = [stem.split("/")[0] for stem in stems]
    return _listed(folder, [f"{stem}.jpg" for stem in stems], labels, sorted(set(labels)), True)


def read_gtsrb_training(paths: Sequence[Path]) -> Files:
    """List GTSRB's training images: a folder per class with .ppm files, and a .csv beside them that is not needed."""
    folder = paths[0]
    paths = sorted(folder.glob("*/*.ppm"))
    names, labels = [str(path.relative_to(folder)) for path in paths], [path.parent.name for path in paths]
    return _listed(folder, names, labels, GTSRB_CLASSES, True)


def read_gtsrb_test(paths: Sequence[Path]) -> Files:
    """List GTSRB's test images: the folder of .ppm files and ``GT-final_test.csv`` (Filename;…;ClassId).

    Raises:
        DataError: the table is damaged, or an image in it is missing.
    """
    folder, table = paths
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter=";"))
    try:
        names, labels = [row["Filename"] for row in rows], [f"{int(row['ClassId']):05d}" for row in rows]
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"Expected columns Filename and ClassId in {table} but it is damaged ({error}).") from error
    if any(Path(name).name != name for name in names):
        raise DataError(f"Expected plain file names in {table}.")
    return _listed(folder, names, labels, GTSRB_CLASSES, False)


def _listed(
    folder: Path, names: Sequence[str], labels: Sequence[str], classes: Sequence[str], sorted_by_class: bool
) -> Files:
    if not names:
        raise DataError(f"Expected images in {folder} but none is listed.")
    present = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    missing = [name for name in names if str(Path(name)) not in present]
    if missing:
        raise DataError(
            f"{folder / missing[0]} is listed but is not there ({len(missing)} of {len(names)} are missing): "
            "unpack the archive again."
        )
    number = {name: label for label, name in enumerate(classes)}
    unknown = sorted(set(labels) - set(number))
    if unknown:
        raise DataError(f"Expected classes from {classes[0]} to {classes[-1]} in {folder} but got {unknown[0]}.")
    return Files(
        paths=tuple(folder / name for name in names),
        labels=tuple(number[label] for label in labels),
        classes=tuple(classes),
        sorted_by_class=sorted_by_class,
    )
