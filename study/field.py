"""The claims at the accuracy of the field: ``convnet-256`` by the recipe ``fast``, every head, and every score.

    python -m study.field list             # what is trained and judged, and what is left, in the order of its worth
    python -m study.field train [NAME]     # the next training, or a named one; it resumes
    python -m study.field judge            # every trained network that has no rows yet, and what is tuned or combined

Networks and features are kept in runs/study, rows in study/second/results/field and field-tuned, as those of the second study;
``python -m study.page`` puts them into study/report/field.md. What has not run stands there as not run.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from offaxis import open_network
from offaxis.evaluation import Result, Store
from offaxis.evaluation.evaluating import evaluate_by_options
from offaxis.options import EvaluateOptions, Kind, ProtocolName, TrainOptions
from offaxis.paper.settings import ablation_rows
from offaxis.paper.settings import training as papers_training
from study.second import store
from study.second.features import WORK, cifar_features, head_of
from study.second.judge import judge, record
from study.second.scratch import NETWORKS, Training, train_one
from study.second.sets import SEEDS

STEP, TUNED_STEP = "field", "field-tuned"
RIVALS = ("logitnorm", "t2fnorm", "isomax", "deconf-c")
MARGINS = ("l2-softmax", "sphereface", "cosface", "arcface")
"""Heads of face recognition that bound or separate the features."""
ABLATION_SEEDS = (0, 1)
SCALES = (8.0, 16.0, 32.0, 64.0, 128.0)
MEMBERS = 5
STAND_INS = {"dtd": "textures, for Food-101", "scenes": "scenes, for LSUN"}
"""Sets that the paper does not have -> what they stand for."""
PAPERS_SETS = ("tin-crop-free", "tin-resize", "svhn", *STAND_INS)
FAST = TrainOptions(network="convnet-256", recipe="fast", precision="bf16-mixed")
COMPARED = (
    TrainOptions(network="wrn-10-4-half", recipe="short", precision="bf16-mixed"),
    TrainOptions(network="wrn-10-4-half", recipe="laptop", precision="bf16-mixed"),
)
"""Other recipes, for accuracy against time."""


@dataclass(frozen=True)
class FieldTraining(Training):
    """One network of this study; its rows are apart from those of the smaller networks."""

    @property
    def name(self) -> str:
        """The name of its folder, which says another recipe."""
        return super().name + ("" if self.run.recipe == FAST.recipe else f"-{self.run.recipe}")

    @property
    def key(self) -> dict[str, object]:
        """What tells its rows from others: recipes that are compared by time are named."""
        named = "" if self.run.recipe == FAST.recipe else f", {self.run.recipe}"
        return {**super().key, "network": f"{self.run.architecture}{named}"}

    @property
    def judged(self) -> bool:
        """Whether the store has its rows."""
        return tuple(self.key[k] for k in store.KEY) in store.networks(STEP)


@dataclass(frozen=True)
class Evaluated:
    """Detectors that read images or several networks, through ``evaluate``, which resumes.

    Attributes:
        members: the trainings; several are one network.
        head: what its rows call it.
        detectors: the detectors.
        kind: how several networks are combined.
        protocol: how detectors are tuned; None tunes none.
    """

    members: tuple[FieldTraining, ...]
    head: str
    detectors: tuple[str, ...]
    kind: Kind = "single"
    protocol: ProtocolName | None = None

    @property
    def key(self) -> dict[str, object]:
        """What tells its rows from others."""
        return {**self.members[0].key, "head": self.head}

    @property
    def trained(self) -> bool:
        """Whether all members are."""
        return all(each.trained for each in self.members)

    @property
    def judged(self) -> bool:
        """Whether the store has its rows."""
        return tuple(self.key[k] for k in store.KEY) in store.networks(TUNED_STEP)


def trainings() -> Iterator[FieldTraining]:
    """Yield every training once, in the order in which they should be done while time lasts."""
    seen = set()
    for each in _trainings():
        if each.name not in seen:
            seen.add(each.name)
            yield each


def _trainings() -> Iterator[FieldTraining]:
    for seed in SEEDS:
        yield from (training("cifar10", head, seed) for head in ("linear", "cosine"))
    for seed in SEEDS:
        yield from (training("cifar10", head, seed) for head in RIVALS)
    for seed in SEEDS:
        yield from (training("cifar100", head, seed) for head in ("linear", "cosine"))
    for seed in ABLATION_SEEDS:
        yield from ablation(seed).values()
        yield from (each for each in scales(seed).values())
    yield from (each for team in teams() for each in team.members)
    for seed in SEEDS:
        yield from (training("cifar10", head, seed) for head in MARGINS)
    yield from (FieldTraining(replace(run, id="cifar10", head="linear", seed=0)) for run in COMPARED)


def training(id_name: str, head: str, seed: int) -> FieldTraining:
    """Return a training by the recipe ``fast``, with its usual network."""
    return FieldTraining(TrainOptions(id=id_name, head=head, recipe="fast", seed=seed, precision="bf16-mixed"))


def ablation(seed: int) -> dict[str, FieldTraining]:
    """Return the trainings of the paper's ten rows, as ``row-1`` and so on."""
    return {name: _usual(run) for name, run in ablation_rows(FAST, "cifar10", seed, hidden=128).items()}


