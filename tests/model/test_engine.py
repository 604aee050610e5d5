"""The engine that runs a model's network: onnxruntime where it gives the same outputs, PyTorch elsewhere."""

import os
import subprocess
import sys
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import offaxis
from offaxis import Model
from offaxis import onnx as engines
from offaxis.cli.app import app
from offaxis.data import load_images
from offaxis.data.transforms import Preprocessing
from offaxis.errors import ArgumentError, ExportError, MissingPackageError
from offaxis.networks.combine import AnyNetwork
from offaxis.onnx import export_onnx, graph_bytes, with_engine
from offaxis.training import laptop
from tests.models import World

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def test_onnxruntime_gives_the_same_predictions(bundle: Path, world: World) -> None:
    plain, fast = offaxis.load(bundle), offaxis.load(bundle, engine="onnx")
    assert plain.engine is None
    assert fast.engine is not None
    pixels = world.test.batch(torch.arange(119))
    ties = 0
    for expected, found in zip(plain.predict(pixels), fast.predict(pixels), strict=True):
        assert found.class_name == expected.class_name
        assert np.allclose([found.score, found.probability], [expected.score, expected.probability], atol=1e-4)
        ties += found.p_value != expected.p_value
        low, high = plain.calibration.p_values(np.array([expected.score + 1e-4, expected.score - 1e-4]))
        assert low <= found.p_value <= high
    assert ties <= 2
    assert fast.predict([]) == []


