"""Rows on disk: a resumable journal, then CSV, JSON lines or Parquet, written whole or not at all."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from offaxis.deploy.model import Prediction
from offaxis.deploy.scoring.sources import parts, readable
from offaxis.errors import ArgumentError, DataError, MissingPackageError, StorageError
from offaxis.files import json_line, read_lines, replacing

Row = dict[str, Any]
FIELDS = ("path", "class", "probability", "cosine", "score", "p_value", "class_p_value", "verdict", "seen", "error")
FLAGGED = "flagged"
"""The column that follows where images are flagged together (``--fdr``)."""
FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_HEADER = "offaxis-score-2"


def row_of(name: str, prediction: Prediction) -> Row:
    """Return the row of an image with a prediction."""
    values = prediction.to_json()
    return {"path": readable(name), **{field: values.get(field) for field in FIELDS[1:-1]}, "error": None}


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
    """

    def __init__(self, out: Path, identity: str) -> None:
        self.path = out.with_name(out.name + ".journal")
        self.identity = identity
        self._file: IO[str] | None = None

    def begin(self, out: Path, resume: bool, overwrite: bool) -> None:
        """Check for earlier results and open the journal.

        Raises:
            ArgumentError: there are results already, or a journal of another bundle.
        """
        if overwrite:
            self.path.unlink(missing_ok=True)
        elif out.exists() and not self.path.exists():
            raise ArgumentError(f"{out} is there already: name another file, or add --overwrite.")
        elif self.path.exists() and not resume:
            raise ArgumentError(
                f"{self.path} was left by a run that stopped: add --resume to finish it, or --overwrite."
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            begun = self.path.exists() and self._check()
            self._file = self.path.open("a", encoding="utf-8")
            if not begun:
                self._file.write(self._header())
                self._file.flush()  # a run that is killed in its first batch can be resumed
        except OSError as error:
            self.close()
            raise StorageError(f"{self.path} cannot be written ({error.strerror}).") from error

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

    def _header(self) -> str:
        return json_line({"format": _HEADER, "bundle": self.identity})

    def _check(self) -> bool:
        """Return whether there is a journal to resume; remove an incomplete last line, refuse another bundle's."""
        with self.path.open("rb+") as file:
            first = file.readline()
            if not first.endswith(b"\n") and self._header().encode().startswith(first):
                file.truncate(0)  # it stopped before its first line was complete
                return False
            if first != self._header().encode():
                raise DataError(
                    f"{self.path} is damaged at its start, or belongs to another bundle or version: add --overwrite, or "
                    "name another --out."
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
    """Writes rows to an open file, as CSV with a header or as JSON lines."""

    def __init__(self, file: IO[str], kind: str, fields: Sequence[str] = FIELDS) -> None:
        self.file, self.fields = file, fields
        self.csv = csv.writer(file, lineterminator="\n") if kind == "csv" else None
        if self.csv is not None:
            self.csv.writerow(fields)

    def add(self, rows: Iterable[Row]) -> None:
        """Write rows."""
        for row in rows:
            if self.csv is not None:
                self.csv.writerow([row[field] for field in self.fields])
            else:
                self.file.write(_line(row))


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
