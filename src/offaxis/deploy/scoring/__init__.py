"""Score many images: paths -> a file of rows, a summary and a sheet of the images with the highest scores."""

import hashlib
import heapq
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from offaxis.calibration.conformal import BatchFlags, check_alpha, check_count
from offaxis.data import TensorSet
from offaxis.data.archive import is_archive, read_each
from offaxis.data.decode import MAX_BYTES
from offaxis.data.inspection import write_contact_sheet
from offaxis.deploy import container
from offaxis.deploy.engine import Engine
from offaxis.deploy.model import Model, Verdict
from offaxis.deploy.preprocessing import Preprocessing
from offaxis.deploy.scoring.engines import score_units, score_with_ray
from offaxis.deploy.scoring.rows import FIELDS, FLAGGED, Journal, Row, RowWriter, flag_rows, format_of, write_rows
from offaxis.deploy.scoring.sources import INSIDE, WorkUnit, files, place_of, readable, units
from offaxis.errors import DataError, StorageError
from offaxis.files import write_text
from offaxis.progress import CountProgress

Pixels = dict[str, NDArray[Any]]


def summarise_rows(rows: Iterable[Row], model: Model, top: int) -> dict[str, Any]:
    """Return counts by verdict, class and error, and the ``top`` images with the highest scores, highest first."""
    verdicts: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    highest: list[tuple[float, int, str]] = []
    for number, row in enumerate(rows):
        if row["error"] is not None:
            reasons[row["error"]] += 1
            continue
        verdicts[row["verdict"]] += 1
        classes[row["class"]] += 1
        entry = (row["score"], -number, row["path"])
        if len(highest) < top:
            heapq.heappush(highest, entry)
        elif highest:
            heapq.heappushpop(highest, entry)
    return {
        "images": sum(verdicts.values()),
        "inputs": "images" if isinstance(model.preprocessing, Preprocessing) else "feature vectors",
        "bad_files": sum(reasons.values()),
        "alpha": model.calibration.alpha,
        "detector": model.detector.name,
        "verdicts": {verdict.value: verdicts[verdict.value] for verdict in Verdict},
        "classes": dict(sorted(classes.items(), key=lambda pair: -pair[1])),
        "reasons": dict(reasons.most_common(20)),
        "top": [{"path": path, "score": score} for score, _, path in sorted(highest, reverse=True)],
    }


def flag_together(rows: Iterable[Row], model: Model, fdr: float) -> BatchFlags:
    """Flag all images that have a row together, with at most a share ``fdr`` of false alarms among them, in expectation."""
    return model.calibration.control_fdr([row["p_value"] for row in rows if row["error"] is None], fdr)


def sentences(summary: dict[str, Any]) -> str:
    """Return the summary as text."""
    images, out = summary["images"], summary["verdicts"][Verdict.OUT.value]
    inputs = summary["inputs"]
    lines = [f"{images:,} {inputs} scored, {summary['bad_files']:,} files that could not be read."]
    if images:
        lines.append(
            f"{out:,} ({out / images:.1%}) are out-of-distribution at alpha {summary['alpha']:g}; of {inputs} like those "
            f"that the network was trained on, about {summary['alpha']:.1%} would be."
        )
        shown = list(summary["classes"].items())[:6]
        lines.append(
            "Classes: " + ", ".join(f"{name} {count:,}" for name, count in shown) + ("." if len(shown) < 6 else ", ...")
        )
    if "flagged_together" in summary:
        lines.append(summary["flagged_together"]["meaning"])
    if summary["verdicts"][Verdict.TOO_FEW.value]:
        lines.append(f"{summary['verdicts'][Verdict.TOO_FEW.value]:,} have no verdict: {Verdict.TOO_FEW.value}.")
    lines += [f"  {count:,} x {reason}" for reason, count in list(summary["reasons"].items())[:3]]
    return "\n".join(lines)


def write_top_sheet(summary: dict[str, Any], model: Model, path: Path) -> bool:
    """Write the images with the highest scores as one picture, as the network sees them; False where there are none."""
    if not isinstance(model.preprocessing, Preprocessing):
        return False  # feature vectors are nothing to look at
    names = [entry["path"] for entry in summary["top"]]
    found: Pixels = {}
    archived: dict[str, set[str]] = {}
    for name in names:
        place, inside = place_of(name)
        if inside:
            archived.setdefault(place, set()).add(name)
        else:
            _keep(found, model, name, Path(place))
    for archive, members in archived.items():
        _keep_members(found, model, archive, members)
    pixels = [found[name] for name in names if name in found]
    if not pixels:
        return False
    write_contact_sheet(TensorSet("top", torch.from_numpy(np.stack(pixels))), path, count=len(pixels))
    return True


def _keep_members(found: Pixels, model: Model, archive: str, members: set[str]) -> None:
    """Read the archive until all members are found."""
    missing = set(members)
    try:
        for member, data in read_each(Path(archive), MAX_BYTES):
            name = readable(f"{archive}{INSIDE}{member}")
            if name in missing and data is not None:
                missing.remove(name)  # a second file of this name has no row
                _keep(found, model, name, data)
            if not missing:
                return
    except (DataError, OSError):
        return  # the rows have the reason


def _keep(found: Pixels, model: Model, name: str, source: Path | bytes) -> None:
    try:
        found[name] = model.preprocessing.pixels(source)
    except DataError:
        return  # it was removed meanwhile


Runner = Literal["threads", "ray"]


