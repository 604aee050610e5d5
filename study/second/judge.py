"""Every score that reads the features and logits of a network, computed on features that are in memory.

A backbone is run once over each set; what is judged is then a head on those features. ODIN and others that read images are
no part of it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from offaxis.detectors import Detector, make_detectors
from offaxis.detectors.base import compatible_detectors, fit_all, score_all
from offaxis.heads import Head
from offaxis.metrics import all_metrics
from offaxis.networks import Classifier
from study.second import store
from study.second.store import Row

DETECTORS = (
    "cosine",
    "two-cosines",
    "mean-cosine",
    "combined",
    "max-softmax",
    "max-logit",
    "energy",
    "gen",
    "knn",
    "vim",
    "relative-mahalanobis",
    "mahalanobis++",
    "relative-mahalanobis++",
    "mahalanobis++:shrinkage=True",
    "relative-mahalanobis++:shrinkage=True",
    "react",
    "ash",
    "scale",
    "fdbd",
    "nci",
    "nnguide",
    "neco",
    "weiper-kld",
    "core",
    "ora",
    "isomax",
    "generalized-odin:perturb=False",
)
"""Those that a head cannot feed are left out."""
HEAD_FREE = (
    "mean-cosine",
    "knn",
    "relative-mahalanobis",
    "mahalanobis++",
    "relative-mahalanobis++",
    "mahalanobis++:shrinkage=True",
    "relative-mahalanobis++:shrinkage=True",
)
"""Those that read the features alone: on frozen features the same whatever the head."""
BATCH = 512


class Images(NamedTuple):
    """A set of images as a backbone sees them: features (N, d) and, where known, labels (N,)."""

    features: Tensor
    labels: Tensor | None = None

    def of_classes(self, classes: Sequence[int]) -> "Images":
        """Return the images of some classes, which get the numbers from 0 on in the order given."""
        assert self.labels is not None
        numbers = torch.full((int(self.labels.max()) + 1,), -1)
        for number, each in enumerate(classes):
            if each < len(numbers):
                numbers[each] = number
        new = numbers[self.labels]
        return Images(self.features[new >= 0], new[new >= 0])


def on_features(head: Head) -> Classifier:
    """Return a network whose images are features (N, d, 1, 1)."""
    return Classifier(nn.Flatten(), head).eval()


def _batches(images: Images) -> list[tuple[Tensor, Tensor]]:
    labels = torch.zeros(len(images.features), dtype=torch.long) if images.labels is None else images.labels
    parts = zip(images.features.split(BATCH), labels.split(BATCH), strict=True)
    return [(features[:, :, None, None], own) for features, own in parts]


def fitted(head: Head, training: Images, names: Sequence[str] = DETECTORS) -> list[Detector]:
    """Return those detectors that the head can feed, fitted on training features."""
    network = on_features(head)
    wanted = [d for d in names if d != "isomax" or type(head).__name__ == "IsoMaxHead"]
    wanted = [d for d in wanted if not d.startswith("generalized") or type(head).__name__ == "DeConfHead"]
    able, _ = compatible_detectors(make_detectors(wanted, network), network, training.features[:4, :, None, None])
    fit_all(network, _batches(training), able)
    return able


def scores_of(head: Head, detectors: Sequence[Detector], images: Images) -> dict[str, NDArray[np.float64]]:
    """Compute every detector's scores (N,), larger = more OOD."""
    values = score_all(on_features(head), _batches(images), detectors)
    names = [d.name + (" shrunk" if getattr(d, "shrinkage", False) else "") for d in detectors]
    return {name: v.double().numpy() for name, v in zip(names, values, strict=True)}


@torch.no_grad()
def accuracy(head: Head, images: Images) -> float:
    """Compute the head's accuracy in [0, 1]."""
    assert images.labels is not None
    head.eval()
    return float((head(images.features).argmax(1) == images.labels).double().mean())


class Judged(NamedTuple):
    """What a head is worth: the rows of the store, and every score, ``scores[set][detector]``; ``id`` are the test images."""

    rows: list[Row]
    scores: dict[str, dict[str, NDArray[np.float64]]]


def judge(
    head: Head, training: Images, test: Images, ood: Mapping[str, Images], names: Sequence[str] = DETECTORS
) -> Judged:
    """Judge a head by every detector and OOD set: a row for each, and one with the accuracy."""
    detectors = fitted(head, training, names)
    scores = {"id": scores_of(head, detectors, test)}
    rows: list[Row] = [{"accuracy": round(accuracy(head, test), 5), "id_images": len(test.features)}]
    for name, images in ood.items():
        scores[name] = scores_of(head, detectors, images)
        for detector, values in scores[name].items():
            metrics = {k: round(v, 5) for k, v in all_metrics(scores["id"][detector], values).items()}
            rows.append({"detector": detector, "ood": name, **metrics, "ood_images": len(images.features)})
    return Judged(rows, scores)


def record(step: str, network: Mapping[str, object], judged: Judged) -> None:
    """Put what a network is worth into the store."""
    store.replace(step, network, judged.rows)
    store.keep_scores(step, network, judged.scores)
