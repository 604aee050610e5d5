"""``offaxis paper``, ``reproduce`` and ``bench``: the paper's tables, and each of them again from training to the file."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from offaxis.cli.app import app, command, example, print_note
from offaxis.errors import ArgumentError
from offaxis.names import RECIPES
from offaxis.options import ReproduceOptions, TrainOptions
from offaxis.paper.published import CITATION, TABLES, PaperCell, as_csv, paper_table

if TYPE_CHECKING:
    from offaxis.paper.commands import Command
    from offaxis.paper.cost import Cost
    from offaxis.paper.items import PaperItem
    from offaxis.paper.settings import Settings


@command("reproduce", ReproduceOptions, "offaxis reproduce one-vs-one --scale laptop --dry-run")
def reproduce_command(options: ReproduceOptions, _: tuple[str, ...]) -> None:
    """Compute a table or a figure of the paper again; what is there already is not computed again."""
    from offaxis.paper.commands import Reproduction, TrainCommand
    from offaxis.paper.items import ITEMS, paper_item

    console, item = Console(), options.item
    if item is None:
        for name, entry in ITEMS.items():
            console.print(f"[cyan]{name:<20}[/cyan]{entry.title}", highlight=False)
        return
    folder = options.out or Path("reproduce") / options.scale
    for name, place in {"--out": folder, "--runs": options.runs}.items():
        if place is not None and place.exists() and not place.is_dir():
            raise ArgumentError(f"Expected a folder for {name} but {place} is a file: name another place.")
    runs = options.runs or folder / "runs"
    chain = Reproduction(_settings(options), folder, runs, data=options.data, device=options.device)
    chosen = paper_item(item)
    steps = list({step.words: step for step in chosen.steps(chain)}.values())
    steps.sort(key=lambda step: not isinstance(step, TrainCommand))
    if options.list_steps:
        for step in steps:
            console.print(step.command, soft_wrap=True, highlight=False, markup=False)
        return
    for step in steps:
        step.check()
    left = [step for step in steps if not step.done]
    if options.dry_run:
        _explain(console, chosen, steps, left)
        console.print(f"Then tables or figures are written into {folder / item}.", highlight=False, markup=False)
        return
    for step in left:
        step.forget()  # evaluations of a network that is trained now are repeated, even by a later call
    _run(left, options.quiet)
    for path in chosen.finish(chain, folder / item):
        Console(quiet=options.quiet).print(str(path), highlight=False, markup=False, soft_wrap=True)


def _settings(options: ReproduceOptions) -> "Settings":
    """Return the settings of a scale with what the options change."""
    from offaxis.paper.settings import SCALES

    if options.scale not in SCALES:
        raise ArgumentError(f"Expected --scale to be paper or laptop but got {options.scale!r}.")
    recipe = options.recipe
    if recipe is not None and recipe not in RECIPES:
        raise ArgumentError(f"Expected --recipe to be one of {', '.join(RECIPES)} but got {recipe!r}.")
    settings = SCALES[options.scale]
    networks = settings.networks
    if options.network:
        networks = (TrainOptions(network=options.network, recipe=recipe or "laptop"),)
    elif recipe:
        networks = tuple(replace(entry, recipe=recipe) for entry in networks)
    if options.epochs:
        networks = tuple(replace(entry, epochs=options.epochs) for entry in networks)
    seeds = tuple(range(options.seeds)) if options.seeds else None
    return settings.replace(networks=networks, ids=options.id, seeds=seeds)


def _explain(console: "Console", item: "PaperItem", steps: "Sequence[Command]", left: "Sequence[Command]") -> None:
    """Print the commands, which of them are done, and how long the others would take."""
    from offaxis.paper.commands import EvaluateCommand, TrainCommand
    from offaxis.paper.cost import total_seconds

    console.print(f"{item.title}", style="bold", highlight=False)
    for step in steps:
        console.print(
            f"{'done ' if step.done else '     '} {step.command}", highlight=False, markup=False, soft_wrap=True
        )
    for kind, name in ((TrainCommand, "trainings"), (EvaluateCommand, "evaluations")):
        own = [step for step in left if isinstance(step, kind)]
        if own:
            forward, backward = sum(step.cost.forward for step in own), sum(step.cost.backward for step in own)
            console.print(
                f"{len(own)} {name} to do: {forward / 1e6:,.2f} million images forward, {backward / 1e6:,.2f} million back, "
                f"about {total_seconds(own).text} on this machine's CPU, one after the other.",
                highlight=False,
            )
    if not left:
        console.print("Nothing is left to compute.", highlight=False)


def _run(steps: "Sequence[Command]", quiet: bool) -> None:
    """Run commands one after the other, in this process."""

    def note(text: str) -> None:
        if not quiet:
            print_note(text)

    for number, step in enumerate(steps, 1):
        if not quiet:
            print_note(f"[{number}/{len(steps)}] {step.command}", "bold")
        step.run(quiet=quiet, note=note)


bench_app = typer.Typer(
    name="bench",
    help="Measure computing times on this machine.",
    epilog=example("offaxis bench cost --rounds 3"),
    no_args_is_help=True,
)


@bench_app.callback()
def bench() -> None:
    """Measure computing times on this machine."""


@bench_app.command("cost", epilog=example("offaxis bench cost --network wrn-16-4 --rounds 3"))
def cost_command(
    network: Annotated[
        list[str] | None,
        typer.Option(
            help="wrn-DEPTH-WIDTH or densenet-DEPTH-GROWTH; repeatable.", show_default="densenet-100-12 and wrn-28-10"
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Images in a batch.", min=1)] = 128,
    rounds: Annotated[int, typer.Option(help="Batches that the median is taken over.", min=1)] = 5,
    device: Annotated[
        str,
        typer.Option(help="Where networks run: auto (CUDA, else MPS, else the CPU), cpu, cuda, cuda:1, ... or mps."),
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One object a network, as JSON lines.")] = False,
) -> None:
    """Measure the paper's table of computing times: seconds per batch for Mahalanobis, ODIN and the cosine score."""
    from rich.console import Console

    from offaxis.networks.run import resolve_device
    from offaxis.paper.cost import PAPER, measure_cost

    where = str(resolve_device(device))
    costs = []
    for name in network or PAPER:
        with Console(stderr=True).status(name) as status:
            costs.append(measure_cost(name, batch, rounds, where, status.update))
    if as_json:
        for cost in costs:
            typer.echo(json.dumps(asdict(cost)))
    else:
        Console().print(_table(costs, batch, where))


