"""Bundles: the same answer elsewhere, and a clear word about every other file."""

import errno
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import offaxis
from offaxis import Classifier, Model, Paired, Verdict, networks
from offaxis import bundle as bundles
from offaxis.calibration.conformal import allowed, p_values
from offaxis.data import TensorSet
from offaxis.data.transforms import Batches, ImageLike, Preprocessing
from offaxis.detectors import DETECTORS, Detector, Energy
from offaxis.errors import (
    ArgumentError,
    BundleError,
    DataError,
    OffaxisError,
    OverlapError,
    StorageError,
    TooFewImagesError,
)
from offaxis.heads import LinearHead, Outputs, make_head
from offaxis.networks import library as third_party
from tests.hostile.damage import rewritten
from tests.models import World


def test_one_answer_in_every_process_to_the_bit(model: Model, bundle: Path, world: World, tmp_path: Path) -> None:
    torch.save(world.test.batch(torch.arange(50)), tmp_path / "pixels.pt")
    program = (
        "import offaxis, torch; torch.set_num_threads(1);"
        f"print([p.to_json() for p in offaxis.load({str(bundle)!r}).predict(torch.load({str(tmp_path / 'pixels.pt')!r}))])"
    )
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        here = [p.to_json() for p in model.predict(world.test.batch(torch.arange(50)))]
    finally:
        torch.set_num_threads(before)
    assert there.stdout.strip() == str(here)


def test_a_prediction_says_all_that_was_promised(bundle: Path, world: World) -> None:
    loaded = offaxis.load(bundle)
    found = loaded.predict(world.test)
    assert len(found) == len(world.test)
    accuracy = np.mean([p.class_index == label for p, label in zip(found, world.test.labels.tolist(), strict=True)])
    assert accuracy > 0.6
    for p in found:
        assert p.class_name == loaded.classes[p.class_index]
        assert p.cosine is not None
        assert -p.cosine == p.score
        assert p.nearest[0][1] == p.cosine
        assert 0 < p.probability <= 1
        assert 0 < p.p_value <= 1
        assert p.verdict is (Verdict.OUT if p.p_value <= 0.05 else Verdict.IN)
        assert (p.score > loaded.calibration.threshold()) == (p.verdict is Verdict.OUT)
    assert loaded.provenance["id_sets"][0]["fingerprint"] == world.train.fingerprint


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1])
def test_held_out_id_images_are_flagged_at_the_level(world: World, model: Model, alpha: float) -> None:
    """Real held-out images: the count of flags is within what the beta-binomial law allows."""
    from scipy.stats import betabinom

    calibration = model.calibration.with_alpha(alpha)
    scores = np.array([p.score for p in model.predict(world.test)])
    flags = int((calibration.p_values(scores) <= alpha).sum())
    n = len(calibration.scores)
    law = betabinom(len(scores), allowed(n, alpha), n + 1 - allowed(n, alpha))
    assert law.sf(flags - 1) > 0.005


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1])
def test_the_level_holds_over_splits_of_real_images(world: World, model: Model, alpha: float) -> None:
    """The 359 real digits that the network has not seen, split 500 times: on average at most alpha are flagged."""
    images = torch.cat([world.calibration.batch(torch.arange(240)), world.test.batch(torch.arange(len(world.test)))])
    scores = np.array([p.score for p in model.predict(images)])
    chance, shares = np.random.default_rng(0), []
    for _ in range(500):
        chance.shuffle(scores)
        shares.append((p_values(calibration_scores=np.sort(scores[:240]), scores=scores[240:]) <= alpha).mean())
    spread = np.std(shares) / np.sqrt(500)
    assert allowed(240, alpha) / 241 - 4 * spread < np.mean(shares) < alpha + 4 * spread


def test_images_may_come_as_anything(bundle: Path, pictures: list[Path]) -> None:
    loaded = offaxis.load(bundle)
    with Image.open(pictures[0]) as image:
        image.load()
    pixels = np.asarray(image)
    same: list[ImageLike] = [
        pictures[0],
        str(pictures[0]),
        pictures[0].read_bytes(),
        image,
        pixels,
        np.repeat(pixels[:, :, None], 3, 2),
        torch.from_numpy(pixels.copy())[None],
    ]
    first = loaded.predict(pictures[0])[0]
    assert all(loaded.predict([one])[0] == first for one in same)
    assert loaded.predict([]) == []
    with pytest.raises(DataError, match="uint8"):
        loaded.predict(torch.zeros(1, 1, 8, 8, dtype=torch.int32))
    with pytest.raises(DataError, match="do not normalise"):
        loaded.predict(torch.full((1, 1, 8, 8), 3.0))
    with pytest.raises(DataError, match="none"):
        loaded.predict(b"no image")


