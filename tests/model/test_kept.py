"""A classifier that is kept as it was trained: every detector, bundles, ONNX, the service, drift; from Python and the shell."""

import io
import json
import re
import urllib.request
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

import offaxis
from offaxis import Model, Verdict, attach, open_network
from offaxis.calibration import DriftMonitor
from offaxis.cli import app
from offaxis.data import Normalise, Preprocessing
from offaxis.detectors import NATIVE, MahalanobisPlusPlus, default_detector
from offaxis.errors import ArgumentError, DataError, NotFittedError, OverlapError
from offaxis.training.record import load_run
from tests.models import World

run = CliRunner().invoke
NORMALISE = Normalise((0.3,), (0.35,))
PREPROCESSING = Preprocessing((1, 8, 8), NORMALISE)
FOR_OTHER_HEADS = ("cosine", "cosine-ensemble", "two-cosines", "leave-out", "isomax", "generalized-odin")

FILE = """
from torch import nn

def network():
    return nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 24), nn.ReLU(), nn.Linear(24, 10))
"""


def make_network() -> nn.Module:
    namespace: dict[str, object] = {}
    exec(FILE, namespace)
    made = namespace["network"]()  # type: ignore[operator]
    assert isinstance(made, nn.Module)
    return made


@pytest.fixture(scope="module")
def trained(world: World) -> nn.Module:
    """An ordinary classifier of digits, trained in an ordinary loop."""
    torch.manual_seed(0)
    network = make_network()
    images, labels = NORMALISE(world.train.batch(torch.arange(len(world.train)))), world.train.labels
    assert labels is not None
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for _ in range(12):
        for rows in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images[rows]), labels[rows]).backward()
            optimizer.step()
    return network.eval()


@pytest.fixture(scope="module")
def kept(trained: nn.Module, world: World) -> Model:
    """The classifier with the default detector."""
    network = attach(trained, head="keep")
    return Model.calibrated(network, world.calibration, fit=world.train, preprocessing=PREPROCESSING)


def loader(images: offaxis.ImageSet, *, labels: bool = True) -> "DataLoader[tuple[torch.Tensor, ...]]":
    pixels = NORMALISE(images.batch(torch.arange(len(images))))
    assert images.labels is not None
    return DataLoader(TensorDataset(pixels, images.labels) if labels else TensorDataset(pixels), batch_size=50)


