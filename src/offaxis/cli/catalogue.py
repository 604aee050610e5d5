"""``offaxis data list``: the catalogue of image sets."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from offaxis.data.catalogue import CATALOGUE, Entry, data_root, known, relation
from offaxis.options import ListOptions


def list_sets(options: ListOptions, _: tuple[str, ...]) -> None:
    """List the catalogue: every set with its size, its terms and whether it is on this machine."""
    root = data_root(options.data)
    entries = [known(name) for name in options.names or CATALOGUE]
    if options.as_json:
        typer.echo(json.dumps([_described(entry, root, options.id) for entry in entries], indent=2))
    elif options.names:
        for entry in entries:
            _print_card(entry, root, options.id)
    else:
        _print_catalogue(entries, root, options.id)


def _described(entry: Entry, root: Path, id_name: str | None) -> dict[str, Any]:
    plain = ("name", "title", "publisher", "licence", "citation", "homepage", "kind", "shape", "notes")
    facts: dict[str, Any] = {
        **{name: getattr(entry, name) for name in plain},
        "images": dict(entry.counts),
        "native_size": entry.native,
        "files": [{"file": d.file, "checksum": d.checksum, "bytes": d.size, "urls": d.urls} for d in entry.downloads],
        "npm": entry.npm.package if entry.npm else None,
        "here": entry.available(root),
    }
    if id_name is not None:
        found = relation(id_name, entry.name)
        facts["relation"] = {"id": id_name, **asdict(found)}
    return facts


def _here(entry: Entry, root: Path) -> str:
    here = entry.available(root)
    if not entry.layouts:
        return "[green]made[/green]"
    if set(here) == set(entry.counts):
        return "[green]yes[/green]"
    return f"[yellow]{here[0]} only[/yellow]" if here else "[dim]no[/dim]"


def _print_catalogue(entries: list[Entry], root: Path, id_name: str | None) -> None:
    console = Console()
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True, expand=True)
    wide = console.width >= 100
    table.add_column("name", style="cyan", no_wrap=True)
    for column in (*(["set"] if wide else []), "train", "test", "size", "here"):
        table.add_column(column, justify="right" if column in ("train", "test") else "left", no_wrap=True)
    last = "licence" if id_name is None else escape(f"beside {id_name}")
    table.add_column(last, no_wrap=True, overflow="ellipsis", ratio=1)
    notes: dict[str, list[str]] = {}
    for entry in entries:
        train, test = (f"{entry.counts[part]:,}" if part in entry.counts else "" for part in ("train", "test"))
        title = [entry.title] if wide else []
        last = entry.licence
        if id_name is not None:
            found = relation(id_name, entry.name)
            last = "[red]refused[/red]" if found.refused else found.group + (", see below" if found.note else "")
            if found.note:
                notes.setdefault(found.note, []).append(entry.name)
        ends = entry.name in ("uniform", "scenes")  # the paper's sets, later ones, and those bundled with dependencies
        table.add_row(entry.name, *title, train, test, entry.native, _here(entry, root), last, end_section=ends)
    console.print(table)
    for note, names in notes.items():
        console.print(f"[cyan]{', '.join(names)}[/cyan]: {note}", highlight=False)
    console.print(f"{'' if not notes else chr(10)}Root: {root}", style="dim", highlight=False, markup=False)
    console.print("Details of one set, with publisher, citation and checksums: offaxis data list NAME", style="dim")


def relation_text(id_name: str, name: str) -> str:
    """Return how an OOD set relates to an ID set, for a terminal."""
    found = relation(id_name, name)
    if found.refused:
        return f"[red]refused[/red]: {found.note}"
    return f"[bold]{found.group}[/bold]" + (f": {found.note}" if found.note else "")


def facts_table(title: str) -> Table:
    """Return an empty table of facts, with a column for their names."""
    table = Table(box=None, show_header=False, pad_edge=False, title=title, title_justify="left")
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _print_card(entry: Entry, root: Path, id_name: str | None) -> None:
    table = facts_table(entry.title)
    rows = [("name", f"[cyan]{entry.name}[/cyan]"), ("publisher", entry.publisher), ("licence", entry.licence)]
    rows.append(("cite", entry.citation))
    rows.append(("images", ", ".join(f"{count:,} {part}" for part, count in entry.counts.items())))
    rows.append(("size", f"{entry.native}, given as {'x'.join(map(str, entry.shape[1:]))}"))
    rows.append(("here", _here(entry, root)))
    for download in entry.downloads:
        rows.append(("file", f"{download.file}  {download.checksum or 'no checksum is published'}"))
        rows += [("", f"[dim]{url}[/dim]") for url in download.urls]
    rows += [("npm", f"{entry.npm.package}  {entry.npm.checksum}")] if entry.npm else []
    rows += [("homepage", entry.homepage)] if entry.homepage else []
    rows += [("note", note) for note in entry.notes]
    if id_name is not None:
        rows.append((escape(f"beside {id_name}"), relation_text(id_name, entry.name)))
    for row in rows:
        table.add_row(*row)
    Console().print(table, "", highlight=False, sep="\n")
