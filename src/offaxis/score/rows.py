"""Rows -> a file: a journal that grows with the run, and becomes the output when the run is finished."""

import csv
import io
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

from offaxis.errors import ArgumentError, DataError, MissingPackageError, StorageError
from offaxis.files import check_plain, lock, read_json, remove_left, replacing, write_json
from offaxis.prediction import Prediction, Verdict, in_words
from offaxis.progress import visible

T = TypeVar("T")
Row = dict[str, Any]
FIELDS = (
    "path",
    "verdict",
    "class",
    "probability",
    "could_be",
    "p_value",
    "class_p_value",
    "score",
    "cosine",
    "seen",
    "error",
)
NUMBERS = frozenset({"probability", "cosine", "score", "p_value", "class_p_value"})
FLAGGED = "flagged"
"""The column that follows where images are flagged together (``--fdr``)."""
FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
ANOTHER = {
    "bundle": "the rows of another bundle",
    "paths": "the rows of other paths than those that were named",
    "format": "rows in another format",
    "alpha": "rows that were flagged at another level",
    "fdr": "rows that were not flagged at this --fdr",
    "every": "frames of films at other times",
}
_ANEW = "name another --out, or add --overwrite"


def readable(name: str) -> str:
    r"""Return a name as valid text; bytes that are not UTF-8 are escaped, as in ``caf\xe9.png``."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def parts(of: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """Yield the elements of an iterable, ``size`` at a time."""
    rest = iter(of)
    while part := tuple(islice(rest, size)):
        yield part


def row_of(name: str, prediction: Prediction, seen: str | None = None) -> Row:
    """Return the row of an image with a prediction; ``seen`` tells that it was trained or calibrated on."""
    return {
        "path": readable(name),
        "verdict": prediction.verdict.value,
        "class": prediction.class_name,
        "probability": prediction.probability,
        "could_be": None if prediction.classes is None else "|".join(prediction.classes),
        "p_value": prediction.p_value,
        "class_p_value": prediction.class_p_value,
        "score": prediction.score,
        "cosine": prediction.cosine,
        "seen": seen,
        "error": None,
    }


def four_digits(value: Any) -> Any:
    """Return a number with four significant digits, as people read it, and anything else as it is."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


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
    if found not in FORMATS.values():
        raise ArgumentError(
            f"Expected --out to end in {', '.join(FORMATS)}, or --format csv, jsonl or parquet, but got {out!r}."
        )
    assert found is not None
    if found == "parquet":
        if out == "-":
            raise ArgumentError("Expected csv or jsonl for standard output: a Parquet file is written at its end.")
        _pyarrow()
    return found


class RowWriter:
    """Writes rows to an open file, as CSV, as JSON lines or as text to read; a new CSV file begins with its head."""

    def __init__(self, file: IO[str], kind: str, fields: Sequence[str] = FIELDS, *, head: bool = True) -> None:
        self.file, self.fields = file, fields
        self.line = _line_for_people if kind == "text" else _json_line
        self.csv = csv.writer(file, lineterminator="\n") if kind == "csv" else None
        if self.csv is not None and head:
            self.csv.writerow(fields)

    def add(self, rows: Iterable[Row]) -> None:
        """Write rows."""
        for row in rows:
            if self.csv is not None:
                self.csv.writerow([_csv_cell(field, four_digits(row[field])) for field in self.fields])
            else:
                self.file.write(self.line(row))


_FORMULA = frozenset("=+-@\t\r")


def _csv_cell(field: str, value: Any) -> Any:
    """Return a cell of a CSV file: no text that a spreadsheet takes for a formula, as the name of an image could be."""
    if not isinstance(value, str) or value[:1] not in _FORMULA or value[1:].isdecimal():  # a class may be called -1
        return value
    return f"./{value}" if field == "path" else f"'{value}"


def _json_line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _line_for_people(row: Row) -> str:
    """Return a row as one line for people; what a terminal would obey or not show, in a name, is escaped."""
    if row["error"] is not None:
        said = f"not scored, {row['error']}"
    else:
        said = in_words(row["class"], row["probability"], Verdict(row["verdict"]), row["p_value"])
    line = f"{row['path']}: {said}{' (flagged)' if row.get(FLAGGED) else ''}"
    return visible(line).replace("\n", "\\n") + "\n"


