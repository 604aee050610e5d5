"""How a network is trained: the numbers of a recipe, the recipes by name, and the one that options describe."""

import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from torch import nn

from offaxis.data.catalogue import can_be_mirrored
from offaxis.data.transforms import CROP_ABOVE
from offaxis.errors import ArgumentError
from offaxis.names import RECIPES, alike
from offaxis.networks.classifier import Classifier
from offaxis.options import TrainOptions

_END = 1e-5  # share of the learning rate at the end of a cosine schedule, as in OpenOOD
_LATER = ("min_area", "jitter", "backbone_rate", "cosine")
"""Numbers that records leave out where they are off: older runs, which do not have them, are then the same."""


@dataclass(frozen=True)
class Recipe:
    """Stochastic gradient descent with Nesterov momentum and a learning rate that falls in steps or linearly.

    Attributes:
        epochs: passes over the training images.
        batch_size: images a step, over all processes together.
        learning_rate: at the start.
        weight_decay: on every parameter but the cosine weight (see ``decay_head``).
        momentum: of SGD, in Nesterov's form.
        milestones: fractions of all steps after which the learning rate is multiplied by ``gamma``.
        gamma: that factor.
        ramp: None for milestones. Else the learning rate warms up linearly from 0 over this fraction of all steps and
            then falls linearly to 0: short trainings reach a higher accuracy with it.
        cosine: the learning rate falls along half a cosine to almost 0, in place of milestones.
        clip: relative clipping: a gradient whose norm is more than this multiple of the running mean is scaled down to
            it; None for no clipping. It keeps the predicted scale from collapsing (docs/scale-collapse.md).
        max_norm: ordinary clipping: a gradient with a larger norm is scaled down to this one. Not needed with ``clip``.
        backbone_rate: the learning rate of the backbone as a share of that of the head; None for the same. For pretrained
            networks.
        decay_head: apply weight decay to the cosine weight too, as some rows of the paper's ablation do.
        crop: random crops after padding with this many black pixels on each side; 0 for none.
        flip: mirror half of the images at random; off for digits and letters.
        min_area: for photographs, in place of ``crop``: a random part of each image, of at least this share of its area
            and with sides in a ratio of 3:4 to 4:3, is enlarged to the whole; None or 1 for none.
        jitter: change brightness, contrast and saturation of each image at random, each by up to this share; None for none.
        name: the recipe that this one started from, a key of ``RECIPES``, for records; it makes no difference otherwise.
    """

    epochs: int
    batch_size: int
    learning_rate: float = 0.1
    weight_decay: float = 5e-4
    momentum: float = 0.9
    milestones: tuple[float, ...] = (0.5, 0.75)
    gamma: float = 0.1
    ramp: float | None = None
    cosine: bool = False
    clip: float | None = 1.5
    max_norm: float | None = None
    backbone_rate: float | None = None
    decay_head: bool = False
    crop: int = 4
    flip: bool = True
    min_area: float | None = None
    jitter: float | None = None
    name: str = field(default="custom", compare=False)

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 2), ("crop", 0)):
            value = getattr(self, name)
            self._check(name, isinstance(value, int) and value >= least, f"a whole number of at least {least}")
        for name in ("learning_rate", "gamma"):
            self._check(name, 0 < getattr(self, name) < math.inf, "a positive number")
        self._check("weight_decay", 0 <= self.weight_decay < math.inf, "0 or a positive number")
        self._check("momentum", 0 <= self.momentum < 1, "in [0, 1)")
        rising = list(self.milestones) == sorted(self.milestones) and all(0 < m < 1 for m in self.milestones)
        self._check("milestones", rising, "rising fractions of the steps")
        self._check("ramp", self.ramp is None or 0 <= self.ramp < 1, "None or a fraction of the steps")
        self._check("clip", self.clip is None or self.clip >= 1, "None or a number of at least 1")
        self._check("max_norm", self.max_norm is None or self.max_norm > 0, "None or a positive number")
        self._check("jitter", self.jitter is None or 0 <= self.jitter <= 1, "None or a share from 0 to 1")
        for name in ("min_area", "backbone_rate"):
            value = getattr(self, name)
            self._check(name, value is None or 0 < value <= 1, "None or a share above 0 and at most 1")

    def _check(self, name: str, holds: bool, wanted: str) -> None:
        if not holds:
            raise ArgumentError(f"Expected `{name}` to be {wanted} but got {getattr(self, name)!r}.")

    def learning_rate_at(self, step: int, steps: int) -> float:
        """Return the learning rate of step 0 <= step < steps."""
        if self.ramp is not None:
            peak = self.ramp * steps
            share = (step + 1) / peak if step + 1 < peak else (steps - step) / (steps - peak + 1)
            return self.learning_rate * min(1.0, share)
        if self.cosine:
            return self.learning_rate * (_END + (1 - _END) * (1 + math.cos(math.pi * step / steps)) / 2)
        passed = sum(step >= fraction * steps for fraction in self.milestones)
        return self.learning_rate * self.gamma**passed

    def replace(self, **changes: Any) -> Self:
        """Return the recipe with some numbers changed; those given as None keep their value, and ``name`` keeps its own."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def to_json(self) -> dict[str, Any]:
        """Return the numbers of the recipe, without its name, as JSON can hold them."""
        absent = [name for name in _LATER if not getattr(self, name)]
        numbers = {**asdict(self), "milestones": list(self.milestones)}
        return {name: value for name, value in numbers.items() if name not in ("name", *absent)}


def paper_wide_resnet() -> Recipe:
    """Return the paper's recipe for WRN-28-10, exactly: without clipping, so that the scale may collapse; it is guarded."""
    return Recipe(epochs=200, batch_size=128, weight_decay=5e-4, clip=None, name="paper-wide-resnet")


