"""Training on what users have: DataLoaders, datasets and tensors, on the device that they name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, TensorDataset

from offaxis import Classifier, train
from offaxis.data import Normalise
from offaxis.errors import ArgumentError, DataError, TrainingStopped
from offaxis.options import TrainOptions
from offaxis.training import load_run
from offaxis.training.record import RunFolder

from .small import SHORT, few, network, same, stop_after, weights

pytestmark = pytest.mark.filterwarnings("ignore:The network has learned next to nothing")


def normalised(count: int = 200) -> TensorDataset:
    """Digits as a user's pipeline would give them: floats, normalised."""
    images = few(count)
    assert images.labels is not None
    return TensorDataset((images.images.float() / 255 - 0.3) / 0.35, images.labels)


def loader(count: int = 200, shuffle: bool = True) -> "DataLoader[tuple[Tensor, ...]]":
    return DataLoader(normalised(count), batch_size=50, shuffle=shuffle)


class Pictures(Dataset[tuple[Image.Image, int]]):
    """A dataset of Pillow images, as torchvision's are."""

    classes = tuple("0123456789")

    def __init__(self, count: int) -> None:
        self.digits = few(count)

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        assert self.digits.labels is not None
        return Image.fromarray(self.digits.images[index, 0].numpy()), int(self.digits.labels[index])


def seen_by(model: Classifier) -> list[Tensor]:
    """A list that fills with the images that the backbone is given."""
    seen: list[Tensor] = []

    def keep(_module: nn.Module, inputs: tuple[Tensor]) -> None:
        seen.append(inputs[0].detach().clone())

    model.backbone.register_forward_pre_hook(keep)
    return seen


def test_the_batches_of_a_data_loader_are_used_unchanged() -> None:
    model = network()
    seen = seen_by(model)
    trained = train(model, loader(shuffle=False), SHORT, quiet=True)
    expected = [images for images, _ in loader(shuffle=False)]
    assert len(seen) == 2 * len(expected) == 8
    assert all(torch.equal(one, other) for one, other in zip(seen, [*expected, *expected], strict=True))
    assert trained.normalise is None
    assert trained.classes == ()
    assert [record["step"] for record in trained.history] == [4, 8]


def test_a_loader_that_shuffles_does_so_by_the_seed() -> None:
    first, second = (train(network(), loader(), SHORT, seed=3, quiet=True) for _ in range(2))
    other = train(network(), loader(), SHORT, seed=4, quiet=True)
    assert same(weights(first.classifier), weights(second.classifier))
    assert not same(weights(first.classifier), weights(other.classifier))


def test_a_training_on_a_loader_is_resumed_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    straight = train(network(dropout=0.2), loader(), SHORT, seed=1, quiet=True)
    run = tmp_path / "run"
    with pytest.raises(TrainingStopped, match="Its state after epoch 1 is saved: resume it"):
        train(
            network(dropout=0.2),
            loader(),
            SHORT,
            seed=1,
            out=RunFolder(run, options=TrainOptions(log_every=1)),
            loss=stop_after(6),
            quiet=True,
        )
    resumed = train(
        network(seed=9, dropout=0.2),
        loader(),
        SHORT,
        seed=1,
        out=RunFolder(run, options=TrainOptions(log_every=1)),
        resume=True,
        quiet=True,
    )
    assert same(weights(resumed.classifier), weights(straight.classifier))
    steps = [r["step"] for r in map(json.loads, (run / "log.jsonl").read_text().splitlines()) if r["kind"] == "step"]
    assert steps == list(range(1, 9))
    loaded = load_run(run)
    assert loaded.normalise is None
    assert same(weights(loaded.classifier), weights(straight.classifier))


def test_a_loader_that_is_stopped_in_its_first_epoch_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TrainingStopped, match="no epoch was finished"):
        train(network(), loader(), SHORT, out=tmp_path / "run", loss=stop_after(2), quiet=True)
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    train(network(), loader(), SHORT, out=tmp_path / "run", resume=True, quiet=True)


def test_the_record_of_a_training_on_a_loader_says_what_was_done(tmp_path: Path) -> None:
    trained = train(network(), loader(), SHORT.replace(crop=4, flip=True), out=tmp_path / "run", quiet=True)
    settings = trained.record["settings"]
    assert settings["data"] == {"name": "TensorDataset", "images": 200, "fingerprint": None, "classes": []}
    assert settings["normalise"] is None
    assert (settings["recipe"]["batch_size"], settings["recipe"]["crop"], settings["recipe"]["flip"]) == (50, 0, False)