def test_a_pillow_image_is_read_as_its_file_is(bundle: Path, tmp_path: Path) -> None:
    preprocessing = offaxis.load(bundle).preprocessing
    deep = Image.fromarray((np.arange(64, dtype=np.uint16) * 1000).reshape(8, 8))
    palette = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).convert("P")
    for number, image in enumerate((deep, palette)):
        image.save(tmp_path / f"{number}.png")
        assert np.array_equal(preprocessing.pixels(image), preprocessing.pixels(tmp_path / f"{number}.png"))
    assert np.array_equal(preprocessing.pixels(deep)[0].ravel(), np.arange(64) * 1000 // 256)
    floating = Image.fromarray(np.full((8, 8), 0.5, np.float32))
    floating.save(tmp_path / "f.tiff")
    for source in (floating, tmp_path / "f.tiff"):
        with pytest.raises(DataError, match="floating-point"):
            preprocessing.pixels(source)


def test_a_folder_is_a_bundle_too(model: Model, tmp_path: Path, world: World) -> None:
    model.save(tmp_path / "x", folder=True)
    model.save(tmp_path / "x", folder=True)  # a bundle may be replaced
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == sorted([bundles.MANIFEST, *bundles.FILES])
    assert offaxis.load(tmp_path / "x").predict(world.test) == model.predict(world.test)
    (tmp_path / "mine").mkdir()
    with pytest.raises(StorageError, match="no bundle"):
        model.save(tmp_path / "mine", folder=True)
    with pytest.raises(StorageError, match="is a folder"):
        model.save(tmp_path / "mine")


def test_a_folder_that_holds_more_than_a_bundle_is_not_replaced(model: Model, tmp_path: Path) -> None:
    """To replace a folder is to delete what is in it."""
    clone, foreign = tmp_path / "clone", tmp_path / "foreign"
    model.save(clone, folder=True)
    (clone / ".git").mkdir()
    (clone / "README.md").write_text("my card")
    with pytest.raises(StorageError, match=r"got \.git, README\.md beside it: name another folder"):
        model.save(clone, folder=True)
    assert (clone / "README.md").read_text() == "my card"
    foreign.mkdir()
    for content in ('{"bundle": "of another program"}', "[1]", "{"):
        (foreign / bundles.MANIFEST).write_text(content)
        with pytest.raises(StorageError, match="no bundle"):
            model.save(foreign, folder=True)
        assert (foreign / bundles.MANIFEST).read_text() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clone", "foreign"]


def test_a_folder_that_cannot_be_replaced_stays(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model.save(tmp_path / "x", folder=True)
    before = {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()}
    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(errno.EIO, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(StorageError, match="Input/output error"):
        model.save(tmp_path / "x", folder=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_what_a_killed_process_left_is_removed_with_the_next_bundle(bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.oax"
    script = f"""import os, offaxis, zipfile
model = offaxis.load({str(bundle)!r})
zipfile.ZipFile = lambda *_: os.kill(os.getpid(), 9)
model.save({str(path)!r})"""
    subprocess.run([sys.executable, "-c", script], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    offaxis.load(bundle).save(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.thirdparty
@pytest.mark.usefixtures("torchvision_operators")
def test_what_a_library_cannot_make_is_said_in_a_sentence() -> None:
    builder = {"library": "timm", "name": "resnet18", "arguments": {"no_such_argument": 3}}
    with pytest.raises(ArgumentError, match="timm cannot make 'resnet18' with .*no_such_argument"):
        third_party.make_network(builder)


def test_the_same_model_gives_the_same_bytes(model: Model, bundle: Path, tmp_path: Path) -> None:
    offaxis.load(bundle).save(tmp_path / "again.oax")
    assert (tmp_path / "again.oax").read_bytes() == bundle.read_bytes()


def test_recalibrating_needs_no_training(bundle: Path, world: World) -> None:
    loaded = offaxis.load(bundle)
    again = loaded.recalibrated(world.test, alpha=0.1, per_class=True)
    assert len(again.calibration.scores) == len(world.test)
    assert again.network is loaded.network
    with pytest.raises(OverlapError, match="1 of the 100"):
        loaded.recalibrated(
            TensorSet("mixed", torch.cat([world.test.batch(torch.arange(99)), world.train.batch(torch.tensor([5]))]))
        )
    with pytest.raises(TooFewImagesError):
        loaded.recalibrated(world.test, alpha=0.001)
    verdicts = {p.verdict for p in again.predict(world.calibration)}
    assert Verdict.IN in verdicts


def test_a_class_without_enough_images_says_so(world: World) -> None:
    labels = torch.tensor(
        [p.class_index for p in Model.calibrated(world.trained, world.calibration).predict(world.calibration)]
    )
    some = world.calibration.subset(
        torch.cat([torch.nonzero(labels != 3).flatten(), torch.nonzero(labels == 3).flatten()[:2]])
    )
    model = Model.calibrated(world.trained, some, per_class=True, alpha=0.1)
    threes = [p for p in model.predict(world.test) if p.class_index == 3]
    assert threes
    assert all(p.verdict is Verdict.TOO_FEW and p.class_p_value is None for p in threes)


def test_a_pair_is_kept_whole(world: World, tmp_path: Path) -> None:
    torch.manual_seed(1)
    plain = networks.wide_resnet(10, 1, 10, "linear", in_channels=1).eval()
    pair = Paired(plain, world.trained.classifier)
    preprocessing = Preprocessing(world.train.shape, world.normalise)
    made = Model.calibrated(pair, world.calibration, preprocessing=preprocessing, used=[world.train])
    made.save(tmp_path / "pair.oax")
    again = offaxis.load(tmp_path / "pair.oax")
    assert isinstance(again.network, Paired)
    assert again.predict(world.test) == made.predict(world.test)
    alone = Model.calibrated(world.trained, world.calibration)
    assert [p.score for p in made.predict(world.test)] == [p.score for p in alone.predict(world.test)]


def test_a_network_of_ones_own_is_given_when_loading(world: World, tmp_path: Path) -> None:
    def make() -> Classifier:
        return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU()), make_head("cosine", 16, 10))

    torch.manual_seed(0)
    made = Model.calibrated(make().eval(), world.calibration, preprocessing=Preprocessing((1, 8, 8), world.normalise))
    made.save(tmp_path / "own.oax")
    with pytest.raises(BundleError, match="network=module"):
        offaxis.load(tmp_path / "own.oax")
    with pytest.raises(BundleError, match="do not fit"):
        offaxis.load(tmp_path / "own.oax", network=networks.wide_resnet(10, 1, 10, in_channels=1))
    images = world.test.batch(torch.arange(20))
    assert offaxis.load(tmp_path / "own.oax", network=make()).predict(images) == made.predict(images)
    bare = nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU()), nn.Linear(16, 10))
    with pytest.raises(BundleError, match="do not fit"):  # its backbone has other names
        offaxis.load(tmp_path / "own.oax", network=bare)


class Twofold(nn.Module):
    """A network with two linear layers, which of its own names and its control flow do not tell apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 10), nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows = images.flatten(1)
        out: torch.Tensor = self.first(rows) if rows.sum() < float("inf") else self.second(rows)
        return out


@pytest.mark.parametrize("head", ["cosine", "keep"])
def test_a_bare_module_gets_the_head_that_was_saved(world: World, tmp_path: Path, head: Any) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10, bias=False))

    network = offaxis.attach(make(), head).eval()
    preprocessing = Preprocessing((1, 8, 8), world.normalise)
    made = Model.calibrated(network, world.calibration, preprocessing=preprocessing, detector="max-softmax")
    made.save(tmp_path / "own.oax")
    images = world.test.batch(torch.arange(20))
    assert offaxis.load(tmp_path / "own.oax", network=make()).predict(images) == made.predict(images)
    other = nn.ModuleDict({"one": nn.Linear(64, 16), "two": nn.Linear(16, 10)})  # its output layer has another name
    with pytest.raises(BundleError, match=r"own\.oax: .* '3' is not there.*attach\(\.\.\., layer="):
        offaxis.load(tmp_path / "own.oax", network=other)
    network = offaxis.attach(
        Twofold(), head, layer="first"
    ).eval()  # it cannot be told which of its layers is the output
    made = Model.calibrated(network, world.calibration, preprocessing=preprocessing, detector="max-softmax")
    made.save(tmp_path / "twofold.oax")
    assert offaxis.load(tmp_path / "twofold.oax", network=Twofold()).predict(images) == made.predict(images)
    own_head = Classifier(nn.Flatten(), type("Own", (LinearHead,), {})(64, 10)).eval()
    made = Model.calibrated(own_head, world.calibration, preprocessing=preprocessing, detector="max-softmax")
    made.save(tmp_path / "head.oax")
    with pytest.raises(BundleError, match=r"got a Sequential: give it the head .*offaxis\.attach"):
        offaxis.load(tmp_path / "head.oax", network=make())


class Margin(Detector):
    """A detector of one's own: the difference of the two largest logits, shifted by a fitted mean."""

    name = "margin"
    paper = ""
    needs_fit = True
    tunable = ("weight",)
    mean: torch.Tensor

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight
        self.expect("mean")

    def begin(self, network: object) -> None:
        self.total, self.count = torch.zeros(()), 0

    def update(self, outputs: Outputs, labels: torch.Tensor) -> None:
        first, second = outputs.logits.topk(2).values.unbind(1)
        self.total, self.count = self.total + (first - second).sum(), self.count + len(labels)

    def finish(self) -> None:
        self.mean = self.total / self.count

    def forward(self, outputs: Outputs) -> torch.Tensor:
        first, second = outputs.logits.topk(2).values.unbind(1)
        return self.weight * (self.mean - (first - second))


@pytest.fixture
def margin_model(world: World) -> Iterator[Model]:
    """A model with a detector of one's own, which is registered as long as the test lasts."""
    offaxis.register_detector(Margin)
    detector = Margin(weight=2.0).fit(world.trained.classifier, Batches(world.train, world.normalise, 256))
    yield Model.calibrated(world.trained, world.calibration, detector=detector)
    DETECTORS.pop(Margin.name, None)


def test_a_registered_detector_of_ones_own_is_kept(margin_model: Model, world: World, tmp_path: Path) -> None:
    margin_model.save(tmp_path / "x.oax")
    assert bundles.read_files(tmp_path / "x.oax")[0]["detector"] == {
        "detector": "margin",
        "class": f"{__name__}:Margin",
        "arguments": {"weight": 2.0},
        "tuned_on": None,
    }
    again = offaxis.load(tmp_path / "x.oax")
    assert isinstance(again.detector, Margin)
    assert again.predict(world.test) == margin_model.predict(world.test)


def test_a_detector_that_is_not_registered_says_what_to_do(margin_model: Model, tmp_path: Path) -> None:
    margin_model.save(tmp_path / "x.oax")
    del DETECTORS[Margin.name]
    with pytest.raises(BundleError, match=r"x\.oax: .*tests.model.test_bundle:Margin.*register_detector\(Margin\)"):
        offaxis.load(tmp_path / "x.oax")
    with pytest.raises(BundleError, match=r"not registered: call offaxis.register_detector\(Margin\) first"):
        margin_model.save(tmp_path / "y.oax")
    assert not (tmp_path / "y.oax").exists()
    offaxis.register_detector(Margin)
    assert offaxis.load(tmp_path / "x.oax").detector.name == "margin"


def test_another_class_of_the_same_name_is_refused(margin_model: Model, bundle: Path, tmp_path: Path) -> None:
    margin_model.save(tmp_path / "x.oax")
    DETECTORS[Margin.name] = Energy
    with pytest.raises(BundleError, match="Margin"):
        offaxis.load(tmp_path / "x.oax")


def test_a_detector_that_forgets_its_state_is_not_written(world: World, tmp_path: Path) -> None:
    class Forgetful(Energy):
        name = "forgetful"

        def forward(self, outputs: Outputs) -> torch.Tensor:
            shift: float = getattr(self, "shift", 0.0)
            return super().forward(outputs) + shift

    offaxis.register_detector(Forgetful)
    try:
        detector = Forgetful()
        detector.shift = 3.0  # type: ignore[assignment]
        made = Model.calibrated(world.trained, world.calibration, detector=detector)
        with pytest.raises(BundleError, match="keep everything that it needs in arguments and buffers"):
            made.save(tmp_path / "x.oax")
    finally:
        del DETECTORS[Forgetful.name]
    assert not (tmp_path / "x.oax").exists()


def test_bundles_of_version_1_are_refused(bundle: Path, tmp_path: Path) -> None:
    old = rewritten(bundle, tmp_path / "old.oax", {"version": 1})
    with pytest.raises(
        BundleError, match="bundle of version 1 but this offaxis reads version 2: make it again with `offaxis bundle`"
    ):
        offaxis.load(old)


def test_a_function_of_a_file_makes_the_network_of_a_bundle(world: World, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\nfrom offaxis import attach\n"
        "def make():\n    return attach(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)))\n"
    )
    own = offaxis.open_network(f"{tmp_path / 'mine.py'}:make")
    made = Model.calibrated(own, world.calibration, preprocessing=Preprocessing((1, 8, 8), world.normalise))
    made.save(tmp_path / "own.oax")
    loaded = offaxis.load(tmp_path / "own.oax", network=f"{tmp_path / 'mine.py'}:make")
    assert loaded.predict(world.test) == made.predict(world.test)


def test_other_files_get_a_clear_word(bundle: Path, tmp_path: Path) -> None:
    def refused(name: str, data: bytes, match: str) -> None:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(BundleError, match=match):
            offaxis.load(tmp_path / name)

    with pytest.raises(BundleError, match="There is no bundle"):
        offaxis.load(tmp_path / "absent.oax")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BundleError, match="no bundle.json"):
        offaxis.load(tmp_path / "empty")
    whole = bundle.read_bytes()
    refused("empty.oax", b"", "no zip file")
    refused("text.oax", b"hello", "no zip file")
    refused("pickle.oax", pickle.dumps({"a": 1}), "no zip file")
    refused("cut.oax", whole[: len(whole) // 2], "damaged")
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    refused("flipped.oax", bytes(changed), "damaged")


@pytest.mark.parametrize(
    ("change", "sign", "match"),
    [
        ({"version": 99}, True, "reads version 2: install a newer offaxis"),
        ({"version": "two"}, True, "version 'two' but this offaxis reads version 2"),
        ({"format": "other"}, True, "written by something else"),
        ({"files": []}, True, "damaged"),
        ({"files": {"network.safetensors": {"bytes": 3}}}, True, "damaged"),
        ({"classes": ["a"]}, False, "has been changed"),
        ({"classes": ["a"]}, True, "class|classes"),
        ({"network": {"kind": "surprise"}}, True, "kind 'surprise'"),
        (
            {
                "network": {
                    "kind": "attached",
                    "builder": {"library": "os", "name": "system"},
                    "layer": "fc",
                    "num_classes": 3,
                    "head": {"name": "cosine"},
                }
            },
            True,
            "timm, torchvision, transformers",
        ),
        ({"detector": {"detector": "none", "class": None, "arguments": {}, "tuned_on": None}}, True, "detectors"),
        ({"preprocessing": {}}, True, "whole bundle"),
        ({"calibration": {"alpha": 0.0001, "per_class": False}}, True, "at least 9999"),
    ],
)
def test_manifests_that_lie_are_refused(
    bundle: Path, tmp_path: Path, change: dict[str, object], sign: bool, match: str
) -> None:
    with pytest.raises(OffaxisError, match=match):
        offaxis.load(rewritten(bundle, tmp_path / "x.oax", change, sign))


@pytest.mark.thirdparty
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("name", "arguments", "match"),
    [
        ("TimmWrapperForImageClassification", {"architecture": "resnet18"}, "library 'timm'"),
        ("ViTForImageClassification", {"backbone": "microsoft/resnet-50"}, "has backbone"),
        ("ViTForImageClassification", {"backbone_kwargs": {"checkpoint_path": "x.pth"}}, "has backbone_kwargs"),
        ("ViTForImageClassification", {"use_pretrained_backbone": True}, "has use_pretrained_backbone"),
        ("ViTForImageClassification", {"auto_map": {"AutoModel": "x--y.Z"}}, "has auto_map"),
        ("ViTForImageClassification", {"attn_implementation": "some/kernels"}, "has attn_implementation"),
        ("ViTForImageClassification", {"_attn_implementation": {"": "some/kernels"}}, "has _attn_implementation"),
        (
            "ShieldGemma2ForImageClassification",
            {"vision_config": {"model_args": {"checkpoint_path": "x"}}},
            "model_args",
        ),
    ],
)
def test_configurations_that_reach_elsewhere_are_refused(name: str, arguments: dict[str, object], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        third_party.make_network({"library": "transformers", "name": name, "arguments": arguments})


def test_compressed_bundles_are_refused(bundle: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(bundle) as pack, zipfile.ZipFile(tmp_path / "x.oax", "w", zipfile.ZIP_DEFLATED) as out:
        for name in pack.namelist():
            out.writestr(name, pack.read(name))
    with pytest.raises(BundleError, match="not compressed"):
        offaxis.load(tmp_path / "x.oax")
