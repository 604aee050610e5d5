"""``offaxis report``: a results store -> tables and one page."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offaxis.cli.app import METRIC_NAMES, Data, app, example
from offaxis.errors import ArgumentError

if TYPE_CHECKING:
    from offaxis.data import ImageSet


@app.command("report", epilog=example("offaxis report results/digits --out report"))
def report_command(
    store: Annotated[Path, typer.Argument(help="The folder that [cyan]offaxis evaluate --out[/cyan] was given.")],
    out: Annotated[Path, typer.Option(help="Folder for report.md, tables/ and index.html.")],
    metrics: Annotated[
        str, typer.Option(help=f"Metrics with commas; the first one ranks: {', '.join(METRIC_NAMES)}.")
    ] = "auroc,accuracy_at_tpr95,aupr_in",
    thumbnails: Annotated[
        int, typer.Option(help="Images with the highest and the lowest scores of each detector; 0 for none.", min=0)
    ] = 6,
    paper: Annotated[
        bool, typer.Option(help="Put the paper's numbers beside ours, where it has the same sets.")
    ] = False,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Out-of-distribution detection",
    archive: Annotated[
        int | None,
        typer.Option(
            help="Also write a small copy of the store, OUT/results, with scores of so many images of each set.", min=1
        ),
    ] = None,
    data: Data = None,
) -> None:
    """Write tables (Markdown, CSV, LaTeX) and one self-contained page from stored results; no network is needed."""
    from offaxis.evaluation.store import Store, archive_store
    from offaxis.reports.page import write_page
    from offaxis.reports.report import write_tables
    from offaxis.reproduce.tables import beside_view

    names = [word.strip() for word in metrics.split(",") if word.strip()]
    if not names or not set(names) <= set(METRIC_NAMES):
        raise ArgumentError(f"Expected metrics out of {', '.join(METRIC_NAMES)} but got {metrics!r}.")
    results = Store.existing(store)
    sections = write_tables(results, out, names, beside_view if paper else None)
    page = out / "index.html"
    write_page(results, sections, page, title=title, thumbnails=thumbnails, load=partial(_load, data))
    typer.echo(f"The page: {page}")
    typer.echo(f"Tables: {out / 'report.md'} and {out / 'tables'}")
    if archive is not None:
        archive_store(results, out / "results", archive)
        typer.echo(f"A small copy of the results: {out / 'results'}")


def _load(root: Path | None, name: str, like: "ImageSet | None") -> "ImageSet":
    from offaxis.data import load_images

    return load_images(name, "test", root=root, like=like, force=True)