def noise(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


# the default, and every detector --------------------------------------------------------------------------------------


def test_the_default_detector_has_nothing_to_tune_and_finds_noise(kept: Model, world: World) -> None:
    assert isinstance(kept.detector, MahalanobisPlusPlus)
    assert kept.detector.tunable == ()
    assert kept.calibration.accuracy is not None
    assert kept.calibration.accuracy > 0.9
    assert kept.classes == world.train.classes
    assert kept.overlap_checked
    assert sum(p.verdict is Verdict.OUT for p in kept.predict(noise(100))) > 80
    assert sum(p.verdict is Verdict.OUT for p in kept.predict(world.test)) < 0.2 * len(world.test)
    assert type(default_detector(attach(make_network(), "linear"))) is MahalanobisPlusPlus
    assert default_detector(attach(make_network(), "cosine")).name == "cosine"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--freeze"], "two-cosines"),
        (["--unfreeze", "group3"], "two-cosines"),
        (["--freeze", "--head", "linear"], "mahalanobis++"),
        ([], "cosine"),
        (["--head", "linear"], "mahalanobis++"),
    ],
    ids=["frozen", "last block", "frozen linear", "whole", "linear"],
)
def test_a_network_has_one_default_in_python_and_in_the_shell(
    options: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    base, folder, bundle, second = (str(tmp_path / name) for name in ("base", "run", "x.oax", "y.oax"))
    short = ["train", "--id", "small-digits", "--epochs", "1", "--quiet", "--out"]
    first = [*short, base, "--network", "wrn-10-1-half"]
    training = [[*first, *options, f"--out={folder}"]]
    if any("freeze" in option for option in options):
        training = [first, [*short, folder, "--from", base, *options]]
    bundling = ["bundle", "--calibrate", "small-digits", "--out"]
    for words in (*training, [*bundling, bundle, folder], [*bundling, second, bundle]):
        done = run(app, words)
        assert done.exit_code == 0, (done.output, done.exception)
    model, again = offaxis.load(bundle), offaxis.load(second)
    assert (model.detector.name, again.detector.name) == (expected, expected)
    images, fitted_on = offaxis.load_images("small-digits"), offaxis.load_images("small-digits", "train")
    trained = load_run(folder)
    for network in (folder, trained, trained.classifier, bundle, model):
        given = partial(Model.calibrated, network, images, preprocessing=model.preprocessing)
        assert given(fit=fitted_on).detector.name == given(used=[fitted_on]).detector.name == expected
        if expected != "cosine":  # never another in its place, where there is nothing to fit it on
            free = "cosine" if expected == "two-cosines" else "energy"
            with pytest.raises(
                NotFittedError, match=rf"for {re.escape(expected)}, .*fit=.* The detector {free} needs none"
            ):
                given()


@pytest.mark.parametrize("name", [name for name in NATIVE if name not in FOR_OTHER_HEADS])
def test_every_detector_is_calibrated_and_bundled(name: str, trained: nn.Module, world: World, tmp_path: Path) -> None:
    network = attach(trained, head="keep")
    made = Model.calibrated(
        network, world.calibration, fit=world.train, detector=name, preprocessing=PREPROCESSING, alpha=0.1
    )
    made.save(tmp_path / "kept.oax")
    again = offaxis.load(tmp_path / "kept.oax", network=make_network())
    assert again.detector.name == name
    pixels = world.test.batch(torch.arange(30))
    expected = [made.predict_batch(batch) for batch in pixels.split(10)]
    assert [again.predict_batch(batch) for batch in pixels.split(10)] == expected
    with torch.no_grad():
        logits = trained(NORMALISE(pixels[:10]))
    assert [p.class_index for p in expected[0]] == logits.argmax(1).tolist()
    assert [p.cosine for p in expected[0]] == [None] * 10


def test_onnx_drift_and_the_service(kept: Model, world: World, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from offaxis.onnx import export_onnx, output_names
    from tests.serve.serving import running

    export_onnx(kept, tmp_path / "kept.onnx")
    pixels = world.test.batch(torch.arange(20))
    session = runtime.InferenceSession(str(tmp_path / "kept.onnx"), providers=["CPUExecutionProvider"])
    found = dict(zip(output_names(kept), session.run(None, {"pixels": pixels.numpy()}), strict=True))
    predictions = kept.predict_batch(pixels)
    assert found["logits"].argmax(1).tolist() == [p.class_index for p in predictions]
    np.testing.assert_allclose(found["score"], [p.score for p in predictions], rtol=1e-3)
    drift = DriftMonitor(kept.calibration.scores)
    for prediction in kept.predict(noise(60)):
        drift.add(prediction.score)
    assert drift.state().alarm
    with running(kept) as (address, _):
        picture = io.BytesIO()
        Image.fromarray(pixels[0, 0].numpy()).save(picture, "PNG")
        request = urllib.request.Request(
            f"{address}/v1/predict", picture.getvalue(), {"Content-Type": "image/png"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            answer = json.loads(reply.read())
    (one,) = answer["predictions"]
    assert (one["class_index"], one["cosine"]) == (predictions[0].class_index, None)
    assert one["p_value"] == predictions[0].p_value


# from a DataLoader ----------------------------------------------------------------------------------------------------


def test_a_data_loader_fits_and_calibrates(trained: nn.Module, world: World, kept: Model) -> None:
    model = Model.calibrated(
        attach(trained, "keep"), loader(world.calibration), fit=loader(world.train), preprocessing=PREPROCESSING
    )
    assert model.overlap_checked  # image by image, as they leave the loaders
    np.testing.assert_allclose(model.calibration.scores, kept.calibration.scores, rtol=1e-6)
    assert model.calibration.accuracy == kept.calibration.accuracy


def test_a_bare_module_is_kept(trained: nn.Module, world: World, kept: Model) -> None:
    model = Model.calibrated(trained, world.calibration, fit=world.train, preprocessing=PREPROCESSING)
    assert model.calibration.scores.tolist() == kept.calibration.scores.tolist()
    assert isinstance(trained.get_submodule("5"), nn.Linear)  # and stays as it was


def test_training_images_are_refused_for_calibration_or_the_result_says_so(trained: nn.Module, world: World) -> None:
    network, options = attach(trained, "keep"), {"preprocessing": PREPROCESSING, "detector": "energy"}
    with pytest.raises(OverlapError, match="calibrate on other images"):
        Model.calibrated(network, world.train, used=[world.train], **options)  # type: ignore[arg-type]
    with pytest.raises(OverlapError, match="1438 of the 1438"):
        Model.calibrated(network, loader(world.train), used=[loader(world.train)], **options)  # type: ignore[arg-type]
    same = loader(world.train)
    with pytest.raises(OverlapError, match="reads the same dataset"):
        Model.calibrated(network, same, fit=same, preprocessing=PREPROCESSING)
    with pytest.raises(OverlapError, match="calibrate on other images"):
        Model.calibrated(network, world.train, fit=world.train, preprocessing=PREPROCESSING)
    unchecked = Model.calibrated(network, world.train, **options)  # type: ignore[arg-type]
    assert not unchecked.overlap_checked
    assert unchecked.provenance["overlap_checked"] is False
    with pytest.raises(ArgumentError, match="Expected DataLoaders in `used`"):
        Model.calibrated(network, loader(world.calibration), used=[world.train], **options)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"loader\.dataset"):
        Model.calibrated(network, world.calibration, used=[loader(world.train)], **options)  # type: ignore[arg-type]


def test_a_detector_that_must_be_fitted_gets_the_training_images(trained: nn.Module, world: World) -> None:
    network = attach(trained, "keep")
    with pytest.raises(NotFittedError, match=r"training images for mahalanobis\+\+.* got none: .*fit=.*--fit FOLDER"):
        Model.calibrated(network, world.calibration, preprocessing=PREPROCESSING)
    with pytest.raises(NotFittedError, match="got 2 sets in `used`"):
        Model.calibrated(network, world.calibration, used=[world.train, world.test], preprocessing=PREPROCESSING)
    model = Model.calibrated(
        network, world.calibration, used=[world.train], detector="knn:k=5", preprocessing=PREPROCESSING
    )
    assert model.detector.fitted
    with pytest.raises(DataError, match="Expected labels"):
        Model.calibrated(network, world.calibration, fit=loader(world.train, labels=False), preprocessing=PREPROCESSING)


# from the shell -------------------------------------------------------------------------------------------------------


@pytest.fixture
def folders(world: World, tmp_path: Path) -> Path:
    """Training images and others, a folder for each class, and the network in a Python file with its weights."""
    (tmp_path / "net.py").write_text(FILE)
    for name, images, count in (("train", world.train, 300), ("new", world.calibration, 240)):
        assert images.labels is not None
        for i in range(count):
            folder = tmp_path / name / images.classes[int(images.labels[i])]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images.batch(torch.tensor([i]))[0, 0].numpy()).save(folder / f"{i:04}.png")
    return tmp_path


def test_a_trained_network_is_bundled_from_the_shell(trained: nn.Module, folders: Path, world: World) -> None:
    torch.save({"state_dict": trained.state_dict()}, folders / "weights.pt")
    words = ["bundle", f"{folders / 'net.py'}:network", "--weights", str(folders / "weights.pt"), "--mean", "0.3"]
    words += [
        "--std",
        "0.35",
        "--calibrate",
        str(folders / "new"),
        "--out",
        str(folders / "x.oax"),
        "--size",
        "8",
        "--overwrite",
    ]
    words += ["--calibrate-share", "1"]
    done = run(app, [*words, "--fit", str(folders / "train")])
    assert done.exit_code == 0, done.output
    assert "mahalanobis++ on 240 calibration images" in done.stderr
    assert "It predicts the class of 9" in done.stderr
    assert "not checked" not in done.stderr
    model = offaxis.load(folders / "x.oax", network=make_network())
    pixels = world.test.batch(torch.arange(20))
    with torch.no_grad():
        expected = trained(NORMALISE(pixels)).argmax(1).tolist()
    assert [p.class_index for p in model.predict(pixels)] == expected
    assert model.classes == world.train.classes
    scored = run(app, ["score", str(folders / "x.oax"), str(folders / "new"), "--network", words[1], "--quiet"])
    assert scored.exit_code == 0, scored.output
    assert len(scored.stdout.splitlines()) == 241
    without = run(app, words)
    assert isinstance(without.exception, DataError)
    assert "--trained-on" in str(without.exception)
    unchecked = run(app, [*words, "--unchecked"])
    assert isinstance(unchecked.exception, NotFittedError)
    energy = run(app, [*words, "--unchecked", "--detector", "energy"])
    assert energy.exit_code == 0, energy.output
    assert "It was not checked whether calibration images were used for training." in energy.stderr


@pytest.mark.parametrize("mean", ["", "x", "0.3,0.3", "0.1,0.2,0.3"])
def test_mean_and_std_must_be_numbers_for_each_channel(mean: str, folders: Path) -> None:
    done = run(
        app, ["bundle", str(folders / "net.py"), "--calibrate", str(folders / "new"), "--out", "x.oax", "--mean", mean]
    )
    assert isinstance(done.exception, ArgumentError)
    assert "--mean 0.485,0.456,0.406 --std 0.229,0.224,0.225" in str(done.exception)


def test_untrained_networks_are_not_kept() -> None:
    with pytest.raises(ArgumentError, match=r"Expected --weights FILE, the trained weights of wrn-10-1"):
        open_network("wrn-10-1", head="keep")


def test_weights_of_a_named_network_are_kept_with_their_classes(tmp_path: Path) -> None:
    made = open_network("wrn-10-1-half", num_classes=7, head="linear", in_channels=1)
    torch.save(made.network.state_dict(), tmp_path / "w.pt")
    images = torch.rand(2, 1, 8, 8)
    for channels in (1, None):  # or those of the weights
        again = open_network("wrn-10-1-half", head="keep", in_channels=channels, weights=tmp_path / "w.pt")
        assert again.network.num_classes == 7
        assert torch.equal(again.network(images), made.network(images))


@pytest.mark.thirdparty
@pytest.mark.usefixtures("torchvision_operators")
@pytest.mark.filterwarnings("default")
def test_networks_of_libraries_are_bundled_from_the_shell(tmp_path: Path) -> None:
    """Fine-tuned for three classes, saved as its own training script saves it: the classes follow from the weights."""
    timm, torchvision = pytest.importorskip("timm"), pytest.importorskip("torchvision")
    transformers = pytest.importorskip("transformers")
    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", 24), ("new", 30)):
        for name in "abc":
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = torch.randint(0, 256, (40, 60, 3), dtype=torch.uint8, generator=generator).numpy()
                Image.fromarray(pixels).save(tmp_path / split / name / f"{i}.png")
    torch.manual_seed(0)
    networks = {
        "timm:resnet10t": timm.create_model("resnet10t", num_classes=3),
        "torchvision:mobilenet_v3_small": torchvision.models.get_model(
            "mobilenet_v3_small", weights=None, num_classes=3
        ),
    }
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=3
    )
    networks["transformers"] = transformers.ResNetForImageClassification(config)
    networks["transformers"].save_pretrained(tmp_path / "hf")
    for source, network in networks.items():
        network.eval()
        words = ["--calibrate", str(tmp_path / "new"), "--fit", str(tmp_path / "train"), "--size", "64"]
        words += ["--out", str(tmp_path / "x.oax"), "--detector", "fdbd"]
        if source == "transformers":
            words = [f"transformers:{tmp_path / 'hf'}", *words, "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"]
        else:
            torch.save(network.state_dict(), tmp_path / "w.pt")
            words = [source, "--weights", str(tmp_path / "w.pt"), *words]
        done = run(app, ["bundle", *words])
        assert done.exit_code == 0, done.output
        model = offaxis.load(tmp_path / "x.oax")  # it is rebuilt by name
        assert model.classes == ("a", "b", "c") or source == "transformers"
        assert model.preprocessing.shape == (3, 64, 64)
        images = torch.rand(2, 3, 64, 64)
        with torch.no_grad():
            expected = network(images)
            assert torch.equal(model.network(images), getattr(expected, "logits", expected))
        (tmp_path / "x.oax").unlink()
    grey = timm.create_model("resnet10t", num_classes=3, in_chans=1).eval()
    torch.save(grey.state_dict(), tmp_path / "grey.pt")
    words = ["bundle", "timm:resnet10t", "--weights", str(tmp_path / "grey.pt"), "--calibrate", str(tmp_path / "new")]
    words += ["--fit", str(tmp_path / "train"), "--size", "64", "--out", str(tmp_path / "grey.oax")]
    images = torch.rand(2, 1, 64, 64)
    for options in ([], ["--overwrite", "--mean", "0.5", "--std", "0.25"]):  # those of the training images, or others
        done = run(app, [*words, *options])
        assert done.exit_code == 0, (done.output, done.exception)
        with torch.no_grad():
            assert torch.equal(offaxis.load(tmp_path / "grey.oax").network(images), grey(images))
    refused = run(app, ["bundle", "timm:resnet10t", "--calibrate", str(tmp_path / "new"), "--out", "x.oax"])
    assert "Expected --weights FILE (or --pretrained) beside timm:resnet10t" in str(refused.exception)
