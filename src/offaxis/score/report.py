"""What is said of all rows: their summary, as numbers and as text, and a page of the images with the highest scores."""

import heapq
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from offaxis.data.decode import decode
from offaxis.data.transforms import Preprocessing, centre
from offaxis.errors import DataError
from offaxis.explain import data_uri, explain, map_png
from offaxis.files import write_text
from offaxis.model import Model
from offaxis.prediction import Verdict
from offaxis.score.images import file_of, sources
from offaxis.score.rows import Row, parts, readable

SHOWN = ("path", "score", "class", "probability", "p_value", "verdict")
"""What the summary and its page show of an image."""
THUMBNAIL = 128  # pixels of the longer side
WIDE, HIGH = 130, 34  # of the histogram on the page


class RowCounts:
    """Counts rows by verdict, class and error, and keeps the ``top`` rows with the highest scores."""

    def __init__(self, top: int) -> None:
        self.top = top
        self.rows = 0
        self._kinds: Counter[tuple[str, str, str | None]] = Counter()  # verdict, class, seen
        self._reasons: Counter[str] = Counter()
        self._highest: list[tuple[float, int, Row]] = []

    def add(self, row: Row) -> None:
        """Count a row."""
        self.rows += 1
        if row["error"] is not None:
            self._reasons[row["error"]] += 1
            return
        self._kinds[row["verdict"], row["class"], row["seen"]] += 1
        if len(self._highest) < self.top:
            heapq.heappush(self._highest, (row["score"], -self.rows, row))
        elif self._highest and row["score"] > self._highest[0][0]:
            heapq.heapreplace(self._highest, (row["score"], -self.rows, row))

    def summary(self, model: Model) -> dict[str, Any]:
        """Return the counts, and the images with the highest scores, highest first."""
        verdicts, classes, seen = Counter[str](), Counter[str](), Counter[str | None]()
        for (verdict, name, when), count in self._kinds.items():
            verdicts[verdict] += count
            classes[name] += count
            seen[when] += count
        highest = sorted(self._highest, key=lambda entry: entry[:2], reverse=True)
        return {
            "images": sum(verdicts.values()),
            "inputs": "images" if isinstance(model.preprocessing, Preprocessing) else "feature vectors",
            "bad_files": sum(self._reasons.values()),
            "alpha": model.calibration.alpha,
            "flag_rate": None if model.calibration.per_class else model.calibration.flag_rate().mean,
            "detector": model.detector.name,
            "verdicts": {verdict.value: verdicts[verdict.value] for verdict in Verdict},
            "classes": dict(classes.most_common()),
            "reasons": dict(self._reasons.most_common(20)),
            "seen": {when: seen[when] for when in ("training", "calibration")},
            "top": [{key: row[key] for key in SHOWN} for _, _, row in highest],
        }


def sentences(summary: dict[str, Any]) -> str:
    """Return the summary as text."""
    images, out = summary["images"], summary["verdicts"][Verdict.OUT.value]
    inputs = summary["inputs"]
    lines = ["The run was finished before: nothing was scored again."] if summary.get("finished_before") else []
    unread = "file" if inputs == "images" else "row"
    bad = f"{summary['bad_files']:,} {unread}{'s' if summary['bad_files'] != 1 else ''}"
    lines += [f"{images:,} {inputs if images != 1 else inputs.removesuffix('s')} scored, {bad} that could not be read."]
    if images:
        rate = summary.get("flag_rate")
        share = f"at most {summary['alpha']:.1%}" if rate is None else f"about {rate:.1%}"
        lines.append(
            f"{out:,} ({out / images:.1%}) are out-of-distribution at alpha {summary['alpha']:g}; of {inputs} like those "
            f"that the network was trained on, {share} would be."
        )
        shown = [f"{name} {count:,}" for name, count in list(summary["classes"].items())[:6]]
        lines.append("Classes: " + ", ".join(shown) + ("." if len(shown) < 6 else ", ..."))
    known = [
        f"{'trained' if when == 'training' else 'calibrated'} on {n:,}" for when, n in summary["seen"].items() if n
    ]
    if known:
        lines.append(
            f"The bundle was {' and '.join(known)} of these images (column seen): their verdicts say "
            "nothing about new images."
        )
    if "flagged_together" in summary:
        lines.append(summary["flagged_together"]["meaning"])
    if summary["verdicts"][Verdict.TOO_FEW.value]:
        lines.append(f"{summary['verdicts'][Verdict.TOO_FEW.value]:,} have no verdict: {Verdict.TOO_FEW.value}.")
    lines += [f"  {count:,} x {reason}" for reason, count in list(summary["reasons"].items())[:3]]
    return "\n".join(lines)