def test_a_graph_of_other_outputs_is_not_used(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_bytes(model, p_values=False)
    monkeypatch.setattr(engines, "graph_bytes", lambda of, p_values: graph)
    assert with_engine(model, "onnx").engine is not None
    other = replace(model, network=_other(model))  # the graph is not this network's
    with pytest.raises(ExportError, match="differs from PyTorch"):
        with_engine(other, "onnx")
    assert with_engine(other, "auto").engine is None


def _other(model: Model) -> AnyNetwork:
    network = deepcopy(model.network)
    with torch.no_grad():
        next(network.parameters()).mul_(-1)
    return network


def test_what_cannot_be_exported_runs_in_pytorch(leave_out: Model, world: World) -> None:
    with pytest.raises(ExportError, match="cannot"):
        with_engine(leave_out, "onnx")
    same = with_engine(leave_out, "auto")
    assert same.engine is None
    assert same.predict(world.test.batch(torch.arange(3))) == leave_out.predict(world.test.batch(torch.arange(3)))


class InDouble(nn.Module):
    """A network whose convolution is in double precision, which onnxruntime does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool, self.fc = nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Linear(4, 10)

    def forward(self, images: Tensor) -> Tensor:
        assert self.conv.bias is not None
        maps = nn.functional.conv2d(images.double(), self.conv.weight.double(), self.conv.bias.double())
        return cast(Tensor, self.fc(self.pool(maps.float().relu()).flatten(1)))


def test_a_graph_that_onnxruntime_cannot_run_is_left_to_pytorch(world: World, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, preprocessing = offaxis.attach(InDouble(), "cosine"), Preprocessing((1, 8, 8), world.normalise)
    odd = Model.calibrated(network, world.calibration, preprocessing=preprocessing)
    assert with_engine(odd, "auto").engine is None
    sentence = "onnxruntime cannot run the graph .* Use the bundle itself in PyTorch"
    with pytest.raises(ExportError, match=sentence):
        with_engine(odd, "onnx")
    with pytest.raises(ExportError, match=sentence):
        export_onnx(odd, tmp_path / "x.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_calibration_without_the_cosines_of_its_network_runs_in_pytorch(model: Model) -> None:
    odd = replace(model, calibration=replace(model.calibration, cosine=None))
    assert with_engine(odd, "auto").engine is None
    with pytest.raises(ExportError, match="calibrate the bundle again"):
        with_engine(odd, "onnx")


def test_onnxruntime_reports_nothing_to_its_maker(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    program = "from offaxis.onnx import package; package('onnxruntime')"
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert (
        list(tmp_path.iterdir()) == []
    )  # where it reports, it keeps the number of the device and what was not sent yet


def test_without_onnxruntime_pytorch_runs_it(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise MissingPackageError(f"{name} is not installed")

    monkeypatch.setattr(engines, "package", missing)
    assert with_engine(model, "auto").engine is None
    with pytest.raises(MissingPackageError):
        with_engine(model, "onnx")


def test_an_unknown_engine_is_refused(model: Model) -> None:
    with pytest.raises(ArgumentError, match="auto, onnx, torch"):
        with_engine(model, "tvm")  # type: ignore[arg-type]


@pytest.mark.slow
def test_an_int8_graph_is_quantised_and_calibrated_anew(model: Model, world: World, tmp_path: Path) -> None:
    """Its convolutions have int8 weights, its scores differ from those of the float graph, its p-values are of its own."""
    import onnx
    import onnxruntime

    sets = (world.calibration, world.test)  # of 89 held-out images one whose class is a tie would be more than a point
    pixels = torch.cat([images.batch(torch.arange(len(images))) for images in sets])
    found = engines.export_int8(model, tmp_path / "x.onnx", offaxis.data.TensorSet("unlabelled", pixels))
    graph = onnx.load(str(tmp_path / "x.onnx")).graph
    weights = [each for each in graph.initializer if each.data_type == onnx.TensorProto.INT8 and len(each.dims) == 4]
    assert len(weights) == sum(node.op_type == "Conv" for node in graph.node) > 0
    session = onnxruntime.InferenceSession(str(tmp_path / "x.onnx"), providers=["CPUExecutionProvider"])
    held_out = pixels[torch.arange(len(pixels)) % 4 != 0]
    score, p_value = session.run(["score", "p_value"], {"pixels": held_out.numpy()})
    plain = np.array([prediction.score for prediction in model.predict(held_out)])
    assert 0 < np.abs(score - plain).mean() < 0.05
    assert found.images == len(score)
    # each of the new calibration images is among those that it is compared with, so that none has p = 1 / (n + 1)
    assert sorted(np.round(p_value * (found.images + 1)).astype(int)) == list(range(2, found.images + 2))
    assert not found.labelled
    assert found.bytes[1] < found.bytes[0]


@pytest.mark.slow
def test_a_network_that_loses_by_int8_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The images that give the ranges of the activations are darker than the others, so that these are cut off."""
    torch.manual_seed(0)
    training, unseen = (load_images("digits", part) for part in ("train", "test"))
    network = offaxis.networks.by_name("wrn-10-2-half")(num_classes=10, in_channels=1)
    trained = offaxis.train(network, training, laptop().replace(epochs=2, crop=2, flip=False), quiet=True)
    model = Model.calibrated(trained, unseen.subset(torch.arange(100)), used=[training])

    def darker(share: float) -> offaxis.data.TensorSet:
        pixels = unseen.batch(torch.arange(len(unseen)))
        pixels[::4] = (share * pixels[::4]).to(torch.uint8)
        return offaxis.data.TensorSet("digits", pixels, unseen.labels, classes=unseen.classes)

    path, letters = tmp_path / "x.onnx", load_images("letters", "test").subset(torch.arange(500))
    with pytest.raises(ExportError, match="ID accuracy falls from .* by more than a point"):
        engines.export_int8(model, path, darker(0.4))
    with monkeypatch.context() as patch:
        patch.setattr(engines, "MOST_LOST_ACCURACY", 1.0)  # which of the two falls first depends on the training
        with pytest.raises(ExportError, match="AUROC on letters falls from .* by more than half a point"):
            engines.export_int8(model, path, darker(0.4), [letters])
    assert not path.exists()
    assert engines.export_int8(model, path, darker(1.0), [letters]).labelled
    assert path.exists()


@pytest.mark.parametrize("count", [0, 1, 7, 1000, 1024, 1025, 50_000])
def test_the_ranges_are_of_images_from_first_to_last_and_all_others_calibrate(count: int) -> None:
    """Folders are in the order of their classes: the ranges of the first ones need not hold for the last."""
    chosen, others = (numbers.tolist() for numbers in engines._divide_for_ranges(count))
    assert sorted(chosen + others) == list(range(count))
    assert len(set(chosen)) == min((count + 3) // 4, 256)
    assert all(number % 4 == 0 for number in chosen)
    gaps = np.diff([*chosen, count]) if count else np.zeros(1)
    assert gaps.max() <= max(4, count / 256 + 8)


@pytest.mark.parametrize(
    ("accuracy", "labelled", "aurocs", "refusal"),
    [
        ((0.97, 0.961), True, {"letters": (0.95, 0.946)}, None),
        ((0.97, 0.95), True, {}, "ID accuracy falls from 97.0% to 95.0%"),
        ((1.0, 0.989), False, {}, "share of equal classes falls from 100.0% to 98.9%"),
        ((0.97, 0.97), True, {"letters": (0.95, 0.94)}, "AUROC on letters falls from 95.0% to 94.0%"),
    ],
)
def test_an_int8_graph_that_loses_is_refused(
    accuracy: tuple[float, float], labelled: bool, aurocs: dict[str, tuple[float, float]], refusal: str | None
) -> None:
    found = engines.Quantised(accuracy=accuracy, labelled=labelled, aurocs=aurocs, images=9, bytes=(2, 1))
    with nullcontext() if refusal is None else pytest.raises(ExportError, match=refusal):
        found.check()


def test_a_graph_is_exported_once_and_not_for_a_few_images(
    bundle: Path, pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = list[int]()

    def export(of: Model, p_values: bool) -> bytes:
        made.append(1)
        return graph_bytes(of, p_values)

    monkeypatch.setattr(engines, "graph_bytes", export)
    result = CliRunner().invoke(app, ["score", str(bundle), *map(str, pictures[:2])])
    assert result.exit_code == 0, result.output
    assert result.stdout.count(str(pictures[0].parent)) == 2
    assert not made
    few = CliRunner().invoke(app, ["score", str(bundle), str(pictures[0].parent)]).stdout
    assert not made
    for rows in (2, 1):  # the second command finds the graph of the first
        monkeypatch.setattr("offaxis.cli.score.FEW", rows)
        result = CliRunner().invoke(app, ["score", str(bundle), str(pictures[0].parent)])
        assert result.exit_code == 0, result.output
        assert made == [1]
        assert [line.split(",")[:2] for line in result.stdout.splitlines()] == [
            line.split(",")[:2] for line in few.splitlines()
        ]
    assert with_engine(offaxis.load(bundle), "onnx").engine is not None
    assert made == [1]
