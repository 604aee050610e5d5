"""The images with a detector's lowest and highest scores, as thumbnails, where the images can be read."""

import base64
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from offaxis.errors import OffaxisError
from offaxis.evaluation.records import Result
from offaxis.evaluation.store import Store
from offaxis.evaluation.summary import RowKey, method_names, row_key
from offaxis.reports.result_tables import set_title

if TYPE_CHECKING:  # a report without pictures needs no torch
    from torch import Tensor

    from offaxis.data import ImageSet

Loader = Callable[[Mapping[str, Any], "ImageSet | None"], "ImageSet"]
"""(what the store knows of a set: name, path and options; the ID set to be matched or None) -> its test images."""
SIDE = 96
"""Photographs are shrunk to so many pixels; smaller images stay as they are."""


class Thumbnails:
    """Images of a store's sets, by set and index, each kept once.

    Args:
        store: whose sets they are.
        load: reads a set; what it cannot read is left out with a note.
        sets: sets that others have read from the same store already, and a sentence for those that cannot be shown; what is
            read is added.
    """

    def __init__(self, store: Store, load: Loader, sets: "dict[str, ImageSet | str] | None" = None) -> None:
        self.store, self.load = store, load
        self.about = store.sets()
        self.sets: dict[str, ImageSet | str] = {} if sets is None else sets
        self.pictures: dict[str, str] = {}
        self.notes: dict[str, str] = {}

    def add(self, id_key: str, set_key: str, place: int) -> str | None:
        """Add one image and return its name; None where the set cannot be read. ``place`` counts among the test images."""
        images = self.images(id_key, set_key)
        if images is None:
            return None
        index = int(self.store.indices(set_key)[place])
        name = f"{set_key[:6]}-{index}"
        if name not in self.pictures:
            import torch

            self.pictures[name] = _encoded(images.batch(torch.tensor([index]))[0])
        return name

    def images(self, id_key: str, set_key: str) -> "ImageSet | None":
        """Return a set, matched to an ID set; None where it cannot be read, with a note."""
        if set_key not in self.sets:
            like = None if set_key == id_key else self.images(id_key, id_key)
            if like is None and set_key != id_key:  # there is nothing that its images could be matched to
                self.sets[set_key] = "not shown without the ID images"
            else:
                self.sets[set_key] = self._load(self.about[set_key], like)
        found = self.sets[set_key]
        if not isinstance(found, str):
            return found
        self.notes.setdefault(set_title(self.about[set_key]["name"]), found)
        return None

    def _load(self, about: dict[str, Any], like: "ImageSet | None") -> "ImageSet | str":
        try:
            found = self.load(about, like)
            from offaxis.data.splits import limit_images

            images = limit_images(found, about["images"])
        except (OffaxisError, OSError):
            return "not on this machine"
        return images if images.fingerprint == about["fingerprint"] else "not the images that were evaluated"


def extreme_images(
    store: Store, results: Iterable[Result], thumbnails: Thumbnails, count: int = 6
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return four strips of images for each "network|method": ID and OOD images with the lowest and highest scores.

    Only untuned detectors are shown, on the first seed of each network, so that scores of all sets can be compared.
    """
    results = list(results)
    names = method_names(results)
    untuned = [r for r in results if r.assumed is None]
    first = {label: min(r.seed for r in untuned if r.network == label) for label in {r.network for r in untuned}}
    members: dict[RowKey, list[Result]] = {}
    for r in untuned:
        if r.seed == first[r.network]:
            members.setdefault(row_key(r), []).append(r)
    return {f"{rows[0].network}|{names[key]}": _strips(store, rows, thumbnails, count) for key, rows in members.items()}


def _strips(
    store: Store, members: Sequence[Result], thumbnails: Thumbnails, count: int
) -> dict[str, list[dict[str, Any]]]:
    first = members[0]
    sides = {
        "ID": [(first.id, first.id_data, store.scores(first.scores[0]))],
        "OOD": [(r.ood, r.ood_data, store.scores(r.scores[1])) for r in members],
    }
    strips: dict[str, list[dict[str, Any]]] = {}
    for side, parts in sides.items():
        shown = [
            thumbnails.images(first.id_data, key) is not None for _, key, _ in parts
        ]  # each one missing has its note
        if not any(shown):
            strips |= {f"{side}, lowest scores": [], f"{side}, highest scores": []}
            continue
        scores = np.concatenate([s for _, _, s in parts])
        which = np.repeat(np.arange(len(parts)), [len(s) for _, _, s in parts])
        places = np.concatenate([np.arange(len(s)) for _, _, s in parts])
        order = np.argsort(scores, kind="stable")
        for title, chosen in (("lowest scores", order[:count]), ("highest scores", order[::-1][:count])):
            strip = strips.setdefault(f"{side}, {title}", [])
            for at in chosen.tolist():
                name, key, _ = parts[int(which[at])]
                picture = thumbnails.add(first.id_data, key, int(places[at]))
                if picture is not None:
                    strip.append({"picture": picture, "set": set_title(name), "score": float(f"{scores[at]:.4g}")})
    return strips


def _encoded(image: "Tensor") -> str:
    array = image.permute(1, 2, 0).numpy()
    array = array if array.dtype == np.uint8 else (array * 255).round().astype(np.uint8)
    picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    out, kind = io.BytesIO(), "PNG"
    if max(picture.size) > SIDE:
        picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)  # keeps its shape
        kind = "JPEG"
    picture.save(out, kind, optimize=True, quality=85)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(out.getvalue()).decode()
