"""``offaxis evaluate``: networks x detectors x sets -> a results store."""

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from offaxis.cli.app import Device, app, example, usable
from offaxis.data import ImageSet, limit_images, load_images
from offaxis.data.splits import VALIDATION_IMAGES
from offaxis.detectors import make_detectors
from offaxis.errors import ArgumentError
from offaxis.evaluation import (
    POOLS,
    EvaluatedNetwork,
    Result,
    Store,
    ensemble,
    evaluate,
    leave_out_ensemble,
    normalised,
    open_network,
    paired,
    sets_for,
)
from offaxis.evaluation.summary import summarise

PROTOCOLS: dict[str, tuple[Literal["one-vs-one", "less-biased"], ...]] = {
    "one-vs-one": ("one-vs-one",),
    "less-biased": ("less-biased",),
    "both": ("one-vs-one", "less-biased"),
}
TOGETHER: dict[str, Callable[[Sequence[EvaluatedNetwork], str | None], EvaluatedNetwork]] = {
    "ensemble": ensemble,
    "paired": paired,
    "leave-out": leave_out_ensemble,
}
SHOWN = 20


@app.command(
    "evaluate",
    epilog=example("offaxis evaluate runs/digits --ood letters,photographs,gaussian --out results/digits"),
)
def evaluate_command(
    networks: Annotated[
        list[str],
        typer.Argument(
            help="Folders of training runs, bundles, or file.py:function that returns a Classifier.", metavar="RUN..."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The results store; what is in it already is not computed again.")],
    id: Annotated[
        str | None, typer.Option(help="The ID set: a name or a folder.", show_default="what the run was trained on")
    ] = None,
    ood: Annotated[str, typer.Option(help=f"OOD sets with commas: names, folders, or {', '.join(POOLS)}.")] = "here",
    detectors: Annotated[
        str,
        typer.Option(help="Detectors with commas: names, arguments as in knn:k=10, or native, pytorch-ood, all."),
    ] = "native",
    protocol: Annotated[str, typer.Option(help=f"How detectors are tuned: {', '.join(PROTOCOLS)}.")] = "one-vs-one",
    tune: Annotated[
        bool, typer.Option(help="Report detectors that have a grid tuned too, beside their published values.")
    ] = True,
    together: Annotated[
        str, typer.Option("--as", help="The networks: each by itself (single), or as one: ensemble, paired, leave-out.")
    ] = "single",
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
    ] = VALIDATION_IMAGES,
    batch_size: Annotated[int, typer.Option(help="Images at a time.", min=1)] = 256,
    device: Device = "cpu",
    data: Annotated[Path | None, typer.Option(envvar="OFFAXIS_DATA", help="Where image sets are kept.")] = None,
    quiet: Annotated[bool, typer.Option(help="Show no progress.")] = False,
) -> None:
    """Compare detectors on trained networks; stop it and start it again as you like."""
    if protocol not in PROTOCOLS:
        raise ArgumentError(f"Expected --protocol to be one of {', '.join(PROTOCOLS)} but got {protocol!r}.")
    usable(device)
    console = Console(stderr=True, quiet=quiet)

    def note(text: str) -> None:
        console.print(text, style="yellow", highlight=False, markup=False)

    @functools.cache  # networks share the sets, and their checksums
    def tested(name: str, like: str | None) -> ImageSet:
        return limit_images(
            load_images(name, "test", root=data, like=None if like is None else tested(like, None)), images
        )

    store = Store(out)
    made: list[Result] = []
    for subject in _subjects(networks, together, label):
        id_name = id or subject.id
        if id_name is None:
            raise ArgumentError(f"Name the ID set of {subject.origin}: --id NAME.")
        names, left_out = sets_for(id_name, _words(ood), data)
        for name, reason in left_out.items():
            note(f"{name} is left out: {reason}.")
        training = functools.cache(functools.partial(_training, id_name, data, fit_images))
        ready = normalised(subject, id_name, training)
        ready.network.to(device)
        made += evaluate(
            ready,
            tested(id_name, None),
            [tested(name, id_name) for name in names],
            make_detectors(_words(detectors), ready.network, None if ready.normalise is None else ready.normalise.std),
            store,
            training_images=training,
            fitted_on=f"{fit_images or 'all'} training images of {id_name}",
            protocols=PROTOCOLS[protocol],
            tune=tune,
            validation=validation,
            batch_size=batch_size,
            quiet=quiet,
            note=note,
        )
    if not quiet:
        _show(made, store)


def _training(id_name: str, data: Path | None, count: int | None) -> ImageSet:
    return limit_images(load_images(id_name, "train", root=data), count)


def _subjects(paths: list[str], together: str, label: str | None) -> list[EvaluatedNetwork]:
    if together not in ("single", *TOGETHER):
        raise ArgumentError(f"Expected --as to be single, {', '.join(TOGETHER)} but got {together!r}.")
    found = [open_network(path, label if together == "single" else None) for path in paths]
    if together == "single":
        return found
    return [TOGETHER[together](found, label)]


def _words(text: str) -> list[str]:
    """The parts between commas that are not inside brackets."""
    return [word.strip() for word in re.split(r",(?![^(\[]*[)\]])", text) if word.strip()]


def _show(results: list[Result], store: Store) -> None:
    """The mean AUROC of every detector, and where the rest is; the protocols apart, as far as they differ."""
    found = [("the tested set", s) for s in summarise(results)]
    found += [("another set", s) for s in summarise(results, "less-biased by tested set") if s.state == "tuned"]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("network", "detector", "tuned on"):
        table.add_column(column)
    for column in ("AUROC %", "least", "tests"):
        table.add_column(column, justify="right")
    ranked = sorted(found, key=lambda item: -item[1].groups["all"].mean)
    for where, s in ranked[:SHOWN]:
        numbers = [f"{100 * value:.2f}" for value in (s.groups["all"].mean, min(s.cells.values()))]
        tests = str(sum(cell.count for cell in s.rows.values()))
        table.add_row(s.network, s.method, where if s.state == "tuned" else "", *numbers, tests)
    console = Console(stderr=True)
    console.print(table)
    more = f"{len(ranked) - SHOWN} more rows, tables" if len(ranked) > SHOWN else "Tables"
    console.print(f"{more} and a page: offaxis report {store.path} --out DIR", highlight=False, markup=False)
