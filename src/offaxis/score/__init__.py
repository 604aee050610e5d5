"""Score many images: paths -> a file of rows, a summary and a page of the images with the highest scores."""

import hashlib
import heapq
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Generic, TypeVar

from offaxis.bundle import bundle_checksum
from offaxis.calibration.conformal import check_alpha, check_count
from offaxis.data.containers import holds_several
from offaxis.data.decode import is_remote, thumbnail_uri
from offaxis.data.transforms import Preprocessing
from offaxis.errors import ArgumentError
from offaxis.files import write_text
from offaxis.model import Model
from offaxis.options import ScoreOptions
from offaxis.prediction import Verdict
from offaxis.progress import Progress
from offaxis.score.images import Scored, files, score_sources, score_with_ray, sources
from offaxis.score.page import MAPS, choose, write_score_page
from offaxis.score.rows import FIELDS, Journal, Row, StandardOutput, format_of, four_digits, readable

__all__ = ["RowCounts", "score_images", "sentences", "write_score_page"]
T = TypeVar("T")

SHOWN = ("path", "score", "class", "could_be", "probability", "p_value", "verdict")
"""What the summary and its page show of an image."""


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
    page, selected, own = None, None, set[str]()
    of_images = isinstance(model.preprocessing, Preprocessing)
    if options.select and (options.out == "-" or not of_images):
        raise ArgumentError(
            "Expected --out FILE and a bundle of images beside --select: the list is written beside it."
        )
    journal: Journal | StandardOutput
    fields = [name for name in FIELDS if name != "class_p_value" or model.calibration.per_class]
    if options.out == "-":
        journal = StandardOutput(kind, options.fdr, fields)
    else:
        paths = tuple(paths)  # a list on standard input is read to its end, to know it again
        out = Path(options.out)
        page, selected = out.with_suffix(".html"), out.with_suffix(".select.txt")
        if out == page:
            raise ArgumentError(
                f"Expected --out to be another file than {out}, where the page goes: name it .csv or .jsonl."
            )
        bundle = bundle_checksum(options.bundle)
        run = {"bundle": bundle, "paths": _digest(paths), "format": kind, "fdr": options.fdr}
        run |= {"alpha": model.calibration.alpha, "every": options.every}
        journal = Journal(out, run, fields, page if options.top > 0 and of_images else None)
        own = {os.path.abspath(file) for file in (out, journal.path, journal.summary, page, selected)}  # noqa: PTH100 - as below
    examined = max(MAPS, 4 * options.select) if page is not None and of_images else 0
    counts, seen, p_values = RowCounts(options.top, examined), set[bytes](), list[float]()
    with closing(journal), Progress("scored", _total(paths, own), options.quiet or page is None) as progress:
        finished = journal.begin(options.resume, options.overwrite)

        def note(row: Row, pixels: Any = None) -> None:
            counts.add(row, pixels if of_images and page is not None else None)
            if options.fdr is not None and row["error"] is None:
                p_values.append(row["p_value"])

        for row in journal.rows():
            seen.add(_path_key(row["path"]))
            note(row)
        before = progress.first = counts.rows
        for scored in _scored(model, paths, options, seen, own):
            journal.add(row for row, _ in scored)
            for row, pixels in scored:
                note(row, pixels)
            progress.to(counts.rows, {"": f"{progress.rate(counts.rows):,.1f} a second"})
        if finished is not None and counts.rows == before and not options.select:
            journal.discard()
            shown = has_page(finished) and page is not None and page.exists()
            return {**finished, "finished_before": True, "page": str(page) if shown else None}
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
        candidates = counts.examined.best_first()
        kept = {row["path"]: image for row, image in candidates if image is not None}
        if page is not None:
            progress.say(f"Writing {page} ...")
            thumbnails = {row["path"]: image for row, image in counts.top.best_first() if image is not None}
            title = f"offaxis score: {Path(options.out).name}"
            write_score_page(summary, page, title, model, sentences(summary), thumbnails, kept)
        if options.select and selected is not None:
            chosen = choose(model, [row for row, _ in candidates], kept, options.select)
            write_text(selected, "".join(f"{name}\n" for name in chosen))
            summary["selected"] = str(selected)
        journal.finish(summary, flags)
    return {**summary, "page": None if page is None else str(page)}


def _total(paths: Iterable[str], own: set[str]) -> int | None:
    """Count the images of paths that are named, where that takes no reading of archives or buckets."""
    if not isinstance(paths, tuple) or any(map(is_remote, paths)):
        return None
    total = 0
    for file in _found(paths, own):
        if holds_several(file):
            return None
        total += 1
    return total


def _found(paths: Iterable[str], own: set[str]) -> Iterator[str]:
    """Yield the files behind paths; the output files themselves are left out."""
    names = {Path(path).name for path in own}
    for path in files(paths):
        if path.rpartition(os.sep)[2] not in names or os.path.abspath(path) not in own:  # noqa: PTH100 - faster
            yield path


