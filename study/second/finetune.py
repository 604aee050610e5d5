"""Published networks, fine-tuned: ResNet-20 and ResNet-56 with other heads, by one recipe chosen on held-out accuracy.

    python -m study.second.finetune list WEIGHTS
    python -m study.second.finetune choose WEIGHTS     # the next trial of a recipe: linear and cosine, 5,000 test images
    python -m study.second.finetune train WEIGHTS      # the next training by the chosen recipe, on all training images
    python -m study.second.finetune judge WEIGHTS      # every trained network that has no rows yet

A recipe is a learning rate, a number of epochs, and whether the last stage starts anew; a trial sees 15,000 images. It is
chosen by accuracy on half of the test images: the published weights have seen all training images (after a trial 98.9 % of
those that were left out of it are right), so none of these is held out. The cosine network is also trained by the best recipe
of the other kind (last stage kept or anew), with one seed. Trials are with ResNet-20, whose recipe ResNet-56 has
too. It resumes; trials are in study/second/results/finetune-recipes.json, rows in finetune beside it, networks in
runs/study/networks.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import nn

from offaxis import open_network
from offaxis.data import ImageSet, load_images
from offaxis.heads import CosineHead, make_head
from offaxis.networks import Classifier
from offaxis.networks.opened import OpenedNetwork
from offaxis.training import short, train
from study.second import store
from study.second.features import WORK, cifar_features, head_of
from study.second.judge import judge, record
from study.second.published import NETWORKS as PUBLISHED
from study.second.sets import SEEDS

STEP = "finetune"
NETWORKS = WORK / "networks"
TRIALS = store.RESULTS / "finetune-recipes.json"
HELD_OUT = 5000
TRIED = 15000
RIVALS = ("logitnorm", "t2fnorm", "elogitnorm")
NAME, DEEPER = "resnet20-cifar", "resnet56-cifar"
PAPER = "cosine-paper"
"""The cosine head with the paper's start of the scale."""
HEADS_AND_SEEDS = [
    *((head, SEEDS[0]) for head in ("linear", "cosine", PAPER)),
    *((head, seed) for seed in SEEDS[1:] for head in ("linear", "cosine")),
    *((head, SEEDS[0]) for head in RIVALS),
]
DEEPER_HEADS = ("linear", "cosine")
TRAININGS = len(HEADS_AND_SEEDS) + 1 + len(DEEPER_HEADS)
"""Each by the chosen recipe, one by the best of the other kind, and the deeper network."""


@dataclass(frozen=True)
class Setting:
    """How a network is fine-tuned.

    Attributes:
        rate: the largest learning rate.
        epochs: passes over the training images.
        anew: whether the last stage starts with new weights.
    """

    rate: float
    epochs: int
    anew: bool

    @property
    def name(self) -> str:
        """Its name in results."""
        return f"lr {self.rate:g}, {self.epochs} epochs" + (", last stage anew" if self.anew else "")


SETTINGS = [Setting(*each) for each in product((0.01, 0.05, 0.1), (2,), (False, True))]


def start(weights: Path, name: str, head: str, seed: int, anew: bool) -> OpenedNetwork:
    """Return a published network with a new head, and with a new last stage where it is wanted."""
    subject = open_network(name, weights=weights / PUBLISHED[name], head="keep")
    network = subject.network
    assert isinstance(network, Classifier)
    torch.manual_seed(seed)
    made = partial(CosineHead, start="paper") if head == PAPER else head
    network.head = make_head(made, network.head.in_features, network.num_classes)
    if anew:
        stage = network.backbone.get_submodule("layer3")
        for module in stage.modules():
            if isinstance(module, (nn.Conv2d, nn.BatchNorm2d)):
                module.reset_parameters()
    return subject


