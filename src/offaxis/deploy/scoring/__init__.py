"""Score many images: paths -> a file of rows, a summary and a page of the images with the highest scores."""

import base64
import hashlib
import heapq
import html
import io
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from offaxis.calibration.conformal import BatchFlags, check_alpha, check_count
from offaxis.data.archive import is_archive, read_each
from offaxis.data.decode import MAX_BYTES, decode
from offaxis.deploy import container
from offaxis.deploy.engine import Engine
from offaxis.deploy.model import Model, Verdict
from offaxis.deploy.preprocessing import Preprocessing
from offaxis.deploy.scoring.engines import score_units, score_with_ray
from offaxis.deploy.scoring.rows import FIELDS, FLAGGED, Journal, Row, RowWriter, flag_rows, format_of, write_rows
from offaxis.deploy.scoring.sources import INSIDE, WorkUnit, files, place_of, readable, units
from offaxis.errors import ArgumentError, DataError, StorageError
from offaxis.files import read_json, write_json, write_text
from offaxis.progress import CountProgress

Thumbnails = dict[str, str]
"""The images of rows by path, as data: URLs of small JPEG files."""
THUMBNAIL = 128  # pixels of the longer side


def summarise_rows(rows: Iterable[Row], model: Model, top: int) -> dict[str, Any]:
    """Return counts by verdict, class and error, and the ``top`` images with the highest scores, highest first."""
    verdicts: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    seen: Counter[str | None] = Counter()
    highest: list[tuple[float, int, Row]] = []
    for number, row in enumerate(rows):
        if row["error"] is not None:
            reasons[row["error"]] += 1
            continue
        verdicts[row["verdict"]] += 1
        seen[row.get("seen")] += 1
        classes[row["class"]] += 1
        entry = (row["score"], -number, row)
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
        "seen": {when: seen[when] for when in ("training", "calibration")},
        "top": [{key: row[key] for key in SHOWN} for _, _, row in sorted(highest, key=lambda e: e[:2], reverse=True)],
    }


def flag_together(rows: Iterable[Row], model: Model, fdr: float) -> BatchFlags:
    """Flag all images that have a row together, with at most a share ``fdr`` of false alarms among them, in expectation."""
    return model.calibration.control_fdr([row["p_value"] for row in rows if row["error"] is None], fdr)


def sentences(summary: dict[str, Any]) -> str:
    """Return the summary as text."""
    images, out = summary["images"], summary["verdicts"][Verdict.OUT.value]
    inputs = summary["inputs"]
    lines = ["The run was finished before: nothing was scored again."] if summary.get("finished_before") else []
    lines += [f"{images:,} {inputs} scored, {summary['bad_files']:,} files that could not be read."]
    if images:
        lines.append(
            f"{out:,} ({out / images:.1%}) are out-of-distribution at alpha {summary['alpha']:g}; of {inputs} like those "
            f"that the network was trained on, about {summary['alpha']:.1%} would be."
        )
        shown = list(summary["classes"].items())[:6]
        lines.append(
            "Classes: " + ", ".join(f"{name} {count:,}" for name, count in shown) + ("." if len(shown) < 6 else ", ...")
        )
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


SHOWN = ("path", "score", "class", "probability", "p_value", "verdict")
"""What the summary and its page show of an image."""


def write_score_page(summary: dict[str, Any], path: Path, title: str) -> bool:
    """Write the images with the highest scores as a page with a table that can be sorted; False where there are none."""
    if not summary["top"] or summary["inputs"] != "images":  # feature vectors are nothing to look at
        return False
    found = _thumbnails([entry["path"] for entry in summary["top"]])
    rows = "\n".join(_page_row(entry, found.get(entry["path"])) for entry in summary["top"])
    shown = f"The {len(summary['top']):,} images with the highest scores, highest first. Click a heading to sort."
    text = _PAGE.replace("{title}", html.escape(title)).replace("{text}", html.escape(sentences(summary)))
    write_text(path, text.replace("{shown}", shown).replace("{rows}", rows))
    return True