def _scored(
    model: Model, paths: Iterable[str], options: ScoreOptions, seen: set[bytes], own: set[str]
) -> Iterator[Sequence[Scored]]:
    """Yield the rows of what has none yet, with pixels where they are here, and note what has one."""
    found = _found(paths, own)
    if options.runner == "threads":
        new = (item for item in sources(found, options.every) if _note(seen, item.name))
        yield from score_sources(model, new, options.batch, options.workers)
        return
    for rows in score_with_ray((path for path in found if holds_several(path) or _path_key(path) not in seen), options):
        yield [(row, None) for row in rows if _note(seen, row["path"])]


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


class Highest(Generic[T]):
    """Keeps what has the ``count`` highest scores; of equal scores the first."""

    def __init__(self, count: int) -> None:
        self.count, self._seen, self._heap = count, 0, list[tuple[float, int, T]]()

    def add(self, score: float, make: Callable[[], T]) -> None:
        """Keep what ``make`` returns, which is called where the score is high enough."""
        self._seen += 1
        if len(self._heap) < self.count:
            heapq.heappush(self._heap, (score, -self._seen, make()))
        elif self._heap and score > self._heap[0][0]:
            heapq.heapreplace(self._heap, (score, -self._seen, make()))

    def best_first(self) -> list[T]:
        """Return what was kept, highest score first."""
        return [kept for *_, kept in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]


class RowCounts:
    """Counts rows by verdict, class and error, and keeps those with the highest scores.

    Args:
        top: rows that are kept, with thumbnails of their pixels.
        examined: rows that are kept with the pixels themselves.
    """

    def __init__(self, top: int, examined: int = 0) -> None:
        self.rows = 0
        self.top, self.examined = Highest[tuple[Row, str | None]](top), Highest[tuple[Row, Any]](examined)
        self._kinds: Counter[tuple[str, str, str | None]] = Counter()  # verdict, class, seen
        self._reasons: Counter[str] = Counter()

    def add(self, row: Row, pixels: Any = None) -> None:
        """Count a row; pixels (c, h, w) are those of its image."""
        self.rows += 1
        if row["error"] is not None:
            self._reasons[row["error"]] += 1
            return
        self._kinds[row["verdict"], row["class"], row["seen"]] += 1
        score = four_digits(row["score"])  # as a CSV file gives it back to a run that is resumed
        kept = {key: four_digits(row[key]) for key in SHOWN}
        self.top.add(score, lambda: (kept, None if pixels is None else thumbnail_uri(pixels)))
        self.examined.add(score, lambda: (kept, pixels))

    def summary(self, model: Model) -> dict[str, Any]:
        """Return the counts, and the images with the highest scores, highest first."""
        verdicts, classes, seen = Counter[str](), Counter[str](), Counter[str | None]()
        for (verdict, name, when), count in self._kinds.items():
            verdicts[verdict] += count
            classes[name] += count
            seen[when] += count
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
            "top": [row for row, _ in self.top.best_first()],
        }


def sentences(summary: dict[str, Any]) -> str:
    """Return the summary as text."""
    images, out = summary["images"], summary["verdicts"][Verdict.OUT.value]
    inputs = summary["inputs"]
    lines = (
        ["The run was finished before, and nothing is new: nothing was scored again."]
        if summary.get("finished_before")
        else []
    )
    unread = "file" if inputs == "images" else "row"
    bad = f"{summary['bad_files']:,} {unread}{'s' if summary['bad_files'] != 1 else ''}"
    lines += [f"{images:,} {inputs if images != 1 else inputs.removesuffix('s')} scored, {bad} that could not be read."]
    if images:
        rate = summary.get("flag_rate")
        share = f"at most {summary['alpha']:.1%}" if rate is None else f"about {rate:.1%}"
        lines.append(
            f"{out:,} ({out / images:.1%}) are unlike the training images (alpha {summary['alpha']:g}); of new {inputs} that "
            f"are like these, {share} would be flagged."
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
    if unsure := summary["verdicts"].get(Verdict.UNSURE.value):
        lines.append(f"Of {unsure:,} others the class is unsure: ask a person.")
    if summary["verdicts"][Verdict.TOO_FEW.value]:
        lines.append(f"{summary['verdicts'][Verdict.TOO_FEW.value]:,} have no verdict: {Verdict.TOO_FEW.value}.")
    lines += [f"  {count:,} x {reason}" for reason, count in list(summary["reasons"].items())[:3]]
    return "\n".join(lines)


def has_page(summary: dict[str, Any]) -> bool:
    """Return whether there are images to show; feature vectors are nothing to look at."""
    return bool(summary["top"]) and bool(summary["inputs"] == "images")
