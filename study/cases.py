"""The cases on which scores are compared for regret: an ID set, a network's features and head, and what stands beside them.

Development cases alone may guide a decision: the development sets and choices of unseen classes of study/second/sets.py, and
for texts the choices 101 and 102 and German questions. Everything else is reported.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from offaxis import open_network
from offaxis.heads import Head
from offaxis.networks.opened import OpenedNetwork
from offaxis.training import load_run, read_run
from study.second.features import WORK, cifar_features, head_of
from study.second.judge import Images
from study.second.photos import chosen_rates, load, ood_images, trained_head
from study.second.published import NETWORKS as PUBLISHED
from study.second.sets import (
    CLASSES,
    DEVELOPMENT,
    REPORTED,
    is_development,
    unseen_classes,
)

TEXT_CLASSES, TEXT_UNSEEN, TEXT_RATE = 14, 4, 1e-2
NETWORKS = WORK / "networks"
MOST = (10_000, 2000, 1000)
"""Training, test and OOD images of a network that was trained or published: enough for AUROC to a point."""


class Material(NamedTuple):
    """What scores are computed from: a head, the features it reads of training and test images, and of each OOD set."""

    head: Head
    training: Images
    test: Images
    ood: Mapping[str, Images]


@dataclass(frozen=True)
class Case:
    """A network, or a head on frozen features, and a choice of unseen classes.

    Attributes:
        id: the ID set.
        network: where the features come from.
        head: the kind of head; ``keep`` for a network as it was published.
        unseen: the choice of classes that were left out of training; None for none.
        make: computes the features and the head.
    """

    id: str
    network: str
    head: str
    unseen: int | None
    make: Callable[[], Material]

    @property
    def name(self) -> str:
        """The name of its file."""
        choice = "" if self.unseen is None else f"-unseen{self.unseen}"
        return f"{self.id}-{self.network}-{self.head}{choice}".replace(" ", "-")

    def is_development(self, ood: str) -> bool:
        """Tell whether an OOD set beside it may guide decisions."""
        return is_development_place(self.id, ood)


def is_development_place(id_name: str, ood: str) -> bool:
    """Tell whether an OOD set beside an ID set may guide decisions; of texts German questions may, English ones not."""
    return ood == "german" or (ood != "english" and is_development(id_name, ood))


def photo_cases(folder: Path, choices: Mapping[str, tuple[int | None, ...]], kinds: tuple[str, ...]) -> Iterator[Case]:
    """Yield heads on frozen photographs."""
    for id_name in ("fruit", "clothing"):
        for choice in choices[id_name]:
            for kind in kinds:
                yield Case(
                    id_name, "efficientnet-lite0 frozen", kind, choice, partial(_photos, folder, id_name, choice, kind)
                )


def _photos(folder: Path, id_name: str, choice: int | None, kind: str) -> Material:
    training, test = load(folder, f"{id_name}-train"), load(folder, f"{id_name}-test")
    classes = CLASSES[id_name]
    if choice is None:
        ood = {name: ood_images(folder, name) for name in (*DEVELOPMENT[id_name], *REPORTED[id_name])}
    else:
        unseen = unseen_classes(id_name, choice)
        known = [c for c in range(classes) if c not in unseen]
        classes, ood = len(known), {f"unseen-{choice}": test.of_classes(unseen)}
        training, test = training.of_classes(known), test.of_classes(known)
    rate = chosen_rates(folder)[f"{id_name} {kind}"]
    return Material(trained_head(kind, training, classes=classes, seed=0, rate=rate), training, test, ood)


def text_cases(folder: Path, choices: tuple[int, ...], kinds: tuple[str, ...]) -> Iterator[Case]:
    """Yield heads on sentence embeddings: sections that were left out, German and English questions."""
    for choice in choices:
        for kind in kinds:
            yield Case("text", "minilm frozen", kind, choice, partial(_texts, folder, choice, kind))


def _texts(folder: Path, choice: int, kind: str) -> Material:
    training, test = load(folder, "train"), load(folder, "test")
    unseen = random.Random(f"unseen text {choice}").sample(range(TEXT_CLASSES), TEXT_UNSEEN)
    known = [c for c in range(TEXT_CLASSES) if c not in unseen]
    far = {name: Images(load(folder, name).features) for name in ("german", "english")}
    ood = {f"unseen-{choice}": test.of_classes(unseen), **far}
    training, test = training.of_classes(known), test.of_classes(known)
    return Material(trained_head(kind, training, classes=len(known), seed=0, rate=TEXT_RATE), training, test, ood)


def network_cases(weights: Path | None) -> Iterator[Case]:
    """Yield networks that were published, and those of runs/study/networks: ``ARCHITECTURE-HEAD-ID-seed0``."""

    def made(name: str, id_name: str, opened: Callable[[], OpenedNetwork]) -> Material:
        network = opened()
        training, test, ood = cifar_features(network, f"regret/{name}", id_name, MOST)
        return Material(head_of(network), training, test, ood)

    if weights is not None:
        name = "resnet20-cifar"
        opened = partial(open_network, name, weights=weights / PUBLISHED[name], head="keep")
        yield Case("cifar10", name, "keep", None, partial(made, name, "cifar10", opened))
    for folder in sorted(NETWORKS.glob("*-seed0")):
        if not (folder / "model.safetensors").exists():
            continue
        settings = read_run(folder)["settings"]
        id_name, head = str(settings["data"]["name"]), str(settings["head"]["name"])
        name = folder.name.removesuffix("-seed0").removesuffix(f"-{id_name}").removesuffix(f"-{head}")
        kind = name.partition("-")[0]  # of vit-3-epochs
        into = f"{Path(__file__).parent / 'brief.py'}:{kind}" if settings["network"] is None else None
        yield Case(id_name, name, head, None, partial(made, folder.name, id_name, partial(_opened, folder, into)))


def _opened(folder: Path, into: str | None) -> OpenedNetwork:
    """Open the network of a run, perhaps one that a function makes."""
    return open_network(load_run(folder, into))
