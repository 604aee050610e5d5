"""``offaxis data get``, ``inspect`` and ``clean``: image sets on this machine."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from offaxis.cli.catalogue import facts_table, relation_text
from offaxis.data import ImageSet, get_images, load_images
from offaxis.data.catalogue import CATALOGUE, Entry, cache_folder, clean_cache, known
from offaxis.data.inspection import Inspection, inspect, pair_sheet, write_contact_sheet
from offaxis.data.load import has_mixed_sizes, own_path, own_splits
from offaxis.errors import DataError
from offaxis.options import CleanOptions, GetOptions, InspectOptions
from offaxis.progress import print_note, visible


def get_sets(options: GetOptions, _: tuple[str, ...]) -> None:
    """Download sets, check them and unpack them; an interrupted download is resumed."""
    failed = []
    for entry in [known(name) for name in options.names]:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        try:
            with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
                root = get_images(entry.name, options.data, options.source, _bar_for_each_file(bars, entry.title))
        except DataError as error:
            failed.append(str(error))
        else:
            print_note(f"{entry.title}: {', '.join(entry.available(root))} below {root}")
    if failed:
        raise DataError("\n\n".join(failed))


def _bar_for_each_file(bars: Progress, title: str) -> Callable[[str, int, int | None], None]:
    tasks = {"": bars.add_task(title, total=None)}  # moves while a set is unpacked, or npm is at work

    def show(file: str, here: int, total: int | None) -> None:
        if file not in tasks:
            tasks[file] = bars.add_task(Path(file).name, total=total)
        bars.update(tasks[file], completed=here, total=total)

    return show


def inspect_set(options: InspectOptions, _: tuple[str, ...]) -> None:
    """Find black frames, sizes, duplicates and near-duplicates in a set, and write a contact sheet of its images.

    A folder with train and test inside is compared with its other split too.
    """
    name, split, size, id_name = options.name, options.split, options.size, options.id
    folders = {part: own_path(part) for part in (name, id_name) if part is not None and _is_folder(part)}
    pairs = [(folder, part) for folder in folders.values() for part in own_splits(folder)]
    if size is None and any(has_mixed_sizes(folder, part, options.skip_bad) for folder, part in pairs):
        size = INSPECTION_SIZE
    read: Any = partial(load_images, root=options.data, skip_bad=options.skip_bad, in_memory=False)
    others: dict[str, ImageSet] = {}
    for each in dict.fromkeys((*([] if id_name is None else [id_name]), *folders)):
        for part in CATALOGUE[each].counts if each in CATALOGUE else own_splits(own_path(each)):
            if (each, part) != (name, split):
                others[f"{each} {part}"] = read(each, part, size=size)
    like = next(iter(others.values()), None) if id_name is not None else None
    with Progress(console=Console(stderr=True), transient=True) as bars:
        images = read(name, split, like=None if like is None else like.shape, size=size)
        task = bars.add_task(f"reading {images.name}", total=len(images))
        report = inspect(images, others, lambda more: bars.advance(task, more))
    path = options.sheet or Path(f"{images.name}-sheet.png")
    write_contact_sheet(images, path)
    _findings(report, CATALOGUE.get(name), split, id_name)
    console = Console()
    console.print(f"Contact sheet: {path}", highlight=False, markup=False)
    for number, (where, near) in enumerate(item for item in report.near.items() if item[1]):
        other = others[where] if where else images
        for pair in near[:SHOWN_PAIRS]:
            typer.echo(visible(f"{pair.similarity:.3f}  {images.called(pair.first)}  {other.called(pair.second)}"))
        file = path.with_name(f"{path.stem}-pairs{number or ''}.png")
        write_contact_sheet(pair_sheet(images, other, near[:50]), file)
        console.print(f"Pairs {_where(where)}: {file}", highlight=False, markup=False)


INSPECTION_SIZE, SHOWN_PAIRS = 224, 10


def _is_folder(name: str) -> bool:
    return name not in CATALOGUE and own_path(name).exists()


def _where(name: str) -> str:
    return f"also in {name}" if name else "in the set itself"


def clean_up(_options: CleanOptions, _: tuple[str, ...]) -> None:
    """Remove what can be made again: decoded pixels, features, ONNX graphs and unpacked archives; sets stay."""
    removed = clean_cache()
    for room, (files, size) in removed.items():
        typer.echo(f"Removed {cache_folder() / room}: {files:,} files, {size / 1e6:,.1f} MB")
    if not removed:
        typer.echo(f"Nothing to remove in {cache_folder()}")


def _findings(found: Inspection, entry: Entry | None, split: str, id_name: str | None) -> None:
    table = facts_table(escape(found.name))
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
        table.add_row(escape(f"beside {id_name}"), relation_text(id_name, found.name))
    for bad in found.skipped:
        table.add_row("left out", f"[red]{escape(visible(bad.path))}[/red]: {escape(visible(bad.reason))}")
    Console().print(table, highlight=False)


def _frame(found: Inspection) -> str:
    frame = found.frame
    if frame.is_frame:
        return f"[red]yes, {frame.width} pixels wide[/red] on {frame.share:.1%} of the images: the frame alone gives them away"
    if frame.width:
        return f"no, but all have dark margins of at least {frame.width} pixels"
    return "[green]none[/green]"


def _duplicates(count: int, where: str) -> str:
    return f"[red]{count:,}[/red] {where}" if count else f"none {where}"