@dataclass(frozen=True, kw_only=True)
class ScoringOptions:
    """The options of ``score_images``.

    Attributes:
        out: the file, or ``-`` for standard output.
        format: csv, jsonl or parquet; None goes by the name of ``out``.
        batch: images per step.
        runner: threads on this machine, or Ray.
        engine: what runs the network on Ray; on this machine the model knows it.
        workers: threads that decode, or workers of Ray.
        resume: finish a run that stopped.
        overwrite: replace earlier results.
        top: how many images with the highest scores are on the sheet; 0 for none.
        fdr: flag images together, in a column ``flagged``, with at most this share of false alarms among them in
            expectation; None for no such column.
        quiet: show no progress.
    """

    out: str
    format: str | None = None
    batch: int = 64
    runner: Runner = "threads"
    engine: Engine = "torch"
    workers: int | None = None
    resume: bool = False
    overwrite: bool = False
    top: int = 49
    fdr: float | None = None
    quiet: bool = False


def score_images(bundle: Path, model: Model, paths: Iterable[str], options: ScoringOptions) -> dict[str, Any]:
    """Score all images behind the paths; the rows are written to ``options.out``, with a summary and a sheet beside it.

    Args:
        bundle: the bundle that ``model`` was loaded from; workers of Ray load it again.
        model: the model.
        paths: images, folders and archives.
        options: where the rows go, and how.

    Returns:
        The summary: counts, errors and the images with the highest scores.

    Raises:
        ArgumentError: the output is there already, or its format is not known.
        TooFewImagesError: nothing could ever be flagged at ``fdr`` with so few calibration images.
        StorageError: it cannot be written.
    """
    if options.fdr is not None:
        check_count(len(model.calibration.scores), check_alpha(options.fdr, "fdr"))
    kind = format_of(options.out, options.format)
    if options.out == "-":
        return _to_standard_output(bundle, model, paths, options, kind)
    out = Path(options.out)
    journal = Journal(out, _identity(bundle))
    summary_file, sheet = out.with_suffix(".summary.json"), out.with_suffix(".top.png")
    own = {os.path.abspath(file) for file in (out, journal.path, summary_file, sheet)}  # noqa: PTH100 - as below
    journal.begin(out, options.resume, options.overwrite)
    seen: set[bytes] = set()

    def journalled() -> Iterator[Row]:
        for row in journal.rows():
            seen.add(_key(row["path"]))
            yield row
        with CountProgress(options.quiet) as counter:
            for rows in _rows(bundle, model, _unseen(paths, seen, own), options):
                fresh = [row for row in rows if _note(seen, row["path"])]
                journal.add(fresh)
                counter.to(len(seen))
                yield from fresh

    try:
        summary = summarise_rows(journalled(), model, options.top)
        if options.fdr is None:
            write_rows(journal.rows(), out, kind)
        else:
            flags = flag_together(journal.rows(), model, options.fdr)
            write_rows(flag_rows(journal.rows(), flags.flagged.tolist()), out, kind, (*FIELDS, FLAGGED))
            summary["flagged_together"] = _describe_flags(flags)
    finally:
        journal.close()
    write_text(summary_file, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    write_top_sheet(summary, model, sheet)
    journal.path.unlink()
    return summary


def _describe_flags(flags: BatchFlags) -> dict[str, Any]:
    count = int(flags.flagged.sum())
    return {"fdr": flags.fdr, "flagged": count, "fewest": flags.least, "meaning": flags.explain()}


def _to_standard_output(
    bundle: Path, model: Model, paths: Iterable[str], options: ScoringOptions, kind: str
) -> dict[str, Any]:
    writer = RowWriter(sys.stdout, kind, FIELDS if options.fdr is None else (*FIELDS, FLAGGED))
    seen: set[bytes] = set()

    def scored() -> Iterator[Row]:
        for rows in _rows(bundle, model, _unseen(paths, seen, set()), options):
            fresh = [row for row in rows if _note(seen, row["path"])]
            if options.fdr is None:
                _print(writer, fresh)
            yield from fresh

    if options.fdr is None:
        return summarise_rows(scored(), model, options.top)
    rows = list(scored())  # who is flagged depends on all of them
    flags = flag_together(rows, model, options.fdr)
    _print(writer, flag_rows(rows, flags.flagged.tolist()))
    return {**summarise_rows(rows, model, options.top), "flagged_together": _describe_flags(flags)}


def _print(writer: RowWriter, rows: Iterable[Row]) -> None:
    try:
        writer.add(rows)
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # the reader, such as head, has closed the pipe
    except OSError as error:
        with suppress(OSError):
            sys.stdout.close()  # else it is flushed once more at the end, and fails again
        raise StorageError(f"Standard output cannot be written ({error.strerror}): free some space.") from error


def _rows(bundle: Path, model: Model, unseen: Iterable[str], options: ScoringOptions) -> Iterator[list[Row]]:
    work: Iterator[WorkUnit] = units(unseen, options.batch)
    if options.runner == "ray":
        return score_with_ray(bundle, work, options.batch, options.workers, options.engine)
    return score_units(model, work, options.batch, options.workers)


def _unseen(paths: Iterable[str], seen: set[bytes], own: set[str]) -> Iterator[str]:
    """Yield the files behind the paths, without those that have a row already and the output files themselves."""
    for path in files(paths):
        if (is_archive(path) or _key(path) not in seen) and os.path.abspath(path) not in own:  # noqa: PTH100 - faster
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
    return hashlib.blake2b(readable(path).encode(), digest_size=16).digest()


def _identity(bundle: Path) -> str:
    manifest, _ = container.read_container(bundle)
    return str(manifest["sha256"])
