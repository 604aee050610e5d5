"""``offaxis report``: a results store -> tables and one page."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from offaxis.cli.app import app, example
from offaxis.data import ImageSet, load_images
from offaxis.errors import ArgumentError
from offaxis.evaluation.store import Store, archive_store
from offaxis.metrics import HIGHER_IS_BETTER


@app.command("report", epilog=example("offaxis report results/digits --out report"))
def report_command(
    store: Annotated[Path, typer.Argument(help="The folder that [cyan]offaxis evaluate --out[/cyan] was given.")],
    out: Annotated[Path, typer.Option(help="Folder for report.md, tables/ and index.html.")],
    metrics: Annotated[
        str, typer.Option(help=f"Metrics with commas, the first ranks: {', '.join(HIGHER_IS_BETTER)}.")
    ] = "auroc,accuracy_at_tpr95,aupr_in",
    thumbnails: Annotated[
        int, typer.Option(help="Images that each detector finds most and least familiar; 0 for none.", min=0)
    ] = 6,
    paper: Annotated[
        bool, typer.Option(help="Put the paper's numbers beside ours, where it has the same sets.")
    ] = False,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Out-of-distribution detection",
    keep: Annotated[
        int | None,
        typer.Option(
            help="Also write a small copy of the store, OUT/results, with scores of so many images of each set.", min=1
        ),
    ] = None,
    data: Annotated[Path | None, typer.Option(envvar="OFFAXIS_DATA", help="Where image sets are kept.")] = None,
) -> None:
    """Write tables (Markdown, CSV, LaTeX) and one self-contained page from stored results; no network is needed."""
    from offaxis.reports.page import write_page  # jinja2 and the tables take a moment to import
    from offaxis.reports.report import write_tables

    wanted = [word.strip() for word in metrics.split(",") if word.strip()]
    unknown = [name for name in wanted if name not in HIGHER_IS_BETTER]
    if unknown or not wanted:
        raise ArgumentError(f"Expected metrics out of {', '.join(HIGHER_IS_BETTER)} but got {metrics!r}.")
    known = Store.existing(store)
    parts = write_tables(known, out, wanted, paper)
    write_page(known, parts, out / "index.html", title, thumbnails, partial(_load, data))
    if keep is not None:
        archive_store(known, out / "results", keep)
    console = Console()
    console.print(f"The page: {out / 'index.html'}", highlight=False, markup=False)
    console.print(f"Tables: {out / 'report.md'} and {out / 'tables'}", highlight=False, markup=False)
    if keep is not None:
        console.print(f"A copy of the results to keep: {out / 'results'}", highlight=False, markup=False)


def _load(root: Path | None, name: str, like: ImageSet | None) -> ImageSet:
    return load_images(name, "test", root=root, like=like, force=True)
