"""ONNX graphs: the same scores and verdicts in onnxruntime, for every detector that can be exported."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import offaxis
from offaxis import Calibration, Model, Paired, Verdict, attach, networks
from offaxis.cli import app
from offaxis.data import Normalise, TensorSet
from offaxis.data.transforms import Preprocessing
from offaxis.detectors import NATIVE, Reads
from offaxis.errors import ExportError
from offaxis.onnx import TOLERANCE, Graph, check_exportable, export_onnx, largest_difference, output_names
from tests.models import World

runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def answers(path: Path, model: Model, pixels: torch.Tensor) -> dict[str, Any]:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return dict(zip(output_names(model), session.run(output_names(model), {"pixels": pixels.numpy()}), strict=True))


def check_same(path: Path, model: Model, pixels: torch.Tensor) -> None:
    found = answers(path, model, pixels)
    said = model.predict_batch(pixels)
    scores = np.array([p.score for p in said])
    assert np.abs(found["score"] - scores).max() <= TOLERANCE * max(1, np.abs(scores).max())
    assert found["logits"].argmax(1).tolist() == [p.class_index for p in said]
    for score, p_value, p in zip(found["score"], found["p_value"], said, strict=True):
        if abs(score - model.calibration.threshold()) > TOLERANCE * max(1, abs(p.score)):
            assert (p_value <= model.calibration.alpha) == (p.p_value <= model.calibration.alpha)
    ranks = len(model.calibration.scores)
    assert np.abs(found["p_value"] - [p.p_value for p in said]).max() <= 2.5 / ranks


def test_a_bundle_becomes_a_graph(bundle: Path, world: World, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(bundle), "--onnx", str(tmp_path / "x.onnx")])
    assert done.exit_code == 0, done.output
    model = offaxis.load(bundle)
    for count in (1, 7, 100):
        check_same(tmp_path / "x.onnx", model, world.test.batch(torch.arange(count)))
    about = runtime.InferenceSession(str(tmp_path / "x.onnx")).get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == list(model.classes)
    assert float(about["threshold"]) == model.calibration.threshold()
    assert json.loads(about["preprocessing"])["height"] == 8
    assert json.loads(about["provenance"]) == model.public_provenance()
    assert "command" not in about["provenance"]


def test_what_the_exporter_prints_does_not_stand_among_rows(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    true = torch.onnx.export

    def export(*args: Any, **words: Any) -> Any:
        print("Applied 2 of general pattern rewrite rules.")  # as onnxscript 0.6 does
        return true(*args, **words)

    monkeypatch.setattr(torch.onnx, "export", export)
    export_onnx(model, tmp_path / "x.onnx")
    assert capsys.readouterr().out == ""


def test_verdicts_per_class_are_in_the_graph(world: World, tmp_path: Path) -> None:
    model = Model.calibrated(world.trained, world.calibration, per_class=True, alpha=0.05)
    export_onnx(model, tmp_path / "x.onnx")
    pixels = world.test.batch(torch.arange(100))
    about = runtime.InferenceSession(str(tmp_path / "x.onnx")).get_modelmeta().custom_metadata_map
    assert json.loads(about["class_thresholds"]) == model.calibration.class_thresholds()
    assert "threshold" not in about  # there is no one score that is flagged above
    found = answers(tmp_path / "x.onnx", model, pixels)["class_p_value"]
    expected = [np.nan if p.class_p_value is None else p.class_p_value for p in model.predict_batch(pixels)]
    assert np.isnan(found).tolist() == np.isnan(expected).tolist()
    assert np.nanmax(np.abs(found - expected)) < 0.1


def test_an_image_on_the_border_is_flagged_in_double_precision(model: Model, world: World, tmp_path: Path) -> None:
    pixels = world.test.batch(torch.arange(1))
    score = model.predict_batch(pixels)[0].score
    known = np.array([score + 0.1] * 4 + [score - 0.1] * 95)  # four images and itself of a hundred are so high a score
    calibration = Calibration.from_scores(known, np.zeros(99, np.int64), 10, 0.05, cosine=-known)
    model = replace(model, calibration=calibration)
    assert model.predict_batch(pixels)[0].verdict is Verdict.OUT
    export_onnx(model, tmp_path / "x.onnx")
    assert float(answers(tmp_path / "x.onnx", model, pixels)["p_value"][0]) <= 0.05


class Spoilt:
    """A session of onnxruntime in which one output is not what PyTorch gives."""

    def __init__(self, graph: Graph, name: str, spoil: Callable[[Any], Any]) -> None:
        self.graph, self.name, self.spoil = graph, name, spoil

    def run(self, wanted: list[str], given: dict[str, Any]) -> list[Any]:
        with torch.no_grad():
            outputs = [out.numpy() for out in self.graph(torch.from_numpy(given["pixels"]))]
        return [self.spoil(out) if name == self.name else out for name, out in zip(wanted, outputs, strict=True)]


@pytest.mark.parametrize("name", ["logits", "cosine", "score", "p_value", "class_p_value", "probability"])
def test_a_graph_that_answers_otherwise_is_noticed(world: World, name: str) -> None:
    model = Model.calibrated(world.trained, world.calibration, per_class=True, alpha=0.1)
    graph = Graph(model).eval()
    names = output_names(model)
    assert largest_difference(model, graph, Spoilt(graph, "", lambda out: out), names) < 1e-6
    assert np.isnan(largest_difference(model, graph, Spoilt(graph, name, lambda out: out * np.nan), names))
    assert largest_difference(model, graph, Spoilt(graph, name, lambda out: out + 0.9), names) > TOLERANCE
    assert largest_difference(model, graph, Spoilt(graph, "could_be", lambda out: ~out), names) > TOLERANCE


QUICK = ("odin", "mahalanobis", "knn")  # an export takes seconds: the others are in the slow tier


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in QUICK else pytest.mark.slow)
        for n in NATIVE
        if n not in ("leave-out", "cosine-ensemble")  # see test_ensemble_bundles.py
    ],
)
def test_detectors_that_read_outputs_are_exported_and_others_say_why_not(
    name: str, world: World, tmp_path: Path
) -> None:
    assert world.train.labels is not None
    detector = NATIVE[name]()
    rows = torch.arange(300)
    if detector.needs_fit and name != "generalized-odin":
        detector.fit(world.trained.classifier, [(world.normalise(world.train.batch(rows)), world.train.labels[rows])])
    if detector.reads is not Reads.OUTPUTS or name == "generalized-odin":
        model = Model.calibrated(world.trained, world.calibration)
        with pytest.raises(ExportError, match="reads (images|layers)"):
            check_exportable(replace(model, detector=detector))
        return
    model = Model.calibrated(world.trained, world.calibration, detector=detector)
    export_onnx(model, tmp_path / "x.onnx")
    check_same(tmp_path / "x.onnx", model, world.test.batch(torch.arange(50)))


@pytest.mark.slow
def test_a_pair_and_a_linear_head_are_exported(world: World, tmp_path: Path) -> None:
    torch.manual_seed(1)
    plain = networks.wide_resnet(10, 1, 10, "linear", in_channels=1).eval()
    preprocessing = Preprocessing(world.train.shape, world.normalise)
    pair = Model.calibrated(Paired(plain, world.trained.classifier), world.calibration, preprocessing=preprocessing)
    energy = Model.calibrated(plain, world.calibration, preprocessing=preprocessing, detector=NATIVE["energy"]())
    assert "cosine" not in output_names(energy)
    for model in (pair, energy):
        export_onnx(model, tmp_path / "x.onnx")
        check_same(tmp_path / "x.onnx", model, world.test.batch(torch.arange(20)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The class of")
@pytest.mark.parametrize("head", ["logitnorm", "t2fnorm", "elogitnorm", "sphereface", "arcface"])
def test_heads_with_a_normalised_loss_are_exported(head: Any, world: World, tmp_path: Path) -> None:
    torch.manual_seed(1)
    network = networks.wide_resnet(10, 1, 10, head, in_channels=1).eval()
    preprocessing = Preprocessing(world.train.shape, world.normalise)
    baseline = NATIVE["max-softmax"]()
    model = Model.calibrated(network, world.calibration, preprocessing=preprocessing, detector=baseline)
    export_onnx(model, tmp_path / "x.onnx")
    pixels = world.test.batch(torch.arange(20))
    check_same(tmp_path / "x.onnx", model, pixels)
    found = answers(tmp_path / "x.onnx", model, pixels)
    of_logits = -torch.from_numpy(found["logits"]).softmax(1).amax(1).numpy()
    assert np.allclose(found["score"], of_logits, atol=1e-5) == (head != "t2fnorm")  # which scores with other logits


def _third_party(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if name == "timm-resnet":
        import timm

        made: torch.nn.Module = timm.create_model("resnet10t", in_chans=3)
    elif name == "timm-vit":
        import timm

        made = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2)
    elif name == "torchvision":
        import torchvision

        made = torchvision.models.mobilenet_v3_small()
    else:
        import transformers

        made = transformers.ViTForImageClassification(
            transformers.ViTConfig(
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=64,
                image_size=32,
                patch_size=8,
            )
        )
    return made


@pytest.mark.thirdparty
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("torchvision_operators")
@pytest.mark.parametrize("name", ["timm-resnet", "timm-vit", "torchvision", "transformers"])
def test_attached_networks_are_bundled_and_exported(name: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    images = TensorSet("some", torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8, generator=generator))
    classifier = attach(_third_party(name), num_classes=5).eval()
    preprocessing = Preprocessing((3, 32, 32), Normalise((0.5,) * 3, (0.25,) * 3))
    model = Model.calibrated(classifier, images, preprocessing=preprocessing)
    arguments = {"img_size": 32, "patch_size": 8, "depth": 2}
    builder = (
        {"library": "timm", "name": "vit_tiny_patch16_224", "arguments": arguments} if name == "timm-vit" else None
    )
    model.save(tmp_path / "x.oax", builder=builder)
    again = offaxis.load(tmp_path / "x.oax")
    assert again.predict(images) == model.predict(images)
    again.recalibrated(images, alpha=0.1).save(tmp_path / "y.oax")  # what offaxis calibrate does
    assert [p.score for p in offaxis.load(tmp_path / "y.oax").predict(images)] == [
        p.score for p in model.predict(images)
    ]
    export_onnx(again, tmp_path / "x.onnx")
    check_same(tmp_path / "x.onnx", again, images.images[:9])


def test_openvino_gives_the_same_outputs(model: Model, world: World, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    export_onnx(model, tmp_path / "x.onnx")
    pixels = world.test.batch(torch.arange(20))
    exact = {"INFERENCE_PRECISION_HINT": "f32"}  # by itself it takes bfloat16 on CPUs that have it
    found = openvino.Core().compile_model(str(tmp_path / "x.onnx"), "CPU", exact)({"pixels": pixels.numpy()})
    for name, expected in answers(tmp_path / "x.onnx", model, pixels).items():
        assert np.allclose(found[name], expected, atol=1e-4)
