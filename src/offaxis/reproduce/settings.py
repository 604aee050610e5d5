"""How large a reproduction is: the paper's own size, or one that a laptop can carry."""

from dataclasses import dataclass, replace
from typing import Any, Self


@dataclass(frozen=True)
class NetworkRecipe:
    """A network and the recipe that it is trained by, as the command line names them.

    Attributes:
        network: such as wrn-28-10.
        recipe: a name out of RECIPES.
        options: more words for ``offaxis train``.
    """

    network: str
    recipe: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
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
        leave_out: more words for training the networks of a leave-out ensemble.
        evaluation: more words for ``offaxis evaluate``.
        timed: networks whose computing time is measured.
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
    leave_out: tuple[str, ...]
    evaluation: tuple[str, ...]
    timed: tuple[str, ...]
    rounds: int
    points: int

    def replace(self, **changes: Any) -> Self:
        """The same scale with some values changed; those given as None stay as they are."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


def paper_settings() -> Settings:
    """The paper's networks, epochs, sets and five seeds: weeks on a CPU, days on a GPU."""
    return Settings(
        name="paper",
        networks=(NetworkRecipe("densenet-100-12", "paper-densenet"), NetworkRecipe("wrn-28-10", "paper-wide-resnet")),
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
        leave_out=("--epochs", "100", "--batch-size", "100", "--weight-decay", "0.0005"),
        evaluation=(),
        timed=("densenet-100-12", "wrn-28-10"),
        rounds=5,
        points=400,
    )


def laptop_settings() -> Settings:
    """A small wide ResNet on CIFAR-10, three seeds, 2,000 images of each set: an evening on two cores."""
    return paper_settings().replace(
        name="laptop",
        networks=(NetworkRecipe("wrn-10-4-half", "laptop"),),
        ids=("cifar10",),
        seeds=(0, 1, 2),
        shown=("tin-resize", "svhn"),
        scales=(8.0, 16.0, 32.0, 64.0, 128.0),
        members=3,
        leave_out=(),
        evaluation=("--images", "2000", "--fit-images", "10000"),
        timed=("wrn-16-4",),
        rounds=3,
    )


def tiny_settings() -> Settings:
    """Seconds on embedded digits of 8x8 pixels: it shows that the chain holds, and nothing else."""
    sets = ("letters", "photographs", "gaussian")
    return paper_settings().replace(
        name="tiny",
        networks=(NetworkRecipe("wrn-10-1-half", "laptop", ("--epochs", "1", "--batch-size", "128", "--crop", "0")),),
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
        leave_out=(),
        evaluation=("--images", "60", "--fit-images", "150", "--batch-size", "64"),
        timed=("wrn-10-1",),
        rounds=1,
        points=30,
    )


SCALES = {"paper": paper_settings, "laptop": laptop_settings, "tiny": tiny_settings}
