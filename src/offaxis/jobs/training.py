"""A training by name: what it depends on as typed settings, and the function that runs it."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from offaxis.errors import ArgumentError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from offaxis.heads import HeadLike
    from offaxis.networks.classifier import Classifier
    from offaxis.training import Loss, Recipe, Trained

Precision = Literal["32-true", "16-mixed", "bf16-mixed", "64-true"]
Start = Literal["sizes", "paper"]
"""Where a predicted scale starts, as in offaxis.heads.scale, whose import takes torch's time."""
Note = Callable[[str], None]
"""Called with a sentence for the user."""


@dataclass(frozen=True, kw_only=True)
class RecipeOverrides:
    """Numbers that replace those of a recipe; None keeps the recipe's own (see ``offaxis.training.Recipe``).

    Attributes:
        epochs: passes over the training images.
        batch_size: images a step.
        learning_rate: at the start.
        weight_decay: on every parameter but the cosine weight.
        clip: largest gradient, as a multiple of the typical one.
        crop: padding of random crops; None takes at most an eighth of the image's side.
        flip: mirror images at random; None goes by the catalogue, where digits and letters are not mirrored.
    """

    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    clip: float | None = None
    crop: int | None = None
    flip: bool | None = None

    def given(self) -> dict[str, Any]:
        """Return the numbers that are not None, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def updated(self, other: Self) -> "RecipeOverrides":
        """Return these overrides with those of ``other`` on top."""
        return RecipeOverrides(**{**self.given(), **other.given()})


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """What a trained network depends on.

    Attributes:
        id: the images to train on: a name of the catalogue or a folder.
        architecture: such as ``wrn-28-10``, or anything else that ``open_network`` takes.
        head: a name out of ``offaxis.heads.HEADS``.
        scale: of the head: ``"predicted"``, ``"learned"`` or a number; None for the head's default.
        hidden: size of an extra layer inside the cosine head.
        start: of a predicted scale: ``"sizes"`` or ``"paper"``; None for the head's default, and in the paper's recipes for
            the paper's.
        decay_head: apply weight decay to the cosine weight too.
        dropout: inside the network.
        leave_out: (k, n) for the k-th of n leave-out networks, which does not learn its share of the classes.
        recipe: a name out of ``offaxis.training.RECIPES``.
        overrides: numbers in place of the recipe's.
        seed: of the first weights, the order of the images and their augmentation.
        precision: of the arithmetic.
        suffix: more words for ``name``, where the other fields do not show what is special.
    """

    id: str
    architecture: str
    head: str = "cosine"
    scale: str | float | None = None
    hidden: int | None = None
    start: Start | None = None
    decay_head: bool = False
    dropout: float = 0.0
    leave_out: tuple[int, int] | None = None
    recipe: str = "laptop"
    overrides: RecipeOverrides = field(default_factory=RecipeOverrides)
    seed: int = 0
    precision: Precision = "32-true"
    suffix: str = ""

    @property
    def variant(self) -> str:
        """What tells it from other runs of the same architecture and head, such as ``scale 16 decay-head``."""
        parts = [
            "" if self.scale is None else f"scale {_scale_text(self.scale)}",
            "" if self.hidden is None else f"hidden {self.hidden}",
            "start sizes"
            if self.start == "sizes"
            else "",  # names without a start were given when there was the paper's alone
            "decay-head" if self.decay_head else "",
            "" if self.leave_out is None else "leave-out {}/{}".format(*self.leave_out),
            self.suffix,
        ]
        return " ".join(filter(None, parts))

    @property
    def name(self) -> str:
        """The name of its folder, such as ``wrn-28-10-cosine-scale-16-cifar10-seed0``."""
        variant = self.variant.replace(" ", "-").replace("/", "of")
        return "-".join(filter(None, (self.architecture, self.head, variant, self.id, f"seed{self.seed}")))

    @property
    def head_arguments(self) -> dict[str, str | float]:
        """The head's arguments that are not its defaults; the paper's recipes start a cosine head as the paper does."""
        start = "paper" if self.head == "cosine" and self.recipe.startswith("paper-") else None
        given = {"scale": self.scale, "hidden": self.hidden, "start": self.start or start}
        return {name: value for name, value in given.items() if value is not None}

    def numbers(self, shape: tuple[int, int, int] | None = None) -> "Recipe":
        """Return the recipe with the overrides.

        Args:
            shape: (c, h, w) of the images, by which ``crop`` is chosen where it is not given.

        Raises:
            ArgumentError: there is no such recipe, or a number is out of its range.
        """
        from offaxis.data.catalogue import can_be_mirrored
        from offaxis.training import RECIPES

        if self.recipe not in RECIPES:
            raise ArgumentError(f"Expected a recipe out of {', '.join(RECIPES)} but got {self.recipe!r}.")
        recipe = RECIPES[self.recipe]()
        if shape is not None:
            recipe = recipe.replace(crop=min(recipe.crop, min(shape[1:]) // 8))
        recipe = recipe.replace(flip=can_be_mirrored(self.id), decay_head=self.decay_head)
        return recipe.replace(**self.overrides.given())


def _scale_text(scale: str | float) -> str:
    """Return a scale as it is typed: ``predicted``, ``learned`` or a number in its shortest form."""
    return scale if isinstance(scale, str) else f"{scale:g}"


def training_words(run: TrainingRun) -> Iterator[str]:
    """Yield the options of ``offaxis train`` that describe a run."""
    yield from ("--id", run.id, "--network", run.architecture, "--head", run.head)
    if run.scale is not None:
        yield from ("--scale", _scale_text(run.scale))
    if run.hidden is not None:
        yield from ("--hidden", str(run.hidden))
    if run.start is not None:
        yield from ("--start", run.start)
    if run.decay_head:
        yield "--decay-head"
    if run.leave_out is not None:
        yield from ("--leave-out", "{}/{}".format(*run.leave_out))
    yield from ("--recipe", run.recipe)
    if run.precision != "32-true":
        yield from ("--precision", run.precision)
    yield from _override_words(run.overrides)
    if run.dropout:
        yield from ("--dropout", str(run.dropout))
    yield from ("--seed", str(run.seed))


def _override_words(overrides: RecipeOverrides) -> Iterator[str]:
    for name, value in overrides.given().items():
        option = "lr" if name == "learning_rate" else name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{option}" if value else f"--no-{option}"
        else:
            yield from (f"--{option}", str(value))


def train_run(
    run: TrainingRun,
    *,
    out: str | Path,
    resume: bool = False,
    validate: bool = False,
    device: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    sync_bn: bool = False,
    log_every: int | None = None,
    data: Path | None = None,
    command: Sequence[str] | None = None,
    quiet: bool = False,
    note: Note = lambda _: None,
) -> "Trained":
    """Train a network and write it into a folder.

    Args:
        run: what is trained.
        out: the folder.
        resume: continue the run in ``out``, where there is one.
        validate: measure the accuracy on the set's test images after each epoch.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ... or ``mps``.
        devices: how many of them, or processes on the CPU, on each node.
        nodes: machines.
        sync_bn: batch normalisations take their statistics over all processes.
        log_every: steps between two lines of the log; about ten an epoch if None.
        data: where the catalogue's sets are kept.
        command: the words that started it, which are recorded.
        quiet: show no progress.
        note: called at the end, in one of the processes.

    Raises:
        OffaxisError: something does not fit together; nothing is written then.
    """
    import torch

    from offaxis.data import PUBLISHED, load_images
    from offaxis.training import train
    from offaxis.training.batches import labels_of

    run.numbers()  # a wrong number is refused before images are read
    images = load_images(run.id, "train", root=data)
    labels_of(images, "train on")
    recipe = run.numbers(images.shape)
    fabric = _fabric(device, devices, nodes, run.precision)
    fabric.launch()
    torch.manual_seed(run.seed)
    classifier = _make_network(run, len(images.classes), images.shape[0])
    try:
        trained = train(
            classifier,
            images,
            recipe,
            seed=run.seed,
            out=out,
            resume=resume,
            normalise=PUBLISHED.get(run.id),
            validation=load_images(run.id, "test", root=data) if validate else None,
            fabric=fabric,
            sync_bn=sync_bn,
            log_every=log_every,
            quiet=quiet,
            loss=_loss(run.leave_out, len(images.classes)),
            command=command,
        )
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()  # else its threads abort the process at exit
    if fabric.is_global_zero:
        last = trained.history[-1]
        note(
            f"Trained for {last['epoch']} epochs: loss {last['loss']:.3f}, training accuracy {last['accuracy']:.2%}. "
            f"The network is in {out}."
        )
    return trained


def _make_network(run: TrainingRun, num_classes: int, in_channels: int) -> "Classifier":
    """Make the network of a run with fresh weights, drawn from torch's global generator.

    A function of a Python file takes nothing and makes the whole network, with its head.

    Raises:
        ArgumentError: there is no such network or head, or it does not take what the run describes.
    """
    from offaxis.networks import by_name

    head = _head(run)
    if not _is_elsewhere(run.architecture):
        make = by_name(run.architecture)
        return make(num_classes=num_classes, in_channels=in_channels, dropout=run.dropout, head=head)
    if run.dropout:
        raise ArgumentError(f"Expected no --dropout beside --network {run.architecture}, which has its own.")
    if _is_python(run.architecture):
        if run.head != "cosine" or run.scale is not None or run.hidden is not None or run.start is not None:
            raise ArgumentError(
                f"Expected no --head, --scale, --hidden and --start beside {run.architecture}, which has its own."
            )
        return open_classifier(run.architecture)
    return open_classifier(run.architecture, num_classes=num_classes, in_channels=in_channels, head=head)


def _is_python(architecture: str) -> bool:
    return re.fullmatch(r".+\.py(:\w+)?", architecture) is not None


def _is_elsewhere(architecture: str) -> bool:
    """Return whether a network is not one of offaxis.networks, by its name's form."""
    return ":" in architecture or _is_python(architecture)