def fine_tune(
    weights: Path, head: str, seed: int, *, setting: Setting, data: ImageSet, out: Path,
    validation: ImageSet | None = None, name: str = NAME,
) -> float | None:  # fmt: skip
    """Fine-tune and return the accuracy on validation images after the last epoch."""
    subject = start(weights, name, head, seed, setting.anew)
    assert isinstance(subject.network, Classifier)
    recipe = short().replace(epochs=setting.epochs, learning_rate=setting.rate, batch_size=128, crop=4)
    done = train(
        subject.network, data, recipe, seed=seed, out=out, resume=True, device="cpu", normalise=subject.normalise,
        validation=validation, quiet=True,
    )  # fmt: skip
    accuracy: float | None = done.history[-1].get("validation_accuracy")
    return accuracy


def trials() -> dict[str, float]:
    """Return the held-out accuracies that are known, by ``HEAD: SETTING``."""
    known: dict[str, float] = json.loads(TRIALS.read_text(encoding="utf-8")) if TRIALS.exists() else {}
    return known


def missing_trials() -> Iterator[tuple[str, Setting]]:
    """Yield the trials that are left."""
    for setting in SETTINGS:
        for head in ("linear", "cosine"):
            if f"{head}: {setting.name}" not in trials():
                yield head, setting


def choose(weights: Path) -> None:
    """Run the next trial."""
    images, test = load_images("cifar10", "train"), load_images("cifar10", "test")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(7))
    for head, setting in missing_trials():
        out = NETWORKS / f"trial-{NAME}-{head}-{setting.name.replace(' ', '').replace(',', '-')}"
        part, held = images.subset(order[:TRIED]), test.subset(torch.arange(HELD_OUT))
        accuracy = fine_tune(weights, head, 100, setting=setting, data=part, out=out, validation=held)
        assert accuracy is not None
        store.RESULTS.mkdir(exist_ok=True)
        found = {**trials(), f"{head}: {setting.name}": round(accuracy, 4)}
        TRIALS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(head, asdict(setting), accuracy, flush=True)
        return


def chosen(anew: bool | None = None) -> Setting:
    """Return the setting with the highest held-out accuracy, mean of both heads, of all or of one kind."""
    assert not list(missing_trials()), "run `choose` until no trial is left"
    known = trials()
    settings = [s for s in SETTINGS if anew is None or s.anew == anew]
    return max(settings, key=lambda s: sum(known[f"{head}: {s.name}"] for head in ("linear", "cosine")))


def networks() -> list[tuple[str, str, int, Setting]]:
    """Return network, head, seed and setting of every training."""
    best = chosen()
    other = chosen(anew=not best.anew)
    every = [(NAME, head, seed, best) for head, seed in HEADS_AND_SEEDS]
    deeper = [(DEEPER, head, SEEDS[0], best) for head in DEEPER_HEADS]
    return [*every[:2], (NAME, "cosine", 0, other), *every[2:], *deeper]


def main() -> None:
    """List, choose, train or judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("list", "choose", "train", "judge"))
    parser.add_argument("weights", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.command == "choose":
        choose(options.weights)
        return
    if options.command == "list" and list(missing_trials()):
        print("\n".join(f"left     trial of {head}: {setting.name}" for head, setting in missing_trials()))
        return
    for name, head, seed, setting in networks():
        kind = f"{name} fine-tuned" + (", last stage anew" if setting.anew else "")
        key = {"id": "cifar10", "network": kind, "head": head, "seed": seed, "unseen": None}
        out = NETWORKS / f"{kind.replace(', ', '-').replace(' ', '-')}-{head}-seed{seed}"
        judged, trained = tuple(key[k] for k in store.KEY) in store.networks(STEP), (out / "model.safetensors").exists()
        if options.command == "list":
            print(f"{'judged' if judged else 'trained' if trained else 'left':8s} {out.name}, {setting.name}")
        elif options.command == "train" and not trained:
            data = load_images("cifar10", "train")
            fine_tune(options.weights, head, seed, setting=setting, data=data, out=out, name=name)
            return
        elif options.command == "judge" and trained and not judged:
            subject = open_network(out)
            record(STEP, key, judge(head_of(subject), *cifar_features(subject, out.name)))


if __name__ == "__main__":
    main()
