"""A small trained model, made once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from offaxis import Model, networks, train
from offaxis.data import ImageSet, Normalise, load_images
from offaxis.networks.combine import folds
from offaxis.networks.open import combine
from offaxis.training import Loss, Trained, cross_entropy, laptop
from offaxis.training.leave_out import MarginEntropyLoss


@dataclass(frozen=True)
class World:
    """scikit-learn's digits: those trained on, those to calibrate on, those left for tests."""

    trained: Trained
    train: ImageSet
    calibration: ImageSet
    test: ImageSet

    @property
    def normalise(self) -> Normalise:
        """The normalisation of the trained network."""
        assert self.trained.normalise is not None
        return self.trained.normalise


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    training, rest = load_images("small-digits", "train"), load_images("small-digits", "test")
    torch.manual_seed(0)
    network = networks.wide_resnet(10, 1, 10, in_channels=1, stem_stride=2)
    recipe = laptop().replace(epochs=4, crop=0, flip=False)
    trained = train(network, training, recipe, out=tmp_path_factory.mktemp("run") / "digits", quiet=True)
    return World(trained, training, rest.subset(torch.arange(240)), rest.subset(torch.arange(240, len(rest))))


def trained_for_a_moment(folder: Path, head: Any = "cosine", seed: int = 0, loss: Loss = cross_entropy) -> Trained:
    """A tiny network that has seen the digits twice."""
    torch.manual_seed(seed)
    network = networks.wide_resnet(10, 1, 10, head, in_channels=1, stem_stride=2)
    recipe = laptop().replace(epochs=2, batch_size=32, crop=0, flip=False)
    return train(
        network,
        load_images("small-digits", "train"),
        recipe,
        seed=seed,
        loss=loss,
        out=folder / f"{head}-{seed}",
        quiet=True,
    )


@pytest.fixture(scope="session")
def cosine_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Trained]:
    """Three cosine networks, for an ensemble."""
    folder = tmp_path_factory.mktemp("cosine")
    return [trained_for_a_moment(folder, seed=seed) for seed in range(3)]


@pytest.fixture(scope="session")
def leave_out_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Trained]:
    """Three leave-out networks, in the order of their folds."""
    folder = tmp_path_factory.mktemp("leave-out")
    return [
        trained_for_a_moment(folder, "linear", seed, MarginEntropyLoss(fold, 10))
        for seed, fold in enumerate(folds(10, 3))
    ]


@pytest.fixture(scope="session")
def ensemble(world: World, cosine_runs: list[Trained]) -> Model:
    return Model.calibrated(cosine_runs, world.calibration, used=[world.train])


@pytest.fixture(scope="session")
def leave_out(world: World, leave_out_runs: list[Trained]) -> Model:
    return Model.calibrated(combine(leave_out_runs, "leave-out"), world.calibration, used=[world.train])


@pytest.fixture(scope="session")
def model(world: World) -> Model:
    return Model.calibrated(world.trained, world.calibration, used=[world.train])


@pytest.fixture(scope="session")
def bundle(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "digits.oax"
    model.save(path)
    return path


def write_images(folder: Path, images: ImageSet, count: int) -> list[Path]:
    """The first images of a set as PNG files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, pixels in enumerate(images.batch(torch.arange(count))):
        path = folder / f"{number:03}.png"
        Image.fromarray(np.asarray(pixels)[0]).save(path)
        paths.append(path)
    return paths


@pytest.fixture(scope="session")
def pictures(world: World, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_images(tmp_path_factory.mktemp("pictures"), world.test, 20)
