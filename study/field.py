"""The claims at the accuracy of the field: ``convnet-256`` by the recipe ``fast``, every head, and every score.

    python -m study.field list             # what is trained and judged, and what is left
    python -m study.field train [NAME]     # the next training, or a named one; it resumes
    python -m study.field judge            # every trained network that has no rows yet

Networks and features are kept in runs/study, rows in study/second/results/field, as those of the second study.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from offaxis import open_network
from offaxis.options import TrainOptions
from study.second import store
from study.second.features import cifar_features, head_of
from study.second.judge import judge, record
from study.second.scratch import NETWORKS, Training, train_one
from study.second.sets import SEEDS

STEP = "field"
RIVALS = ("logitnorm", "t2fnorm", "isomax", "deconf-c")


@dataclass(frozen=True)
class FieldTraining(Training):
    """One network of this study; its rows are apart from those of the smaller networks."""

    @property
    def judged(self) -> bool:
        """Whether the store has its rows."""
        return tuple(self.key[k] for k in store.KEY) in store.networks(STEP)


def trainings() -> Iterator[FieldTraining]:
    """Yield every training, in the order in which they should be done while time lasts."""
    for seed in SEEDS:
        yield from (training("cifar10", head, seed) for head in ("linear", "cosine"))
    for seed in SEEDS:
        yield from (training("cifar10", head, seed) for head in RIVALS)
    for seed in SEEDS:
        yield from (training("cifar100", head, seed) for head in ("linear", "cosine"))


def training(id_name: str, head: str, seed: int) -> FieldTraining:
    """Return a training by the recipe ``fast``, with its usual network."""
    return FieldTraining(TrainOptions(id=id_name, head=head, recipe="fast", seed=seed, precision="bf16-mixed"))


def judge_one(each: FieldTraining) -> None:
    """Compute the rows of a trained network."""
    opened = open_network(NETWORKS / each.name)
    record(STEP, each.key, judge(head_of(opened), *cifar_features(opened, each.name, each.run.id)))


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
            train_one(each)
            return


if __name__ == "__main__":
    main()
