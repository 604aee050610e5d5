"""Score many images: paths -> a file of rows, a summary and a page of the images with the highest scores."""

import hashlib
import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from offaxis.bundle import bundle_checksum
from offaxis.calibration.conformal import BatchFlags, check_alpha, check_count
from offaxis.data.transforms import Preprocessing
from offaxis.errors import ArgumentError, StorageError
from offaxis.model import Model
from offaxis.options import ScoreOptions
from offaxis.progress import CountProgress
from offaxis.score.images import files, holds_several, score_sources, score_with_ray, sources
from offaxis.score.report import RowCounts, has_page, write_score_page
from offaxis.score.rows import FIELDS, FLAGGED, Journal, Row, RowWriter, flag_rows, format_of, readable


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
    assert options.bundle is not None
    if options.fdr is not None:
        check_count(len(model.calibration.scores), check_alpha(options.fdr, "fdr"))
    kind = format_of(options.out, options.format)
    if options.out == "-":
        return _to_standard_output(model, paths, options, kind)
    paths = tuple(paths)  # a list on standard input is read to its end, to know it again
    out = Path(options.out)
    page = out.with_suffix(".html")
    if out == page:
        raise ArgumentError(
            f"Expected --out to be another file than {out}, where the page goes: name it .csv or .jsonl."
        )
    run = {
        "bundle": bundle_checksum(options.bundle),
        "paths": _digest(paths),
        "format": kind,
        "fdr": options.fdr,
    }
    shows = options.top > 0 and isinstance(model.preprocessing, Preprocessing)
    journal = Journal(out, run, page if shows else None)
    finished = journal.begin(options.resume, options.overwrite)
    if finished is not None:
        shown = str(page) if has_page(finished) and page.exists() else None
        return {**finished, "finished_before": True, "page": shown}
    counts, seen, p_values = RowCounts(options.top), set[bytes](), list[float]()
    own = {os.path.abspath(file) for file in (out, journal.path, journal.summary, page)}  # noqa: PTH100 - as below
    with closing(journal), CountProgress(options.quiet) as counter:

        def note(row: Row) -> None:
            counts.add(row)
            if options.fdr is not None and row["error"] is None:
                p_values.append(row["p_value"])

        for row in journal.rows():
            seen.add(_key(row["path"]))
            note(row)
        for rows in _scored(model, paths, options, seen, own):
            journal.add(rows)
            for row in rows:
                note(row)
            counter.to(counts.rows)
        summary = counts.summary(model)
        flags = None
        if options.fdr is not None:
            flags = model.calibration.control_fdr(p_values, options.fdr)
            summary["flagged_together"] = _describe_flags(flags)
        if has_page(summary):
            write_score_page(summary, page, f"offaxis score: {out.name}", model)
        journal.finish(summary, None if flags is None else flags.flagged.tolist())
    return {**summary, "page": str(page) if has_page(summary) else None}


def _to_standard_output(model: Model, paths: Iterable[str], options: ScoreOptions, kind: str) -> dict[str, Any]:
    """Print the rows as they come; those that are flagged together at the end, as it depends on all of them."""
    writer = RowWriter(sys.stdout, kind, FIELDS if options.fdr is None else (*FIELDS, FLAGGED))
    counts, kept = RowCounts(options.top), list[Row]()
    for rows in _scored(model, paths, options, set(), set()):
        if options.fdr is None:
            _print(writer, rows)
        else:
            kept += rows
        for row in rows:
            counts.add(row)
    summary = counts.summary(model)
    if options.fdr is not None:
        flags = model.calibration.control_fdr([row["p_value"] for row in kept if row["error"] is None], options.fdr)
        _print(writer, flag_rows(kept, flags.flagged.tolist()))
        summary["flagged_together"] = _describe_flags(flags)
    return summary


def _print(writer: RowWriter, rows: Iterable[Row]) -> None:
    try:
        writer.add(rows)
        sys.stdout.flush()
    except (BrokenPipeError, io.UnsupportedOperation):
        raise  # the reader, such as head, has closed the pipe, or it was closed before
    except OSError as error:
        with suppress(OSError):
            sys.stdout.close()  # else it is flushed once more at the end, and fails again
        raise StorageError(f"Standard output cannot be written ({error.strerror}): free some space.") from error


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
    for rows in score_with_ray((path for path in found if holds_several(path) or _key(path) not in seen), options):
        yield [row for row in rows if _note(seen, row["path"])]


def _note(seen: set[bytes], path: str) -> bool:
    """Return whether this path is new, and add it to the seen ones."""
    key = _key(path)
    if key in seen:
        return False
    seen.add(key)
    return True


def _key(path: str) -> bytes:
    """Return sixteen bytes for a path, with or without a leading ``./``: millions of them fit in memory."""
    text = path if path.isascii() else readable(path)
    return hashlib.blake2b(text.removeprefix("./").encode(), digest_size=16).digest()


def _digest(paths: Sequence[str]) -> str:
    """Return a digest of paths as they were named."""
    hashed = hashlib.sha256()
    for path in paths:
        hashed.update(os.fsencode(path) + b"\0")
    return hashed.hexdigest()


def _describe_flags(flags: BatchFlags) -> dict[str, Any]:
    count = int(flags.flagged.sum())
    return {"fdr": flags.fdr, "flagged": count, "fewest": flags.least, "meaning": flags.explain()}
