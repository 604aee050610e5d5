"""``offaxis demo``: two networks compared on OOD images, as a table and a page."""

import time

from rich.console import Console
from rich.table import Table

from offaxis.cli.app import command
from offaxis.options import DemoOptions


@command("demo", DemoOptions, "offaxis demo --out demo", "offaxis demo --quick")
def demo_command(options: DemoOptions, _: tuple[str, ...]) -> None:
    """Train a standard and a cosine network on digits and compare them on OOD images; about a minute on two cores."""
    from offaxis.demo import METHODS, mean_std_text, run_demo, table_rows, write_demo_page

    start = time.monotonic()
    if options.quick:
        demo = run_demo(1, options.epochs, 300, options.quiet, small=True)
    else:
        demo = run_demo(options.seeds or 3, options.epochs, quiet=options.quiet)
    page = options.out / "index.html"
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
