"""Tables of a report, written as Markdown, CSV or LaTeX."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Value:
    """A number in a table, and the text that shows it.

    Attributes:
        number: for CSV and for sorting; None where there is none.
        text: for readers.
        best: whether it is the best of its kind, and is shown bold.
        share: in [0, 1], how far up it stands, for a shade behind it; None for no shade.
        percent: whether the number is in percent, which the head of a column in CSV then says.
    """

    number: float | None
    text: str
    best: bool = False
    share: float | None = None
    percent: bool = False


Entry = str | Value


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with its title.

    Attributes:
        name: of its file.
        title: above it.
        columns: their heads.
        rows: as many entries each as there are columns.
        note: below it, or empty.
        heads: how many columns on the left name the row.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    note: str = ""
    heads: int = field(default=1)


def markdown(table: Table) -> str:
    """Return a GitHub table with its title and note."""
    aligned = ["---" if place < table.heads else "---:" for place in range(len(table.columns))]
    lines = [_line(table.columns), _line(aligned)]
    lines += [_line([f"**{_text(e)}**" if _best(e) else _text(e) for e in row]) for row in table.rows]
    note = f"\n{table.note}\n" if table.note else ""
    return f"### {table.title}\n\n" + "\n".join(lines) + "\n" + note


def comma_separated(table: Table) -> str:
    """Return CSV with numbers in full precision; columns of percentages say so in their heads."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    for row in table.rows:
        writer.writerow([_number(entry, head) for entry, head in zip(row, table.columns, strict=True)])
    return out.getvalue()


def latex(table: Table) -> str:
    """Return a ``tabular`` with booktabs rules, in a ``table`` with a caption."""
    spec = "l" * table.heads + "r" * (len(table.columns) - table.heads)
    rows = [
        " & ".join(rf"\textbf{{{escape(_text(e))}}}" if _best(e) else escape(_text(e)) for e in row) + r" \\"
        for row in table.rows
    ]
    caption = escape(f"{table.title}. {table.note}".strip())
    return "\n".join(
        [
            r"\begin{table}",
            rf"  \caption{{{caption}}}",
            rf"  \label{{tab:{table.name}}}",
            rf"  \begin{{tabular}}{{{spec}}}",
            r"    \toprule",
            "    " + " & ".join(escape(c) for c in table.columns) + r" \\",
            r"    \midrule",
            *(f"    {row}" for row in rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}


def escape(text: str) -> str:
    r"""Escape text for LaTeX.

    Examples:
        >>> print(escape("TIN(r) 95 % & more_"))
        TIN(r) 95 \% \& more\_
    """
    return re.sub(r"[\\~^±]|[&%$#_{}]", lambda m: _SPECIAL.get(m[0], "\\" + m[0]), text)


def in_percent(
    value: float | None, std: float | None = None, *, best: bool = False, share: float | None = None
) -> Value:
    """Return a share in [0, 1], shown as ``percent`` shows it; a column that says % has it in percent in CSV files too."""
    return Value(None if value is None else float(value), percent(value, std), best, share, percent=True)


def percent(value: float | None, std: float | None = None) -> str:
    """Return a share in percent as the paper prints it: "98.74(0.23)"; "-" where there is none."""
    if value is None:
        return "-"
    return f"{100 * value:.2f}" + ("" if std is None else f"({100 * std:.2f})")


def _line(entries: Sequence[str]) -> str:
    return "| " + " | ".join(e.replace("|", r"\|") for e in entries) + " |"


def _text(entry: Entry) -> str:
    return entry.text if isinstance(entry, Value) else entry


def _best(entry: Entry) -> bool:
    return isinstance(entry, Value) and entry.best


def _number(entry: Entry, head: str) -> Any:
    if not isinstance(entry, Value):
        return entry
    number = 100 * entry.number if entry.number is not None and entry.percent and "%" in head else entry.number
    return "" if number is None else repr(number) if isinstance(number, float) else number
