"""Rows: a resumable journal, then CSV, JSON lines or Parquet, written whole or not at all; and their summary."""

import csv
import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from offaxis.calibration.conformal import BatchFlags
from offaxis.data.transforms import Preprocessing
from offaxis.errors import ArgumentError, DataError, MissingPackageError, OffaxisError, StorageError
from offaxis.files import check_plain, json_line, lock, read_lines, remove_left, replacing
from offaxis.model import Model, Prediction, Verdict
from offaxis.prediction import in_words
from offaxis.progress import visible
from offaxis.score.sources import parts, readable

Row = dict[str, Any]
FIELDS = ("path", "class", "probability", "cosine", "score", "p_value", "class_p_value", "verdict", "seen", "error")
FLAGGED = "flagged"
"""The column that follows where images are flagged together (``--fdr``)."""
FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_HEADER = "offaxis-score-2"


def row_of(name: str, prediction: Prediction, seen: str | None = None) -> Row:
    """Return the row of an image with a prediction; ``seen`` tells that it was trained or calibrated on."""
    return {
        "path": readable(name),
        "class": prediction.class_name,
        "probability": prediction.probability,
        "cosine": prediction.cosine,
        "score": prediction.score,
        "p_value": prediction.p_value,
        "class_p_value": prediction.class_p_value,
        "verdict": prediction.verdict.value,
        "seen": seen,
        "error": None,
    }


def flag_rows(rows: Iterable[Row], flagged: Iterable[bool]) -> Iterator[Row]:
    """Yield the rows with their flags in the column ``flagged``; ``flagged`` has one for each row without an error."""
    flags = iter(flagged)
    for row in rows:
        yield {**row, FLAGGED: None if row["error"] is not None else bool(next(flags))}


def bad_row(name: str, reason: str) -> Row:
    """Return the row of a file without a prediction, with the reason."""
    return {**dict.fromkeys(FIELDS), "path": readable(name), "error": readable(reason)}


def format_of(out: str, format: str | None) -> str:
    """Return the format that the option or the name of the output gives.

    Raises:
        ArgumentError: neither gives one.
    """
    found = format or FORMATS.get(Path(out).suffix.lower()) or ("csv" if out == "-" else None)
    if found == "text" and out == "-":
        return found
    if found is None or found not in FORMATS.values():
        raise ArgumentError(
            f"Expected --out to end in {', '.join(FORMATS)}, or --format csv, jsonl or parquet, but got {out!r}."
        )
    if found == "parquet":
        if out == "-":
            raise ArgumentError("Expected csv or jsonl for standard output: a Parquet file is written at its end.")
        _pyarrow()
    return found


class Journal:
    """A resumable record of the rows so far, one JSON line each; a last line that is incomplete is removed.

    Args:
        out: the output; the journal is ``out`` with ``.journal`` appended.
        identity: the bundle's checksum; a journal of another bundle is not resumed.
        paths: a digest of the paths that were named; a journal of other ones is not resumed. Empty where they are not known
            beforehand.
    """

    def __init__(self, out: Path, identity: str, paths: str = "") -> None:
        self.path = out.with_name(out.name + ".journal")
        self.identity, self.paths = identity, paths
        self._file: IO[str] | None = None

    def begin(self, out: Path, resume: bool, overwrite: bool, beside: Sequence[Path] = ()) -> None:
        """Check for earlier results and open the journal; ``beside`` are the other files that the run will write.

        Raises:
            ArgumentError: there are results already, a journal of another bundle, or one that another process writes.
        """
        begun = self.path.exists()
        there = [file for file in (out, *beside) if file.exists()]
        if not overwrite and there and not begun:
            whose = "" if there[0] == out else f" and would be replaced beside {out.name}"
            raise ArgumentError(f"{there[0]} is there already{whose}: name another --out, or add --overwrite.")
        if not overwrite and begun and not resume:
            raise ArgumentError(
                f"{self.path} was left by a run that stopped: add --resume to finish it, or --overwrite."
            )
        try:
            check_plain(self.path)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", encoding="utf-8")
            self._lock()
            remove_left(out)
            if overwrite:
                self._file.truncate(0)
            if not self._check():
                self._file.write(self._header(self.paths))
                self._file.flush()  # a run that is killed in its first batch can be resumed
        except OffaxisError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise StorageError(f"{self.path} cannot be written ({error.strerror}).") from error

    def _lock(self) -> None:
        """Refuse a journal that another process is writing; the lock ends with the process, however it ends."""
        assert self._file is not None
        if not lock(self._file):
            raise ArgumentError(
                f"Another process is writing {self.path}: wait until it has finished, or name another --out."
            )

    def add(self, rows: Iterable[Row]) -> None:
        """Append rows and flush them to the operating system."""
        assert self._file is not None
        try:
            for row in rows:
                self._file.write(json_line(row, ensure_ascii=False))
            self._file.flush()
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be written ({error.strerror}): free some space and resume."
            ) from error

    def rows(self) -> Iterator[Row]:
        """Yield every row so far.

        Raises:
            DataError: a line is damaged.
        """
        remedy = "delete the line to score that image again, or add --overwrite"
        with self.path.open("rb") as file:
            lines = read_lines(file, self.path, DataError, remedy)
            next(lines, None)
            for number, row in enumerate(lines, 2):
                if row.keys() != set(FIELDS):
                    raise DataError(f"Line {number} of {self.path} is no row of an image: {remedy}.")
                yield row

    def close(self) -> None:
        """Close the file; the journal stays."""
        if self._file is not None:
            with suppress(OSError):  # on a full disk, which add() has reported
                self._file.close()

    def _header(self, paths: str) -> str:
        return json_line({"format": _HEADER, "bundle": self.identity, **({"paths": paths} if paths else {})})

    def _check(self) -> bool:
        """Return whether there is a journal to resume; remove an incomplete last line, refuse that of another run."""
        anew = "add --overwrite, or name another --out"
        with self.path.open("rb+") as file:
            first = file.readline()
            if not first.endswith(b"\n") and self._header(self.paths).encode().startswith(first):
                file.truncate(0)  # it stopped before its first line was complete
                return False
            if first not in {self._header(paths).encode() for paths in (self.paths, "")}:
                if first.startswith(self._header("-").partition('"-"')[0].encode()):
                    raise DataError(f"{self.path} holds the rows of other paths than those that were named: {anew}.")
                raise DataError(
                    f"{self.path} is damaged at its start, or belongs to another bundle or version: {anew}."
                )
            data_end = len(first)
            while line := file.readline():
                if not line.endswith(b"\n"):
                    break
                data_end += len(line)
            file.truncate(data_end)
        return True


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def write_rows(rows: Iterable[Row], out: Path, kind: str, fields: Sequence[str] = FIELDS) -> None:
    """Write rows as CSV, JSON lines or Parquet, whole or not at all."""
    with replacing(out) as temporary:
        if kind == "parquet":
            _write_parquet(rows, temporary, fields)
        else:
            with temporary.open("w", encoding="utf-8", newline="") as file:
                RowWriter(file, kind, fields).add(rows)


