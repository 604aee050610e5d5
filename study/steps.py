"""Every training and evaluation of the study, in the order in which they should be done while time lasts."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from offaxis.reproduce.commands import Command, Reproduction, TrainingRun
from offaxis.reproduce.items import ablation_rows, sweep
from offaxis.reproduce.settings import NetworkRecipe, laptop_settings
from study.sets import CONTROLS, DEVELOPMENT, REPORTED

QUICK = ("--precision", "bf16-mixed")
COLOUR = NetworkRecipe("wrn-10-4-half", "short", QUICK)
GREY = NetworkRecipe("wrn-10-2-half", "short", (*QUICK, "--epochs", "6"))
DENSE = NetworkRecipe("densenet-22-12-half", "short", QUICK)
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
"""What needs no OOD image; what a network cannot feed is left out."""
TUNED = ("odin", "mahalanobis")
RIVALS = {
    "deconf-c": "generalized-odin",
    "deconf-i": "generalized-odin",
    "deconf-e": "generalized-odin",
    "isomax": "isomax",
}
FOLDS = 5
FIXED = ("--scale", "32", "--decay-head")
"""The fixed scale that does best on the development sets beside Fashion-MNIST."""
LONGER = ("--epochs", "30")
"""What it takes to come to 90 % on CIFAR-10: does more training change who is ahead?"""


WORK, KEPT = Path("runs/study"), Path("study")
"""Where networks, grid_scores and whole results lie while the study runs, and the small copy of the results that stays."""


def chain_for(id_name: str, out: Path = WORK) -> Reproduction:
    """Where the study's networks and results are."""
    scale = laptop_settings().replace(
        name="study",
        networks=(NETWORKS[id_name],),
        ids=(id_name,),
        seeds=(0,),
        near="tin-resize",
        hidden=128,
        frame_free=sets_of(id_name),
        shown=("tin-resize", "svhn"),
        scales=(4.0, 8.0, 16.0, 32.0, 64.0, 128.0),
        evaluation=("--images", "1000", "--fit-images", "10000"),
    )
    return Reproduction(scale, out, WORK / "networks")


def sets_of(id_name: str) -> tuple[str, ...]:
    """All OOD sets beside an ID set, without the controls."""
    return (*DEVELOPMENT, *REPORTED[id_name])


def main_runs(id_name: str, seed: int) -> tuple[TrainingRun, TrainingRun]:
    """The standard and the cosine network of a seed."""
    standard, cosine = (TrainingRun(NETWORKS[id_name], id_name, seed, head) for head in ("linear", "cosine"))
    return standard, cosine


def longer_runs() -> tuple[TrainingRun, TrainingRun]:
    """The same pair with more than twice the training, one seed."""
    standard, cosine = (TrainingRun(COLOUR, "cifar10", 0, head, LONGER) for head in ("linear", "cosine"))
    return standard, cosine


def all_steps() -> Iterator[tuple[Command, Sequence[Command]]]:
    """(a step, the trainings that it needs)."""
    yield from _pair("cifar10", 0)
    for seed in SEEDS:
        yield from _pair("fashion-mnist", seed)
    for seed in SEEDS[1:]:
        yield from _pair("cifar10", seed)
    for seed in SEEDS:
        yield from _tuned("fashion-mnist", seed)
    yield from _tuned("cifar10", 0)
    for id_name in ("fashion-mnist", "cifar10"):
        yield from _together(id_name)
        yield from _untuned(id_name)
    yield from _variants("fashion-mnist")
    yield from _rivals("fashion-mnist")
    yield from _longer()
    yield from _leave_out("fashion-mnist")
    yield from _evaluated([TrainingRun(COLOUR, "cifar10", 0, "cosine", FIXED)], FREE)
    for seed in SEEDS[1:]:
        yield from _tuned("cifar10", seed)
    yield from _pair("cifar100", 0)
    yield from _evaluated([TrainingRun(DENSE, "cifar10", 0, head) for head in ("linear", "cosine")], FREE)
    for id_name in ("fashion-mnist", "cifar10"):
        yield from _tuned(id_name, 0, "cosine")
    yield from _rivals("cifar10")


def _evaluated(runs: Sequence[TrainingRun], detectors: Sequence[str]) -> Iterator[tuple[Command, Sequence[Command]]]:
    """Train some networks; give each the scores that need no OOD image; measure its accuracy on all test images."""
    for run in runs:
        chain = chain_for(run.id)
        train = chain.train(run)
        yield train, ()
        yield chain.evaluate([run], (*sets_of(run.id), *CONTROLS), detectors, tune=False), (train,)
        yield _accuracy([run])


