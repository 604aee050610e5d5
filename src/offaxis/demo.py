"""The main job on images that install with pip: train two networks on digits, show them strangers, compare."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from offaxis.data import GaussianNoise, ImageSet, TensorSet, UniformNoise
from offaxis.data.batches import Batches
from offaxis.data.embedded import digits, letters, photographs, scans, terrain
from offaxis.detectors import Cosine, Detector, MaxLogit, MaxSoftmax, TwoCosines, score_all
from offaxis.heads import CosineHead
from offaxis.metrics import auroc
from offaxis.networks import by_name
from offaxis.training import Recipe, Trained, train

NETWORK = "wrn-10-2-half"
RECIPE = Recipe(epochs=5, batch_size=32, crop=2, flip=False)
HEADS = {"linear": "standard", "cosine": "cosine"}
METHODS = {
    "standard": ("max-softmax", "standard network"),
    "cosine": ("cosine", "cosine network"),
    "two": ("two cosines", "cosine network"),
}
"""What the signs of familiarity are called, and whose they are."""

Scores = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Demo:
    """What the demo found.

    Attributes:
        known: the 1,000 digits that neither network was trained on.
        strangers: sets of images that are no digits.
        accuracy: of each network, by kind, one number a seed.
        auroc: of each of METHODS, by its key and by set of strangers, one number a seed.
        scores: of the first seed's networks, by kind and by set, larger = more out-of-distribution: max-softmax for the
            standard network, the cosine for the cosine network.
        largest: as ``scores``, but the values of the paper's histograms: the largest logit, the largest cosine.
    """

    known: TensorSet
    strangers: dict[str, ImageSet]
    accuracy: dict[str, list[float]]
    auroc: dict[str, dict[str, list[float]]]
    scores: dict[str, Scores]
    largest: dict[str, Scores]


def strangers(count: int = 1000) -> dict[str, ImageSet]:
    """Sets of images that are no digits, in grey and of the digits' size."""
    shape = (1, 28, 28)
    return {
        "photographs": photographs(count),
        "brain scans": scans(count),
        "terrain": terrain(count),
        "letters": letters(count),
        "Gaussian noise": GaussianNoise(count, shape),
        "uniform noise": UniformNoise(count, shape),
    }


def run_demo(seeds: int = 3, epochs: int = RECIPE.epochs, count: int = 1000, quiet: bool = False) -> Demo:
    """Train a standard and a cosine network for each seed and score every set with each.

    Args:
        seeds: how many networks of each kind.
        epochs: of each training.
        count: images in each set of strangers.
        quiet: show no progress.
    """
    training, known, others = digits("train"), digits("test"), strangers(count)
    sets: dict[str, ImageSet] = {"digits": known, **others}
    accuracy: dict[str, list[float]] = {kind: [] for kind in HEADS.values()}
    areas: dict[str, dict[str, list[float]]] = {method: {name: [] for name in others} for method in METHODS}
    scores: dict[str, Scores] = {}
    largest: dict[str, Scores] = {}
    for seed in range(seeds):
        for head, kind in HEADS.items():
            torch.manual_seed(seed)
            network = by_name(NETWORK)(num_classes=10, in_channels=1, head=head)
            title = f"{kind + ' network':16s} {seed + 1} of {seeds}"
            trained = train(network, training, RECIPE.but(epochs=epochs), seed=seed, title=title, quiet=quiet)
            detectors = _detectors(trained, training)
            found = {name: _score(trained, images, list(detectors.values())) for name, images in sets.items()}
            accuracy[kind].append(_accuracy(trained, known))
            for place, method in enumerate(detectors):
                if method in METHODS:
                    for name in others:
                        areas[method][name].append(auroc(found["digits"][place], found[name][place]))
            if seed == 0:
                scores[kind] = {name: each[0] for name, each in found.items()}
                largest[kind] = {name: -each[1] for name, each in found.items()}
    return Demo(known, others, accuracy, areas, scores, largest)


def _detectors(trained: Trained, training: TensorSet) -> dict[str, Detector]:
    """The network's usual sign of familiarity, the value of its histograms, and the two cosines where it has one."""
    if not isinstance(trained.classifier.head, CosineHead):
        return {"standard": MaxSoftmax(), "largest": MaxLogit()}
    two = TwoCosines().fit(trained.classifier, Batches(training, trained.normalise, 250))
    return {"cosine": Cosine(), "largest": Cosine(), "two": two}


def _score(trained: Trained, images: ImageSet, detectors: list[Detector]) -> list[NDArray[np.float32]]:
    batches = (trained.normalise(batch) for batch in images.batches(250))
    return [scores.numpy() for scores in score_all(trained.classifier, batches, detectors)]


def _accuracy(trained: Trained, images: TensorSet) -> float:
    assert images.labels is not None
    with torch.no_grad():
        predicted = torch.cat([trained.classifier(trained.normalise(b)).argmax(1) for b in images.batches(250)])
    return float((predicted == images.labels).float().mean())
