"""``offaxis evaluate`` and ``offaxis report``: networks x detectors x sets -> a results store -> tables and one page."""

import gc
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from offaxis.cli.app import (
    METRIC_NAMES,
    POOL_NAMES,
    Data,
    Device,
    Network,
    Quiet,
    SkipBad,
    app,
    choice,
    command_words,
    example,
    print_note,
)
from offaxis.errors import ArgumentError, DataError
from offaxis.jobs import BENCHMARKS, EvaluationRun, Kind, ProtocolName, evaluate_run

if TYPE_CHECKING:
    from rich.table import Table

    from offaxis.evaluation import Result
    from offaxis.evaluation.summary import Summary

SHOWN = 20
"""Rows of the table in the terminal."""


@app.command(
    "evaluate",
    epilog=example(
        "offaxis evaluate runs/digits --ood letters,photographs,gaussian --out results/digits",
        "offaxis evaluate resnet18-32 --weights best.ckpt --benchmark openood-cifar10 --data data --out results/openood",
    ),
)
def evaluate_command(
    context: typer.Context,
    networks: Annotated[
        list[str],
        typer.Argument(
            help="Folders of training runs, bundles, names such as resnet18-32 (with --weights), or file.py:function that "
            "returns a Classifier.",
            metavar="RUN",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The results store; what is in it already is not computed again.")],
    id: Annotated[
        str | None, typer.Option(help="The ID set: a name or a folder.", show_default="what the run was trained on")
    ] = None,
    ood: Annotated[
        str, typer.Option(help=f"OOD sets with commas: names, folders, or {', '.join(POOL_NAMES)}.")
    ] = "here",
    near: Annotated[
        str,
        typer.Option(help="Folders among the OOD sets that are near-OOD, by name, with commas; others count as far."),
    ] = "",
    benchmark: Annotated[
        str | None,
        typer.Option(
            help="OpenOOD's lists under --data instead of --id, --ood and the options that split or tune these: "
            f"{', '.join(BENCHMARKS)}."
        ),
    ] = None,
    partial_data: Annotated[
        bool, typer.Option("--partial", help="Evaluate the benchmark on the part of its images that is there.")
    ] = False,
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
    weights: Annotated[
        list[str] | None,
        typer.Option(
            help="A file of weights for a network that is named: safetensors, or a state dictionary of PyTorch. Given again "
            "for each further seed."
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="What tables call the networks.", show_default="network and head")
    ] = None,
    skip_bad: SkipBad = False,
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
    batch_size: Annotated[int, typer.Option(help="Images at a time.", min=1)] = 64,
    device: Device = "auto",
    data: Data = None,
    quiet: Quiet = False,
) -> None:
    """Compare detectors on trained networks; it can be stopped at any time and resumes where it stopped."""
    if benchmark is not None and ood != "here":
        raise ArgumentError("Expected no --ood beside --benchmark, which has its own OOD sets.")
    run = EvaluationRun(
        networks=tuple(networks),
        network=network,
        weights=tuple(weights or ()),
        id=id,
        benchmark=None if benchmark is None else choice("--benchmark", benchmark, BENCHMARKS),
        partial=partial_data,
        ood=_parts(ood),
        near=_parts(near),
        detectors=_parts(detectors),
        protocol=choice("--protocol", protocol, get_args(ProtocolName)),
        tune=tune,
        kind=choice("--as", kind, get_args(Kind)),
        label=label,
        skip_bad=skip_bad,
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
    """Print the mean AUROC of every detector, the best first; those tuned on the tested set itself apart, below."""
    from rich.console import Console

    from offaxis.evaluation.summary import is_oracle, summarise, views_in

    views = views_in(results)
    every = summarise(results, views[0])
    rows = [("validation list", s) for s in every if not is_oracle(s, views[0])]
    if len(views) > 1:
        rows += [("another set", s) for s in summarise(results, views[1]) if s.state == "tuned"]
    oracle = [("the tested set", s) for s in every if is_oracle(s, views[0])]
    ranked = sorted(rows, key=lambda row: -row[1].groups["all"].mean)
    console = Console(stderr=True)
    if ranked:
        console.print(_ranked(ranked[:SHOWN], views[0] == "openood"))
    if oracle:
        print_note("Tuned on the tested set itself (oracle), which is not known in use:")
        console.print(_ranked(oracle[:SHOWN]))
    hidden = max(0, len(ranked) - SHOWN) + max(0, len(oracle) - SHOWN)
    more = f"{hidden} more rows, tables" if hidden else "Tables"
    print_note(f"{more} and a page: offaxis report {store} --out DIR")


def _ranked(rows: "list[tuple[str, Summary]]", grouped: bool = False) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    several = len({s.network for _, s in rows}) > 1
    if not several:  # said once, above
        table.title, table.title_justify = rows[0][1].network, "left"
    for column in (*(["network"] if several else []), "detector", "tuned on"):
        table.add_column(column, overflow="fold")  # not cut off where there is no wide terminal
    groups = ("near", "far") if grouped else ()
    for column in ("AUROC %", *groups, "lowest", "tests"):
        table.add_column(column, justify="right")
    for where, s in rows:
        values = [s.groups["all"].mean, *(s.groups[g].mean if g in s.groups else None for g in groups)]
        numbers = ["-" if value is None else f"{100 * value:.2f}" for value in (*values, min(s.cells.values()))]
        tests = str(sum(cell.count for cell in s.rows.values()))
        names = [*([s.network] if several else []), s.method, where if s.state == "tuned" else ""]
        table.add_row(*names, *numbers, tests)
    return table


if TYPE_CHECKING:
    from collections.abc import Mapping

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
    oracle: Annotated[
        bool, typer.Option(help="Rank detectors tuned on the tested set itself among the others, not apart from them.")
    ] = False,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Out-of-distribution detection",
    openood: Annotated[
        Path | None,
        typer.Option(
            help="Also write the results of --benchmark as OpenOOD's table, and as lines of its leaderboard beside it "
            "(x.csv and x-leaderboard.csv)."
        ),
    ] = None,
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
    from offaxis.reports.report import PublishedTable, write_openood, write_tables

    names = [word.strip() for word in metrics.split(",") if word.strip()]
    if not names or not set(names) <= set(METRIC_NAMES):
        raise ArgumentError(f"Expected metrics out of {', '.join(METRIC_NAMES)} but got {metrics!r}.")
    results = Store.existing(store)
    beside: PublishedTable | None = None
    if paper:
        from offaxis.reproduce.tables import beside_view

        beside = beside_view
    page = out / "index.html"
    gc.disable()  # to look for cycles among thousands of records, where there are none, takes an eighth of the time
    try:
        sections = write_tables(results, out, names, beside, oracle=oracle)
        write_page(results, sections, page, title=title, thumbnails=thumbnails, load=partial(_load, data))
    finally:
        gc.enable()
    typer.echo(f"The page: {page}")
    typer.echo(f"Tables: {out / 'report.md'} and {out / 'tables'}")
    if openood is not None:
        for path in write_openood(results, openood):
            typer.echo(f"OpenOOD's: {path}")
    if archive is not None:
        archive_store(results, out / "results", archive)
        typer.echo(f"A small copy of the results: {out / 'results'}")


def _load(root: Path | None, about: "Mapping[str, Any]", like: "ImageSet | None") -> "ImageSet":
    from offaxis.data.catalogue import CATALOGUE, data_root

    name, options = about.get("path", about["name"]), about.get("options", {})
    if name in CATALOGUE and "test" not in CATALOGUE[name].available(data_root(root)):
        raise DataError(f"{name} is not on this machine.")  # said without torch, which takes seconds to import
    from offaxis.data import load_images

    # decoded when they are read: a page shows a few images of a part of a set
    return load_images(name, "test", root=root, like=like, force=True, in_memory=False, **options)
