"""Maps that explain a cosine: their mean is the cosine; networks without such a map say why."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

import offaxis
from offaxis import Model, networks
from offaxis.cli import app
from offaxis.detectors import make_detector
from offaxis.errors import ArgumentError
from offaxis.explain import explain, overlay, with_examples
from offaxis.networks import Classifier
from tests.models import World, write_images


def test_the_mean_of_the_map_is_the_cosine(model: Model, world: World) -> None:
    pixels = world.test.batch(torch.arange(30))
    for found, prediction in zip(explain(model, pixels), model.predict(pixels), strict=True):
        assert found.map is not None
        assert found.map.ndim == 2
        assert found.class_name == prediction.class_name
        assert found.map.mean() == pytest.approx(prediction.cosine, abs=1e-5)
        assert found.cosine == pytest.approx(prediction.cosine, abs=1e-5)
        assert found.to_json()["map"] == [[round(float(v), 5) for v in row] for row in found.map]
    assert explain(model, pixels[:0]) == []


@pytest.mark.parametrize("name", ["mean-cosine", "two-cosines"])
def test_maps_of_class_means(model: Model, world: World, name: str) -> None:
    detector = make_detector(name, model.network, world.normalise.std)
    detector.fit(model.network, offaxis.data.transforms.Batches(world.train, world.normalise, 256))
    other = Model.calibrated(world.trained, world.calibration, detector=detector)
    pixels = world.test.batch(torch.arange(20))
    for found, prediction in zip(explain(other, pixels), other.predict(pixels), strict=True):
        assert found.map is not None
        assert found.of == {"mean-cosine": "cosine with the class mean", "two-cosines": "mean of the two cosines"}[name]
        assert found.map.mean() <= -prediction.score + 1e-5  # the score takes the largest cosine of any class
    same = [
        abs(e.map.mean() + p.score) < 1e-5 for e, p in zip(explain(other, pixels), other.predict(pixels), strict=True)
    ]  # type: ignore[union-attr]
    assert sum(same) > 10


def test_networks_with_average_pooling_of_any_kind() -> None:
    class Last(nn.Module):
        def __init__(self, pool: nn.Module) -> None:
            super().__init__()
            self.conv, self.pool = nn.Conv2d(1, 6, 3, padding=1), pool

        def forward(self, images: Tensor) -> Tensor:
            out: Tensor = self.pool(self.conv(images).relu())
            return out.flatten(1)

    pools = {
        "adaptive": nn.AdaptiveAvgPool2d(1),
        "plain": nn.AvgPool2d(8),
        "max": nn.AdaptiveMaxPool2d(1),
        "flattened": nn.AvgPool2d(4),
    }
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8, generator=generator)
    for name, pool in pools.items():
        torch.manual_seed(0)
        width = 24 if name == "flattened" else 6
        network = Classifier(Last(pool), offaxis.heads.CosineHead(width, 3)).eval()
        preprocessing = offaxis.data.Preprocessing((1, 8, 8), offaxis.data.Normalise((0.5,), (0.25,)))
        model = Model.calibrated(network, offaxis.data.TensorSet("x", pixels), preprocessing=preprocessing)
        found = explain(model, pixels[:2])[0]
        if name in ("adaptive", "plain"):
            assert found.map is not None
            assert found.map.mean() == pytest.approx(model.predict(pixels[:2])[0].cosine, abs=1e-5)
        else:
            assert found.map is None
            assert "no plain average pooling" in (found.reason or "")


def test_other_networks_say_why_not(leave_out: Model, ensemble: Model, world: World) -> None:
    pixels = world.test.batch(torch.arange(2))
    for model in (leave_out, ensemble):
        assert "ensemble" in (explain(model, pixels)[0].reason or "")
    torch.manual_seed(0)
    linear = networks.wide_resnet(10, 1, 10, "linear", in_channels=1, stem_stride=2).eval()
    preprocessing = offaxis.data.Preprocessing((1, 8, 8), world.normalise)
    plain = Model.calibrated(linear, world.calibration, detector="energy", preprocessing=preprocessing)
    assert "no cosine" in (explain(plain, pixels)[0].reason or "")


def test_examples_travel_with_the_bundle(model: Model, world: World, tmp_path: Path) -> None:
    kept = with_examples(model, world.calibration, 30)
    assert kept.examples is not None
    assert sorted(set(kept.examples.predicted.tolist())) == list(range(10))  # of every class
    kept.save(tmp_path / "x.oax")
    loaded = offaxis.load(tmp_path / "x.oax")
    assert loaded.examples is not None
    assert torch.equal(loaded.examples.pixels, kept.examples.pixels)
    image = kept.examples.pixels[7:8]
    name, cosine, png = explain(loaded, image)[0].examples[0]
    assert cosine == pytest.approx(1, abs=1e-5)  # the image itself
    assert name == model.classes[int(kept.examples.predicted[7])]
    assert png.startswith(b"\x89PNG")
    assert explain(model, image)[0].examples == ()
    with pytest.raises(ArgumentError):
        with_examples(model, world.calibration, 0)


def test_examples_are_of_the_images_that_calibrate(model: Model, world: World) -> None:
    kept = with_examples(model, world.calibration, 20)
    assert kept.examples is not None
    assert kept.recalibrated(world.test).examples is None
    same = kept.recalibrated(world.calibration, alpha=0.1).examples
    assert same is not None
    assert torch.equal(same.pixels, kept.examples.pixels)
    some = kept.recalibrated(world.calibration.subset(torch.arange(10, 130))).examples
    assert some is not None
    assert 0 < len(some.pixels) == len(some.features) == len(some.predicted) < 20


def test_bundling_with_examples_warns(world: World, tmp_path: Path) -> None:
    run = str(world.trained.folder)
    words = ["bundle", run, "--calibrate", "small-digits", "--out", str(tmp_path / "x.oax"), "--keep-examples", "12"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "12 calibration images leave with" in " ".join(result.output.split())
    write_images(tmp_path / "pictures", world.test, 60)
    result = CliRunner().invoke(app, ["calibrate", str(tmp_path / "x.oax"), str(tmp_path / "pictures"), "--overwrite"])
    assert result.exit_code == 0, result.output
    left = offaxis.load(tmp_path / "x.oax").examples
    gone = 12 - (0 if left is None else len(left.pixels))
    assert gone
    assert f"{gone} of the 12 images that the bundle kept to show are not among these" in " ".join(
        result.output.split()
    )


def test_an_overlay_is_strongest_where_the_map_is() -> None:
    grey = Image.new("L", (40, 40), 128)
    values = np.zeros((4, 4), np.float32)
    values[0, 0], values[3, 3] = 1.0, -1.0
    shown = np.asarray(overlay(grey, values)).astype(int)
    assert shown.shape == (40, 40, 3)
    assert shown[3, 3, 2] > 150 > shown[3, 3, 0]  # blue: adds to the cosine
    assert shown[36, 36, 0] > 150 > shown[36, 36, 2]  # red: takes from it
    assert abs(shown[20, 20] - 128).max() < 12