def paper_densenet() -> Recipe:
    """Return the paper's recipe for DenseNet-BC-100-12, exactly."""
    return Recipe(epochs=300, batch_size=64, weight_decay=1e-4, clip=None, name="paper-densenet")


def laptop() -> Recipe:
    """Return the recipe for the small networks: minutes on two cores."""
    return Recipe(epochs=12, batch_size=128, name="laptop")


def short() -> Recipe:
    """Return the recipe of study/report/first.md: of several trials, the highest held-out accuracy for its time."""
    return Recipe(epochs=14, batch_size=64, ramp=0.2, crop=2, name="short")


def fast() -> Recipe:
    """Return the recipe of ``convnet-256``: the highest accuracy on 32x32 colour images for an hour of one core."""
    return Recipe(
        epochs=20,
        batch_size=512,
        learning_rate=0.75,
        momentum=0.85,
        weight_decay=1.3e-3,
        ramp=0.23,
        crop=2,
        name="fast",
    )


def openood_resnet() -> Recipe:
    """Return OpenOOD's recipe for its CIFAR networks (resnet18-32): 100 epochs, a cosine schedule, no clipping."""
    return Recipe(epochs=100, batch_size=128, cosine=True, clip=None, name="openood")


def finetune() -> Recipe:
    """Return the recipe for pretrained networks: few epochs, warm-up, and a small learning rate for the backbone."""
    return Recipe(
        epochs=5, batch_size=32, learning_rate=0.1, backbone_rate=0.1, weight_decay=1e-4, ramp=0.1, name="finetune"
    )


def frozen() -> Recipe:
    """Return the recipe for the head of a frozen network, trained on features; more epochs where images are few."""
    return Recipe(epochs=60, batch_size=256, learning_rate=0.01, weight_decay=0.01, clip=None, name="frozen")


PHOTOGRAPH_AREA = 0.25
"""Least share of a photograph that a random resized crop keeps."""


def usual_recipe(classifier: Classifier) -> str:
    """Return the name of the recipe that a network is trained with where none is named, in Python and in the shell.

    A network that is trained already, or whose backbone is frozen in part, is fine-tuned: the rates of ``laptop`` would
    overwrite what it has learned. It counts as trained where the weights or statistics of a
    normalisation layer are not all alike.
    """
    return "finetune" if classifier.frozen or _is_trained(classifier.backbone) else "laptop"


def _is_trained(backbone: nn.Module) -> bool:
    """Return whether some normalisation layer has weights or statistics that are not all alike, as those of a new one are."""
    layers = (module for module in backbone.modules() if "norm" in type(module).__name__.lower())
    tensors = (tensor for layer in layers for tensor in layer.state_dict().values() if tensor.numel() > 1)
    return any(bool((tensor != tensor.flatten()[0]).any()) for tensor in tensors)


def recipe_of(options: TrainOptions, shape: tuple[int, int, int] | None = None, usual: str = "laptop") -> Recipe:
    """Return the recipe that options describe.

    Args:
        options: the recipe's name and the numbers in place of its own.
        shape: (c, h, w) of the images, by which ``crop`` and ``min_area`` are chosen where they are not given.
        usual: the recipe where none is named.

    Raises:
        ArgumentError: there is no such recipe, a number is out of its range, or both kinds of random crops are asked for.
    """
    name = options.recipe or usual
    if name not in RECIPES:
        raise ArgumentError(f"Expected a recipe out of {', '.join(RECIPES)} but got {name!r}.{alike(name, RECIPES)}")
    crop, min_area = options.crop, options.min_area
    if crop and min_area is not None and min_area < 1:
        raise ArgumentError(
            f"Expected one kind of random crops but got crop {crop}, which shifts images, and min_area {min_area:g}, which "
            "enlarges a part of them: leave out --crop or --min-area."
        )
    recipe = RECIPES[name]()
    if shape is not None:
        photographs = min(shape[1:]) > CROP_ABOVE and crop is None
        recipe = recipe.replace(
            crop=min(recipe.crop, min(shape[1:]) // 8), min_area=PHOTOGRAPH_AREA if photographs else None
        )
    given = {each.name: getattr(options, each.name) for each in fields(Recipe) if hasattr(options, each.name)}
    mirrored = can_be_mirrored(options.id)
    return recipe.replace(flip=mirrored).replace(**given)
