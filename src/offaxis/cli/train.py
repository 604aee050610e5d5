"""``offaxis train``: images -> a trained network in a folder."""

from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import torch
import typer
from rich.console import Console

from offaxis.cli.app import app, example
from offaxis.data import PUBLISHED, load_images
from offaxis.data.catalogue import can_be_mirrored
from offaxis.errors import ArgumentError
from offaxis.heads import HEADS, Head, HeadLike
from offaxis.networks import by_name
from offaxis.training import RECIPES, Loss, cross_entropy, train
from offaxis.training.run import labels_of

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Precision = Literal["32-true", "16-mixed", "bf16-mixed", "64-true"]


@app.command("train", epilog=example("offaxis train --id digits --network wrn-10-2-half --epochs 12 --out runs/digits"))
def train_command(
    out: Annotated[Path, typer.Option(help="Folder for the run: checkpoint, log and trained weights.")],
    id: Annotated[
        str, typer.Option(help="Images to train on: a name of [cyan]offaxis data list[/cyan] or a folder.")
    ] = "digits",
    network: Annotated[
        str, typer.Option(help="wrn-DEPTH-WIDTH or densenet-DEPTH-GROWTH; -half halves the maps at once.")
    ] = "wrn-10-4-half",
    head: Annotated[str, typer.Option(help=f"Output layer: {', '.join(HEADS)}.")] = "cosine",
    scale: Annotated[
        str | None,
        typer.Option(help="Scale of the head: predicted, learned or a number.", show_default="the head's own"),
    ] = None,
    hidden: Annotated[int | None, typer.Option(help="Size of an extra layer inside the cosine head.")] = None,
    recipe: Annotated[str, typer.Option(help=f"Recipe to start from: {', '.join(RECIPES)}.")] = "laptop",
    epochs: Annotated[int | None, typer.Option(help="Passes over the images.", show_default="the recipe's")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images a step.", show_default="the recipe's")] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--lr", help="Learning rate.", show_default="the recipe's")
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay.", show_default="the recipe's")] = None,
    clip: Annotated[
        float | None,
        typer.Option(help="Largest gradient, as a multiple of the usual one.", show_default="the recipe's"),
    ] = None,
    flip: Annotated[
        bool | None, typer.Option(help="Mirror images at random.", show_default="not for digits and letters")
    ] = None,
    crop: Annotated[
        int | None, typer.Option(help="Padding of random crops.", show_default="4, less for images below 32 pixels")
    ] = None,
    decay_head: Annotated[bool, typer.Option(help="Decay the cosine weight too.")] = False,
    dropout: Annotated[float, typer.Option(help="Dropout inside the network.")] = 0.0,
    leave_out: Annotated[
        str | None,
        typer.Option(help="K/N: the K-th of N leave-out networks, to which a share of the classes is foreign."),
    ] = None,
    validate: Annotated[bool, typer.Option(help="Measure accuracy on the test images after each epoch.")] = False,
    seed: Annotated[int, typer.Option(help="Same seed, same machine: same weights.", min=0, max=2**63 - 1)] = 0,
    resume: Annotated[bool, typer.Option(help="Go on with the run in --out.")] = False,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    devices: Annotated[int, typer.Option(help="Devices, or processes on the CPU, of each node.", min=1)] = 1,
    nodes: Annotated[
        int,
        typer.Option(
            help="Machines; start the same command on each, or use torchrun, with --out on a disk that all share.",
            min=1,
        ),
    ] = 1,
    precision: Annotated[Precision, typer.Option(help="Arithmetic.")] = "32-true",
    sync_bn: Annotated[bool, typer.Option(help="All batch normalisations span all processes.")] = False,
    log_every: Annotated[int | None, typer.Option(help="Steps between log lines.", show_default="ten an epoch")] = None,
    data: Annotated[Path | None, typer.Option(envvar="OFFAXIS_DATA", help="Where image sets are kept.")] = None,
    quiet: Annotated[bool, typer.Option(help="Show no progress.")] = False,
) -> None:
    """Train a network with a cosine head (or another) and keep it in a folder."""
    if recipe not in RECIPES:
        raise ArgumentError(f"Expected --recipe to be one of {', '.join(RECIPES)} but got {recipe!r}.")
    make = by_name(network)
    images = load_images(id, "train", root=data)
    labels_of(images, "train on")
    base = RECIPES[recipe]()
    wanted = base.replace(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        clip=clip,
        crop=min(base.crop, min(images.shape[1:]) // 8) if crop is None else crop,
        flip=can_be_mirrored(id) if flip is None else flip,
        decay_head=decay_head,
    )
    fabric = _fabric(accelerator, devices, nodes, precision)
    fabric.launch()
    torch.manual_seed(seed)
    classifier = make(
        num_classes=len(images.classes), in_channels=images.shape[0], dropout=dropout, head=_head(head, scale, hidden)
    )
    validation = load_images(id, "test", root=data) if validate else None
    try:
        trained = train(
            classifier,
            images,
            wanted,
            seed=seed,
            out=out,
            resume=resume,
            normalise=PUBLISHED.get(id),
            validation=validation,
            fabric=fabric,
            sync_bn=sync_bn,
            log_every=log_every,
            quiet=quiet,
            loss=_loss(leave_out, len(images.classes)),
        )
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()  # else its threads abort the process at exit
    if fabric.is_global_zero and not quiet:
        last = trained.history[-1]
        Console(stderr=True).print(
            f"Trained for {last['epoch']} epochs: loss {last['loss']:.3f}, training accuracy {last['accuracy']:.2%}. "
            f"The network is in {out}.",
            highlight=False,
            markup=False,
        )


def _fabric(accelerator: str, devices: int, nodes: int, precision: Precision) -> "Fabric":
    """Device, processes and arithmetic, where this machine has them."""
    from lightning_fabric import Fabric  # takes a second to import

    strategy = "ddp" if devices * nodes > 1 else "auto"
    try:
        return Fabric(accelerator=accelerator, devices=devices, num_nodes=nodes, precision=precision, strategy=strategy)
    except (RuntimeError, ValueError, TypeError, ImportError) as error:
        raise ArgumentError(
            f"Expected --accelerator, --devices and --precision to be what this machine has but got {accelerator}, {devices} "
            f"and {precision}: {' '.join(str(error).split())} Try --accelerator auto --devices 1."
        ) from error


def _loss(leave_out: str | None, num_classes: int) -> Loss:
    """Cross-entropy, or that of one network of a leave-out ensemble; the classes are always dealt alike."""
    if leave_out is None:
        return cross_entropy
    from offaxis.networks.ensemble import folds
    from offaxis.training.leave_out import MarginEntropyLoss

    member, _, count = leave_out.partition("/")
    if not (member.isdecimal() and count.isdecimal() and int(member) < int(count)):
        raise ArgumentError(f"Expected --leave-out to be K/N with K from 0 to N - 1, as in 0/5, but got {leave_out!r}.")
    return MarginEntropyLoss(folds(num_classes, int(count))[int(member)], num_classes)


def _head(name: str, scale: str | None, hidden: int | None) -> HeadLike:
    """The head that the options describe."""
    options: dict[str, object] = {}
    if scale is not None:
        options["scale"] = scale if scale in ("predicted", "learned") else _number(scale)
    if hidden is not None:
        options["hidden"] = hidden
    if not options or name not in HEADS:
        return name  # an unknown name is refused where the head is made
    made = partial(HEADS[name], **options)

    def head(in_features: int, num_classes: int) -> Head:
        try:
            return made(in_features, num_classes)
        except TypeError:
            unknown = [f"--{o}" for o in options if o not in signature(HEADS[name]).parameters]
            raise ArgumentError(f"The head {name!r} takes no {' and no '.join(unknown)}.") from None

    return head


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentError(f"Expected --scale to be predicted, learned or a number but got {text!r}.") from None
