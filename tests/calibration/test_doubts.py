"""Calibration images that are the wrong ones: another folder, augmented training images, another normalisation."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset
from typer.testing import CliRunner

from offaxis import Model, calibrate, evaluate, load
from offaxis.calibration.doubts import changes, doubts_of_scores
from offaxis.cli import app
from offaxis.data import ImageSet, Normalise, Preprocessing, TensorSet
from offaxis.detectors import Energy
from offaxis.errors import DataError
from tests.models import World


def folder_of(path: Path, images: ImageSet, *, labelled: bool) -> Path:
    assert images.labels is not None
    for number, (pixels, label) in enumerate(zip(images.batch(torch.arange(len(images))), images.labels, strict=True)):
        where = path / (str(int(label)) if labelled else "all")
        where.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(pixels)[0]).save(where / f"{number:04}.png")
    return path


def test_a_wrong_folder_is_warned_of_with_both_numbers(world: World, tmp_path: Path) -> None:
    run, noise = str(world.trained.folder), tmp_path / "noise"
    random = np.random.default_rng(0)
    noise.mkdir()
    for number in range(80):
        Image.fromarray(random.integers(0, 256, (8, 8), dtype=np.uint8)).save(noise / f"{number}.png")
    with pytest.warns(
        UserWarning, match=r"are far from those of 3\d\d held-out images of the training set small-digits: .*AUROC"
    ):
        done = CliRunner().invoke(app, ["bundle", run, "--calibrate", str(noise), "--out", str(tmp_path / "x.oax")])
    assert done.exit_code == 0, done.output
    assert len(load(tmp_path / "x.oax").provenance["doubts"]) == 1
    right = tmp_path / "right"
    folder_of(right, world.calibration, labelled=False)
    done = CliRunner().invoke(app, ["bundle", run, "--calibrate", str(right), "--out", str(tmp_path / "y.oax")])
    assert done.exit_code == 0, done.output


def test_accuracy_hardly_better_than_guessing_is_warned_of(world: World) -> None:
    images = world.calibration
    assert images.labels is not None
    pixels = world.normalise(images.batch(torch.arange(len(images))))
    moved = DataLoader(TensorDataset(pixels, (images.labels + 1) % 10), 64)
    with pytest.warns(UserWarning, match=r"of the calibration images is right, where guessing gives 10%"):
        calibrate(world.trained.classifier, moved)
    assert doubts_of_scores(np.arange(100.0), 0.4, np.arange(100.0), 0.97, "others")[0].startswith("The class of 40%")
    assert not doubts_of_scores(np.arange(100.0), 0.7, np.arange(90.0), 0.97, "others")


def noise() -> TensorSet:
    random = torch.Generator().manual_seed(0)
    return TensorSet("noise", torch.randint(0, 256, (60, 1, 8, 8), dtype=torch.uint8, generator=random))


def test_recalibration_on_other_images_is_warned_of(model: Model) -> None:
    with pytest.warns(UserWarning, match="far from those of 240 images of the calibration before"):
        again = model.recalibrated(noise())
    assert len(again.provenance["doubts"]) == 1


class Shifted(Dataset[tuple[torch.Tensor, int]]):
    """Normalised images, each moved by up to two pixels at random."""

    def __init__(self, images: ImageSet, normalise: Normalise) -> None:
        assert images.labels is not None
        self.images, self.labels = normalise(images.batch(torch.arange(len(images)))), images.labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index >= len(self):
            raise IndexError
        by = torch.randint(0, 2, (2,)).tolist()
        return self.images[index].roll(by, (1, 2)), int(self.labels[index])


def test_augmented_training_images_are_not_called_checked(world: World) -> None:
    torch.manual_seed(0)
    training = DataLoader(Shifted(world.train, world.normalise), 64, shuffle=True)
    same = DataLoader(Shifted(world.train.subset(torch.arange(200)), world.normalise), 64)
    assert changes(training)
    preprocessing = Preprocessing((1, 8, 8), world.normalise)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = Model.calibrated(
            world.trained.classifier, same, used=[training], detector=Energy(), preprocessing=preprocessing
        )
    texts = [str(warning.message) for warning in said]
    assert any("It was not checked whether calibration images were used" in text for text in texts)
    assert any("have nearly the features of a training image" in text for text in texts)
    assert not model.overlap_checked
    new = DataLoader(Shifted(world.calibration, world.normalise), 64)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        calibrate(world.trained.classifier, new, detector=Energy(), used=[training])
    assert not any("nearly the features" in str(warning.message) for warning in said)


def test_a_mean_that_is_not_the_loaders_is_refused(world: World) -> None:
    images = world.calibration
    assert images.labels is not None
    loader = DataLoader(TensorDataset(world.normalise(images.batch(torch.arange(240))), images.labels), 64)
    (mean,), (std,) = world.normalise.mean, world.normalise.std
    for wrong in (
        Normalise((mean + 0.4,), (std,)),
        Normalise((mean + 0.02,), (std,)),
        Normalise((mean,), (std * 1.1,)),
    ):
        with pytest.raises(DataError, match="Expected images of the DataLoader that are normalised by mean"):
            Model.calibrated(world.trained.classifier, loader, preprocessing=Preprocessing((1, 8, 8), wrong))
    Model.calibrated(world.trained.classifier, loader, preprocessing=Preprocessing((1, 8, 8), world.normalise))


def test_test_images_that_were_trained_on_are_noticed(world: World) -> None:
    small = world.train.subset(torch.arange(120))
    with pytest.warns(
        UserWarning, match="120 of the 120 ID test images that were compared are among the training images"
    ):
        found = evaluate(world.trained, small, {"noise": noise()}, "knn", train=small)
    assert "are among the training images" in found.notes[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(world.trained, world.test.subset(torch.arange(100)), {"noise": noise()}, "knn", train=small)
