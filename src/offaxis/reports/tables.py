"""Tables of a report, and their one rendering as Markdown, CSV, LaTeX or HTML. Nothing of offaxis is needed here."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


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
    heads: int = 1


def markdown(table: Table) -> str:
    """Return a GitHub table with its title and note."""
    aligned = ["---" if place < table.heads else "---:" for place in range(len(table.columns))]
    head, *rows = _shown_rows(table, lambda text: text.replace("|", r"\|"), "**{}**")
    lines = [f"| {' | '.join(row)} |" for row in (head, aligned, *rows)]
    note = f"\n{table.note}\n" if table.note else ""
    return f"### {table.title}\n\n" + "\n".join(lines) + "\n" + note


def comma_separated(table: Table) -> str:
    """Return CSV with numbers in full precision; columns of percentages say so in their heads."""
    return csv_text(table.columns, [list(map(_csv_entry, row, table.columns)) for row in table.rows])


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return CSV with a line for the names of the columns, and one for each row."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue()


def latex(table: Table) -> str:
    r"""Return a ``tabular`` with booktabs rules, centred in a ``table`` with a caption; needs ``\usepackage{booktabs}``."""
    spec = "l" * table.heads + "r" * (len(table.columns) - table.heads)
    head, *rows = [f"    {' & '.join(row)} \\\\" for row in _shown_rows(table, escape, r"\textbf{{{}}}")]
    body = "\n".join([r"    \toprule", head, r"    \midrule", *rows, r"    \bottomrule"])
    caption = escape(f"{table.title}. {table.note}".strip())
    return (
        f"\\begin{{table}}\n  \\centering\n  \\caption{{{caption}}}\n  \\label{{tab:{table.name}}}\n"
        f"  \\begin{{tabular}}{{{spec}}}\n{body}\n  \\end{{tabular}}\n\\end{{table}}\n"
    )


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}


def escape(text: str) -> str:
    r"""Escape text for LaTeX.

    Examples:
        >>> print(escape("TIN(r) 95 % & more_"))
        TIN(r) 95 \% \& more\_
    """
    return re.sub(r"[\\~^±]|[&%$#_{}]", lambda m: _SPECIAL.get(m[0], "\\" + m[0]), text)


@cache
def templates() -> "Environment":
    """Return the pages that reports are written as; what is put into them is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # tables in other formats need not wait for it

    environment = Environment(
        loader=PackageLoader("offaxis.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # not sorted: pages show things in their order
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment


def html(table: Table, sortable: bool = False) -> "Markup":
    """Return a ``<figure>`` with title, ``<table>`` and note; with ``sortable`` its heads are buttons for the page's script."""
    macros: Any = templates().get_template("table.html.j2").module
    text: Markup = macros.table(table, sortable)
    return text


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


def _shown_rows(table: Table, escaped: Callable[[str], str], bold: str) -> list[list[str]]:
    """Return the heads and the rows as texts, with what is the best of its kind in bold."""
    rows = [
        [bold.format(escaped(e.text)) if e.best else escaped(e.text) for e in map(_as_value, row)] for row in table.rows
    ]
    return [[escaped(column) for column in table.columns], *rows]


def _as_value(entry: Entry) -> Value:
    return entry if isinstance(entry, Value) else Value(None, entry)


def _csv_entry(entry: Entry, head: str) -> str | float | None:
    """Return what CSV holds of an entry: a number in full, in percent where the head of its column says so."""
    if isinstance(entry, str) or entry.number is None:
        return entry if isinstance(entry, str) else None
    return 100 * entry.number if entry.percent and "%" in head else entry.number