def _table(costs: "list[Cost]", batch: int, device: str) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = f"Seconds per batch of {batch} on {device}, median, and times the plain forward pass"
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left")
    table.add_column("Network")
    for column in ("Mahalanobis", "ODIN", "Cosine", "Plain forward"):
        table.add_column(column, justify="right")
    for cost in costs:
        cells = [
            f"{seconds:.3f} ({seconds / cost.forward:.2f}x)" for seconds in (cost.mahalanobis, cost.odin, cost.cosine)
        ]
        table.add_row(cost.network, *cells, f"{cost.forward:.3f}")
    return table


_METRICS = {
    "accuracy_at_tpr": "Accuracy at TPR 95 %",
    "auroc": "AUROC (%)",
    "aupr_in": "AUPR-In (%)",
    "accuracy": "Accuracy (%)",
    "seconds": "Seconds",
}


@app.command("paper", epilog=example("offaxis paper one-vs-one --network wrn-28-10 --id cifar100 --metric auroc"))
def paper_command(
    name: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="Which table; without it they are listed.")
    ] = None,
    network: Annotated[str | None, typer.Option(help="This network only: densenet-100-12 or wrn-28-10.")] = None,
    id: Annotated[str | None, typer.Option(help="This ID set only: cifar10 or cifar100.")] = None,
    metric: Annotated[str | None, typer.Option(help="This metric only: auroc, aupr_in, accuracy_at_tpr.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="One line per number, with every name as printed.")] = False,
) -> None:
    """Print the paper's own numbers, as printed there."""
    console = Console(emoji=False)
    if name is None:
        _list(console)
        return
    cells: Sequence[PaperCell] = paper_table(name)
    for column, value in (("network", network), ("id", id), ("metric", metric)):
        cells = _only(cells, column, value)
    if csv:
        typer.echo(as_csv(cells), nl=False)
        return
    console.print(f"[bold]Table {TABLES[name].number}[/bold]  {TABLES[name].title}", highlight=False)
    groups: dict[tuple[str, ...], list[PaperCell]] = {}
    for cell in cells:
        groups.setdefault(_group(cell), []).append(cell)
    for group, some in groups.items():
        console.print(_drawn(some, ", ".join(group)), highlight=False)
    for note in TABLES[name].notes:
        console.print(f"• {note}", style="dim", highlight=False)


def _list(console: Console) -> None:
    shown = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    shown.add_column("table", style="cyan", no_wrap=True)
    shown.add_column("no.", justify="right")
    shown.add_column("numbers", justify="right")
    shown.add_column("what it shows")
    for name, entry in TABLES.items():
        shown.add_row(name, str(entry.number), str(len(paper_table(name))), entry.title)
    console.print(shown, highlight=False)
    console.print(CITATION, style="dim", highlight=False)


def _only(cells: Sequence[PaperCell], column: str, value: str | None) -> Sequence[PaperCell]:
    """Return the cells with this value in a column, by offaxis's name or the paper's."""
    if value is None:
        return cells
    word = value.casefold()
    kept = [
        cell
        for cell in cells
        if word in (getattr(cell, column).casefold(), getattr(cell, f"printed_{column}", "").casefold())
    ]
    if not kept:
        known = ", ".join(filter(None, _values(cells, column)))
        raise ArgumentError(
            f"Expected --{column} to be one of {known} but got {value!r}."
            if known
            else f"The table has no column {column}: leave out --{column} {value}."
        )
    return kept


def _group(cell: PaperCell) -> tuple[str, ...]:
    """Return what cells of one shown table share: metric, and network and ID set where lines are OOD sets."""
    together = (cell.network, cell.id) if cell.ood and cell.table != "ablation" else ()
    return _METRICS[cell.metric], *together


def _drawn(cells: list[PaperCell], title: str) -> Table:
    """Return a table: a line for each OOD set, network or variant, a column for each method, or ID set of the ablation."""
    first = cells[0]
    labels, across = ["ood"], "method"
    if first.table == "ablation":
        labels, across = ["printed_method"], "id"
    elif not first.ood:
        labels = [column for column in ("network", "id") if getattr(first, column)]
    shown = Table(
        box=SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True, title=title, title_justify="left"
    )
    for label in labels:
        shown.add_column(label.replace("printed_method", "variant"), style="cyan", no_wrap=True)
    columns = _values(cells, across)
    for column in columns:
        shown.add_column(column, justify="right", no_wrap=True)
    lines: dict[tuple[str, ...], dict[str, Text]] = {}  # not str, which would be searched for markup
    for cell in cells:
        text = "-" if cell.mean is None else cell.printed.replace("(", " (")
        line = lines.setdefault(tuple(getattr(cell, label) for label in labels), {})
        line[getattr(cell, across)] = Text(text, "bold" if cell.bold else "")
    for names, values in lines.items():
        shown.add_row(*map(Text, names), *(values.get(column, Text()) for column in columns))
    return shown


def _values(cells: Iterable[PaperCell], column: str) -> list[str]:
    return list(dict.fromkeys(getattr(cell, column) for cell in cells))
