"""Every training and evaluation of the study, in the order in which they should be done while time lasts."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from offaxis.options import EvaluateOptions, Kind, TrainOptions
from offaxis.paper.commands import Command, Reproduction, run_name
from offaxis.paper.settings import LAPTOP, ablation_rows, sweep, training
from study.sets import CONTROLS, DEVELOPMENT, REPORTED

COLOUR = TrainOptions(network="wrn-10-4-half", recipe="short", precision="bf16-mixed")
GREY = TrainOptions(network="wrn-10-2-half", recipe="short", epochs=6, precision="bf16-mixed")
DENSE = TrainOptions(network="densenet-22-12-half", recipe="short", precision="bf16-mixed")
NETWORKS = {"cifar10": COLOUR, "cifar100": COLOUR, "fashion-mnist": GREY}
SEEDS = (0, 1, 2)

FREE = (
    "max-softmax",
    "cosine",
    "max-logit",
    "energy",
    "gen",
    "knn",
    "vim",
    "relative-mahalanobis",
    "react",
    "ash",
    "scale",
    "two-cosines",
    "mean-cosine",
)
"""Detectors that need no OOD image; those that a network cannot feed are left out."""
TUNED = ("odin", "mahalanobis")
RIVALS = {
    "deconf-c": "generalized-odin",
    "deconf-i": "generalized-odin",
    "deconf-e": "generalized-odin",
    "isomax": "isomax",
}
FOLDS = 5
FIXED_SCALE = 32.0
"""The fixed scale that does best on the development sets beside Fashion-MNIST."""
LONGER_EPOCHS = 30
"""Enough for 90 % accuracy on CIFAR-10: does more training change the ranking?"""


WHOLE = EvaluateOptions(networks=())
"""All images of every set."""
WORK, KEPT = Path("runs/study"), Path("study")
"""Where networks and whole results are while the study runs, and where the small copy of the results is kept."""


def name_of(run: TrainOptions) -> str:
    """Return the name of a training's folder, which says where there are more epochs than the recipe's."""
    return run_name(run, f"epochs {LONGER_EPOCHS}" if run.epochs == LONGER_EPOCHS else "")


def chain_for(id_name: str, out: Path = WORK) -> Reproduction:
    """Return the settings of the study for an ID set, and where its networks and results are."""
    scale = LAPTOP.replace(
        name="study",
        networks=(NETWORKS[id_name],),
        ids=(id_name,),
        seeds=(0,),
        near="tin-resize",
        hidden=128,
        frame_free=sets_of(id_name),
        shown=("tin-resize", "svhn"),
        scales=(4.0, 8.0, 16.0, 32.0, 64.0, 128.0),
        evaluation=EvaluateOptions(networks=(), images=1000, fit_images=10000),
    )
    return Reproduction(scale, out, WORK / "networks", name=name_of)


def sets_of(id_name: str) -> tuple[str, ...]:
    """Return all OOD sets of an ID set, without the controls."""
    return (*DEVELOPMENT, *REPORTED[id_name])


def main_runs(id_name: str, seed: int) -> tuple[TrainOptions, TrainOptions]:
    """Return the standard and the cosine network of a seed."""
    return training(NETWORKS[id_name], id_name, seed, "linear"), training(NETWORKS[id_name], id_name, seed, "cosine")


def fixed_scale_run(id_name: str) -> TrainOptions:
    """Return the network with the fixed scale."""
    return training(NETWORKS[id_name], id_name, 0, "cosine", scale=FIXED_SCALE, decay_head=True)


def leave_out_runs(id_name: str) -> list[TrainOptions]:
    """Return the networks of the leave-out ensemble."""
    return [training(NETWORKS[id_name], id_name, k, "linear", leave_out=(k, FOLDS)) for k in range(FOLDS)]


def longer_runs() -> tuple[TrainOptions, TrainOptions]:
    """Return the same pair with more than twice the training, one seed."""
    standard, cosine = (training(COLOUR, "cifar10", 0, head, epochs=LONGER_EPOCHS) for head in ("linear", "cosine"))
    return standard, cosine


def all_steps() -> Iterator[tuple[Command, Sequence[Command]]]:
    """Yield (a command, the trainings that it needs)."""
    yield from _pair("cifar10", 0)
    for seed in SEEDS:
        yield from _pair("fashion-mnist", seed)
    for seed in SEEDS[1:]:
        yield from _pair("cifar10", seed)
    for seed in SEEDS:
        yield from _tuned("fashion-mnist", seed)
    yield from _tuned("cifar10", 0)
    for id_name in ("fashion-mnist", "cifar10"):
        yield from _combined(id_name)
        yield from _untuned(id_name)
    yield from _variants("fashion-mnist")
    yield from _rivals("fashion-mnist")
    yield from _longer()
    yield from _leave_out("fashion-mnist")
    yield from _evaluated([fixed_scale_run("cifar10")], FREE)
    for seed in SEEDS[1:]:
        yield from _tuned("cifar10", seed)
    yield from _pair("cifar100", 0)
    yield from _evaluated([training(DENSE, "cifar10", 0, head) for head in ("linear", "cosine")], FREE)
    for id_name in ("fashion-mnist", "cifar10"):
        yield from _tuned(id_name, 0, "cosine")
    yield from _rivals("cifar10")


def _evaluated(runs: Sequence[TrainOptions], detectors: Sequence[str]) -> Iterator[tuple[Command, Sequence[Command]]]:
    """Train some networks, evaluate each with some detectors, and measure its accuracy on all test images."""
    for run in runs:
        chain = chain_for(run.id)
        train = chain.train(run)
        yield train, ()
        yield chain.evaluate([run], (*sets_of(run.id), *CONTROLS), detectors, tune=False), (train,)
        yield _accuracy([run])


def _longer() -> Iterator[tuple[Command, Sequence[Command]]]:
    """Do the same for the pair that trained longer, whose label has to say so."""
    shared = chain_for("cifar10")
    for run in longer_runs():
        label = f"{run.architecture} {run.head} {LONGER_EPOCHS} epochs"
        chain, whole = (
            replace(shared, scale=shared.scale.replace(evaluation=replace(evaluation, label=label)))
            for evaluation in (shared.scale.evaluation, WHOLE)
        )
        train = shared.train(run)
        yield train, ()
        yield chain.evaluate([run], sets_of(run.id), (*FREE, "mahalanobis"), tune=False), (train,)
        yield whole.evaluate([run], ("letters",), ("max-softmax",), tune=False), (train,)


def _pair(id_name: str, seed: int) -> Iterator[tuple[Command, Sequence[Command]]]:
    yield from _evaluated(main_runs(id_name, seed), FREE)


def _tuned(id_name: str, seed: int, head: str = "linear") -> Iterator[tuple[Command, Sequence[Command]]]:
    """Evaluate the detectors that are tuned on OOD images, by both protocols."""
    chain = chain_for(id_name)
    run = training(NETWORKS[id_name], id_name, seed, head)
    yield chain.evaluate([run], sets_of(id_name), TUNED, "both"), (chain.train(run),)


def _untuned(id_name: str) -> Iterator[tuple[Command, Sequence[Command]]]:
    """Evaluate untuned Mahalanobis: no perturbation, all layers alike."""
    chain = chain_for(id_name)
    for run in (run for seed in SEEDS for run in main_runs(id_name, seed)):
        yield chain.evaluate([run], sets_of(id_name), ("mahalanobis",), tune=False), (chain.train(run),)


def _accuracy(runs: Sequence[TrainOptions], kind: Kind = "single") -> tuple[Command, Sequence[Command]]:
    """Evaluate a network on all ID test images; an OOD set has to be named, and letters are in no table."""
    chain = chain_for(runs[0].id)
    whole = replace(chain, scale=chain.scale.replace(evaluation=WHOLE))
    detector = {"ensemble": "cosine-ensemble", "leave-out": "leave-out"}.get(kind, "max-softmax")
    needs = [chain.train(run) for run in runs]
    return whole.evaluate(runs, ("letters",), (detector,), tune=False, kind=kind), needs


def _combined(id_name: str) -> Iterator[tuple[Command, Sequence[Command]]]:
    """Evaluate an ensemble of the three cosine networks, and a standard network's classes with a cosine network's score."""
    chain = chain_for(id_name)
    cosine = [main_runs(id_name, seed)[1] for seed in SEEDS]
    needs = [chain.train(run) for run in cosine]
    yield chain.evaluate(cosine, sets_of(id_name), ("cosine-ensemble",), tune=False, kind="ensemble"), needs
    yield _accuracy(cosine, "ensemble")
    for seed in SEEDS:
        pair = main_runs(id_name, seed)
        needs = [chain.train(run) for run in pair]
        yield chain.evaluate(pair, sets_of(id_name), ("cosine",), tune=False, kind="paired"), needs
        yield _accuracy(pair, "paired")


def _variants(id_name: str) -> Iterator[tuple[Command, Sequence[Command]]]:
    """Train and evaluate the ten rows of the ablation and the fixed scales."""
    chain = chain_for(id_name)
    rows = ablation_rows(NETWORKS[id_name], id_name, 0, chain.scale.hidden).values()
    scales = [run for runs in sweep(chain.scale).values() for run in runs]
    for run in dict.fromkeys((*rows, *scales)):
        yield from _evaluated([run], ("max-softmax",) if run.head == "linear" else ("cosine", "max-softmax"))


def _rivals(id_name: str) -> Iterator[tuple[Command, Sequence[Command]]]:
    """Train and evaluate other heads that need no OOD image, by the same recipe."""
    for head, detector in RIVALS.items():
        yield from _evaluated([training(NETWORKS[id_name], id_name, 0, head)], (detector, "max-softmax"))


def _leave_out(id_name: str) -> Iterator[tuple[Command, Sequence[Command]]]:
    """Train and evaluate the leave-out ensemble, each of whose networks does not learn some of the classes."""
    chain = chain_for(id_name)
    runs = leave_out_runs(id_name)
    needs = [chain.train(run) for run in runs]
    for train in needs:
        yield train, ()
    yield chain.evaluate(runs, sets_of(id_name), ("leave-out",), tune=False, kind="leave-out"), needs
    yield _accuracy(runs, "leave-out")
