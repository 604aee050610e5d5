"""How large a reproduction is: the paper's own size, or one that a laptop can compute."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from offaxis.options import Precision, Start, TrainOptions


@dataclass(frozen=True, kw_only=True)
class NetworkRecipe:
    """An architecture and how it is trained.

    Attributes:
        architecture: such as wrn-28-10.
        recipe: a name out of RECIPES.
        overrides: options of the training in place of the recipe's, such as ``epochs``.
        precision: of the arithmetic.
        start: of a predicted scale: the paper's, as the paper is reproduced; None for the head's default.
    """

    architecture: str
    recipe: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    precision: Precision = "32-true"
    start: Start | None = "paper"

    def training(self, id_name: str, seed: int, head: str, **variant: Any) -> TrainOptions:
        """Return a training of this architecture.

        Args:
            id_name: the ID set.
            seed: of the training.
            head: a name out of HEADS.
            **variant: more options, on top of the recipe's.
        """
        if head == "cosine" and variant.get("scale") is None and not self.recipe.startswith("paper-"):
            variant.setdefault("start", self.start)  # the paper's recipes have the paper's start anyway
        own: dict[str, Any] = {"network": self.architecture, "recipe": self.recipe, "precision": self.precision}
        return TrainOptions(id=id_name, head=head, seed=seed, **{**own, **self.overrides, **variant})


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """What all evaluations of a reproduction share (see ``offaxis.options.EvaluateOptions``).

    Attributes:
        images: at most so many images of each OOD and ID test set; None for all.
        fit_images: at most so many training images to fit detectors on; None for all.
        batch_size: images at a time.
        label: what tables call the networks; None for architecture and head.
    """

    images: int | None = None
    fit_images: int | None = None
    batch_size: int = 64
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an item is reproduced with.

    Attributes:
        name: of the scale.
        networks: what is trained; the paper's ablation and its figures use the last.
        ids: the ID sets; where the paper shows one, it is the last.
        seeds: one training each.
        one_vs_one: the OOD sets of the one-vs-one tables, or pools of them, of which those on this machine are used.
        frame_free: those of the less-biased table without frames.
        framed: those of the less-biased table with frames.
        near: the set of the ablation and the scale sweep.
        shown: two sets for figures.
        scales: the fixed scales of the sweep.
        members: networks of an ensemble.
        hidden: units of the ablation's extra layer.
        leave_out: how the networks of a leave-out ensemble are trained, where it is not as the others.
        leave_out_dropout: dropout in the wide ResNets of a leave-out ensemble.
        evaluation: what all evaluations share.
        timed: networks whose computing time is measured.
        batch: images of a batch whose computing time is measured.
        rounds: batches that the time is the median of.
        points: images of each kind in the figure of feature spaces.
    """

    name: str
    networks: tuple[NetworkRecipe, ...]
    ids: tuple[str, ...]
    seeds: tuple[int, ...]
    one_vs_one: tuple[str, ...]
    frame_free: tuple[str, ...]
    framed: tuple[str, ...]
    near: str
    shown: tuple[str, str]
    scales: tuple[float, ...]
    members: int
    hidden: int
    leave_out: Mapping[str, Any]
    leave_out_dropout: float
    evaluation: EvaluationSettings
    timed: tuple[str, ...]
    batch: int
    rounds: int
    points: int

    def replace(self, **changes: Any) -> Self:
        """Return the same settings with some values changed; those given as None stay as they are."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


def paper_settings() -> Settings:
    """Return the paper's networks, epochs, sets and five seeds: weeks on a CPU, days on a GPU."""
    return Settings(
        name="paper",
        networks=(
            NetworkRecipe(architecture="densenet-100-12", recipe="paper-densenet"),
            NetworkRecipe(architecture="wrn-28-10", recipe="paper-wide-resnet"),
        ),
        ids=("cifar10", "cifar100"),
        seeds=(0, 1, 2, 3, 4),
        one_vs_one=("paper-one-vs-one", "paper-frame-free"),
        frame_free=("paper-frame-free",),
        framed=("paper-framed",),
        near="tin-resize",
        shown=("tin-resize", "lsun-crop-free"),
        scales=(4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0),
        members=5,
        hidden=512,
        leave_out={"epochs": 100, "batch_size": 100, "weight_decay": 0.0005},
        leave_out_dropout=0.3,
        evaluation=EvaluationSettings(),
        timed=("densenet-100-12", "wrn-28-10"),
        batch=128,
        rounds=5,
        points=400,
    )


def laptop_settings() -> Settings:
    """Return a small wide ResNet on CIFAR-10, three seeds, 2,000 images of each set: an evening on two cores."""
    return paper_settings().replace(
        name="laptop",
        networks=(NetworkRecipe(architecture="wrn-10-4-half", recipe="laptop"),),
        ids=("cifar10",),
        seeds=(0, 1, 2),
        shown=("tin-resize", "svhn"),
        scales=(8.0, 16.0, 32.0, 64.0, 128.0),
        members=3,
        leave_out={},
        leave_out_dropout=0.0,
        evaluation=EvaluationSettings(images=2000, fit_images=10000),
        timed=("wrn-16-4",),
        rounds=3,
    )


def tiny_settings() -> Settings:
    """Return seconds of work on embedded digits of 8x8 pixels: it shows that every step runs, and nothing else."""
    sets = ("letters", "photographs", "gaussian")
    quick = {"epochs": 1, "batch_size": 128, "crop": 0}
    return paper_settings().replace(
        name="tiny",
        networks=(NetworkRecipe(architecture="wrn-10-1-half", recipe="laptop", overrides=quick),),
        ids=("small-digits",),
        seeds=(0, 1),
        one_vs_one=sets,
        frame_free=sets,
        framed=sets[::-1],
        near="letters",
        shown=("letters", "photographs"),
        scales=(8.0, 64.0),
        members=2,
        hidden=32,
        leave_out={},
        leave_out_dropout=0.0,
        evaluation=EvaluationSettings(images=60, fit_images=150, batch_size=64),
        timed=("wrn-10-1",),
        batch=4,
        rounds=1,
        points=30,
    )


SCALES = {"paper": paper_settings, "laptop": laptop_settings, "tiny": tiny_settings}
