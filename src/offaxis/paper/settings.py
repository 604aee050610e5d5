"""How large a reproduction is, the paper's own size or one that a laptop can compute, and what is trained for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from offaxis.options import EvaluateOptions, TrainOptions


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an item is reproduced with; the defaults are the paper's: weeks on a CPU, days on a GPU.

    Attributes:
        name: of the scale.
        networks: networks with their recipes; the paper's ablation and its figures use the last.
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

    name: str = "paper"
    networks: tuple[TrainOptions, ...] = (
        TrainOptions(network="densenet-100-12", recipe="paper-densenet"),
        TrainOptions(network="wrn-28-10", recipe="paper-wide-resnet"),
    )
    ids: tuple[str, ...] = ("cifar10", "cifar100")
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    one_vs_one: tuple[str, ...] = ("paper-one-vs-one", "paper-frame-free")
    frame_free: tuple[str, ...] = ("paper-frame-free",)
    framed: tuple[str, ...] = ("paper-framed",)
    near: str = "tin-resize"
    shown: tuple[str, str] = ("tin-resize", "lsun-crop-free")
    scales: tuple[float, ...] = (4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
    members: int = 5
    hidden: int = 512
    leave_out: Mapping[str, Any] = field(
        default_factory=lambda: {"epochs": 100, "batch_size": 100, "weight_decay": 0.0005}
    )
    leave_out_dropout: float = 0.3
    evaluation: EvaluateOptions = field(default_factory=lambda: EvaluateOptions(networks=()))
    timed: tuple[str, ...] = ("densenet-100-12", "wrn-28-10")
    batch: int = 128
    rounds: int = 5
    points: int = 400

    def replace(self, **changes: Any) -> Self:
        """Return the same settings with some values changed; those given as None stay as they are."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def trained_as(self, network: str) -> TrainOptions | None:
        """Return how the scale trains a network: as its own of that kind; None where it has several, and not this."""
        kind = network.partition("-")[0]
        alike = [entry for entry in self.networks if entry.architecture.partition("-")[0] == kind]
        named = [entry for entry in alike if entry.architecture == network] or alike
        if not named and len(self.networks) > 1:
            return None
        return replace((named or self.networks)[0], network=network)


PAPER = Settings()
LAPTOP = Settings(
    name="laptop",
    networks=(TrainOptions(network="wrn-10-4-half", recipe="laptop"),),
    ids=("cifar10",),
    seeds=(0, 1, 2),
    shown=("tin-resize", "svhn"),
    scales=(8.0, 16.0, 32.0, 64.0, 128.0),
    members=3,
    leave_out={},
    leave_out_dropout=0.0,
    evaluation=EvaluateOptions(networks=(), images=2000, fit_images=10000),
    timed=("wrn-16-4",),
    rounds=3,
)
"""A small wide ResNet on CIFAR-10, three seeds, 2,000 images of each set: an evening on two cores."""

TINY = Settings(
    name="tiny",
    networks=(TrainOptions(network="wrn-10-1-half", recipe="laptop", epochs=1, batch_size=128, crop=0),),
    ids=("small-digits",),
    seeds=(0, 1),
    one_vs_one=("letters", "photographs", "gaussian"),
    frame_free=("letters", "photographs", "gaussian"),
    framed=("gaussian", "photographs", "letters"),
    near="letters",
    shown=("letters", "photographs"),
    scales=(8.0, 64.0),
    members=2,
    hidden=32,
    leave_out={},
    leave_out_dropout=0.0,
    evaluation=EvaluateOptions(networks=(), images=60, fit_images=150),
    timed=("wrn-10-1",),
    batch=4,
    rounds=1,
    points=30,
)
"""Seconds of work on embedded digits of 8x8 pixels: it shows that every step runs, and nothing else."""

SCALES = {settings.name: settings for settings in (PAPER, LAPTOP, TINY)}

Pair = tuple[TrainOptions, TrainOptions]
"""A standard and a cosine network."""


def training(network: TrainOptions, id_name: str, seed: int, head: str, **variant: Any) -> TrainOptions:
    """Return a training of a network by its recipe; a predicted scale starts as in the paper, unless the variant says else."""
    if head == "cosine" and variant.get("scale") is None and not (network.recipe or "").startswith("paper-"):
        variant.setdefault("start", "paper")  # the paper's recipes have the paper's start anyway
    return replace(network, id=id_name, seed=seed, head=head, **variant)


def pairs_of(scale: Settings) -> list[Pair]:
    """Return the (standard, cosine) networks of every architecture, ID set and seed."""
    return [
        (training(network, name, seed, "linear"), training(network, name, seed, "cosine"))
        for network in scale.networks
        for name in scale.ids
        for seed in scale.seeds
    ]


def shown_pair(scale: Settings) -> Pair:
    """Return the (standard, cosine) networks that figures show."""
    return pairs_of(scale.replace(seeds=scale.seeds[:1]))[-1]


def ablation_rows(network: TrainOptions, id_name: str, seed: int, hidden: int = 512) -> dict[str, TrainOptions]:
    """Return the ten rows of the ablation: what is left out or added."""
    variants: list[tuple[str, dict[str, Any]]] = [
        ("linear", {}),
        ("linear", {"scale": "predicted"}),
        *(("cosine", {"scale": scale, "decay_head": True}) for scale in (16.0, 32.0, 64.0, 128.0)),
        ("cosine", {"decay_head": True}),
        ("cosine", {}),
        ("cosine", {"hidden": hidden, "decay_head": True}),
        ("cosine", {"hidden": hidden}),
    ]
    return {f"row-{n}": training(network, id_name, seed, head, **own) for n, (head, own) in enumerate(variants, 1)}


def sweep(scale: Settings) -> dict[tuple[str, float | None], list[TrainOptions]]:
    """Return (ID set, fixed scale or None for the predicted one) -> the networks of every seed."""
    return {
        (name, fixed): [
            training(scale.networks[-1], name, seed, "cosine", scale=fixed, decay_head=fixed is not None)
            for seed in scale.seeds
        ]
        for name in scale.ids
        for fixed in (*scale.scales, None)
    }


def teams(scale: Settings) -> list[tuple[list[TrainOptions], list[TrainOptions]]]:
    """Return the (cosine networks, leave-out networks) of every architecture and ID set.

    Leave-out networks are trained as in their own paper; its wide ResNets have dropout.
    """
    members, found = range(scale.members), []
    for network in scale.networks:
        dropout = scale.leave_out_dropout if network.architecture.startswith("wrn") else 0.0
        own = replace(network, **scale.leave_out, dropout=dropout)
        found += [
            (
                [training(network, name, member, "cosine") for member in members],
                [training(own, name, member, "linear", leave_out=(member, scale.members)) for member in members],
            )
            for name in scale.ids
        ]
    return found


def native_score(run: TrainOptions) -> str:
    """Return the detector of the network's own head: max-softmax for a linear one, else the cosine."""
    return "max-softmax" if run.head == "linear" else "cosine"


def runs_of(pairs: Sequence[Pair]) -> list[TrainOptions]:
    """Return the networks of pairs, one after the other."""
    return [run for pair in pairs for run in pair]
