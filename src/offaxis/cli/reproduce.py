"""``offaxis reproduce`` and ``offaxis bench``: a table or a figure of the paper, from training to the file."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from offaxis.cli.app import Device, app, example, usable
from offaxis.errors import ArgumentError, RunError
from offaxis.reproduce.cost import PAPER, Cost, measure_cost

if TYPE_CHECKING:
    from offaxis.reproduce.commands import Command
    from offaxis.reproduce.items import PaperItem
    from offaxis.reproduce.settings import Settings

OF_THE_RECIPE = ("epochs", "batch_size", "learning_rate", "weight_decay", "clip", "crop", "flip", "decay_head")
"""Options of ``offaxis train`` that change the recipe."""


@app.command("reproduce", epilog=example("offaxis reproduce one-vs-one --scale laptop --dry-run"))
def reproduce_command(
    item: Annotated[
        str | None, typer.Argument(help="The table or figure; without one, all are listed.", show_default=False)
    ] = None,
    scale: Annotated[str, typer.Option(help="paper or laptop.")] = "laptop",
    out: Annotated[Path | None, typer.Option(help="Folder for everything.", show_default="reproduce/SCALE")] = None,
    runs: Annotated[
        Path | None, typer.Option(help="Folder with trained networks; what is there is used.", show_default="OUT/runs")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Say what would be done, and how long it would take here.")] = False,
    list_steps: Annotated[
        bool,
        typer.Option("--list", help="Print the commands, one a line; each can run on any machine, trainings first."),
    ] = False,
    id: Annotated[str | None, typer.Option(help="ID sets with commas.", show_default="the scale's")] = None,
    seeds: Annotated[int | None, typer.Option(help="How many.", show_default="the scale's", min=1)] = None,
    network: Annotated[
        str | None, typer.Option(help="Network in place of the scale's.", show_default="the scale's")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Recipe for it.", show_default="laptop")] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Epochs of each training.", show_default="the recipe's", min=1)
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Where image sets are kept.", show_default="OFFAXIS_DATA")] = None,
    quiet: Annotated[bool, typer.Option(help="Show no progress.")] = False,
) -> None:
    """Make a table or a figure of the paper again; what is there already is not computed again."""
    from offaxis.reproduce.commands import Reproduction
    from offaxis.reproduce.items import ITEMS
    from offaxis.reproduce.items import paper_item as item_of

    console = Console(quiet=quiet)
    if item is None:
        for found in ITEMS.values():
            console.print(f"[cyan]{found.name:<20}[/cyan]{found.title}", highlight=False)
        return
    if data is not None:
        os.environ["OFFAXIS_DATA"] = str(data)
    size = _scale(scale, id, seeds, network, recipe, epochs)
    folder = out or Path("reproduce") / scale
    chain = Reproduction(size, folder, runs or folder / "runs")
    wanted = item_of(item)
    steps = list({step.words: step for step in wanted.steps(chain)}.values())
    steps.sort(key=lambda step: step.words[0] != "train")
    left = [step for step in steps if not step.done]
    if not list_steps:
        for step in steps:
            _check_network(step)
    if list_steps:
        for step in steps:
            console.print(step.command, soft_wrap=True, highlight=False, markup=False)
    elif dry_run:
        _explain(console, wanted, steps, left, folder / item)
    else:
        for step in left:
            step.forget()  # what follows from a network that is trained now is done anew, even by a later call
        _run(left, quiet)
        for path in wanted.finish(chain, folder / item):
            console.print(str(path), highlight=False, markup=False, soft_wrap=True)


def _scale(
    name: str, ids: str | None, seeds: int | None, network: str | None, recipe: str | None, epochs: int | None
) -> "Settings":
    from dataclasses import replace

    from offaxis.reproduce.settings import SCALES, NetworkRecipe
    from offaxis.training import RECIPES

    if name not in SCALES:
        raise ArgumentError(f"Expected --scale to be paper or laptop but got {name!r}.")
    if recipe is not None and recipe not in RECIPES:
        raise ArgumentError(f"Expected --recipe to be one of {', '.join(RECIPES)} but got {recipe!r}.")
    size = SCALES[name]()
    networks = (NetworkRecipe(network, recipe or "laptop"),) if network else size.networks
    if recipe and not network:
        networks = tuple(replace(t, recipe=recipe) for t in networks)
    if epochs is not None:
        networks = tuple(replace(t, options=(*t.options, "--epochs", str(epochs))) for t in networks)
    chosen = tuple(word.strip() for word in ids.split(",")) if ids else None
    return size.replace(networks=networks, ids=chosen, seeds=tuple(range(seeds)) if seeds else None)


def _check_network(step: "Command") -> None:
    """Refuse a network that is there already but was trained by another recipe."""
    from offaxis.training import RECIPES
    from offaxis.training.run import read_run

    folder = step.outcome.parent if step.outcome else None
    if folder is None or not (step.done or (folder / "run.json").exists()):
        return
    program = typer.main.get_command(app)
    assert isinstance(program, typer.core.TyperGroup)
    said = program.commands["train"].make_context("train", list(step.words[1:])).params
    given = {name: said[name] for name in OF_THE_RECIPE}
    wanted = RECIPES[said["recipe"]]().replace(**given).to_json()
    left_open = {"crop", "flip"} - {
        name for name, value in given.items() if value is not None
    }  # they follow the images
    trained = read_run(folder)["settings"]["recipe"]
    differs = [name for name in wanted if name in trained and name not in left_open and wanted[name] != trained[name]]
    if differs:
        raise RunError(
            f"Expected a network trained with {_named(wanted, differs)} but the one in {folder} was trained with "
            f"{_named(trained, differs)}: name other folders (--out, --runs), or remove this one and the results that came "
            "of it."
        )


def _named(recipe: dict[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name} {recipe[name]}" for name in names)


def _explain(console: Console, item: "PaperItem", steps: "list[Command]", left: "list[Command]", folder: Path) -> None:
    from offaxis.reproduce.cost import seconds, spoken

    console.print(f"{item.title}", style="bold", highlight=False)
    for step in steps:
        console.print(
            f"{'done ' if step.done else '     '} {step.command}", highlight=False, markup=False, soft_wrap=True
        )
    for kind, name in (("train", "trainings"), ("evaluate", "evaluations")):
        own = [step for step in left if step.words[0] == kind]
        if own:
            forward, backward = (sum(getattr(step.work, way) for step in own) for way in ("forward", "backward"))
            console.print(
                f"{len(own)} {name} to do: {forward / 1e6:,.2f} million images forward, {backward / 1e6:,.2f} million back, "
                f"about {spoken(seconds(own))} on this machine, one after the other.",
                highlight=False,
            )
    if not left:
        console.print("Nothing is left to compute.", highlight=False)
    console.print(f"Then tables or figures are written into {folder}.", highlight=False, markup=False)


def _run(steps: "list[Command]", quiet: bool) -> None:
    command = typer.main.get_command(app)
    for number, step in enumerate(steps, 1):
        if not quiet:
            Console(stderr=True).print(
                f"[{number}/{len(steps)}] {step.command}", style="bold", markup=False, highlight=False
            )
        command.main([*step.words, *(["--quiet"] if quiet else [])], prog_name="offaxis", standalone_mode=False)
        step.mark()


bench_app = typer.Typer(name="bench", help="What things cost on this machine.", no_args_is_help=True)


@bench_app.callback()
def bench() -> None:
    """What things cost on this machine."""


@bench_app.command("cost", epilog=example("offaxis bench cost --network wrn-16-4 --rounds 3"))
def cost_command(
    network: Annotated[
        list[str] | None,
        typer.Option(help=f"wrn-DEPTH-WIDTH or densenet-DEPTH-GROWTH; repeatable [{', '.join(PAPER)}]."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Images in a batch.", min=1)] = 128,
    rounds: Annotated[int, typer.Option(help="Batches that the median goes over.", min=1)] = 5,
    device: Device = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="One object a network, as JSON lines.")] = False,
) -> None:
    """The paper's table of computing times: seconds per batch for Mahalanobis, ODIN and the cosine score."""
    usable(device)
    waiting = Console(stderr=True)
    costs = []
    for name in network or PAPER:
        with waiting.status(name) as status:
            costs.append(measure_cost(name, batch, rounds, device, status.update))
    if as_json:
        for cost in costs:
            typer.echo(json.dumps(asdict(cost)))
    else:
        Console().print(_table(costs, batch, device))


def _table(costs: list[Cost], batch: int, device: str) -> Table:
    title = f"Seconds per batch of {batch} on {device}, median, and times the plain forward pass"
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left")
    table.add_column("Network")
    for column in ("Mahalanobis", "ODIN", "Cosine", "Plain forward"):
        table.add_column(column, justify="right")
    for cost in costs:
        found = (cost.mahalanobis, cost.odin, cost.cosine)
        cells = [f"{seconds:.3f} ({seconds / cost.forward:.2f}x)" for seconds in found]
        table.add_row(cost.network, *cells, f"{cost.forward:.3f}")
    return table