class StandardOutput:
    """Prints the rows of a run as they come; those that are flagged together at the end, as it depends on all of them."""

    def __init__(self, kind: str, fdr: float | None, fields: Sequence[str] = FIELDS) -> None:
        self._writer = RowWriter(sys.stdout, kind, fields if fdr is None else (*fields, FLAGGED))
        self._kept: list[Row] | None = None if fdr is None else []

    def begin(self, resume: bool, overwrite: bool) -> None:
        """Begin anew, whatever was printed before."""

    def discard(self) -> None:
        """Leave what was printed."""

    def rows(self) -> Iterable[Row]:
        """Return the rows so far: none."""
        return ()

    def add(self, rows: Iterable[Row]) -> None:
        """Print rows, or keep them until it is known which are flagged."""
        if self._kept is None:
            self._print(rows)
        else:
            self._kept += rows

    def finish(self, _: Row, flagged: Sequence[bool] | None = None) -> None:
        """Print the rows that were kept, with their flags."""
        if self._kept is not None and flagged is not None:
            self._print(flag_rows(self._kept, flagged))

    def close(self) -> None:
        """Leave standard output open."""

    def _print(self, rows: Iterable[Row]) -> None:
        try:
            self._writer.add(rows)
            sys.stdout.flush()
        except (BrokenPipeError, io.UnsupportedOperation):
            raise  # the reader, such as head, has closed the pipe, or it was closed before
        except OSError as error:
            with suppress(OSError):
                sys.stdout.close()  # else it is flushed once more at the end, and fails again
            raise StorageError(f"Standard output cannot be written ({error.strerror}): free some space.") from error


class Journal:
    """The rows so far of a run, in a file that becomes the output, and a summary beside it that says whose rows they are.

    Rows are written once, as CSV or JSON lines. A Parquet file, and rows that are flagged together, are made from JSON lines
    at the end.

    Args:
        out: the output; the journal is ``out`` with ``.journal`` appended.
        run: what the rows depend on, the keys of ``ANOTHER``: only the same run is resumed.
        fields: the columns of a CSV file.
        page: where a page is to be written; None for none.
    """

    def __init__(
        self, out: Path, run: Mapping[str, Any], fields: Sequence[str] = FIELDS, page: Path | None = None
    ) -> None:
        self.out, self.fields, self.page, self.run = out, fields, page, {**run, "out": readable(out.name)}
        self.path, self.summary = out.with_name(out.name + ".journal"), out.with_suffix(".summary.json")
        self.kind = "csv" if run["format"] == "csv" and run["fdr"] is None else "jsonl"
        self._file: IO[str] | None = None

    def begin(self, resume: bool, overwrite: bool) -> Row | None:
        """Check for earlier results and open the journal, which ``close`` closes.

        Returns:
            The summary where this very run was finished before and goes on with what is new, else None.

        Raises:
            ArgumentError: there are results already, the journal of another run, or one that another process writes.
            StorageError: it cannot be written.
        """
        begun, summary = self.path.exists(), None
        try:
            check_plain(self.path)
            if begun and not resume and not overwrite:
                self._open()
                raise ArgumentError(
                    f"{self.path} was left by a run that stopped: add --resume to finish it, or --overwrite."
                )
            if not overwrite and (begun or (resume and self.out.exists())):
                summary = self._summary_of_this_run()
                if not begun:
                    self._take_back()
            goes_on = summary is not None
            there = [file for file in (self.out, self.summary, self.page) if file is not None and file.exists()]
            if there and not overwrite and not goes_on:
                whose = "" if there[0] == self.out else f" and would be replaced beside {self.out.name}"
                raise ArgumentError(f"{there[0]} is there already{whose}: {_ANEW}.")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self._open()
            remove_left(self.out)
            if overwrite:
                file.truncate(0)
            if overwrite or not goes_on:
                write_json(self.summary, self.run, ensure_ascii=False)
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written ({error.strerror}).") from error
        return None if begun else summary

    def _take_back(self) -> None:
        """Make the journal of a finished run again from its output, which stays until the new one takes its place."""
        with replacing(self.path) as temporary:
            if self.run["format"] == self.kind and self.run["fdr"] is None:
                shutil.copyfile(self.out, temporary)
                return
            with temporary.open("w", encoding="utf-8", newline="") as file:
                rows = _rows_of(self.out, self.run["format"])
                RowWriter(file, "jsonl").add({name: row.get(name) for name in FIELDS} for row in rows)

    def discard(self) -> None:
        """Remove the journal, where nothing has come to the output."""
        self.path.unlink()

    def _open(self) -> IO[str]:
        """Open the journal for this process alone."""
        self._file = self.path.open("a", encoding="utf-8", newline="")
        if not lock(self._file):  # the lock ends with the process, however it ends
            raise ArgumentError(
                f"Another process is writing {self.path}: wait until it has finished, or name another --out."
            )
        return self._file

    def _summary_of_this_run(self) -> Row:
        """Return the summary beside the rows that are there; refuse one that is not of this run."""
        if not self.summary.is_file():
            there = f"{self.out} is there already and is not known to be finished"
            there = there if self.out.exists() else f"{self.path} is not known to be of this run"
            raise ArgumentError(f"{there}, as {self.summary} is missing: {_ANEW}.")
        summary = read_json(self.summary, ArgumentError, _ANEW)
        if summary.get("out", self.run["out"]) != self.run["out"]:
            raise ArgumentError(
                f"{self.out} is there already, and {self.summary} is the summary of {summary['out']}: {_ANEW}."
            )
        for key, what in ANOTHER.items():
            if summary.get(key, self.run[key]) != self.run[key]:
                raise ArgumentError(f"{self.out} holds {what}: {_ANEW}.")
        return summary

    def rows(self) -> Iterator[Row]:
        """Yield every row so far, and cut off a last one that is incomplete; from then on rows can be added.

        Raises:
            DataError: a row is damaged.
        """
        number = place = end = 0
        line = "\n"

        def lines() -> Iterator[str]:
            nonlocal place, line
            for part in file:
                place += len(part)
                line = part.decode()
                yield line

        with self.path.open("rb") as file:
            try:
                for row in _csv_rows(lines()) if self.kind == "csv" else map(json.loads, lines()):
                    if not line.endswith("\n"):
                        break
                    if row is not None:
                        if not isinstance(row, dict) or row.keys() != set(FIELDS):
                            raise ValueError("it is no row of an image")
                        yield row
                    number, end = number + 1, place
            except (ValueError, RecursionError, csv.Error) as problem:
                if line.endswith("\n") and not (self.kind == "csv" and "end of data" in str(problem)):
                    raise DataError(
                        f"Row {number + 1} of {self.path} is damaged ({problem}): add --overwrite to score all images again."
                    ) from problem
        os.truncate(self.path, end)
        assert self._file is not None
        self._writer = RowWriter(self._file, self.kind, self.fields, head=end == 0)

    def add(self, rows: Iterable[Row]) -> None:
        """Append rows and flush them to the operating system."""
        assert self._file is not None
        try:
            self._writer.add(rows)
            self._file.flush()
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be written ({error.strerror}): free some space and resume."
            ) from error

    def finish(self, summary: Row, flagged: Sequence[bool] | None = None) -> None:
        """Write the summary and put the rows in the place of the output, with their flags where they were flagged together."""
        write_json(self.summary, {**self.run, **summary}, ensure_ascii=False)
        with replacing(self.out) as temporary:
            if self.run["format"] == self.kind and flagged is None:
                self.path.replace(temporary)
                return
            more = () if flagged is None else (FLAGGED,)
            rows = self.rows() if flagged is None else flag_rows(self.rows(), flagged)
            if self.run["format"] == "parquet":
                _write_parquet(rows, temporary, (*FIELDS, *more))
            else:
                with temporary.open("w", encoding="utf-8", newline="") as file:
                    RowWriter(file, self.run["format"], (*self.fields, *more)).add(rows)
        self.path.unlink()

    def close(self) -> None:
        """Close the file; the journal stays."""
        if self._file is not None:
            with suppress(OSError):  # on a full disk, which add() has reported
                self._file.close()


