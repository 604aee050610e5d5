"""``offaxis evaluate`` and ``offaxis report``: networks x detectors x sets -> a results store -> tables and one page."""

from pathlib import Path

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from offaxis.evaluation.evaluating import evaluate_by_options
from offaxis.evaluation.records import Result
from offaxis.evaluation.store import Store
from offaxis.evaluation.summary import TESTED_SET, Summary, ranked_rows
from offaxis.options import EvaluateOptions, ReportOptions
from offaxis.paper.tables import beside_view
from offaxis.progress import print_note
from offaxis.reports.page import write_figures, write_page
from offaxis.reports.report import write_openood, write_tables

SHOWN = 20
"""Rows of the table in the terminal."""


def evaluate_networks(options: EvaluateOptions, words: tuple[str, ...]) -> None:
    """Compare detectors on trained networks; it can be stopped at any time and resumes where it stopped."""

    def note(text: str) -> None:
        if not options.quiet:
            print_note(text, "yellow")

    results = evaluate_by_options(options, words, note)
    if not options.quiet:
        assert options.out is not None
        _show(results, options.out)


def _show(results: list[Result], store: Path) -> None:
    """Print the mean AUROC of every detector, the best first; those tuned on the tested set itself apart, below."""
    every = ranked_rows(results)
    ranked = [row for row in every if row[0] != TESTED_SET]
    oracle = every[len(ranked) :]
    console = Console(stderr=True)
    if ranked:
        console.print(_ranked(ranked[:SHOWN], all(result.benchmark for result in results)))
    if oracle:
        print_note("Tuned on the tested set itself (oracle), which is not known in use:")
        console.print(_ranked(oracle[:SHOWN]))
    hidden = max(0, len(ranked) - SHOWN) + max(0, len(oracle) - SHOWN)
    more = f"{hidden} more rows, tables" if hidden else "Tables"
    print_note(f"{more} and a page: offaxis report {store} --out DIR")


def _ranked(rows: list[tuple[str, Summary]], grouped: bool = False) -> Table:
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
        names = [*([s.network] if several else []), s.method, where]
        table.add_row(*names, *numbers, tests)
    return table


def write_report(options: ReportOptions, _: tuple[str, ...]) -> None:
    """Write tables (Markdown, CSV, LaTeX) and one self-contained page from stored results; no network is needed."""
    results, out = Store.existing(options.store), options.out
    beside = beside_view if options.paper else None
    sections = write_tables(results, out, list(options.metrics), beside, oracle=options.oracle)
    page = out / "index.html"
    write_page(results, sections, page, title=options.title, thumbnails=options.thumbnails, root=options.data)
    typer.echo(f"The page: {page}")
    if options.figures:
        for path in write_figures(sections, out / "figures"):
            typer.echo(f"Figure: {path}")
    typer.echo(f"Tables: {out / 'report.md'} and {out / 'tables'}")
    if options.openood is not None:
        for path in write_openood(results, options.openood):
            typer.echo(f"OpenOOD's: {path}")