def test_accuracy_is_measured_on_a_loader_too() -> None:
    images = few(100)
    both = [
        train(network(), images, SHORT, normalise=Normalise((0.3,), (0.35,)), validation=validation, quiet=True)
        for validation in (images, loader(100, shuffle=False))
    ]
    assert both[0].history[-1]["validation_accuracy"] == both[1].history[-1]["validation_accuracy"]
    alone = train(network(), loader(100), SHORT, validation=loader(100), quiet=True)
    assert 0 <= alone.history[-1]["validation_accuracy"] <= 1


def test_what_a_loader_cannot_have_is_refused() -> None:
    with pytest.raises(ArgumentError, match="normalise=None"):
        train(network(), loader(), SHORT, normalise=Normalise((0.5,), (0.5,)), quiet=True)
    with pytest.raises(DataError, match="[0-9] classes|labels"):
        train(network(num_classes=5), loader(), SHORT, quiet=True)
    with pytest.raises(DataError, match="Expected a DataLoader to validate on"):
        train(network(), loader(), SHORT, validation=few(50), quiet=True)
    with pytest.raises(DataError, match="at least one batch"):
        train(network(), DataLoader(normalised(20), batch_size=50, drop_last=True), SHORT, quiet=True)


def test_the_last_batch_is_that_of_the_images_that_a_sampler_draws() -> None:
    def drawing(drawn: int, of: int) -> "DataLoader[tuple[Tensor, ...]]":
        return DataLoader(normalised(of), batch_size=32, sampler=SubsetRandomSampler(range(drawn)))

    recipe = SHORT.replace(epochs=1)
    assert len(train(network(), drawing(64, of=65), recipe, quiet=True).history) == 1
    with pytest.raises(DataError, match=r"the last of 33 images in batches of 32 has 1"):
        train(network(), drawing(33, of=64), recipe, quiet=True)


def test_a_dataset_of_pictures_trains_like_the_same_pixels_in_memory() -> None:
    in_memory = train(network(), few(), SHORT, validation=few(50), quiet=True)
    pictures = train(network(), Pictures(200), SHORT, validation=Pictures(50), quiet=True)
    assert same(weights(in_memory.classifier), weights(pictures.classifier))
    assert pictures.normalise == in_memory.normalise
    assert pictures.classes == tuple("0123456789")
    assert pictures.history[-1]["validation_accuracy"] == in_memory.history[-1]["validation_accuracy"]


def test_a_pair_of_tensors_trains_like_the_same_pixels_in_a_set() -> None:
    images = few()
    expected = train(network(), images, SHORT, quiet=True)
    pair = train(network(), (images.images, images.labels), SHORT, quiet=True)
    assert same(weights(expected.classifier), weights(pair.classifier))


def test_the_device_is_chosen_by_name_and_only_once() -> None:
    expected = train(network(), few(), SHORT.replace(epochs=1), device="cpu", quiet=True)
    assert next(expected.classifier.parameters()).device.type == "cpu"
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        auto = train(network(), few(), SHORT.replace(epochs=1), quiet=True)
        assert same(weights(auto.classifier), weights(expected.classifier))
    with pytest.raises(ArgumentError, match="can use here"):
        train(network(), few(), SHORT, device="quantum", quiet=True)


def test_what_is_no_recipe_no_normalisation_or_no_validation_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"Expected a Recipe but got 'finetune'.*RECIPES\['finetune'\]\(\)"):
        train(network(), few(), "finetune", quiet=True)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"Normalise\(mean, std\)"):
        train(network(), few(), SHORT, normalise=((0.5,), (0.5,)), quiet=True)  # type: ignore[arg-type]
    empty = DataLoader(normalised(20), batch_size=64, drop_last=True)
    with pytest.raises(DataError, match="at least one batch but it has none: is drop_last=True set"):
        train(network(), loader(), SHORT, validation=empty, quiet=True)


def test_class_names_may_be_an_array_and_jitter_is_the_loaders_own() -> None:
    data = normalised()
    data.classes = np.array([f"digit {n}" for n in range(10)])  # type: ignore[attr-defined]
    recipe = SHORT.replace(epochs=1, jitter=0.3)
    trained = train(network(), DataLoader(data, batch_size=50), recipe, device="cpu:0", quiet=True)
    assert trained.classes[3] == "digit 3"
    assert "jitter" not in trained.record["settings"]["recipe"]


def test_a_bare_module_is_refused_with_the_remedy_and_a_compiled_classifier_is_not(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"Expected a Classifier but got a Sequential: offaxis\.attach"):
        train(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), loader(), SHORT, quiet=True)  # type: ignore[arg-type]
    plain = network()
    compiled: Any = torch.compile(plain, backend="eager")
    trained = train(compiled, loader(), SHORT.replace(epochs=1), out=tmp_path / "run", quiet=True)
    assert trained.classifier is plain
    assert same(weights(load_run(tmp_path / "run", network(seed=7)).classifier), weights(plain))
