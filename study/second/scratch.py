"""Trainings from scratch and what they are worth: every head, CIFAR-100, DenseNet-BC, more epochs, the ablation.

    python -m study.second.scratch list             # what is trained and judged, and what is left
    python -m study.second.scratch train [NAME]     # the next training, or a named one; it resumes
    python -m study.second.scratch train --precision 32-true     # on a processor without bf16
    python -m study.second.scratch judge [NAME]     # every trained network that has no rows yet, or a named one

The recipe is the first study's (study/steps.py), with its precision (bf16-mixed) unless another one is given, which the
network's row in the store says. Networks are kept in runs/study/networks.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

import torch
from lightning_fabric import Fabric

from offaxis import open_network
from offaxis.data import PUBLISHED, TensorSet, load_images
from offaxis.heads import HEADS
from offaxis.networks import by_name
from offaxis.options import Precision, Start, TrainOptions
from offaxis.paper.commands import variant_of
from offaxis.paper.settings import ablation_rows
from offaxis.training import read_run, train
from offaxis.training.recipe import recipe_of
from offaxis.training.record import RunFolder
from offaxis.training.start import head_arguments, train_by_options
from study.second import store
from study.second.features import WORK, cifar_features, head_of
from study.second.judge import Images, judge, record
from study.second.sets import CHOICES, CLASSES, SEEDS, unseen_classes
from study.steps import LONGER_EPOCHS, chain_for, name_of
from study.steps import NETWORKS as RECIPES_OF

STEP = "scratch"
NETWORKS = WORK / "networks"
FIRST: tuple[str, ...] = ("logitnorm", "cosine", "elogitnorm", "linear", "t2fnorm")
LAST: tuple[str, ...] = ("deconf-c", "isomax")
RIVAL = "isomax"
"""The rival where not all are trained: with the scores of their papers the best on the development sets beside CIFAR-10."""
PAIR: tuple[str, ...] = ("linear", "cosine-paper")
"""A standard network and the cosine network as `--recipe short` starts it, as in the first study."""
STARTS: dict[str, Start] = {"cosine": "sizes", "cosine-paper": "paper"}
"""Name of a cosine head in the store -> where its scale starts: at the default, or as in the paper."""


@dataclass(frozen=True)
class Training:
    """One network of the study.

    Attributes:
        run: how it is trained; with ``unseen``, on a part of the classes.
        unseen: the choice of classes that are left out; None for none.
    """

    run: TrainOptions
    unseen: int | None = None

    @property
    def name(self) -> str:
        """The name of its folder."""
        return name_of(self.run) + ("" if self.unseen is None else f"-unseen{self.unseen}")

    @property
    def trained(self) -> bool:
        """Whether it is trained."""
        return (NETWORKS / self.name / "model.safetensors").exists()

    @property
    def key(self) -> dict[str, object]:
        """What tells its rows from others: the network with more epochs than the recipe's, the head with what is special."""
        run = self.run
        head = next((name for name, start in STARTS.items() if start == run.start), run.head)
        special, longer = variant_of(replace(run, start=None)), run.epochs == LONGER_EPOCHS
        network = f"{run.architecture}, {LONGER_EPOCHS} epochs" if longer else run.architecture
        named = {"id": run.id, "network": network, "head": f"{head} {special}".strip()}
        return {**named, "seed": run.seed, "unseen": self.unseen}

    @property
    def judged(self) -> bool:
        """Whether the store has its rows."""
        return tuple(self.key[k] for k in store.KEY) in store.networks(STEP)


def training(id_name: str, head: str, seed: int, architecture: str | None = None, *, longer: bool = False) -> Training:
    """Return a training by the first study's recipe, or with more epochs."""
    recipe = RECIPES_OF[id_name]
    run = replace(
        recipe,
        id=id_name,
        network=architecture or recipe.network,
        head="cosine" if head in STARTS else head,
        start=STARTS.get(head),
        seed=seed,
        epochs=LONGER_EPOCHS if longer else recipe.epochs,
    )
    return Training(run)


