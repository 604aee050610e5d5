"""Which images lie in the wrong folder, and which classes are taken for each other? Confident learning on frozen features."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jinja2 import Environment, PackageLoader
from torch import Tensor
from torch.nn import functional as F

from offaxis.data import ImageSet, Normalise
from offaxis.data.decode import thumbnail_uri
from offaxis.files import replacing, write_text
from offaxis.networks.classifier import Classifier
from offaxis.training.features import extract_features, train_head, with_enough_epochs
from offaxis.training.recipe import frozen

FOLDS, STEPS = 5, 200
FEW = 12
"""Training images, below which a class is named."""
MOST_SHOWN, MOST_PICTURES, WIDEST = 8, 100, 40
"""Lines in the shell, images on the page, and classes of the widest matrix there."""


class Doubt(NamedTuple):
    """An image whose folder is doubtful.

    Attributes:
        path: its file.
        given: the class of its folder.
        like: the class that it looks like.
        probability: of that class, by networks that have not seen the image.
    """

    path: str
    given: str
    like: str
    probability: float


def doubtful(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the indices of images whose labels are doubtful, most doubtful first, by confident learning.

    A class is likely for an image where its probability is at least the mean probability of the class over the images that
    are labelled so. An image is doubtful where the most probable likely class is not its label (Northcutt, Jiang and Chuang
    2021, arXiv:1911.00068).

    Args:
        probabilities: (N, C), by networks that have not seen the image.
        labels: int64 (N,).
    """
    given = F.one_hot(labels, probabilities.shape[1]).to(probabilities.dtype)
    threshold = (given * probabilities).sum(0) / given.sum(0)  # NaN, and never reached, for a class without images
    likely = probabilities >= threshold - 1e-6
    found = torch.where(likely, probabilities, 0.0).argmax(1)
    wrong = likely.any(1) & (found != labels) & (probabilities.argmax(1) != labels)
    own = probabilities[torch.arange(len(labels)), labels]
    return own.masked_fill(~wrong, 2.0).argsort(stable=True)[: int(wrong.sum())]


def out_of_fold(features: Tensor, labels: Tensor, num_classes: int, seed: int = 0) -> Tensor:
    """Compute class probabilities (N, C) of features (N, d), each by a cosine head that was trained on other folds."""
    folds = torch.empty_like(labels)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_class = order[labels[order].argsort(stable=True)]
    folds[by_class] = torch.arange(len(labels)) % FOLDS  # each class is spread over the folds
    probabilities = torch.empty(len(labels), num_classes)
    for fold in range(FOLDS):
        own = folds == fold
        recipe = with_enough_epochs(frozen().replace(epochs=1), int((~own).sum()), STEPS)
        made = train_head(features[~own], labels[~own], num_classes=num_classes, seed=seed, recipe=recipe)
        with torch.no_grad():
            probabilities[own] = made(features[own]).softmax(1)
    return probabilities


def label_report(
    classifier: Classifier, images: ImageSet, held_out: ImageSet | None, normalise: Normalise, cache: Path, out: Path
) -> list[str]:
    """Look for images in wrong folders, write them and what is taken for what beside the run, and return it in sentences.

    Training and held-out images are judged together, each by heads that were not trained on it; their features are those
    that the training has kept in ``cache``.
    """
    sets = [each for each in (images, held_out) if each is not None and each.labels is not None]
    given = [each.labels for each in sets if each.labels is not None]
    labels, names = torch.cat(given), images.classes
    counts, lines = given[0].bincount(minlength=len(names)).tolist(), few_images(images)
    if len(labels) < 2 * FOLDS or len(names) < 2:
        return lines
    features = torch.cat([extract_features(classifier, each, normalise, cache=cache) for each in sets])
    probabilities = out_of_fold(features, labels, len(names))
    predicted = probabilities.argmax(1)
    confusion = confusion_counts(labels, predicted, len(names))
    chosen = doubtful(probabilities, labels).tolist()
    called = [each.called(place) for each in sets for place in range(len(each))]
    doubts = [
        Doubt(called[i], names[labels[i]], names[predicted[i]], float(probabilities[i, predicted[i]])) for i in chosen
    ]
    lines += confusion_lines(confusion, names)
    if doubts:
        lines += doubt_lines(doubts, len(labels))
    with replacing(out / "doubtful.csv") as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([Doubt._fields, *(d._replace(probability=round(d.probability, 4)) for d in doubts)])
    pictures = []
    for index in chosen[:MOST_PICTURES]:
        of, place = (sets[0], index) if index < len(sets[0]) else (sets[1], index - len(sets[0]))
        pictures.append(thumbnail_uri(of.batch(torch.tensor([place]))[0].numpy(), 192))
    template = Environment(loader=PackageLoader("offaxis.training"), autoescape=True).get_template("classes.html.j2")
    page = template.render(
        doubts=list(zip(doubts, pictures, strict=False)),
        doubtful=len(doubts),
        images=len(labels),
        names=names,
        accuracy=(confusion.diagonal() / confusion.sum(1)).tolist(),
        trained=counts,
        confusion=confusion.tolist() if len(names) <= WIDEST else None,
        folds=FOLDS,
    )
    write_text(out / "classes.html", page)
    return [*lines, f"All of them, and what is taken for what: {out / 'classes.html'}"]


def few_images(images: ImageSet) -> list[str]:
    """Return a line that names the classes of labelled images with few of them, if there are any."""
    if images.labels is None or not images.classes:
        return []
    counts = images.labels.bincount(minlength=len(images.classes)).tolist()
    few = [f"{name} ({n})" for name, n in zip(images.classes, counts, strict=True) if n < FEW]
    return [f"Classes with few training images, of which it learns little: {', '.join(few)}."] if few else []


def doubt_lines(doubts: Sequence[Doubt], images: int) -> list[str]:
    """Return the first of the doubtful images out of a number, a line each, below what they are."""
    head = f"The folder of {len(doubts):,} of {images:,} images is doubtful; look at these first:"
    return [
        head,
        *(f"  {d.path}: in {d.given}, looks like {d.like} ({d.probability:.0%})" for d in doubts[:MOST_SHOWN]),
    ]


def confusion_counts(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Return how many images of each class (row) were taken for each class (column): int64 (C, C)."""
    return (labels * classes + predicted).bincount(minlength=classes**2).view(classes, classes)


def confusion_lines(confusion: Tensor, names: Sequence[str]) -> list[str]:
    """Return the classes that are recognised least, and the pairs that are confused most, from counts (given, predicted)."""
    counts, right = confusion.sum(1), confusion.diagonal()
    worst = (right / counts).argsort(stable=True)[:3].tolist()
    shown = [f"{names[c]} {right[c] / counts[c]:.0%} of {counts[c]}" for c in worst if right[c] < counts[c]]
    mistaken = confusion - confusion.diag().diag()
    order = mistaken.flatten().argsort(descending=True, stable=True)[:3].tolist()
    pairs = [divmod(place, len(names)) for place in order]
    taken = [f"{names[a]} for {names[b]} ({mistaken[a, b]})" for a, b in pairs if mistaken[a, b]]
    lines = [f"Recognised least: {', '.join(shown)}."] if shown else []
    return [*lines, f"Taken most often for another class: {', '.join(taken)}."] if taken else lines