def _longer() -> Iterator[tuple[Command, Sequence[Command]]]:
    """The same for the pair that trained longer, whose label has to say so: its settings are those of the usual pair."""
    usual = chain_for("cifar10")
    for run in longer_runs():
        label = ("--label", f"{run.trained.network} {run.head} {LONGER[1]} epochs")
        chain, whole = (
            replace(usual, scale=usual.scale.replace(evaluation=(*words, *label)))
            for words in (usual.scale.evaluation, ())
        )
        train = usual.train(run)
        yield train, ()
        yield chain.evaluate([run], sets_of(run.id), (*FREE, "mahalanobis"), tune=False), (train,)
        yield whole.evaluate([run], ("letters",), ("max-softmax",), tune=False), (train,)


def _pair(id_name: str, seed: int) -> Iterator[tuple[Command, Sequence[Command]]]:
    yield from _evaluated(main_runs(id_name, seed), FREE)


def _tuned(id_name: str, seed: int, head: str = "linear") -> Iterator[tuple[Command, Sequence[Command]]]:
    """What is tuned on OOD images, by both protocols."""
    chain = chain_for(id_name)
    run = TrainingRun(NETWORKS[id_name], id_name, seed, head)
    yield chain.evaluate([run], sets_of(id_name), TUNED, "both"), (chain.train(run),)


def _untuned(id_name: str) -> Iterator[tuple[Command, Sequence[Command]]]:
    """Mahalanobis as it comes: no perturbation, all layers alike."""
    chain = chain_for(id_name)
    for run in (run for seed in SEEDS for run in main_runs(id_name, seed)):
        yield chain.evaluate([run], sets_of(id_name), ("mahalanobis",), tune=False), (chain.train(run),)


def _accuracy(runs: Sequence[TrainingRun], together: str = "single") -> tuple[Command, Sequence[Command]]:
    """A network on all ID test images; an OOD set has to be named, and letters are in no table."""
    chain = chain_for(runs[0].id)
    whole = replace(chain, scale=chain.scale.replace(evaluation=()))
    detector = {"ensemble": "cosine-ensemble", "leave-out": "leave-out"}.get(together, "max-softmax")
    needs = [chain.train(run) for run in runs]
    return whole.evaluate(runs, ("letters",), (detector,), tune=False, together=together), needs


def _together(id_name: str) -> Iterator[tuple[Command, Sequence[Command]]]:
    """An ensemble of the three cosine networks; a standard network's classes with a cosine network's score."""
    chain = chain_for(id_name)
    cosine = [main_runs(id_name, seed)[1] for seed in SEEDS]
    needs = [chain.train(run) for run in cosine]
    yield chain.evaluate(cosine, sets_of(id_name), ("cosine-ensemble",), tune=False, together="ensemble"), needs
    yield _accuracy(cosine, "ensemble")
    for seed in SEEDS:
        pair = main_runs(id_name, seed)
        needs = [chain.train(run) for run in pair]
        yield chain.evaluate(pair, sets_of(id_name), ("cosine",), tune=False, together="paired"), needs
        yield _accuracy(pair, "paired")


def _variants(id_name: str) -> Iterator[tuple[Command, Sequence[Command]]]:
    """The ten rows of the ablation and the fixed scales."""
    chain = chain_for(id_name)
    rows = ablation_rows(NETWORKS[id_name], id_name, 0, chain.scale.hidden).values()
    scales = [run for runs in sweep(chain).values() for run in runs]
    for run in dict.fromkeys((*rows, *scales)):
        yield from _evaluated([run], ("max-softmax",) if run.head == "linear" else ("cosine", "max-softmax"))


def _rivals(id_name: str) -> Iterator[tuple[Command, Sequence[Command]]]:
    """Other heads that need no OOD image, by the same recipe."""
    for head, detector in RIVALS.items():
        yield from _evaluated([TrainingRun(NETWORKS[id_name], id_name, 0, head)], (detector, "max-softmax"))


def _leave_out(id_name: str) -> Iterator[tuple[Command, Sequence[Command]]]:
    """Networks to each of which some of the classes are foreign."""
    chain = chain_for(id_name)
    runs = [TrainingRun(NETWORKS[id_name], id_name, k, "linear", ("--leave-out", f"{k}/{FOLDS}")) for k in range(FOLDS)]
    needs = [chain.train(run) for run in runs]
    for train in needs:
        yield train, ()
    yield chain.evaluate(runs, sets_of(id_name), ("leave-out",), tune=False, together="leave-out"), needs
    yield _accuracy(runs, "leave-out")
