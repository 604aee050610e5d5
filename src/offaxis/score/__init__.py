"""Score many images: paths -> a file of rows, a summary and a page of the images with the highest scores."""

import hashlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from offaxis.bundle import bundle_checksum
from offaxis.calibration.conformal import BatchFlags, check_alpha, check_count
from offaxis.data.archive import is_archive
from offaxis.data.decode import decode
from offaxis.data.transforms import Preprocessing, centre
from offaxis.errors import ArgumentError, DataError, StorageError
from offaxis.explain import data_uri, explain, map_png
from offaxis.files import read_json, write_json, write_text
from offaxis.model import Model, Verdict
from offaxis.options import ScoreOptions
from offaxis.progress import CountProgress
from offaxis.score.engines import score_units, score_with_ray
from offaxis.score.rows import (
    FIELDS,
    FLAGGED,
    Journal,
    Row,
    RowCounts,
    RowWriter,
    flag_rows,
    flag_together,
    format_of,
    sentences,
    write_rows,
)
from offaxis.score.sources import WorkUnit, batches, files, place_of, readable, units

THUMBNAIL = 128  # pixels of the longer side


def write_score_page(summary: dict[str, Any], path: Path, title: str, model: Model) -> bool:
    """Write the images with the highest scores as a page with a table that can be sorted; False where there are none.

    Each image has the map of its cosine, its nearest classes and its place among the calibration images; the images are read
    again for it, those in archives and arrays too.
    """
    if not _has_page(summary):
        return False
    from jinja2 import Environment, PackageLoader

    pictures = _Pictures(model)
    pictures.read([entry["path"] for entry in summary["top"]])
    rows = [
        {**_NO_PICTURE, **entry, **_numbers(entry), **pictures.found.get(entry["path"], {})} for entry in summary["top"]
    ]
    template = Environment(loader=PackageLoader("offaxis.score"), autoescape=True).get_template("scores.html.j2")
    page = template.render(
        title=title,
        text=sentences(summary),
        rows=rows,
        bars=pictures.bars(),
        of=pictures.of,
        maps=any(row["map"] for row in rows),
        reason=pictures.reason,
        shown=pictures.shown,
    )
    write_text(path, page)
    return True


def _has_page(summary: dict[str, Any]) -> bool:
    return bool(summary["top"]) and summary["inputs"] == "images"  # feature vectors are nothing to look at


_NO_PICTURE = {"image": None, "map": None, "place": "", "nearest": (), "value": None, "mark": None, "examples": ()}


def _numbers(entry: Row) -> Row:
    """Return the numbers of a row as the page shows them, and whether it is marked."""
    shown = {key: f"{entry[key]:.4g}" for key in ("score", "p_value", "probability")}
    return {**shown, "out": entry["verdict"] == Verdict.OUT.value}


class _Pictures:
    """What the page shows of images by the paths of their rows: thumbnails, maps, nearest classes, places.

    Args:
        model: explains its predictions, so many images at a time.
    """

    def __init__(self, model: Model) -> None:
        self.model, self.found = model, dict[str, Row]()
        self.reason: str | None = None
        self.shown = "cosine"  # by the maps
        scores, self.by_cosine = model.calibration.scores, model.calibration.by_cosine
        self.of = "cosine" if self.by_cosine else "score"  # what the verdict depends on
        self.counts, self.edges = np.histogram(-scores if self.by_cosine else scores, bins=40)
        self._waiting: list[tuple[str, Any]] = []

    def read(self, names: list[str]) -> None:
        """Read images, file by file, archive by archive and array by array."""
        archived: dict[str, set[str]] = {}
        for name in names:
            place, inside = place_of(name)
            if inside:
                archived.setdefault(place, set()).add(name)
            else:
                self._keep(name, place)
        for archive, members in archived.items():
            self._keep_members(archive, members)
        self._explain()

    def bars(self) -> list[dict[str, float]]:
        """Return the rectangles of the calibration histogram, 130 wide and 34 high."""
        wide, heights = _WIDE / len(self.counts), 34 * self.counts / self.counts.max()
        sizes = enumerate(heights.round(2).tolist())
        return [{"x": round(i * wide, 2), "y": 34 - h, "width": round(wide - 0.3, 2), "height": h} for i, h in sizes]

    def _keep_members(self, archive: str, members: set[str]) -> None:
        """Read the archive, or the array, until all members are found."""
        missing = set(members)
        for (item,) in batches(WorkUnit((archive,), archive=True), 1):
            name = readable(item.name)
            if name in missing and item.source is not None:
                missing.remove(name)  # a second file of this name has no row
                self._keep(name, item.source)
            if not missing:
                return

    def _keep(self, name: str, source: str | bytes | NDArray[Any]) -> None:
        wanted = self.model.preprocessing
        assert isinstance(wanted, Preprocessing)
        try:
            if isinstance(source, np.ndarray):
                pixels = wanted.pixels(source)
                image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
            else:
                image = decode(source)
                pixels = wanted.pixels(image)
        except DataError:
            return  # it was removed or changed meanwhile
        self._waiting.append((name, pixels))
        row = {"place": _part_seen(image.size, wanted)}
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        small = io.BytesIO()
        image.save(small, "JPEG", quality=80)
        self.found[name] = {**row, "image": data_uri("image/jpeg", small.getvalue())}
        if len(self._waiting) == 32:
            self._explain()

    def _explain(self) -> None:
        if not self._waiting:
            return
        pixels = torch.from_numpy(np.stack([pixels for _, pixels in self._waiting]))
        both = zip(explain(self.model, pixels), self.model.predict_each(pixels), strict=True)
        for (name, _), (why, prediction) in zip(self._waiting, both, strict=True):
            row = self.found[name]
            self.reason, self.shown = why.reason, why.of
            row["map"] = None if why.map is None else data_uri("image/png", map_png(why.map))
            row["examples"] = [(of, cosine, data_uri("image/png", png)) for of, cosine, png in why.examples]
            if isinstance(prediction, str):  # the files have changed meanwhile
                continue
            row["nearest"] = prediction.nearest[:3]
            row["value"] = value = -prediction.score if self.by_cosine else prediction.score
            share = (value - self.edges[0]) / ((self.edges[-1] - self.edges[0]) or 1)
            row["mark"] = round(float(np.clip(_WIDE * share, 0, _WIDE)), 1)
        self._waiting = []


