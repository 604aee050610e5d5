"""What a trained network depends on: settings by name, and the options of ``offaxis train`` that say the same."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Self

from offaxis.errors import ArgumentError

if TYPE_CHECKING:
    from offaxis.training import Recipe

PHOTOGRAPH_AREA = 0.25
"""Least share of a photograph that a random resized crop keeps."""
Precision = Literal["32-true", "16-mixed", "bf16-mixed", "64-true"]
Start = Literal["sizes", "paper"]
"""Where a predicted scale starts, as in offaxis.heads.base, whose import takes torch's time."""


@dataclass(frozen=True, kw_only=True)
class RecipeOverrides:
    """Numbers that replace those of a recipe; None keeps the recipe's own (see ``offaxis.training.Recipe``).

    Attributes:
        epochs: passes over the training images.
        batch_size: images a step.
        learning_rate: at the start.
        weight_decay: on every parameter but the cosine weight.
        clip: largest gradient, as a multiple of the typical one.
        crop: padding of random crops; None takes at most an eighth of the image's side. Not beside ``min_area`` below 1.
        flip: mirror images at random; None goes by the catalogue, where digits and letters are not mirrored.
        min_area: least share of a photograph that a random resized crop keeps; None takes 0.25 above 64 pixels.
        jitter: largest random change of brightness, contrast and saturation.
    """

    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    clip: float | None = None
    crop: int | None = None
    flip: bool | None = None
    min_area: float | None = None
    jitter: float | None = None

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
        size: height and width of the images; None for the network's own, or that of the images.
        resize: how they come to that size, ``"crop"`` or ``"stretch"``; None for crop above 64 pixels.
        holdout: the share of a folder without test images that is kept for testing.
        skip_bad: leave out files that cannot be read.
        mean: of the pixels in [0, 1], by channel; None for the network's own, or that of the images.
        std: likewise.
        architecture: such as ``wrn-28-10``, or anything else that ``open_network`` takes.
        weights: a file of weights to start from.
        pretrained: start from the weights that timm or torchvision publish, and fetch them.
        source: start from the backbone of this trained network, a run, a bundle or anything else that ``open_network`` takes,
            with a new head; None for a network of ``architecture``.
        freeze: train the head alone, on features that the backbone computes once.
        views: versions of each image that a frozen backbone sees.
        unfreeze: the first layer of the backbone that is trained; None for all.
        head: a name out of ``offaxis.heads.HEADS``.
        scale: of the head: ``"predicted"``, ``"learned"`` or a number; None for the head's default.
        hidden: size of an extra layer inside the cosine head.
        tau: temperature of the heads ``logitnorm`` and ``t2fnorm``, a hyperparameter; None for the published one.
        start: of a predicted scale: ``"sizes"`` or ``"paper"``; None for the head's default, and for the paper's in the
            paper's recipes and where ``short`` trains from scratch.
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
    size: int | None = None
    resize: str | None = None
    holdout: float | None = None
    skip_bad: bool = False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    weights: str | None = None
    pretrained: bool = False
    source: str | None = None
    freeze: bool = False
    views: int = 1
    unfreeze: str | None = None
    head: str = "cosine"
    scale: str | float | None = None
    hidden: int | None = None
    tau: float | None = None
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
            "" if self.tau is None else f"tau {self.tau:g}",
            "start sizes"
            if self.start == "sizes"
            else "",  # names without a start were given when there was the paper's alone
            "decay-head" if self.decay_head else "",
            "frozen" if self.freeze else "",
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
        """The head's arguments that are not its defaults; some recipes start a cosine head as the paper does."""
        trained = self.pretrained or self.freeze or any((self.weights, self.source, self.unfreeze))
        as_in_paper = self.recipe.startswith("paper-") or (self.recipe == "short" and not trained)
        start = "paper" if self.head == "cosine" and as_in_paper else None
        given = {"scale": self.scale, "hidden": self.hidden, "tau": self.tau, "start": self.start or start}
        return {name: value for name, value in given.items() if value is not None}

    def numbers(self, shape: tuple[int, int, int] | None = None) -> "Recipe":
        """Return the recipe with the overrides.

        Args:
            shape: (c, h, w) of the images, by which ``crop`` and ``min_area`` are chosen where they are not given.

        Raises:
            ArgumentError: there is no such recipe, a number is out of its range, or both kinds of random crops are asked for.
        """
        from offaxis.data.catalogue import can_be_mirrored
        from offaxis.data.transforms import CROP_ABOVE
        from offaxis.training import RECIPES

        if self.recipe not in RECIPES:
            raise ArgumentError(f"Expected a recipe out of {', '.join(RECIPES)} but got {self.recipe!r}.")
        crop, min_area = self.overrides.crop, self.overrides.min_area
        if crop and min_area is not None and min_area < 1:
            raise ArgumentError(
                f"Expected one kind of random crops but got crop {crop}, which shifts images, and min_area {min_area:g}, which "
                "enlarges a part of them: leave out --crop or --min-area."
            )
        recipe = RECIPES[self.recipe]()
        if shape is not None:
            recipe = recipe.replace(crop=min(recipe.crop, min(shape[1:]) // 8))
            photographs = min(shape[1:]) > CROP_ABOVE and self.overrides.crop is None
            recipe = recipe.replace(min_area=PHOTOGRAPH_AREA if photographs else None)
        recipe = recipe.replace(flip=can_be_mirrored(self.id), decay_head=self.decay_head)
        return recipe.replace(**self.overrides.given())


def _scale_text(scale: str | float) -> str:
    """Return a scale as it is typed: ``predicted``, ``learned`` or a number in its shortest form."""
    return scale if isinstance(scale, str) else f"{scale:g}"


def training_words(run: TrainingRun) -> Iterator[str]:
    """Yield the options of ``offaxis train`` that describe a run."""
    yield from ("--id", run.id, "--network", run.architecture, "--head", run.head)
    if run.source is not None:
        yield from ("--from", run.source)
    for name in ("size", "resize", "holdout", "weights", "unfreeze"):
        if getattr(run, name) is not None:
            yield from (f"--{name}", str(getattr(run, name)))
    for name in ("mean", "std"):
        if getattr(run, name) is not None:
            yield from (f"--{name}", ",".join(map(str, getattr(run, name))))
    yield from (f"--{name.replace('_', '-')}" for name in ("skip_bad", "pretrained", "freeze") if getattr(run, name))
    if run.views != 1:
        yield from ("--views", str(run.views))
    if run.scale is not None:
        yield from ("--scale", _scale_text(run.scale))
    if run.hidden is not None:
        yield from ("--hidden", str(run.hidden))
    if run.tau is not None:
        yield from ("--tau", f"{run.tau:g}")
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
