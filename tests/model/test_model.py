"""Models from any network and any data, on any device; records of how they were made."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

import offaxis
from offaxis import EmbeddingDetector, Model, Verdict
from offaxis.data import Normalise, Preprocessing, TensorSet
from offaxis.detectors import KNN, Detector, Energy
from offaxis.errors import ArgumentError, DataError, DetectorError, NotFittedError, OverlapError
from offaxis.explain import explain
from offaxis.heads import Outputs
from offaxis.make_model import make_model
from offaxis.onnx import export_onnx
from offaxis.options import BundleOptions
from offaxis.training import Trained
from tests.apple import GPU, AppleGPU
from tests.embeddings import draw
from tests.models import World


class Pictures(Dataset[tuple[Image.Image, int]]):
    """A torch Dataset of (PIL image, label)."""

    def __init__(self, images: Tensor, size: int | None = None) -> None:
        self.images, self.size = images, size

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        picture = Image.fromarray(self.images[index, 0].numpy())
        return (picture if self.size is None else picture.resize((self.size, self.size))), index % 10


class Table:
    """A data set as Hugging Face's look: columns with names."""

    def __init__(self, images: Tensor) -> None:
        self.column_names = ["image", "label"]
        self.features = {"image": None, "label": None}
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": Image.fromarray(self.images[index, 0].numpy()), "label": 0}


def pixels_of(world: World, part: str = "calibration") -> Tensor:
    images = getattr(world, part)
    pixels: Tensor = images.batch(torch.arange(len(images)))
    return pixels


def loader_of(world: World, part: str = "calibration", batch_size: int = 50) -> DataLoader[Any]:
    """A DataLoader of normalised batches with labels."""
    images = world.normalise(pixels_of(world, part))
    return DataLoader(TensorDataset(images, torch.zeros(len(images), dtype=torch.long)), batch_size)


# data ----------------------------------------------------------------------------------------------------------------


def test_a_model_is_calibrated_on_any_data(world: World, model: Model) -> None:
    pixels = pixels_of(world)
    for data in (Pictures(pixels), Table(pixels), (pixels, torch.zeros(len(pixels)).long()), TensorSet("some", pixels)):
        made = Model.calibrated(world.trained, data, used=[Pictures(pixels_of(world, "train"))])
        assert np.array_equal(made.calibration.scores, model.calibration.scores)
        assert made.provenance["calibration_set"]["images"] == len(pixels)
        assert torch.equal(made.used, model.used)


def test_a_network_in_training_stays_in_train_mode(world: World, model: Model, tmp_path: Path) -> None:
    network = copy.deepcopy(world.trained.classifier).train()
    preprocessing = model.preprocessing
    assert isinstance(preprocessing, Preprocessing)
    network.backbone.eval()
    before = [module.training for module in network.modules()]
    made = Model.calibrated(network, world.calibration, preprocessing=preprocessing)
    export_onnx(made, tmp_path / "x.onnx")
    made.save(tmp_path / "x.oax")
    expected = [each.score for each in model.predict(world.test)]
    assert [each.score for each in made.predict(world.test)] == expected
    assert [module.training for module in network.modules()] == before
    loaded = offaxis.load(tmp_path / "x.oax")
    assert [each.score for each in loaded.predict(world.test)] == expected
    assert not any(module.training for module in loaded.network.modules())


@pytest.mark.filterwarnings("ignore:The class of")  # its labels are all 0
def test_a_loader_calibrates_unchanged(world: World, model: Model, tmp_path: Path) -> None:
    made = Model.calibrated(world.trained, loader_of(world))
    assert made.preprocessing == model.preprocessing
    np.testing.assert_allclose(made.calibration.scores, model.calibration.scores, rtol=1e-5, atol=1e-6)
    assert made.provenance["calibration_set"] == {"name": "TensorDataset", "images": 240, "fingerprint": None}
    made.save(tmp_path / "x.oax")
    assert offaxis.load(tmp_path / "x.oax").predict(world.test) == made.predict(world.test)
    again = made.recalibrated(loader_of(world, "test"), alpha=0.1)
    assert len(again.calibration.scores) == len(world.test)
    with pytest.raises(ArgumentError, match="DataLoader"):  # which images it holds cannot be compared
        Model.calibrated(world.trained, loader_of(world), used=[world.train])
    assert model.overlap_checked
    assert not model.recalibrated(loader_of(world)).overlap_checked


def test_a_network_trained_with_a_loader_needs_its_preprocessing(world: World) -> None:
    trained = Trained(classifier=world.trained.classifier, normalise=None, classes=(), history=())
    with pytest.raises(ArgumentError, match=r"Expected `preprocessing` .* offaxis.data.Preprocessing\("):
        Model.calibrated(trained, loader_of(world))
    made = Model.calibrated(trained, loader_of(world), preprocessing=Preprocessing((1, 8, 8), world.normalise))
    assert made.classes == tuple("0123456789")
    empty = DataLoader(TensorDataset(torch.empty(0, 1, 8, 8), torch.empty(0, dtype=torch.long)))
    with pytest.raises(DataError, match="no batch"):
        Model.calibrated(world.trained, empty)