def _page_row(entry: Row, image: str | None) -> str:
    name = html.escape(entry["path"])
    picture = f'<img src="{image}" alt="" loading="lazy">' if image else "<span>not there any more</span>"
    out = ' class="out"' if entry["verdict"] == Verdict.OUT.value else ""
    numbers = "".join(f"<td>{entry[key]:.4g}</td>" for key in ("score", "p_value", "probability"))
    return (
        f"<tr{out}><td>{picture}</td><td>{name}</td><td>{html.escape(entry['class'])}</td>{numbers}"
        f"<td>{entry['verdict']}</td></tr>"
    )


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body { font: 15px/1.4 system-ui, sans-serif; margin: 2rem; color: #222; }
p { white-space: pre-line; }
table { border-collapse: collapse; }
td, th { padding: .4rem .8rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: middle; }
td:nth-child(2) { max-width: 32rem; overflow-wrap: anywhere; }
th:not(:first-child) { cursor: pointer; white-space: nowrap; }
th[aria-sort=ascending]::after { content: " \\2191"; } th[aria-sort=descending]::after { content: " \\2193"; }
img { max-width: 128px; max-height: 128px; display: block; }
.out td:last-child { color: #b00020; font-weight: 600; }
@media (max-width: 45rem) {
  body { margin: 1rem; }
  thead tr { display: flex; flex-wrap: wrap; }
  th { border: 0; padding: .4rem .8rem .4rem 0; } th:first-child { display: none; }
  tbody tr { display: grid; grid-template-columns: 104px 1fr; column-gap: .8rem; align-content: center; padding: .6rem 0;
    border-top: 1px solid #ddd; }
  td { border: 0; padding: 0; } td:first-child { grid-row: 1 / span 6; }
  td:nth-child(n+4):nth-child(-n+6)::before { color: #666; }
  td:nth-child(4)::before { content: "score "; } td:nth-child(5)::before { content: "p-value "; }
  td:nth-child(6)::before { content: "probability "; }
  img { max-width: 104px; }
}
</style>
<h1>{title}</h1><p>{text}</p><p>{shown}</p>
<table><thead><tr><th>image</th><th>file</th><th>class</th><th aria-sort="descending">score</th><th>p-value</th>
<th>probability</th><th>verdict</th></tr></thead><tbody>
{rows}
</tbody></table>
<script>
for (const head of document.querySelectorAll("th:not(:first-child)")) head.addEventListener("click", () => {
  const body = document.querySelector("tbody"), place = head.cellIndex;
  const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  const value = row => row.cells[place].textContent;
  const by = (a, b) => place > 2 && place < 6 ? value(a) - value(b) : value(a).localeCompare(value(b));
  body.append(...[...body.rows].sort((a, b) => sign * by(a, b)));
  for (const other of document.querySelectorAll("th")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
});
</script>
"""


def _thumbnails(names: list[str]) -> Thumbnails:
    """Read the images of rows again, those in archives too, and shrink them; they keep their shape."""
    found: Thumbnails = {}
    archived: dict[str, set[str]] = {}
    for name in names:
        place, inside = place_of(name)
        if inside:
            archived.setdefault(place, set()).add(name)
        else:
            _keep(found, name, Path(place))
    for archive, members in archived.items():
        _keep_members(found, archive, members)
    return found


def _keep_members(found: Thumbnails, archive: str, members: set[str]) -> None:
    """Read the archive until all members are found."""
    missing = set(members)
    try:
        for member, data in read_each(Path(archive), MAX_BYTES):
            name = readable(f"{archive}{INSIDE}{member}")
            if name in missing and data is not None:
                missing.remove(name)  # a second file of this name has no row
                _keep(found, name, data)
            if not missing:
                return
    except (DataError, OSError):
        return  # the rows have the reason


def _keep(found: Thumbnails, name: str, source: Path | bytes) -> None:
    try:
        image = decode(source)
    except DataError:
        return  # it was removed meanwhile
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    small = io.BytesIO()
    image.save(small, "JPEG", quality=80)
    found[name] = f"data:image/jpeg;base64,{base64.b64encode(small.getvalue()).decode()}"


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
        top: how many images with the highest scores are on the page; 0 for none.
        fdr: the share of false alarms among the images that are flagged together; None for verdicts alone.
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
    top: int = 100
    fdr: float | None = None
    quiet: bool = False


def score_images(bundle: Path, model: Model, paths: Iterable[str], options: ScoringOptions) -> dict[str, Any]:
    """Score all images behind the paths; the rows are written to ``options.out``, with a summary and a page beside it.

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
    summary_file, page = out.with_suffix(".summary.json"), out.with_suffix(".html")
    own = {os.path.abspath(file) for file in (out, journal.path, summary_file, page)}  # noqa: PTH100 - as below
    if options.resume and not options.overwrite and out.exists() and not journal.path.exists():
        return _finished_summary(summary_file, out, journal.identity)
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
    write_json(summary_file, {"bundle": journal.identity, **summary}, ensure_ascii=False)
    write_score_page(summary, page, f"offaxis score: {out.name}")
    journal.path.unlink()
    return summary


def _finished_summary(file: Path, out: Path, bundle: str) -> dict[str, Any]:
    """Return the summary of a run that is finished, for which nothing is left to resume.

    Raises:
        ArgumentError: the output is not that of a finished run of this bundle.
    """
    anew = "name another --out, or add --overwrite"
    if not file.is_file():
        raise ArgumentError(f"{out} is there already and is not known to be finished, as {file} is missing: {anew}.")
    summary = read_json(file, ArgumentError, anew)
    if summary.get("bundle") != bundle:
        raise ArgumentError(f"{out} holds the rows of another bundle: {anew}.")
    return {**summary, "finished_before": True}


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
