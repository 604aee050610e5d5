"""``offaxis evaluate`` and ``offaxis report``: networks x detectors x sets -> a results store -> tables and one page."""

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from offaxis.cli.app import (
    METRIC_NAMES,
    POOL_NAMES,
    Data,
    Device,
    Network,
    Quiet,
    Weights,
    app,
    choice,
    command_words,
    example,
    print_note,
)
from offaxis.errors import ArgumentError
from offaxis.jobs import EvaluationRun, Kind, ProtocolName, evaluate_run

if TYPE_CHECKING:
    from offaxis.evaluation import Result

SHOWN = 20
"""Rows of the table in the terminal."""


@app.command(
    "evaluate",
    epilog=example("offaxis evaluate runs/digits --ood letters,photographs,gaussian --out results/digits"),
)
def evaluate_command(
    context: typer.Context,
    networks: Annotated[
        list[str],
        typer.Argument(
            help="Folders of training runs, bundles, names such as resnet18-32 (with --weights), or file.py:function that "
            "returns a Classifier.",
            metavar="RUN...",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The results store; what is in it already is not computed again.")],
    id: Annotated[
        str | None, typer.Option(help="The ID set: a name or a folder.", show_default="what the run was trained on")
    ] = None,
    ood: Annotated[
        str, typer.Option(help=f"OOD sets with commas: names, folders, or {', '.join(POOL_NAMES)}.")
    ] = "here",
    detectors: Annotated[
        str,
        typer.Option(
            help="Detectors with commas: names, arguments as in knn:k=10, file.py:Class, or native, pytorch-ood, all."
        ),
    ] = "native",
    protocol: Annotated[
        str, typer.Option(help=f"How detectors are tuned: {', '.join(get_args(ProtocolName))}.")
    ] = "one-vs-one",
    tune: Annotated[
        bool, typer.Option(help="Report detectors that have a grid tuned too, beside their published values.")
    ] = True,
    kind: Annotated[
        str,
        typer.Option("--as", help="The networks: each by itself (single), or as one: ensemble, paired, leave-out."),
    ] = "single",
    network: Network = None,
    weights: Weights = None,
    label: Annotated[
        str | None, typer.Option(help="What tables call the networks.", show_default="network and head")
    ] = None,
    images: Annotated[
        int | None, typer.Option(help="At most so many images of each OOD and ID test set.", show_default="all", min=1)
    ] = None,
    fit_images: Annotated[
        int | None,
        typer.Option(help="At most so many training images to fit detectors with.", show_default="all", min=1),
    ] = None,
    validation: Annotated[
        int, typer.Option(help="Images of each set that tuning may see; never more than a fifth.", min=0)
    ] = 1000,
    batch_size: Annotated[int, typer.Option(help="Images at a time.", min=1)] = 256,
    device: Device = "auto",
    data: Data = None,
    quiet: Quiet = False,
) -> None:
    """Compare detectors on trained networks; it can be stopped at any time and resumes where it stopped."""
    run = EvaluationRun(
        networks=tuple(networks),
        network=network,
        weights=weights,
        id=id,
        ood=_parts(ood),
        detectors=_parts(detectors),
        protocol=choice("--protocol", protocol, get_args(ProtocolName)),
        tune=tune,
        kind=choice("--as", kind, get_args(Kind)),
        label=label,
        images=images,
        fit_images=fit_images,
        validation=validation,
        batch_size=batch_size,
    )

    def note(text: str) -> None:
        if not quiet:
            print_note(text, "yellow")

    results = evaluate_run(
        run, out=out, device=device, data=data, command=command_words(context), quiet=quiet, note=note
    )
    if not quiet:
        _show(results, out)


def _parts(text: str) -> tuple[str, ...]:
    """Return the parts between commas that are not inside brackets."""
    return tuple(word.strip() for word in re.split(r",(?![^(\[]*[)\]])", text) if word.strip())


def _show(results: "list[Result]", store: Path) -> None:
    """Print the mean AUROC of every detector; the two protocols apart, where they differ."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from offaxis.evaluation.summary import summarise

    rows = [("the tested set", s) for s in summarise(results)]
    rows += [("another set", s) for s in summarise(results, "less-biased by tested set") if s.state == "tuned"]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("network", "detector", "tuned on"):
        table.add_column(column)
    for column in ("AUROC %", "lowest", "tests"):
        table.add_column(column, justify="right")
    ranked = sorted(rows, key=lambda row: -row[1].groups["all"].mean)
    for where, s in ranked[:SHOWN]:
        numbers = [f"{100 * value:.2f}" for value in (s.groups["all"].mean, min(s.cells.values()))]
        tests = str(sum(cell.count for cell in s.rows.values()))
        table.add_row(s.network, s.method, where if s.state == "tuned" else "", *numbers, tests)
    Console(stderr=True).print(table)
    more = f"{len(ranked) - SHOWN} more rows, tables" if len(ranked) > SHOWN else "Tables"
    print_note(f"{more} and a page: offaxis report {store} --out DIR")


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