def trainings() -> Iterator[Training]:
    """Yield every training, in the order in which they should be done while time lasts."""
    for seed in SEEDS:
        for head in STARTS:
            yield training("fashion-mnist", head, seed)
    for head in ("cosine-paper", *FIRST, *LAST):
        yield training("cifar10", head, 0)
    for head in (*PAIR, "logitnorm"):
        yield from without_classes(head, CHOICES["cifar10"])
    for seed in SEEDS[1:]:
        for head in ("cosine-paper", *FIRST, *LAST):
            yield training("cifar10", head, seed)
    for id_name, architecture in (("cifar100", "wrn-10-4-half"), ("cifar10", "densenet-22-12-half")):
        for seed in SEEDS[1:]:
            for head in PAIR:
                yield training(id_name, head, seed, architecture)
    yield from without_classes(RIVAL, CHOICES["cifar10"])
    for seed in SEEDS:
        for head in (*FIRST, *LAST):
            if head not in STARTS:
                yield training("fashion-mnist", head, seed)
    for seed in SEEDS:
        for head in (*PAIR, RIVAL):
            yield training("cifar10", head, seed, longer=True)
    yield from (Training(run) for run in ablation("cifar10") if variant_of(run))


def without_classes(head: str, choices: Sequence[int]) -> Iterator[Training]:
    """Yield the trainings of a head on CIFAR-10 without the classes that each choice leaves out."""
    yield from (Training(training("cifar10", head, 0).run, choice) for choice in choices)


def ablation(id_name: str) -> list[TrainOptions]:
    """Return the trainings of the ablation's ten rows; two of them, the pair, are trained anyway."""
    return list(ablation_rows(RECIPES_OF[id_name], id_name, 0, chain_for(id_name).scale.hidden).values())


def train_one(each: Training) -> None:
    """Train a network, or continue its training."""
    out, run = NETWORKS / each.name, each.run
    words = ["offaxis", "train", *run.words(), "--resume", "--out", str(out)]
    if each.unseen is None:
        train_by_options(replace(run, out=out, resume=True, device="cpu", quiet=True), words, print)
        return
    images = load_images(run.id, "train")
    unseen = unseen_classes(run.id, each.unseen)
    known = [c for c in range(CLASSES[run.id]) if c not in unseen]
    part = Images(images.batch(torch.arange(len(images))), images.labels).of_classes(known)
    assert part.labels is not None
    data = TensorSet(
        f"{run.id} without {len(unseen)} classes", part.features, part.labels, tuple(images.classes[c] for c in known)
    )
    torch.manual_seed(run.seed)
    network = by_name(run.architecture)(
        num_classes=len(known), in_channels=images.shape[0], head=partial(HEADS[run.head], **head_arguments(run))
    )
    own = ["python", "-m", "study.second.scratch", "train", each.name]
    train(
        network,
        data,
        recipe_of(run, images.shape),
        seed=run.seed,
        out=RunFolder(out, command=own),
        resume=True,
        quiet=True,
        normalise=PUBLISHED.get(run.id),
        device=Fabric(accelerator="cpu", devices=1, precision=run.precision),
    )


def judge_one(each: Training) -> None:
    """Compute the rows of a trained network."""
    subject = open_network(NETWORKS / each.name)
    training_images, test, ood = cifar_features(subject, each.name, each.run.id)
    if each.unseen is not None:
        unseen = unseen_classes(each.run.id, each.unseen)
        known = [c for c in range(CLASSES[each.run.id]) if c not in unseen]
        ood = {f"unseen-{each.unseen}": test.of_classes(unseen), **ood}
        training_images, test = training_images.of_classes(known), test.of_classes(known)
    judged = judge(head_of(subject), training_images, test, ood)
    judged.rows[0]["precision"] = read_run(NETWORKS / each.name)["settings"]["precision"]
    record(STEP, each.key, judged)


def main() -> None:
    """Train or judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("list", "train", "judge"))
    parser.add_argument("name", nargs="?")
    parser.add_argument("--precision", choices=get_args(Precision), help="of the training; the recipe's by default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for each in trainings():
        if options.command == "list":
            print(f"{'judged' if each.judged else 'trained' if each.trained else 'left':8s} {each.name}")
        elif options.command == "judge" and each.trained and not each.judged and options.name in (None, each.name):
            print(each.name, flush=True)
            judge_one(each)
        elif options.command == "train" and not each.trained and options.name in (None, each.name):
            print(each.name, flush=True)
            own = replace(each.run, precision=options.precision or each.run.precision)
            train_one(replace(each, run=own))
            return


if __name__ == "__main__":
    main()
