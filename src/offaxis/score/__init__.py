"""Score many images: paths -> a file of rows, a summary and a page of the images with the highest scores."""

import hashlib
import heapq
import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, PackageLoader
from numpy.typing import NDArray
from PIL import Image

from offaxis.bundle import bundle_checksum
from offaxis.calibration.conformal import check_alpha, check_count
from offaxis.data.containers import holds_several
from offaxis.data.decode import decode
from offaxis.data.transforms import Preprocessing, centre
from offaxis.errors import ArgumentError, DataError
from offaxis.explain import calibration_histogram, data_uri, explain, map_png
from offaxis.files import write_text
from offaxis.model import Model
from offaxis.options import ScoreOptions
from offaxis.prediction import Verdict
from offaxis.progress import CountProgress
from offaxis.score.images import file_of, files, score_sources, score_with_ray, sources
from offaxis.score.rows import FIELDS, Journal, Row, StandardOutput, format_of, parts, readable, shortened

SHOWN = ("path", "score", "class", "probability", "p_value", "verdict")
"""What the summary and its page show of an image."""
THUMBNAIL = 128  # pixels of the longer side
WIDE = 130  # of the histogram on the page


def score_images(model: Model, options: ScoreOptions, paths: Iterable[str] | None = None) -> dict[str, Any]:
    """Score all images behind the paths; the rows are written to ``options.out``, with a summary and a page beside it.

    Args:
        model: the model of ``options.bundle``, which workers of Ray load again.
        options: where the rows go, and how.
        paths: images, folders and archives; None for those of the options.

    Returns:
        The summary: counts, errors and the images with the highest scores; ``page`` names the page, None where there is
        none.

    Raises:
        ArgumentError: the output, its summary or its page is there already, or its format is not known.
        TooFewImagesError: nothing could ever be flagged at ``fdr`` with so few calibration images.
        StorageError: it cannot be written.
    """
    paths = options.paths if paths is None else paths
    model = model if options.alpha is None else model.recalibrated(alpha=options.alpha)
    assert options.bundle is not None
    if options.fdr is not None:
        check_count(len(model.calibration.scores), check_alpha(options.fdr, "fdr"))
    kind = format_of(options.out, options.format)
    page, own = None, set[str]()
    journal: Journal | StandardOutput
    fields = [name for name in FIELDS if name != "class_p_value" or model.calibration.per_class]
    if options.out == "-":
        journal = StandardOutput(kind, options.fdr, fields)
    else:
        paths = tuple(paths)  # a list on standard input is read to its end, to know it again
        out = Path(options.out)
        page = out.with_suffix(".html")
        if out == page:
            raise ArgumentError(
                f"Expected --out to be another file than {out}, where the page goes: name it .csv or .jsonl."
            )
        bundle = bundle_checksum(options.bundle)
        run = {"bundle": bundle, "paths": _digest(paths), "format": kind, "fdr": options.fdr}
        run["alpha"] = model.calibration.alpha
        shows = options.top > 0 and isinstance(model.preprocessing, Preprocessing)
        journal = Journal(out, run, fields, page if shows else None)
        own = {os.path.abspath(file) for file in (out, journal.path, journal.summary, page)}  # noqa: PTH100 - as below
    counts, seen, p_values = RowCounts(options.top), set[bytes](), list[float]()
    with closing(journal), CountProgress(options.quiet or page is None) as counter:
        finished = journal.begin(options.resume, options.overwrite)
        if finished is not None:
            shown = has_page(finished) and page is not None and page.exists()
            return {**finished, "finished_before": True, "page": str(page) if shown else None}

        def note(row: Row) -> None:
            counts.add(row)
            if options.fdr is not None and row["error"] is None:
                p_values.append(row["p_value"])

        for row in journal.rows():
            seen.add(_path_key(row["path"]))
            note(row)
        for rows in _scored(model, paths, options, seen, own):
            journal.add(rows)
            for row in rows:
                note(row)
            counter.to(counts.rows)
        summary = counts.summary(model)
        flags = None
        if options.fdr is not None:
            found = model.calibration.control_fdr(p_values, options.fdr)
            flags = found.flagged.tolist()
            meaning = found.explain()
            summary["flagged_together"] = {
                "fdr": found.fdr,
                "flagged": sum(flags),
                "fewest": found.least,
                "meaning": meaning,
            }
        page = page if has_page(summary) else None
        if page is not None:
            write_score_page(summary, page, f"offaxis score: {Path(options.out).name}", model)
        journal.finish(summary, flags)
    return {**summary, "page": None if page is None else str(page)}


def _scored(
    model: Model, paths: Iterable[str], options: ScoreOptions, seen: set[bytes], own: set[str]
) -> Iterator[list[Row]]:
    """Yield the rows of what has none yet, and note what has one; the output files themselves are left out."""
    names = {Path(path).name for path in own}
    found = (
        path
        for path in files(paths)
        if path.rpartition(os.sep)[2] not in names or os.path.abspath(path) not in own  # noqa: PTH100 - faster
    )
    if options.runner == "threads":
        new = (item for item in sources(found) if _note(seen, item.name))
        yield from score_sources(model, new, options.batch, options.workers)
        return
    for rows in score_with_ray((path for path in found if holds_several(path) or _path_key(path) not in seen), options):
        yield [row for row in rows if _note(seen, row["path"])]


def _note(seen: set[bytes], path: str) -> bool:
    """Return whether this path is new, and add it to the seen ones."""
    before = len(seen)
    seen.add(_path_key(path))
    return len(seen) > before


def _path_key(path: str) -> bytes:
    """Return sixteen bytes for a path, with or without a leading ``./``: millions of them fit in memory."""
    text = path if path.isascii() else readable(path)
    return hashlib.blake2b(text.removeprefix("./").encode(), digest_size=16).digest()


def _digest(paths: Sequence[str]) -> str:
    """Return a digest of paths as they were named."""
    return hashlib.sha256(b"".join(os.fsencode(path) + b"\0" for path in paths)).hexdigest()


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
        score = shortened(row["score"])  # as a CSV file gives it back to a run that is resumed
        if len(self._highest) < self.top:
            heapq.heappush(self._highest, (score, -self.rows, row))
        elif self._highest and score > self._highest[0][0]:
            heapq.heapreplace(self._highest, (score, -self.rows, row))

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
            "top": [{key: shortened(row[key]) for key in SHOWN} for _, _, row in highest],
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
    shown = calibration_histogram(model.calibration)
    edges, sign = shown["edges"], -1 if shown["of"] == "cosine" else 1
    pictures = _pictures(model, [entry["path"] for entry in summary["top"]])
    rows = []
    for entry in summary["top"]:
        value = sign * entry["score"]
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
        counts=shown["counts"],
        of=shown["of"],
        maps=any(row.get("map") for row in rows),
        why=next((found["why"] for found in pictures.values()), None),
    )
    write_text(path, page)


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
