"""Other scores of a cosine network's outputs, compared on the development sets: ``python -m study.axis_trials``.

Prints the AUROC of each trial, mean over seeds, and how far the class weights are from the class means.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis.data import ImageSet, limit_images, load_images
from offaxis.data.transforms import Batches
from offaxis.heads import CosineHead, Outputs
from offaxis.metrics import auroc
from offaxis.networks.open import open_network
from offaxis.networks.opened import OpenedNetwork
from offaxis.networks.run import run
from study.sets import DEVELOPMENT
from study.steps import SEEDS, chain_for, longer_runs, main_runs, name_of

IMAGES, FITTED = 1000, 10_000


def outputs_of(subject: OpenedNetwork, images: ImageSet, mirrored: bool = False) -> Outputs:
    """Compute the outputs of all images, mirrored or not."""
    assert subject.normalise is not None
    batches = (batch.flip(-1) if mirrored else batch for batch, _ in Batches(images, subject.normalise, 256))
    parts = [outputs for outputs, _, _ in run(subject.network, batches)]
    cosine, scale = torch.cat([_cosine(o) for o in parts]), torch.cat([_scale(o) for o in parts])
    return Outputs(torch.cat([o.features for o in parts]), torch.cat([o.logits for o in parts]), cosine, scale)


def weight_of(subject: OpenedNetwork) -> Tensor:
    """Return the class weights (C, d) of a cosine network."""
    head = subject.network.head
    assert isinstance(head, CosineHead)
    return head.weight.detach()


Score = Callable[[Outputs, Outputs], Tensor]


def trials(train: Outputs, labels: Tensor, weight: Tensor) -> dict[str, Score]:
    """Return functions (outputs, outputs of the mirrored images) -> scores (N,) by name, larger = more in-distribution."""
    means = torch.stack([train.features[labels == c].mean(0) for c in range(len(weight))])
    centre, mean_scale, top = train.features.mean(0), _scale(train).mean(), train.features.quantile(0.99, 0)
    nearest = F.normalize(train.features)
    span = torch.linalg.qr(weight.T).Q

    def along(features: Tensor, axes: Tensor) -> Tensor:
        return (F.normalize(features) @ F.normalize(axes).T).amax(1)

    own, mean = _cosine(train).amax(1), along(train.features, means)

    def rank(values: Tensor, among: Tensor) -> Tensor:
        return torch.searchsorted(among.sort().values, values.contiguous(), right=True)

    return {
        "the cosine (with the weights)": lambda o, _: along(o.features, weight),
        "cosine with the class means": lambda o, _: along(o.features, means),
        "both cosines, half each": lambda o, _: along(o.features, weight) + along(o.features, means),
        "both, the rarer among training images": lambda o, _: torch.minimum(
            rank(along(o.features, weight), own), rank(along(o.features, means), mean)
        ),
        "energy of the cosines at the mean scale": lambda o, _: torch.logsumexp(mean_scale * _cosine(o), 1),
        "cosine of the image and of its mirror image": lambda o, m: (
            along(o.features, weight) + along(m.features, weight)
        ),
        "features less their mean, with the weights": lambda o, _: along(o.features - centre, weight),
        "features less their mean, with the class means": lambda o, _: along(o.features - centre, means - centre),
        "features clipped at their 99th percentile": lambda o, _: along(o.features.minimum(top), weight),
        "largest cosine less the mean cosine": lambda o, _: _cosine(o).amax(1) - _cosine(o).mean(1),
        "cosine with the mean of all classes together": lambda o, _: along(o.features, centre[None]),
        "share of the features in the span of the weights": lambda o, _: (F.normalize(o.features) @ span).norm(dim=1),
        "nearest training image": lambda o, _: (F.normalize(o.features) @ nearest.T).amax(1),
        "the largest logit (with the scale)": lambda o, _: o.logits.amax(1),
        "cosine times the root of the scale": lambda o, _: _cosine(o).amax(1) * _scale(o).sqrt(),
    }


def _cosine(outputs: Outputs) -> Tensor:
    assert outputs.cosine is not None
    return outputs.cosine


def _scale(outputs: Outputs) -> Tensor:
    assert outputs.scale is not None
    return outputs.scale.flatten()


def alignment(train: Outputs, labels: Tensor, weight: Tensor) -> str:
    """Return the cosines between a class's weight, its mean and its images, as text."""
    means = torch.stack([train.features[labels == c].mean(0) for c in range(len(weight))])
    between = F.normalize(means) @ F.normalize(means).T
    others = (between.sum() - len(means)) / (len(means) ** 2 - len(means))
    values = {
        "weight and mean": F.cosine_similarity(weight, means).mean(),
        "images and their weight": F.cosine_similarity(train.features, weight[labels]).mean(),
        "images and their mean": F.cosine_similarity(train.features, means[labels]).mean(),
        "means of two classes": others,
    }
    return "cosine of " + ", ".join(f"{name} {float(value):.3f}" for name, value in values.items())


def main() -> None:
    """Print the trials for both ID sets."""
    for id_name in ("cifar10", "fashion-mnist"):
        test, train = (
            limit_images(load_images(id_name, "test"), IMAGES),
            limit_images(load_images(id_name, "train"), FITTED),
        )
        labels = torch.as_tensor(train.labels).long()
        ood = {name: limit_images(load_images(name, "test", like=test), IMAGES) for name in DEVELOPMENT}
        trial_values: dict[str, list[list[float]]] = {}
        for seed in SEEDS:
            subject = open_network(chain_for(id_name).runs / name_of(main_runs(id_name, seed)[1]))
            weight = weight_of(subject)
            fitted = outputs_of(subject, train)
            print(f"{id_name}, seed {seed}: {alignment(fitted, labels, weight)}", flush=True)
            id_outputs = outputs_of(subject, test), outputs_of(subject, test, mirrored=True)
            ood_outputs = [(outputs_of(subject, x), outputs_of(subject, x, mirrored=True)) for x in ood.values()]
            for name, score in trials(fitted, labels, weight).items():
                values = [auroc(-score(*id_outputs).double(), -score(*other).double()) for other in ood_outputs]
                trial_values.setdefault(name, []).append(values)
        if id_name == longer_runs()[1].id:
            subject = open_network(chain_for(id_name).runs / name_of(longer_runs()[1]))
            print(f"{id_name}, longer: {alignment(outputs_of(subject, train), labels, weight_of(subject))}", flush=True)
        print(f"| {id_name} | {' | '.join(ood)} | mean |\n|---|" + "---:|" * (len(ood) + 1))
        for name, rows in sorted(trial_values.items(), key=lambda item: -float(np.mean(item[1]))):
            each = [*np.mean(rows, 0), np.mean(rows)]
            print(f"| {name} | " + " | ".join(f"{100 * value:.1f}" for value in each) + " |", flush=True)


if __name__ == "__main__":
    main()