def test_predictions_are_the_same_for_any_data(world: World, model: Model) -> None:
    pixels = pixels_of(world, "test")
    expected = model.predict(pixels)
    for data in (Pictures(pixels), Table(pixels), TensorDataset(pixels, torch.zeros(len(pixels)).long()), world.test):
        assert model.predict(data) == expected  # type: ignore[arg-type]
    from_loader = model.predict(loader_of(world, "test", 256))
    assert from_loader == expected
    assert len(model.predict(Pictures(pixels[:7], size=20))) == 7  # resized as files are
    assert model.predict_batch(pixels) == expected
    assert model.predict_batch(pixels[:0]) == []


def test_what_is_no_data_is_refused(world: World, model: Model) -> None:
    large = DataLoader(TensorDataset(torch.zeros(4, 1, 9, 9), torch.zeros(4, dtype=torch.long)))
    with pytest.raises(DataError, match=r"images \(1, 8, 8\) from the DataLoader but got \(1, 9, 9\)"):
        model.predict(large)
    for nonsense in (None, 3, {"a": 1}):
        with pytest.raises(DataError, match="Expected"):
            model.predict(nonsense)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="Expected"):
        Model.calibrated(world.trained, 3)


# networks ------------------------------------------------------------------------------------------------------------


def test_a_model_is_made_of_any_source(world: World, cosine_runs: list[Trained], model: Model, bundle: Path) -> None:
    expected = model.calibration.scores
    for source in (world.trained, world.trained.folder, str(world.trained.folder), bundle, model):
        assert source is not None
        made = Model.calibrated(source, world.calibration)
        np.testing.assert_allclose(made.calibration.scores, expected, atol=1e-6)  # by the layout of the weights
        assert made.classes == model.classes
    several = Model.calibrated([run.folder for run in cosine_runs if run.folder], world.calibration)
    assert several.detector.name == "cosine-ensemble"


def test_detectors_may_be_named(world: World) -> None:
    made = Model.calibrated(world.trained, world.calibration, detector="energy:temperature=2.0")
    assert isinstance(made.detector, Energy)
    assert made.detector.arguments["temperature"] == 2.0
    with pytest.raises(NotFittedError, match="knn"):
        Model.calibrated(world.trained, world.calibration, detector="knn")
    with pytest.raises(ArgumentError, match="'magic'"):
        Model.calibrated(world.trained, world.calibration, detector="magic")


def made_of(networks: list[Any], command: list[str] | None = None, **options: Any) -> Model:
    return make_model(
        BundleOptions(networks=(), calibrate="small-digits", quiet=True, **options), command, networks=networks
    )


def test_make_model_takes_a_detector_with_arguments(world: World) -> None:
    command = ["offaxis", "bundle", "digits"]
    made = made_of([world.trained], command, detector="knn:k=7", alpha=0.1)
    assert isinstance(made.detector, KNN)
    assert made.detector.k == 7
    assert made.provenance["command"] == command
    with pytest.raises(ArgumentError, match="knn:k=10"):
        made_of([world.trained], detector="knn:k")


def test_make_model_finds_out_about_a_network_of_ones_own(world: World) -> None:
    network = world.trained.classifier
    with pytest.raises(DataError, match="images that it does not name.*--trained-on"):
        made_of([network])
    with pytest.raises(ArgumentError, match="--size.*knows its mean and std"):
        made_of([network], unchecked=True, size=8)
    made = made_of([network], trained_on="small-digits")
    assert made.preprocessing.normalise == Normalise.from_images(world.train)
    assert len(made.used) > 1000


# records -------------------------------------------------------------------------------------------------------------


def test_provenance_holds_fields(world: World, ensemble: Model, cosine_runs: list[Trained], model: Model) -> None:
    kept = json.loads(json.dumps(model.provenance))
    assert kept.keys() == {
        *("versions", "command", "architecture", "head", "recipe", "seed", "kind", "members", "training_command"),
        *("id_sets", "calibration_set", "calibration_date", "overlap_checked"),
    }
    assert kept["versions"] == {"offaxis": offaxis.__version__, "torch": torch.__version__} | {
        "python": kept["versions"]["python"]
    }
    assert (kept["architecture"], kept["kind"], kept["seed"]) == ("wrn-10-1-half", "single", 0)
    assert kept["head"]["name"] == "cosine"
    assert kept["recipe"]["epochs"] == 4
    assert kept["id_sets"] == [{"name": "small-digits", "images": 1438, "fingerprint": world.train.fingerprint}]
    assert kept["calibration_set"]["images"] == 240
    assert ensemble.provenance["kind"] == "ensemble"
    assert ensemble.provenance["members"] == ["cosine-0", "cosine-1", "cosine-2"]


