"""``offaxis.evaluate`` on DataLoaders: which images are for validation, and which training images a store tells apart."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import offaxis
from offaxis.data import TensorSet

from .conftest import NORMALISE, World, stripes, trained


def loader(images: Tensor, labels: Tensor | None = None, **options: Any) -> "DataLoader[Any]":
    labels = torch.zeros(len(images), dtype=torch.long) if labels is None else labels
    return DataLoader(TensorDataset(NORMALISE(images), labels), batch_size=32, **options)


def in_order(images: TensorSet) -> tuple[Tensor, Tensor]:
    assert images.labels is not None
    order = images.labels.argsort(stable=True)
    return images.images[order], images.labels[order]


def test_a_loader_sorted_by_class_gives_images_of_every_class_to_both_parts(world: World) -> None:
    network = trained("cosine", 0)
    images, labels = in_order(world["id"])
    results = offaxis.evaluate(network, loader(images, labels), {"bright": loader(world["ood"][0].images)}, "cosine")
    known, other = (results.sets[key] for key in (results.results[0].id_data, results.results[0].ood_data))
    for part in (known.validation, known.test):
        assert np.bincount(labels[torch.from_numpy(part)], minlength=3).min() >= len(part) // 5
    assert sorted([*known.validation, *known.test]) == list(range(150))
    assert known.about["rule"] == "the first 30 of a shuffle with seed 0 of 150 images"
    assert other.about["rule"] == "the first 20 of 100 images"  # its labels are all the same
    with torch.no_grad():
        cosine = network.outputs(NORMALISE(images)).cosine
    assert cosine is not None
    scores = -cosine.amax(1)[torch.from_numpy(known.test)]
    np.testing.assert_allclose(results.arrays[results.results[0].scores[0]], scores, rtol=1e-5)


def test_a_store_tells_training_loaders_apart(world: World, tmp_path: Path) -> None:
    images, labels = stripes(240, 2)

    def fitted(train: "DataLoader[Any]") -> offaxis.Results:
        ood = {"bright": loader(world["ood"][0].images)}
        known = loader(world["id"].images, world["id"].labels)
        return offaxis.evaluate(
            trained("cosine", 0), known, ood, "mahalanobis++", train=train, store=tmp_path / "store"
        )

    first = fitted(loader(images, labels))
    assert not fitted(loader(images, labels)).arrays  # nothing was computed
    others = [fitted(loader(images.flip(3), labels)), fitted(loader(images, labels.roll(3).flip(0)))]
    others.append(fitted(loader(images[:200], labels[:200])))
    assert all(other.arrays for other in others)
    assert len({results.results[0].key for results in (first, *others)}) == 4
    shuffled = fitted(loader(images, labels, shuffle=True))
    assert shuffled.results[0].fitted_on == "240 training images in a DataLoader of id"
    assert not fitted(loader(images, labels, shuffle=True)).arrays
    assert fitted(loader(images[:200], labels[:200], shuffle=True)).arrays