def has_page(summary: dict[str, Any]) -> bool:
    """Return whether there are images to show; feature vectors are nothing to look at."""
    return bool(summary["top"]) and bool(summary["inputs"] == "images")


def write_score_page(summary: dict[str, Any], path: Path, title: str, model: Model) -> None:
    """Write the images with the highest scores as a page with a table that can be sorted.

    Each image has the map of its cosine, its nearest classes and its place among the calibration images; the images are read
    again for it, those in archives and arrays too.
    """
    from jinja2 import Environment, PackageLoader

    calibration = model.calibration
    values = -calibration.scores if calibration.by_cosine else calibration.scores  # what the verdict depends on
    counts, edges = np.histogram(values, bins=40)
    pictures = _pictures(model, [entry["path"] for entry in summary["top"]])
    rows = []
    for entry in summary["top"]:
        value = -entry["score"] if calibration.by_cosine else entry["score"]
        share = float(np.clip((value - edges[0]) / ((edges[-1] - edges[0]) or 1), 0, 1))
        found = pictures.get(entry["path"])
        numbers = {key: f"{entry[key]:.4g}" for key in ("score", "p_value", "probability")}
        mark = None if found is None else round(WIDE * share, 1)
        out = entry["verdict"] == Verdict.OUT.value
        rows.append({**entry, **numbers, "out": out, "value": value, "mark": mark, **(found or {})})
    template = Environment(loader=PackageLoader("offaxis.score"), autoescape=True).get_template("scores.html.j2")
    page = template.render(
        title=title,
        text=sentences(summary),
        rows=rows,
        bars=_bars(counts),
        of="cosine" if calibration.by_cosine else "score",
        maps=any(row.get("map") for row in rows),
        why=next((found["why"] for found in pictures.values()), None),
    )
    write_text(path, page)


def _bars(counts: NDArray[Any]) -> list[dict[str, float]]:
    """Return the rectangles of a histogram."""
    wide, heights = WIDE / len(counts), HIGH * counts / counts.max()
    sizes = enumerate(heights.round(2).tolist())
    return [{"x": round(i * wide, 2), "y": HIGH - h, "width": round(wide - 0.3, 2), "height": h} for i, h in sizes]


def _pictures(model: Model, names: Sequence[str]) -> dict[str, Row]:
    """Return what the page shows of images by the paths of their rows: thumbnails, maps, nearest classes, places."""
    found: dict[str, Row] = {}
    for batch in parts(_read_again(model, names), 32):
        pixels = torch.from_numpy(np.stack([pixels for _, pixels, _ in batch]))
        for (name, _, row), why in zip(batch, explain(model, pixels), strict=True):
            found[name] = {
                **row,
                "why": why,
                "map": None if why.map is None else data_uri("image/png", map_png(why.map)),
                "nearest": why.nearest,
                "examples": [(of, cosine, data_uri("image/png", png)) for of, cosine, png in why.examples],
            }
    return found


def _read_again(model: Model, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.uint8], Row]]:
    """Yield name, pixels and thumbnail of images, as far as they are still there: file by file, archive by archive."""
    wanted, missing = model.preprocessing, dict[str, set[str]]()
    assert isinstance(wanted, Preprocessing)
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
                if isinstance(item.source, np.ndarray):
                    pixels = wanted.pixels(item.source)
                    image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
                else:
                    image = decode(item.source)
                    pixels = wanted.pixels(image)
            except DataError:
                continue  # it was removed or changed meanwhile
            place = _part_seen(image.size, wanted)
            image.thumbnail((THUMBNAIL, THUMBNAIL))
            small = io.BytesIO()
            image.save(small, "JPEG", quality=80)
            yield name, pixels, {"place": place, "image": data_uri("image/jpeg", small.getvalue())}


def _part_seen(size: tuple[int, int], wanted: Preprocessing) -> str:
    """Return the CSS place of the part of an image that the network sees, for the map over it."""
    (width, height), (_, *target) = size, wanted.shape
    top, left, tall, wide = 0, 0, height, width
    if wanted.resize == "crop":
        top, left, tall, wide = centre((height, width), (target[0], target[1]))
    shares = {"left": left / width, "top": top / height, "width": wide / width, "height": tall / height}
    return ";".join(f"{name}:{100 * share:.2f}%" for name, share in shares.items())