# devices -------------------------------------------------------------------------------------------------------------


def test_a_model_is_moved_to_a_device(world: World, bundle: Path) -> None:
    loaded = offaxis.load(bundle)
    before = loaded.predict(world.test)
    assert loaded.to("cpu") is loaded
    assert loaded.device == torch.device("cpu")
    assert loaded.predict(world.test) == before
    with pytest.raises(ArgumentError, match="a device that PyTorch can use here"):
        loaded.to("abacus")
    assert loaded.to("auto").device.type in ("cpu", "cuda", "mps")


def test_network_and_detector_move_together(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    detector = KNN(k=5).fit(world.trained.classifier, loader_of(world, "train"))
    Model.calibrated(world.trained, world.calibration, detector=detector).save(tmp_path / "x.oax")
    loaded = offaxis.load(tmp_path / "x.oax")
    monkeypatch.setattr("offaxis.model.resolve_device", torch.device)
    loaded.to("meta")  # which every machine has
    parts = [*loaded.network.state_dict().values(), *loaded.detector.state_dict().values()]
    assert {tensor.device.type for tensor in parts} == {"meta"}
    assert loaded.device.type == "meta"


def test_an_apple_gpu_which_has_no_float64(
    world: World, tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    EmbeddingDetector(random_state=0).fit(*draw(200, 0)).calibrate(draw(100, 1)[0]).save(tmp_path / "rows.oax")
    monkeypatch.setattr("offaxis.model.resolve_device", torch.device)
    pixels = world.test.batch(torch.arange(20))
    for path, images in ((bundle, pixels), (tmp_path / "rows.oax", draw(20, 2)[0])):
        expected = offaxis.load(path).predict(images)
        with AppleGPU():
            loaded = offaxis.load(path).to("mps")
            assert loaded.device == GPU
            assert [p.score for p in loaded.predict(images)] == pytest.approx([p.score for p in expected], abs=1e-2)
    made = Model.calibrated(world.trained, world.calibration, fit=world.train, detector="two-cosines")
    made.save(tmp_path / "two.oax")
    with AppleGPU():
        found = explain(offaxis.load(tmp_path / "two.oax").to("mps"), pixels)
    for one, other in zip(found, explain(made, pixels), strict=True):
        np.testing.assert_allclose(one.map, other.map, atol=1e-4)  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_predictions_on_a_gpu_agree(world: World, bundle: Path, tmp_path: Path) -> None:
    loaded = offaxis.load(bundle)
    here = loaded.predict(world.test)
    there = loaded.to("cuda").predict(world.test)
    assert [p.score for p in there] == pytest.approx([p.score for p in here], abs=1e-4)
    assert {p.verdict for p in there} <= set(Verdict)
    loaded.save(tmp_path / "x.oax")
    assert offaxis.load(tmp_path / "x.oax").device.type == "cpu"


def test_overlap_is_found_in_any_data(world: World) -> None:
    with pytest.raises(OverlapError, match="240 of the 240"):
        Model.calibrated(world.trained, world.calibration, used=[Pictures(pixels_of(world))])


class Blank(Detector):
    """A detector of one's own whose buffer has a value before it is fitted."""

    name = "blank"
    needs_fit = True

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(10))

    def forward(self, outputs: Outputs) -> Tensor:
        return -(outputs.logits - self.mean).amax(1)


class Told(Blank):
    """The same, which says itself whether it is fitted."""

    @property
    def fitted(self) -> bool:
        return bool(self.mean.any())

    def update(self, outputs: Outputs, labels: Tensor) -> None:
        self.mean = outputs.logits.mean(0)


def test_a_detector_that_must_be_fitted_names_what_fitting_fills(world: World) -> None:
    with pytest.raises(DetectorError, match=r"blank, .* names none.*self\.expect\('mean'\)"):
        Model.calibrated(world.trained, world.calibration, fit=world.train, detector=Blank())
    model = Model.calibrated(world.trained, world.calibration, fit=world.train, detector=Told())
    assert model.detector.fitted


@pytest.mark.parametrize("images", [None, 3, [None], [3], [[1, 2]], {}, {"a": 1}, object(), [b"", None]])
def test_what_is_no_image_is_told(model: Model, images: Any) -> None:
    with pytest.raises(DataError, match="Expected|none"):
        model.predict(images)


@pytest.mark.parametrize("mean", [float("nan"), float("inf")])
def test_a_mean_or_a_deviation_that_is_no_number_is_told(mean: float) -> None:
    with pytest.raises(ArgumentError, match="finite mean"):
        Normalise((mean,), (0.5,))
    with pytest.raises(ArgumentError, match="positive std"):
        Normalise((0.5,), (mean,))