_WIDE = 130


def _part_seen(size: tuple[int, int], wanted: Preprocessing) -> str:
    """Return the CSS place of the part of an image that the network sees, for the map over it."""
    (width, height), (_, *target) = size, wanted.shape
    top, left, tall, wide = 0, 0, height, width
    if wanted.resize == "crop":
        top, left, tall, wide = centre((height, width), (target[0], target[1]))
    shares = {"left": left / width, "top": top / height, "width": wide / width, "height": tall / height}
    return ";".join(f"{name}:{100 * share:.2f}%" for name, share in shares.items())


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
    bundle, paths = options.bundle, options.paths if paths is None else paths
    assert bundle is not None
    if options.fdr is not None:
        check_count(len(model.calibration.scores), check_alpha(options.fdr, "fdr"))
    kind = format_of(options.out, options.format)
    if options.out == "-":
        return _to_standard_output(bundle, model, paths, options, kind)
    out = Path(options.out)
    named_at_once = _digest(paths) if isinstance(paths, Sequence) else ""
    journal = Journal(out, bundle_checksum(bundle), named_at_once)
    summary_file, page = out.with_suffix(".summary.json"), out.with_suffix(".html")
    if out == page:
        raise ArgumentError(
            f"Expected --out to be another file than {out}, where the page goes: name it .csv or .jsonl."
        )
    own = {os.path.abspath(file) for file in (out, journal.path, summary_file, page)}  # noqa: PTH100 - as below
    named = hashlib.sha256()
    paths = _hashed(paths, named)
    if options.resume and not options.overwrite and out.exists() and not journal.path.exists():
        for _ in paths:
            pass
        summary = _finished_summary(summary_file, out, journal.identity, named.hexdigest(), options.fdr)
        return {**summary, "page": str(page) if _has_page(summary) and page.exists() else None}
    pages = (page,) if options.top and isinstance(model.preprocessing, Preprocessing) else ()
    journal.begin(out, options.resume, options.overwrite, (summary_file, *pages))
    seen, counts = set[bytes](), RowCounts(options.top)

    def journalled() -> Iterator[Row]:
        for row in journal.rows():
            seen.add(_key(row["path"]))
            yield row
        with CountProgress(options.quiet) as counter:
            for rows in _rows(bundle, model, _unseen(paths, seen, own), options, lambda name: _key(name) in seen):
                fresh = [row for row in rows if _note(seen, row["path"])]
                journal.add(fresh)
                counter.to(len(seen))
                yield from fresh

    try:
        if options.fdr is None:
            write_rows(counts.counted(journalled()), out, kind)
            summary = counts.summary(model)
        else:
            summary = _counted_all(counts, journalled(), model)
            flags = flag_together(journal.rows(), model, options.fdr)
            write_rows(flag_rows(journal.rows(), flags.flagged.tolist()), out, kind, (*FIELDS, FLAGGED))
            summary["flagged_together"] = _describe_flags(flags)
        asked = {"bundle": journal.identity, "paths": named.hexdigest(), "out": readable(out.name)}
        write_json(summary_file, {**asked, **summary}, ensure_ascii=False)
        written = write_score_page(summary, page, f"offaxis score: {out.name}", model)
    finally:
        journal.close()
    journal.path.unlink()
    return {**summary, "page": str(page) if written else None}