class RowWriter:
    """Writes rows to an open file, as CSV with a header, as JSON lines or as text to read."""

    def __init__(self, file: IO[str], kind: str, fields: Sequence[str] = FIELDS) -> None:
        self.file, self.fields = file, fields
        self.line = _text if kind == "text" else _line
        self.csv = csv.writer(file, lineterminator="\n") if kind == "csv" else None
        if self.csv is not None:
            self.csv.writerow(fields)

    def add(self, rows: Iterable[Row]) -> None:
        """Write rows."""
        for row in rows:
            if self.csv is not None:
                self.csv.writerow([_cell(field, row[field]) for field in self.fields])
            else:
                self.file.write(self.line(row))


_FORMULA = frozenset("=+-@\t\r")


def _cell(field: str, value: Any) -> Any:
    """Return a cell of a CSV file: no text that a spreadsheet takes for a formula, as the name of an image could be."""
    if not isinstance(value, str) or value[:1] not in _FORMULA or value[1:].isdecimal():  # a class may be called -1
        return value
    return f"./{value}" if field == "path" else f"'{value}"


def _text(row: Row) -> str:
    """Return a row as one line for people; what a terminal would obey or not show, in a name, is escaped."""
    if row["error"] is not None:
        said = f"not scored, {row['error']}"
    else:
        said = in_words(row["class"], row["probability"], row["verdict"], row["p_value"])
    line = f"{row['path']}: {said}{' (flagged)' if row.get(FLAGGED) else ''}"
    return visible(line).replace("\n", "\\n") + "\n"


def _write_parquet(rows: Iterable[Row], path: Path, fields: Sequence[str]) -> None:
    pyarrow, parquet = _pyarrow()
    text, number = pyarrow.string(), pyarrow.float64()
    kinds = dict.fromkeys(("probability", "cosine", "score", "p_value", "class_p_value"), number)
    kinds[FLAGGED] = pyarrow.bool_()
    schema = pyarrow.schema([(field, kinds.get(field, text)) for field in fields])
    with parquet.ParquetWriter(path, schema) as writer:
        for part in parts(rows, 50_000):
            writer.write_table(pyarrow.Table.from_pylist(list(part), schema=schema))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingPackageError(
            "Parquet needs pyarrow, which is not installed: pip install 'offaxis[parquet]'."
        ) from error
    return pyarrow, parquet


class RowCounts:
    """Counts rows by verdict, class and error, and keeps the ``top`` rows with the highest scores."""

    def __init__(self, top: int) -> None:
        self.top = top
        self._kinds: Counter[tuple[str, str, str | None]] = Counter()  # verdict, class, seen
        self._reasons: Counter[str] = Counter()
        self._highest: list[tuple[float, int, Row]] = []

    def counted(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows, and count them."""
        kinds, highest = self._kinds, self._highest
        for number, row in enumerate(rows):
            if row["error"] is not None:
                self._reasons[row["error"]] += 1
            else:
                kinds[row["verdict"], row["class"], row["seen"]] += 1
                if len(highest) < self.top:
                    heapq.heappush(highest, (row["score"], -number, row))
                elif highest and row["score"] > highest[0][0]:
                    heapq.heapreplace(highest, (row["score"], -number, row))
            yield row

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
            "classes": dict(sorted(classes.items(), key=lambda pair: -pair[1])),
            "reasons": dict(self._reasons.most_common(20)),
            "seen": {when: seen[when] for when in ("training", "calibration")},
            "top": [{key: row[key] for key in SHOWN} for _, _, row in highest],
        }


def flag_together(rows: Iterable[Row], model: Model, fdr: float) -> BatchFlags:
    """Flag all images that have a row together, with at most a share ``fdr`` of false alarms among them, in expectation."""
    return model.calibration.control_fdr([row["p_value"] for row in rows if row["error"] is None], fdr)


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
