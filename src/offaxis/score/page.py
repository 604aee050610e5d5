"""The page of ``offaxis score``: the images with the highest scores, with maps of what they are like, to filter and choose."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, PackageLoader
from numpy.typing import NDArray
from torch.nn import functional as F

from offaxis.data.decode import thumbnail_uri
from offaxis.data.transforms import Preprocessing
from offaxis.errors import DataError
from offaxis.explain import calibration_histogram, data_uri, explain, map_png, map_scale
from offaxis.files import write_text
from offaxis.model import Model, today
from offaxis.networks.run import run
from offaxis.prediction import Verdict, verdict_in_words
from offaxis.score.images import file_of, sources
from offaxis.score.rows import Row, parts, readable

MAPS = 100
"""Images whose cosine is shown as a map, with their nearest classes: they pass through the network again."""
WIDE = 130  # of the histogram on the page
Pixels = NDArray[np.uint8]


def write_score_page(
    summary: Mapping[str, Any],
    path: Path,
    title: str,
    model: Model,
    text: str = "",
    thumbnails: Mapping[str, str] = {},
    pixels: Mapping[str, Pixels] = {},
) -> None:
    """Write the images with the highest scores as a page with a table that can be sorted and filtered.

    The first of them have the map of their cosine, their nearest classes and their place among the calibration images.

    Args:
        summary: of the run; its ``top`` is shown.
        path: of the page.
        title: of the page.
        model: that scored them.
        text: below the title.
        thumbnails: data: URIs by path; images without one are read again, those in archives and arrays too.
        pixels: of the first images by path, likewise.
    """
    rows = summary["top"]
    first = [row["path"] for row in rows[:MAPS]]
    missing = [row["path"] for row in rows if row["path"] not in thumbnails]
    again = dict(read_again(model, [*missing, *(name for name in first if name not in pixels and name not in missing)]))
    pixels, thumbnails = {**pixels, **again}, {**thumbnails, **{n: thumbnail_uri(p) for n, p in again.items()}}
    reasons = _reasons(model, {name: pixels[name] for name in first if name in pixels})
    shown = calibration_histogram(model.calibration)
    limit = None if model.calibration.per_class else _share(shown, model.calibration.threshold())
    cells = []
    for row in rows:
        numbers = {key: f"{row[key]:.4g}" for key in ("score", "p_value", "probability")}
        pieces = re.findall(r"[^/_.\-\s]*[/_.\-\s]*", row["path"])
        found = reasons.get(row["path"], {})
        cells.append(
            {**row, **numbers, **found, "pieces": pieces, "image": thumbnails.get(row["path"])}
            | {"out": row["verdict"] == Verdict.OUT, "said": verdict_in_words(Verdict(row["verdict"]))}
            | {"mark": _share(shown, row["score"])}
        )
    source, date = model.source, model.provenance.get("calibration_date")
    about = [
        source.name if source else "",
        model.detector.name,
        f"calibrated on {date}" if date else "",
        f"scored on {today()}",
    ]
    template = Environment(loader=PackageLoader("offaxis.score"), autoescape=True).get_template("scores.html.j2")
    page = template.render(
        title=title,
        about=about,
        text=text,
        rows=cells,
        rest=summary["images"] - len(cells),
        counts=shown["counts"],
        of=shown["of"],
        limit=limit,
        classes=sorted({row["class"] for row in rows}),
        verdicts=sorted({(row["verdict"], verdict_in_words(Verdict(row["verdict"]))) for row in rows}),
        maps=any("map" in row for row in cells),
        why=next((found["why"] for found in reasons.values()), None),
    )
    write_text(path, page)


def _share(shown: Mapping[str, Any], score: float) -> float:
    """Return where a score stands on the histogram of calibration images, in its pixels."""
    edges, value = shown["edges"], -score if shown["of"] == "cosine" else score
    return round(WIDE * float(np.clip((value - edges[0]) / ((edges[-1] - edges[0]) or 1), 0, 1)), 1)


def _reasons(model: Model, pixels: Mapping[str, Pixels]) -> dict[str, Row]:
    """Return what the page shows of why images were judged so: maps and nearest classes."""
    found: dict[str, Row] = {}
    scale = map_scale(model)
    for batch in parts(pixels.items(), 32):
        for (name, _), why in zip(
            batch, explain(model, torch.from_numpy(np.stack([p for _, p in batch]))), strict=True
        ):
            examples = [(of, cosine, data_uri("image/png", png)) for of, cosine, png in why.examples]
            found[name] = {"why": why, "nearest": why.nearest, "examples": examples}
            if why.map is not None:
                found[name]["map"] = data_uri("image/png", map_png(why.map, *scale))
    return found


def read_again(model: Model, names: Sequence[str]) -> Iterator[tuple[str, Pixels]]:
    """Yield name and pixels of images, as far as they are still there: file by file, archive by archive."""
    missing = dict[str, set[str]]()
    assert isinstance(model.preprocessing, Preprocessing)
    for name in names:
        missing.setdefault(file_of(name), set()).add(name)
    for file, here in missing.items():
        for item in sources((file,)):
            if not here:
                break
            name = readable(item.name)
            if name not in here or item.source is None:
                continue
            here.remove(name)  # a second file of this name has no row
            try:
                yield name, model.preprocessing.pixels(item.source)
            except DataError:
                continue  # it was removed or changed meanwhile


def choose(model: Model, rows: Sequence[Row], pixels: Mapping[str, Pixels], count: int) -> list[str]:
    """Return the paths of ``count`` images that teach a network most: flagged ones first, then unsure ones, then others.

    Each is the one whose features are farthest from those chosen before it (k-centre, Sener and Savarese 2018,
    arXiv:1708.00489).

    Args:
        model: that scored them.
        rows: candidates, highest score first.
        pixels: of candidates, by path; others are read again.
        count: how many.
    """
    assert isinstance(model.preprocessing, Preprocessing)
    known = {**pixels, **dict(read_again(model, [row["path"] for row in rows if row["path"] not in pixels]))}
    rows = [row for row in rows if row["path"] in known]
    stacked = (torch.from_numpy(np.stack([known[row["path"]] for row in part])) for part in parts(rows, 32))
    passes = run(model.network, map(model.preprocessing.normalise, stacked))
    features = [F.normalize(outputs.features.float().cpu(), dim=1) for outputs, _, _ in passes]
    rank = [2 * (row["verdict"] == Verdict.OUT) + (row["verdict"] == Verdict.UNSURE) for row in rows]
    return [rows[place]["path"] for place in spread(torch.cat(features), rank, count)] if rows else []


def spread(features: torch.Tensor, rank: Sequence[int], count: int) -> list[int]:
    """Return the places of ``count`` features (N, d) of unit length, each farthest from those before it.

    Args:
        features: the candidates; the first of them is chosen first.
        rank: (N,) small numbers; candidates of a higher one come first, copies of chosen ones last.
        count: how many.
    """
    before, distance = torch.tensor(rank), torch.full((len(features),), 4.0)  # above each distance
    chosen: list[int] = []
    while len(chosen) < min(count, len(features)):
        pick = int((distance + 8 * before * (distance > 1e-6)).argmax())
        chosen.append(pick)
        distance = torch.minimum(distance, 1 - features @ features[pick])
        distance[chosen] = -1.0
    return chosen