def _digest(paths: Iterable[str]) -> str:
    """Return a digest of paths as they were given."""
    into = hashlib.sha256()
    for _ in _hashed(paths, into):
        pass
    return into.hexdigest()


def _hashed(paths: Iterable[str], into: "hashlib._Hash") -> Iterator[str]:
    """Yield the paths, and hash them as they were given."""
    for path in paths:
        into.update(os.fsencode(path) + b"\0")
        yield path


def _finished_summary(file: Path, out: Path, bundle: str, paths: str, fdr: float | None) -> dict[str, Any]:
    """Return the summary of a run that is finished, for which nothing is left to resume.

    Raises:
        ArgumentError: the output is not that of a finished run of this bundle on these paths, flagged at this ``fdr``.
    """
    anew = "name another --out, or add --overwrite"
    if not file.is_file():
        raise ArgumentError(f"{out} is there already and is not known to be finished, as {file} is missing: {anew}.")
    summary = read_json(file, ArgumentError, anew)
    if summary.get("out", readable(out.name)) != readable(out.name):
        raise ArgumentError(f"{out} is there already, and {file} is the summary of {summary['out']}: {anew}.")
    if summary.get("bundle") != bundle:
        raise ArgumentError(f"{out} holds the rows of another bundle: {anew}.")
    if summary.get("paths", paths) != paths:
        raise ArgumentError(f"{out} is finished and holds the rows of other paths than those that were named: {anew}.")
    before = summary.get("flagged_together", {}).get("fdr")
    if before != fdr:
        without = "without --fdr" if before is None else f"with --fdr {before:g}"
        raise ArgumentError(f"{out} is finished, and its rows were written {without}: {anew}.")
    return {**summary, "finished_before": True}


def _describe_flags(flags: BatchFlags) -> dict[str, Any]:
    count = int(flags.flagged.sum())
    return {"fdr": flags.fdr, "flagged": count, "fewest": flags.least, "meaning": flags.explain()}


def _to_standard_output(
    bundle: Path, model: Model, paths: Iterable[str], options: ScoreOptions, kind: str
) -> dict[str, Any]:
    writer = RowWriter(sys.stdout, kind, FIELDS if options.fdr is None else (*FIELDS, FLAGGED))
    seen: set[bytes] = set()

    def scored() -> Iterator[Row]:
        for rows in _rows(bundle, model, _unseen(paths, seen, set()), options):
            fresh = [row for row in rows if _note(seen, row["path"])]
            if options.fdr is None:
                _print(writer, fresh)
            yield from fresh

    counts = RowCounts(options.top)
    if options.fdr is None:
        return _counted_all(counts, scored(), model)
    rows = list(counts.counted(scored()))  # who is flagged depends on all of them
    flags = flag_together(rows, model, options.fdr)
    _print(writer, flag_rows(rows, flags.flagged.tolist()))
    return {**counts.summary(model), "flagged_together": _describe_flags(flags)}


def _counted_all(counts: RowCounts, rows: Iterable[Row], model: Model) -> dict[str, Any]:
    for _ in counts.counted(rows):
        pass
    return counts.summary(model)


def _print(writer: RowWriter, rows: Iterable[Row]) -> None:
    try:
        writer.add(rows)
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # the reader, such as head, has closed the pipe
    except io.UnsupportedOperation:
        raise  # it was closed before
    except OSError as error:
        with suppress(OSError):
            sys.stdout.close()  # else it is flushed once more at the end, and fails again
        raise StorageError(f"Standard output cannot be written ({error.strerror}): free some space.") from error


def _rows(
    bundle: Path,
    model: Model,
    unseen: Iterable[str],
    options: ScoreOptions,
    known: Callable[[str], bool] | None = None,
) -> Iterator[list[Row]]:
    """Yield the rows of files; of those in an archive that are ``known``, none, unless a worker of Ray has read it."""
    work: Iterator[WorkUnit] = units(unseen, options.batch)
    if options.runner == "ray":
        return score_with_ray(bundle, work, options.batch, options.workers, options.engine)
    return score_units(model, work, options.batch, options.workers, known)


def _unseen(paths: Iterable[str], seen: set[bytes], own: set[str]) -> Iterator[str]:
    """Yield the files behind the paths, without those that have a row already and the output files themselves."""
    names = {Path(path).name for path in own}
    for path in files(paths):
        if path.rpartition(os.sep)[2] in names and os.path.abspath(path) in own:  # noqa: PTH100 - faster
            continue
        if is_archive(path) or not seen or _key(path) not in seen:
            yield path


def _note(seen: set[bytes], path: str) -> bool:
    """Return whether this path is new, and add it to the seen ones."""
    key = _key(path)
    if key in seen:
        return False
    seen.add(key)
    return True


def _key(path: str) -> bytes:
    """Return sixteen bytes for a path: millions of them fit in memory."""
    text = path if path.isascii() else readable(path)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
