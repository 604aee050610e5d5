"""``offaxis paper``: the paper's tables, as printed there."""

from collections.abc import Iterable, Sequence

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from offaxis.errors import ArgumentError
from offaxis.options import PaperOptions
from offaxis.paper.published import CITATION, TABLES, PaperCell, as_csv, paper_table

_METRICS = {
    "accuracy_at_tpr": "Accuracy at TPR 95 %",
    "auroc": "AUROC (%)",
    "aupr_in": "AUPR-In (%)",
    "accuracy": "Accuracy (%)",
    "seconds": "Seconds",
}


def show_table(options: PaperOptions, _: tuple[str, ...]) -> None:
    """Print the paper's own numbers, as printed there."""
    console, name = Console(emoji=False), options.name
    if name is None:
        _list(console)
        return
    cells: Sequence[PaperCell] = paper_table(name)
    for column in ("network", "id", "metric"):
        cells = _only(cells, column, getattr(options, column))
    if options.csv:
        typer.echo(as_csv(cells), nl=False)
        return
    console.print(f"[bold]Table {TABLES[name].number}[/bold]  {TABLES[name].title}", highlight=False)
    groups: dict[tuple[str, ...], list[PaperCell]] = {}
    for cell in cells:
        groups.setdefault(_group(cell), []).append(cell)
    for group, some in groups.items():
        console.print(_drawn(some, ", ".join(group)), highlight=False)
    for note in TABLES[name].notes:
        console.print(f"• {note}", style="dim", highlight=False)


def _list(console: Console) -> None:
    shown = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    shown.add_column("table", style="cyan", no_wrap=True)
    shown.add_column("no.", justify="right")
    shown.add_column("numbers", justify="right")
    shown.add_column("what it shows")
    for name, entry in TABLES.items():
        shown.add_row(name, str(entry.number), str(len(paper_table(name))), entry.title)
    console.print(shown, highlight=False)
    console.print(CITATION, style="dim", highlight=False)


def _only(cells: Sequence[PaperCell], column: str, value: str | None) -> Sequence[PaperCell]:
    """Return the cells with this value in a column, by offaxis's name or the paper's."""
    if value is None:
        return cells
    word = value.casefold()
    kept = [
        cell
        for cell in cells
        if word in (getattr(cell, column).casefold(), getattr(cell, f"printed_{column}", "").casefold())
    ]
    if not kept:
        known = ", ".join(filter(None, _values(cells, column)))
        raise ArgumentError(
            f"Expected --{column} to be one of {known} but got {value!r}."
            if known
            else f"The table has no column {column}: leave out --{column} {value}."
        )
    return kept


def _group(cell: PaperCell) -> tuple[str, ...]:
    """Return what cells of one shown table share: metric, and network and ID set where lines are OOD sets."""
    together = (cell.network, cell.id) if cell.ood and cell.table != "ablation" else ()
    return _METRICS[cell.metric], *together


def _drawn(cells: list[PaperCell], title: str) -> Table:
    """Return a table: a line for each OOD set, network or variant, a column for each method, or ID set of the ablation."""
    first = cells[0]
    labels, across = ["ood"], "method"
    if first.table == "ablation":
        labels, across = ["printed_method"], "id"
    elif not first.ood:
        labels = [column for column in ("network", "id") if getattr(first, column)]
    shown = Table(
        box=SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True, title=title, title_justify="left"
    )
    for label in labels:
        shown.add_column(label.replace("printed_method", "variant"), style="cyan", no_wrap=True)
    columns = _values(cells, across)
    for column in columns:
        shown.add_column(column, justify="right", no_wrap=True)
    lines: dict[tuple[str, ...], dict[str, Text]] = {}  # not str, which would be searched for markup
    for cell in cells:
        text = "-" if cell.mean is None else cell.printed.replace("(", " (")
        line = lines.setdefault(tuple(getattr(cell, label) for label in labels), {})
        line[getattr(cell, across)] = Text(text, "bold" if cell.bold else "")
    for names, values in lines.items():
        shown.add_row(*map(Text, names), *(values.get(column, Text()) for column in columns))
    return shown


def _values(cells: Iterable[PaperCell], column: str) -> list[str]:
    return list(dict.fromkeys(getattr(cell, column) for cell in cells))
