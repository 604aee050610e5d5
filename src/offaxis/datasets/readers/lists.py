"""Sets that are folders of images with lists beside them: Food-101, GTSRB."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

from offaxis.datasets.folder import Files, find_images
from offaxis.errors import DataError


def read_images(paths: Sequence[Path], skip_bad: bool = False) -> Files:
    """A folder of images, or a folder per class."""
    return find_images(paths[0], skip_bad)


def read_food101(paths: Sequence[Path]) -> Files:
    """Food-101: a list (``meta/test.txt`` or ``.json``) and the folder ``images``.

    Raises:
        DataError: the list is damaged, or an image in it is missing.
    """
    listing, folder = paths
    text = listing.read_text(encoding="utf-8")
    try:
        stems = sorted(sum(json.loads(text).values(), [])) if listing.suffix == ".json" else text.split()
    except (ValueError, AttributeError, TypeError) as error:
        raise DataError(f"Expected a dictionary of lists in {listing} but it is damaged ({error}).") from error
    for stem in stems:
        if len(Path(stem).parts) != 2 or ".." in Path(stem).parts:
            raise DataError(f"Expected lines such as apple_pie/1005649 in {listing} but got {stem!r}.")
    return _listed(folder, [f"{stem}.jpg" for stem in stems], [stem.split("/")[0] for stem in stems], True)


def read_gtsrb_training(paths: Sequence[Path]) -> Files:
    """GTSRB's training images: a folder per class with .ppm files, and a .csv beside them that is not needed."""
    folder = paths[0]
    found = sorted(folder.glob("*/*.ppm"))
    return _listed(folder, [str(p.relative_to(folder)) for p in found], [p.parent.name for p in found], True)


def read_gtsrb_test(paths: Sequence[Path]) -> Files:
    """GTSRB's test images: the folder of .ppm files and ``GT-final_test.csv`` (Filename;…;ClassId).

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
    return _listed(folder, names, labels, False)


def _listed(folder: Path, names: Sequence[str], labels: Sequence[str], sorted_by_class: bool) -> Files:
    if not names:
        raise DataError(f"Expected images in {folder} but none is listed.")
    present = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    missing = [name for name in names if str(Path(name)) not in present]
    if missing:
        raise DataError(
            f"{folder / missing[0]} is listed but is not there ({len(missing)} of {len(names)} are missing): "
            "unpack the archive again."
        )
    classes = tuple(sorted(set(labels)))
    number = {name: label for label, name in enumerate(classes)}
    paths = tuple(folder / name for name in names)
    return Files(paths, tuple(number[label] for label in labels), classes, sorted_by_class)