def _rows_of(path: Path, kind: str) -> Iterator[Row]:
    """Yield the rows of a finished output."""
    if kind == "parquet":
        yield from (row for part in _pyarrow()[1].ParquetFile(path).iter_batches() for row in part.to_pylist())
        return
    with path.open(encoding="utf-8", newline="") as lines:
        yield from filter(None, _csv_rows(lines)) if kind == "csv" else map(json.loads, lines)


def _csv_rows(lines: Iterable[str]) -> Iterator[Row | None]:
    """Yield None for the head of a CSV file, then the rows, with None for columns that it does not have."""
    reader = csv.reader(lines, strict=True)
    for head in reader:
        yield None
        for cells in reader:
            row = {name: _cell_value(name, cell) for name, cell in zip(head, cells, strict=True)}
            yield {**dict.fromkeys(FIELDS), **row}


def _cell_value(field: str, cell: str) -> str | float | None:
    """Return the value of which ``_csv_cell`` made a cell."""
    if not cell or field in NUMBERS:
        return float(cell) if cell else None
    text = cell.removeprefix("./" if field == "path" else "'")
    return text if _csv_cell(field, text) == cell else cell


def flag_rows(rows: Iterable[Row], flagged: Iterable[bool]) -> Iterator[Row]:
    """Yield the rows with their flags in the column ``flagged``; ``flagged`` has one for each row without an error."""
    flags = iter(flagged)
    for row in rows:
        yield {**row, FLAGGED: None if row["error"] is not None else bool(next(flags))}


def _write_parquet(rows: Iterable[Row], path: Path, fields: Sequence[str]) -> None:
    pyarrow, parquet = _pyarrow()
    kinds = {**dict.fromkeys(NUMBERS, pyarrow.float64()), FLAGGED: pyarrow.bool_()}
    schema = pyarrow.schema([(field, kinds.get(field, pyarrow.string())) for field in fields])
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
