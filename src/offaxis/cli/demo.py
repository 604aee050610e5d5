"""``offaxis demo``: train, score and compare on datasets bundled with dependencies."""

import time
from pathlib import Path
from typing import Annotated

import typer

from offaxis.cli.app import Quiet, app, example


@app.command("demo", epilog=example("offaxis demo --out demo"))
def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the page.")] = Path("demo"),
    seeds: Annotated[int, typer.Option(help="Networks of each kind.", min=1)] = 3,
    epochs: Annotated[int, typer.Option(help="Epochs of each training.", min=1)] = 5,
    quiet: Quiet = False,
) -> None:
    """Train a standard and a cosine network on digits and compare them on OOD images; about a minute on two cores."""
    from rich.console import Console
    from rich.table import Table

    from offaxis.demo import METHODS, mean_std_text, run_demo, table_rows, write_demo_page

    start = time.monotonic()
    demo = run_demo(seeds, epochs, quiet=quiet)
    page = out / "index.html"
    write_demo_page(demo, page)
    table = Table(title="How well OOD images are detected (AUROC in percent)", title_justify="left")
    table.add_column("OOD images")
    for method, whose in METHODS.values():
        table.add_column(f"{method},\n{whose}", justify="right")
    for name, values in table_rows(demo):
        table.add_row(name, *(f"[bold]{value}" if best else value for value, best in values))
    table.add_section()
    standard, cosine = (mean_std_text(demo.accuracy[kind]) for kind in ("standard", "cosine"))
    table.add_row("accuracy on digits", standard, cosine, cosine)
    console = Console()
    console.print(table)
    console.print(
        f"Both networks were trained on digits alone. 50 is guessing; below 50 OOD images get lower scores than digits.\n"
        f"Histograms and images: {page.resolve().as_uri()}  ({time.monotonic() - start:.0f} s)",
        highlight=False,
        soft_wrap=True,
    )