def _usual(run: TrainOptions) -> FieldTraining:
    """Return a training whose scale starts where it does by default, as those of the heads, which it may be one of."""
    return FieldTraining(replace(run, network=None, start=None))


def scales(seed: int) -> dict[float | None, FieldTraining]:
    """Return the trainings with a fixed scale, and with the predicted one under None."""
    every = (*SCALES, None)
    return {
        s: _usual(papers_training(FAST, "cifar10", seed, "cosine", scale=s, decay_head=s is not None)) for s in every
    }


def teams() -> tuple[Evaluated, Evaluated]:
    """Return the ensemble of five cosines and the leave-out ensemble of five networks."""
    cosine = tuple(training("cifar10", "cosine", seed) for seed in range(MEMBERS))
    parts = (papers_training(FAST, "cifar10", n, "linear", leave_out=(n, MEMBERS)) for n in range(MEMBERS))
    return (
        Evaluated(cosine, "five cosines", ("cosine-ensemble",), "ensemble"),
        Evaluated(tuple(map(_usual, parts)), "leave-out of five", ("leave-out",), "leave-out"),
    )


def evaluations() -> Iterator[Evaluated]:
    """Yield what the paper's tables need beside the rows of single networks."""
    for seed in SEEDS:
        for id_name in ("cifar10", "cifar100"):
            detectors = ("max-softmax", "odin", "mahalanobis")
            yield Evaluated((training(id_name, "linear", seed),), "linear", detectors, protocol="both")
            yield Evaluated((training(id_name, "cosine", seed),), "cosine", ("cosine",), protocol="both")
    yield from teams()


def train_measured(each: FieldTraining, run: Callable[[FieldTraining], None] = train_one) -> None:
    """Train a network, and add the core-minutes and the peak memory of this process to its folder."""
    start = time.process_time()
    try:
        run(each)
    finally:
        minutes = (time.process_time() - start) / 60
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # kilobytes on Linux
        with (NETWORKS / each.name / "cost.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"core_minutes": round(minutes, 2), "peak_mb": round(peak)}) + "\n")


def cost_of(each: FieldTraining) -> dict[str, float]:
    """Return the core-minutes and peak memory of a training over all its calls; empty where they were not measured."""
    path = NETWORKS / each.name / "cost.jsonl"
    calls = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    if not calls:
        return {}
    total = round(sum(call["core_minutes"] for call in calls), 2)
    return {"core_minutes": total, "peak_mb": max(call["peak_mb"] for call in calls)}


def judge_one(each: FieldTraining) -> None:
    """Compute the rows of a trained network."""
    opened = open_network(NETWORKS / each.name)
    judged = judge(head_of(opened), *cifar_features(opened, each.name, each.run.id))
    judged.rows[0].update(cost_of(each))
    record(STEP, each.key, judged)


def evaluate_one(each: Evaluated) -> None:
    """Tune and test detectors on networks, and put the rows into the store."""
    folder = WORK / "field"
    options = EvaluateOptions(
        networks=tuple(str(NETWORKS / one.name) for one in each.members),
        out=folder,
        id=each.members[0].run.id,
        ood=PAPERS_SETS,
        detectors=each.detectors,
        protocol=each.protocol or "one-vs-one",
        tune=each.protocol is not None,
        kind=each.kind,
        images=2000,
        fit_images=10000,
    )
    results = evaluate_by_options(options, ("python", "-m", "study.field", "judge"), print)
    [network] = [n for n in Store(folder).networks() if n.key == results[0].weights]
    rows: list[store.Row] = [{"accuracy": round(network.accuracy, 5), "id_images": results[0].images[0]}]
    store.replace(TUNED_STEP, each.key, [*rows, *map(row_of, results)])


def row_of(result: Result) -> store.Row:
    """Return the row of a result; ``assumed`` is the set that it was tuned on, or None."""
    about = {"detector": result.detector, "ood": result.ood, "assumed": result.assumed, "state": result.state}
    return {**about, **{k: round(v, 5) for k, v in result.metrics.items()}, "ood_images": result.images[1]}


def main() -> None:
    """Train or judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("list", "train", "judge"))
    parser.add_argument("name", nargs="?")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for each in trainings():
        if options.command == "list":
            print(f"{'judged' if each.judged else 'trained' if each.trained else 'left':8s} {each.name}")
        elif options.command == "judge" and each.trained and not each.judged:
            print(each.name, flush=True)
            judge_one(each)
        elif options.command == "train" and not each.trained and options.name in (None, each.name):
            print(each.name, flush=True)
            train_measured(each)
            return
    for one in evaluations():
        name = f"{', '.join(one.detectors)} on {one.head}, {one.key['id']}, seed {one.key['seed']}"
        if options.command == "list":
            print(f"{'judged' if one.judged else 'left':8s} {name}")
        elif options.command == "judge" and one.trained and not one.judged:
            print(name, flush=True)
            evaluate_one(one)


if __name__ == "__main__":
    main()
