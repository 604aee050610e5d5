"""``offaxis train``: images -> a trained network in a folder."""

from pathlib import Path
from typing import Annotated

import typer

from offaxis.cli.app import (
    HEAD_NAMES,
    RECIPE_NAMES,
    Data,
    Device,
    Quiet,
    app,
    command_words,
    example,
    print_note,
)
from offaxis.errors import ArgumentError
from offaxis.jobs import Precision, RecipeOverrides, Start, TrainingRun, train_run

IMAGES, NETWORK, RECIPE, RUNNING = "Images", "Network and head", "Recipe", "Running"


@app.command(
    "train",
    epilog=example(
        "offaxis train --id digits --network wrn-10-2-half --epochs 12 --out runs/digits",
        "offaxis train --id photos/ --network efficientnet-lite0 --freeze --out runs/photos",
        "offaxis train --id photos/ --network timm:resnet18 --pretrained --unfreeze layer4 --out runs/finetuned",
    ),
)
def train_command(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for the run: checkpoint, log and trained weights.")],
    id: Annotated[
        str,
        typer.Option(
            help="Images to train on: a name of [cyan]offaxis data list[/cyan] or a folder.", rich_help_panel=IMAGES
        ),
    ] = "digits",
    network: Annotated[
        str | None,
        typer.Option(
            help="wrn-DEPTH-WIDTH or densenet-DEPTH-GROWTH (-half: stride 2 in the first convolution), resnet18-32, "
            "resnet20-cifar, efficientnet-lite0 (with ImageNet weights, of the extra photos), timm:NAME, torchvision:NAME, "
            "transformers:FOLDER or file.py:function.",
            show_default="wrn-10-4-half",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Start from the backbone of a trained network (a run, a bundle or a name) with a new head.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    freeze: Annotated[
        bool,
        typer.Option(
            "--freeze",
            help="Train the head alone: the backbone sees each image once, and further seeds and heads take seconds.",
            rich_help_panel=NETWORK,
        ),
    ] = False,
    views: Annotated[
        int,
        typer.Option(
            help="Versions of each image that a frozen backbone sees: itself, and others cropped and flipped at random.",
            min=1,
            rich_help_panel=NETWORK,
        ),
    ] = 1,
    unfreeze: Annotated[
        str | None,
        typer.Option(
            help="Train the backbone from this layer on, such as layer4.", show_default="all", rich_help_panel=NETWORK
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            help="Height and width of the images.",
            show_default="the network's own, else the images'",
            min=1,
            rich_help_panel=IMAGES,
        ),
    ] = None,
    resize: Annotated[
        str | None,
        typer.Option(
            help="How images come to that size: crop (short side to the size, centre crop) or stretch.",
            show_default="crop above 64 pixels",
            rich_help_panel=IMAGES,
        ),
    ] = None,
    holdout: Annotated[
        float | None,
        typer.Option(
            help="Share of a folder without test/ that is kept for testing, such as 0.2.", rich_help_panel=IMAGES
        ),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out files that cannot be read.", rich_help_panel=IMAGES)
    ] = False,
    cache: Annotated[
        bool,
        typer.Option(
            "--cache",
            help="Keep decoded pixels on disk, so that later trainings read no image files (offaxis data clean).",
            rich_help_panel=IMAGES,
        ),
    ] = False,
    mean: Annotated[
        str | None,
        typer.Option(
            help="Mean of the pixels in 0 to 1, by channel with commas.",
            show_default="the network's own, else the images'",
            rich_help_panel=IMAGES,
        ),
    ] = None,
    std: Annotated[str | None, typer.Option(help="Standard deviation likewise.", rich_help_panel=IMAGES)] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="File of weights to start from: safetensors, or a state dictionary of PyTorch.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    pretrained: Annotated[
        bool,
        typer.Option(
            "--pretrained",
            help="Start from the weights that timm or torchvision publish; they are downloaded.",
            rich_help_panel=NETWORK,
        ),
    ] = False,
    head: Annotated[
        str, typer.Option(help=f"Output layer: {', '.join(HEAD_NAMES)}.", rich_help_panel=NETWORK)
    ] = "cosine",
    scale: Annotated[
        str | None,
        typer.Option(
            help="Scale of the head: predicted, learned or a number.",
            show_default="the head's own",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    hidden: Annotated[
        int | None, typer.Option(help="Size of an extra layer inside the cosine head.", rich_help_panel=NETWORK)
    ] = None,
    tau: Annotated[
        float | None,
        typer.Option(
            help="Temperature of logitnorm and t2fnorm, a hyperparameter.",
            show_default="the published 0.04 and 0.1",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help=f"Recipe to start from: {', '.join(RECIPE_NAMES)}.",
            show_default="frozen with --freeze, finetune with --from or --unfreeze, else laptop",
            rich_help_panel=RECIPE,
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the images.", show_default="the recipe's", rich_help_panel=RECIPE)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Images a step.", show_default="the recipe's", rich_help_panel=RECIPE)
    ] = None,
    start: Annotated[
        Start | None,
        typer.Option(
            help="Where a predicted scale starts: by the sizes of the head, or as in the paper.",
            show_default="sizes; paper in the paper's recipes and, from scratch, in short",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--lr", help="Learning rate.", show_default="the recipe's", rich_help_panel=RECIPE)
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="Weight decay.", show_default="the recipe's", rich_help_panel=RECIPE)
    ] = None,
    clip: Annotated[
        float | None,
        typer.Option(
            help="Clip the norm of the gradient at this multiple of its running mean.",
            show_default="the recipe's",
            rich_help_panel=RECIPE,
        ),
    ] = None,
    flip: Annotated[
        bool | None,
        typer.Option(
            help="Mirror images at random.", show_default="not for digits and letters", rich_help_panel=RECIPE
        ),
    ] = None,
    crop: Annotated[
        int | None,
        typer.Option(
            help="Padding of random crops; not beside --min-area.",
            show_default="4, less for images below 32 pixels",
            rich_help_panel=RECIPE,
        ),
    ] = None,
    min_area: Annotated[
        float | None,
        typer.Option(
            help="Least share of a photograph that random resized crops keep; 1 for none.",
            show_default="0.25 above 64 pixels",
            rich_help_panel=RECIPE,
        ),
    ] = None,
    jitter: Annotated[
        float | None,
        typer.Option(
            help="Random changes of brightness, contrast and saturation, such as 0.4.", rich_help_panel=RECIPE
        ),
    ] = None,
    decay_head: Annotated[bool, typer.Option(help="Decay the cosine weight too.", rich_help_panel=RECIPE)] = False,
    dropout: Annotated[float, typer.Option(help="Dropout inside the network.", rich_help_panel=NETWORK)] = 0.0,
    leave_out: Annotated[
        str | None,
        typer.Option(
            help="K/N: the K-th of N leave-out networks, for which a share of the classes is OOD.",
            rich_help_panel=RECIPE,
        ),
    ] = None,
    validate: Annotated[
        bool, typer.Option(help="Measure accuracy on the test images after each epoch.", rich_help_panel=RUNNING)
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Same seed, same machine: same weights.", min=0, max=2**63 - 1, rich_help_panel=RECIPE)
    ] = 0,
    resume: Annotated[bool, typer.Option(help="Resume the run in --out.", rich_help_panel=RUNNING)] = False,
    device: Device = "auto",
    devices: Annotated[
        int, typer.Option(help="Devices, or processes on the CPU, of each node.", min=1, rich_help_panel=RUNNING)
    ] = 1,
    nodes: Annotated[
        int,
        typer.Option(
            help="Machines; start the same command on each, or use torchrun, with --out on a disk that all share.",
            min=1,
            rich_help_panel=RUNNING,
        ),
    ] = 1,
    precision: Annotated[Precision, typer.Option(help="Arithmetic.", rich_help_panel=RUNNING)] = "32-true",
    sync_bn: Annotated[
        bool, typer.Option(help="All batch normalisations span all processes.", rich_help_panel=RUNNING)
    ] = False,
    log_every: Annotated[
        int | None, typer.Option(help="Steps between log lines.", show_default="ten an epoch", rich_help_panel=RUNNING)
    ] = None,
    data: Data = None,
    quiet: Quiet = False,
) -> None:
    """Train a network with a cosine head (or another) and write it into a folder."""
    trained = (
        source
        or weights
        or pretrained
        or network == "efficientnet-lite0"
        or (network or "").startswith("transformers:")
    )
    run = TrainingRun(
        id=id,
        architecture=network or source or "wrn-10-4-half",
        source=source,
        freeze=freeze,
        views=views,
        unfreeze=unfreeze,
        size=size,
        resize=resize,
        holdout=holdout,
        skip_bad=skip_bad,
        mean=_numbers("--mean", mean),
        std=_numbers("--std", std),
        weights=weights,
        pretrained=pretrained,
        head=head,
        scale=_scale(scale),
        hidden=hidden,
        tau=tau,
        start=start,
        decay_head=decay_head,
        dropout=dropout,
        leave_out=_fold(leave_out),
        recipe=recipe or ("frozen" if freeze else "finetune" if unfreeze or trained else "laptop"),
        overrides=RecipeOverrides(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            clip=clip,
            crop=crop,
            flip=flip,
            min_area=min_area,
            jitter=jitter,
        ),
        seed=seed,
        precision=precision,
    )
    train_run(
        run,
        out=out,
        resume=resume,
        validate=validate,
        device=device,
        devices=devices,
        nodes=nodes,
        sync_bn=sync_bn,
        log_every=log_every,
        data=data,
        cache=cache,
        command=command_words(context),
        quiet=quiet,
        note=print_note,
    )


def _numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise ArgumentError(
            f"Expected {option} to be numbers with commas, as in 0.5,0.5,0.5, but got {text!r}."
        ) from None


def _scale(text: str | None) -> str | float | None:
    if text is None or text in ("predicted", "learned"):
        return text
    try:
        return float(text)
    except ValueError:
        raise ArgumentError(f"Expected --scale to be predicted, learned or a number but got {text!r}.") from None


def _fold(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    member, _, count = text.partition("/")
    if not (member.isdecimal() and count.isdecimal() and int(member) < int(count)):
        raise ArgumentError(f"Expected --leave-out to be K/N with K from 0 to N - 1, as in 0/5, but got {text!r}.")
    return int(member), int(count)