def open_classifier(source: str, **options: Any) -> "Classifier":
    """Open a network that must be a single Classifier."""
    from offaxis.deploy.open import open_network
    from offaxis.networks.classifier import Classifier

    network = open_network(source, **options).network
    if not isinstance(network, Classifier):
        raise ArgumentError(f"Expected one Classifier but {source} is a {type(network).__name__}.")
    return network


def _head(run: TrainingRun) -> "HeadLike":
    """Return the head that a run describes."""
    from offaxis.heads import HEADS, Head

    name, options = run.head, run.head_arguments
    if not options or name not in HEADS:
        return name  # an unknown name is refused where the head is made
    make = partial(HEADS[name], **options)

    def head(in_features: int, num_classes: int) -> Head:
        try:
            return make(in_features, num_classes)
        except TypeError:
            unknown = [f"--{option}" for option in options if option not in signature(HEADS[name]).parameters]
            raise ArgumentError(f"The head {name!r} takes no {' and no '.join(unknown)}.") from None

    return head


def _loss(leave_out: tuple[int, int] | None, num_classes: int) -> "Loss":
    """Return cross-entropy, or the loss of one network of a leave-out ensemble, whose folds are always the same."""
    from offaxis.training import cross_entropy

    if leave_out is None:
        return cross_entropy
    from offaxis.training.leave_out import MarginEntropyLoss

    return MarginEntropyLoss.for_fold(*leave_out, num_classes)


def _fabric(device: str, devices: int, nodes: int, precision: Precision) -> "Fabric":
    """Return the device, processes and arithmetic of a training, where this machine has them."""
    from lightning_fabric import Fabric

    from offaxis.networks.inference import resolve_device

    chosen = resolve_device(device)
    several = devices * nodes > 1
    try:
        return Fabric(
            accelerator=chosen.type,
            devices=devices if chosen.index is None or several else [chosen.index],
            num_nodes=nodes,
            precision=precision,
            strategy="ddp" if several else "auto",
        )
    except (RuntimeError, ValueError, TypeError, ImportError) as error:
        raise ArgumentError(
            f"Expected --device, --devices and --precision to be what this machine has but got {device}, {devices} and "
            f"{precision}: {' '.join(str(error).split())} Try --device auto --devices 1."
        ) from error
