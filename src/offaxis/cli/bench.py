"""``offaxis bench``: what things cost on this machine."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from offaxis.cli.app import example
from offaxis.cli.device import Device, usable
from offaxis.reproduce.cost import PAPER, Cost, measure

app = typer.Typer(name="bench", help="What things cost on this machine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """What things cost on this machine."""


@app.command("cost", epilog=example("offaxis bench cost --network wrn-16-4 --rounds 3"))
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
            costs.append(measure(name, batch, rounds, device, status.update))
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
