"""``offaxis reproduce`` and ``bench``: the paper's tables again, from training to the file, and their computing times."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from offaxis.errors import ArgumentError
from offaxis.networks.run import resolve_device
from offaxis.options import CostOptions, ReproduceOptions, TrainOptions
from offaxis.paper.commands import (
    Command,
    EvaluateCommand,
    Reproduction,
    TrainCommand,
    check_sets,
    run_name,
    total_seconds,
)
from offaxis.paper.items import ITEMS, PaperItem, paper_items
from offaxis.paper.launch import run_launched, write_slurm
from offaxis.paper.settings import PAPER, SCALES, Settings
from offaxis.paper.tables import Cost, measure_cost
from offaxis.progress import print_note
from offaxis.training.recipe import recipe_of


def reproduce_item(options: ReproduceOptions, _: tuple[str, ...]) -> None:
    """Compute a table or a figure of the paper again; what is there already is not computed again."""
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
    settings, changed = _settings(options), partial(_changed, options)
    chain = Reproduction(
        settings,
        folder,
        runs,
        data=options.data,
        device=options.device,
        name=lambda run: run_name(run, changed(run)),
    )
    special = "".join(f"-{word}" for word in dict.fromkeys(map(changed, settings.networks)) if word).replace(" ", "-")
    chosen = paper_items(item)
    steps = list({step.words: step for entry in chosen.values() for step in entry.steps(chain)}.values())
    steps.sort(key=lambda step: not isinstance(step, TrainCommand))
    if options.list_steps:
        for step in steps:
            console.print(step.command, soft_wrap=True, highlight=False, markup=False)
        return
    for step in steps:
        step.check()
    left = [step for step in steps if not step.done]
    if options.dry_run:
        _explain_steps(console, chosen, steps, left)
        files = ", ".join(str(folder / (name + special)) for name in chosen)
        console.print(f"Then tables or figures are written into {files}.", highlight=False, markup=False)
    note = (lambda _: None) if options.quiet else print_note
    check_sets(left, settings.shown if any(entry.shows_sets for entry in chosen.values()) else (), options.data, note)
    if options.dry_run:
        return
    for step in left:
        step.forget()  # evaluations of a network that is trained now are repeated, even by a later call
    if options.launcher == "slurm":
        script = write_slurm(left, folder / "slurm")
        console.print(f"bash {script} submits {len(left)} jobs; the same command writes the tables when they are done.")
        return
    if options.devices or options.launcher == "ray":
        run_launched(left, options.devices, folder / "logs", ray=options.launcher == "ray", note=note)
    else:
        _run(left, options.quiet)
    for name, entry in chosen.items():
        for path in entry.finish(chain, folder / (name + special)):
            Console(quiet=options.quiet).print(str(path), highlight=False, markup=False, soft_wrap=True)


def _settings(options: ReproduceOptions) -> Settings:
    """Return the settings of a scale with what the options change."""
    if options.scale not in SCALES:
        raise ArgumentError(f"Expected --scale to be paper or laptop but got {options.scale!r}.")
    settings, recipe = SCALES[options.scale], options.recipe
    networks = settings.networks
    if options.network:
        own = settings.trained_as(options.network)
        if own is None and recipe is None:
            raise ArgumentError(
                f"Expected --recipe beside --network {options.network}: the scale {options.scale} says how "
                f"{' and '.join(entry.architecture for entry in networks)} are trained, and networks of their kind alone."
            )
        networks = (own or TrainOptions(network=options.network),)
    if recipe:
        networks = tuple(replace(entry, recipe=recipe) for entry in networks)
    if options.epochs:
        networks = tuple(replace(entry, epochs=options.epochs) for entry in networks)
    for entry in networks:
        recipe_of(entry)  # which refuses what is no recipe
    seeds = tuple(range(options.seeds)) if options.seeds else None
    return settings.replace(networks=networks, ids=options.id, seeds=seeds)


def _changed(options: ReproduceOptions, run: TrainOptions) -> str:
    """Return what tells a training from the scale's own, for the names of folders: another recipe, other epochs."""
    own = SCALES[options.scale].trained_as(run.architecture) or replace(run, recipe=None, epochs=None)
    words = [str(run.recipe)] if run.recipe != own.recipe else []
    longer = options.epochs == run.epochs and recipe_of(run).epochs != recipe_of(replace(own, recipe=run.recipe)).epochs
    return " ".join([*words, *([f"epochs {run.epochs}"] if longer else [])])


def _explain_steps(
    console: Console, items: Mapping[str, PaperItem], steps: Sequence[Command], left: Sequence[Command]
) -> None:
    """Print the commands, which of them are done, and how long the others would take."""
    for item in items.values():
        console.print(item.title, style="bold", highlight=False)
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


def _run(steps: Sequence[Command], quiet: bool) -> None:
    """Run commands one after the other, in this process."""

    def note(text: str) -> None:
        if not quiet:
            print_note(text)

    for number, step in enumerate(steps, 1):
        if not quiet:
            print_note(f"[{number}/{len(steps)}] {step.command}", "bold")
        step.run(quiet=quiet, note=note)


def print_cost(options: CostOptions, _: tuple[str, ...]) -> None:
    """Measure the paper's table of computing times: seconds per batch for Mahalanobis, ODIN and the cosine score."""
    where = str(resolve_device(options.device))
    costs = []
    for name in options.network or PAPER.timed:
        with Console(stderr=True).status(name) as status:
            costs.append(measure_cost(name, options.batch, options.rounds, where, status.update))
    if options.as_json:
        for cost in costs:
            typer.echo(json.dumps(asdict(cost)))
    else:
        Console().print(_cost_table(costs, options.batch, where))


def _cost_table(costs: list[Cost], batch: int, device: str) -> Table:
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
