"""Scoring as a whole: paths in, a file of rows, a summary and a page of the strangest images out."""

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from offaxis.data.archive import is_archive
from offaxis.deploy import container
from offaxis.deploy.model import Model
from offaxis.deploy.scoring.engine import score_units
from offaxis.deploy.scoring.ray_engine import score_with_ray
from offaxis.deploy.scoring.rows import Journal, Row, RowWriter, format_of, write_rows
from offaxis.deploy.scoring.sources import Unit, files, readable, units
from offaxis.deploy.scoring.summary import summarise, write_strangest
from offaxis.errors import StorageError
from offaxis.files import write_text
from offaxis.progress import Counter

Engine = Literal["threads", "ray"]


@dataclass(frozen=True)
class Options:
    """How a scoring is done.

    Attributes:
        out: the file, or ``-`` for standard output.
        format: csv, jsonl or parquet; None for what the name of ``out`` says.
        batch: images a step.
        engine: threads on this machine, or Ray.
        workers: threads that decode, or workers of Ray.
        resume: go on where a run stopped.
        overwrite: replace what is there.
        strangest: how many images are on the page; 0 for none.
        quiet: show no progress.
    """

    out: str
    format: str | None = None
    batch: int = 64
    engine: Engine = "threads"
    workers: int | None = None
    resume: bool = False
    overwrite: bool = False
    strangest: int = 49
    quiet: bool = False


def score(bundle: Path, model: Model, paths: Iterable[str], options: Options) -> dict[str, Any]:
    """Score everything behind the paths.

    Returns:
        The summary: counts, reasons and the strangest images.

    Raises:
        ArgumentError: the output is there already, or its format is not known.
        StorageError: it cannot be written.
    """
    kind = format_of(options.out, options.format)
    if options.out == "-":
        return _to_standard_output(bundle, model, paths, options, kind)
    out = Path(options.out)
    journal = Journal(out, _identity(bundle))
    summary_file, sheet = out.with_suffix(".summary.json"), out.with_suffix(".strangest.png")
    own = {file.absolute() for file in (out, journal.path, summary_file, sheet)}
    journal.begin(out, options.resume, options.overwrite)
    try:
        seen = {_key(row["path"]) for row in journal.rows()}
        with Counter(options.quiet) as counter:
            for rows in _rows(bundle, model, _unseen(paths, seen, own), options):
                fresh = [row for row in rows if _note(seen, row["path"])]
                journal.add(fresh)
                counter.to(len(seen))
        write_rows(journal.rows(), out, kind)
        summary = summarise(journal.rows(), model, options.strangest)
    finally:
        journal.close()
    write_text(summary_file, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    write_strangest(summary, model, sheet)
    journal.path.unlink()
    return summary


def _to_standard_output(
    bundle: Path, model: Model, paths: Iterable[str], options: Options, kind: str
) -> dict[str, Any]:
    writer = RowWriter(sys.stdout, kind)
    seen: set[bytes] = set()

    def written() -> Iterator[Row]:
        for rows in _rows(bundle, model, _unseen(paths, seen, set()), options):
            fresh = [row for row in rows if _note(seen, row["path"])]
            try:
                writer.add(fresh)
                sys.stdout.flush()
            except BrokenPipeError:
                raise  # whoever reads has seen enough
            except OSError as error:
                with suppress(OSError):
                    sys.stdout.close()  # else it is flushed once more at the end, and fails again
                raise StorageError(f"Standard output cannot be written ({error.strerror}): free some space.") from error
            yield from fresh

    return summarise(written(), model, options.strangest)


def _rows(bundle: Path, model: Model, unseen: Iterable[str], options: Options) -> Iterator[list[Row]]:
    work: Iterator[Unit] = units(unseen, options.batch)
    if options.engine == "ray":
        return score_with_ray(bundle, work, options.batch, options.workers)
    return score_units(model, work, options.batch, options.workers)


def _unseen(paths: Iterable[str], seen: set[bytes], own: set[Path]) -> Iterator[str]:
    """The files behind the paths, without those that have their row already and those that we write ourselves."""
    for path in files(paths):
        if (is_archive(Path(path)) or _key(path) not in seen) and Path(path).absolute() not in own:
            yield path


def _note(seen: set[bytes], path: str) -> bool:
    """Whether this path has no row yet; from now on it has."""
    key = _key(path)
    if key in seen:
        return False
    seen.add(key)
    return True


def _key(path: str) -> bytes:
    """Sixteen bytes for a path: millions of them fit in memory."""
    return hashlib.blake2b(readable(path).encode(), digest_size=16).digest()


def _identity(bundle: Path) -> str:
    manifest, _ = container.read(bundle)
    return str(manifest["sha256"])
