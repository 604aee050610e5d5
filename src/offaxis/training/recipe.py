"""Recipes: the hyperparameters of a training, and functions that return the ones we use."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from offaxis.errors import ArgumentError


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
        clip: relative clipping: a gradient whose norm is more than this multiple of the running mean is scaled down to
            it; None for no clipping. It keeps the predicted scale from collapsing (docs/scale-collapse.md).
        max_norm: ordinary clipping: a gradient with a larger norm is scaled down to this one. Not needed with ``clip``.
        decay_head: apply weight decay to the cosine weight too, as some rows of the paper's ablation do.
        crop: random crops after padding with this many black pixels on each side; 0 for none.
        flip: mirror half of the images at random; off for digits and letters.
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
    clip: float | None = 1.5
    max_norm: float | None = None
    decay_head: bool = False
    crop: int = 4
    flip: bool = True
    name: str = field(default="custom", compare=False)

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 2), ("crop", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ArgumentError(f"Expected `{name}` to be a whole number of at least {least} but got {value!r}.")
        for name in ("learning_rate", "gamma"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ArgumentError(f"Expected `{name}` to be a positive number but got {getattr(self, name)!r}.")
        if not 0 <= self.weight_decay < float("inf"):
            raise ArgumentError(f"Expected `weight_decay` to be 0 or a positive number but got {self.weight_decay!r}.")
        if not 0 <= self.momentum < 1:
            raise ArgumentError(f"Expected `momentum` to be in [0, 1) but got {self.momentum!r}.")
        if any(not 0 < m < 1 for m in self.milestones) or list(self.milestones) != sorted(self.milestones):
            raise ArgumentError(
                f"Expected `milestones` to be rising fractions of the steps but got {self.milestones!r}."
            )
        if self.ramp is not None and not 0 <= self.ramp < 1:
            raise ArgumentError(f"Expected `ramp` to be None or a fraction of the steps but got {self.ramp!r}.")
        if self.clip is not None and not self.clip >= 1:
            raise ArgumentError(f"Expected `clip` to be None or a number of at least 1 but got {self.clip!r}.")
        if self.max_norm is not None and not self.max_norm > 0:
            raise ArgumentError(f"Expected `max_norm` to be None or a positive number but got {self.max_norm!r}.")

    def learning_rate_at(self, step: int, steps: int) -> float:
        """Return the learning rate of step 0 <= step < steps."""
        if self.ramp is not None:
            peak = self.ramp * steps
            share = (step + 1) / peak if step + 1 < peak else (steps - step) / (steps - peak + 1)
            return self.learning_rate * min(1.0, share)
        passed = sum(step >= fraction * steps for fraction in self.milestones)
        return self.learning_rate * self.gamma**passed

    def replace(self, **changes: Any) -> Self:
        """Return the recipe with some numbers changed; those given as None keep their value, and ``name`` keeps its own."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def to_json(self) -> dict[str, Any]:
        """Return the numbers of the recipe, without its name, as JSON can hold them."""
        numbers = {**asdict(self), "milestones": list(self.milestones)}
        del numbers["name"]
        return numbers


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
    """Return the recipe of docs/results.md: of several trials, the highest held-out accuracy for its time."""
    return Recipe(epochs=14, batch_size=64, ramp=0.2, crop=2, name="short")


RECIPES = {"laptop": laptop, "short": short, "paper-wide-resnet": paper_wide_resnet, "paper-densenet": paper_densenet}
