"""offaxis bundle and offaxis calibrate, as a user types them."""

import json
import math
import re
import shlex
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import offaxis
from offaxis import Classifier
from offaxis.calibration.conformal import allowed, flag_rate
from offaxis.cli import app
from offaxis.data import Preprocessing, TensorSet, load_images
from offaxis.detectors import KNN
from offaxis.detectors.registry import DETECTORS
from offaxis.errors import ArgumentError, DataError, OverlapError, TooFewImagesError
from offaxis.heads import make_head
from offaxis.make_model import _divide, make_model
from offaxis.networks.run import Network
from offaxis.options import BundleOptions
from offaxis.training import laptop
from tests.models import World, write_images

run = CliRunner().invoke


def test_a_run_becomes_a_bundle_and_is_calibrated_anew(world: World, tmp_path: Path) -> None:
    out = tmp_path / "digits.oax"
    folder = str(world.trained.folder)
    done = run(
        app,
        [
            "bundle",
            folder,
            "--calibrate",
            "small-digits",
            "--calibrate-share",
            "1",
            "--out",
            str(out),
            "--alpha",
            "0.1",
        ],
    )
    assert done.exit_code == 0, done.output
    assert "359 calibration images" in done.stderr
    assert "nine of ten" in done.stderr
    model = offaxis.load(out)
    assert model.calibration.alpha == 0.1
    write_images(tmp_path / "pictures", world.test, 60)
    done = run(app, ["calibrate", str(out), str(tmp_path / "pictures"), "--alpha", "0.05", "--overwrite"])
    assert done.exit_code == 0, done.output
    assert len(offaxis.load(out).calibration.scores) == 60
    write_images(tmp_path / "seen", load_images("small-digits", "train"), 60)
    refused = run(app, ["calibrate", str(out), str(tmp_path / "seen"), "--overwrite"])
    assert isinstance(refused.exception, OverlapError)


def test_a_bundle_that_is_there_is_not_replaced_unasked(world: World, tmp_path: Path) -> None:
    out, folder = tmp_path / "digits.oax", str(world.trained.folder)
    bundle = ["bundle", folder, "--calibrate", "small-digits", "--out", str(out)]
    assert run(app, bundle).exit_code == 0
    before = out.read_bytes()
    write_images(tmp_path / "pictures", world.test, 60)
    calibrate = ["calibrate", str(out), str(tmp_path / "pictures")]
    for words in (bundle, calibrate, [*calibrate, "--out", str(out)]):
        refused = run(app, words).exception
        assert isinstance(refused, ArgumentError)
        assert str(refused) == f"{out} is there already: name another --out, or add --overwrite."
    assert out.read_bytes() == before
    for words in (calibrate, [*bundle, "--alpha", "0.1"]):
        assert run(app, [*words, "--overwrite"]).exit_code == 0
        assert out.read_bytes() != before


def test_another_level_needs_no_images(world: World, tmp_path: Path) -> None:
    out, again, folder = tmp_path / "digits.oax", tmp_path / "again.oax", str(world.trained.folder)
    assert run(app, ["bundle", folder, "--calibrate", "small-digits", "--out", str(out)]).exit_code == 0
    refused = run(app, ["calibrate", str(out), "--out", str(again)]).exception
    assert isinstance(refused, ArgumentError)
    done = run(app, ["calibrate", str(out), "--alpha", "0.2", "--confidence", "0.9", "--out", str(again)])
    assert done.exit_code == 0, done.output
    before, after = offaxis.load(out), offaxis.load(again)
    assert after.calibration.scores.tolist() == before.calibration.scores.tolist()
    assert (after.calibration.alpha, after.calibration.confidence) == (0.2, 0.9)
    assert after.overlap_checked
    assert "held_out" not in after.provenance  # which was measured at the other level
    for wrong, error in (("2", ArgumentError), ("0.0001", TooFewImagesError)):
        refused = run(app, ["calibrate", str(out), "--alpha", wrong, "--overwrite"]).exception
        assert isinstance(refused, error)


def test_one_part_calibrates_and_the_rest_reports(world: World, tmp_path: Path) -> None:
    out, folder = tmp_path / "digits.oax", str(world.trained.folder)
    done = run(app, ["bundle", folder, "--calibrate", "small-digits", "--out", str(out), "--alpha", "0.1"])
    assert done.exit_code == 0, done.output
    model = offaxis.load(out)
    held_out = model.provenance["held_out"]
    assert len(model.calibration.scores) + held_out["images"] == 359
    assert 170 < held_out["images"] < 190
    assert f"On the {held_out['images']} other images" in done.stderr
    assert held_out["accuracy"] > 0.8
    assert held_out["flagged"] < 0.25
    write_images(tmp_path / "pictures", load_images("small-digits", "test"), 60)
    done = run(app, ["score", str(out), str(tmp_path / "pictures"), "--out", str(tmp_path / "rows.csv"), "--quiet"])
    seen = json.loads((tmp_path / "rows.summary.json").read_text())["seen"]
    assert 10 < seen["calibration"] < 50
    assert f"calibrated on {seen['calibration']} of these images" in done.stderr
    refused = run(
        app,
        ["bundle", folder, "--calibrate", "small-digits", "--calibrate-share", "2", "--out", str(out), "--overwrite"],
    )
    assert isinstance(refused.exception, ArgumentError)


def test_a_confidence_is_kept_in_the_bundle_and_can_be_taken_back(world: World, tmp_path: Path) -> None:
    out, folder = tmp_path / "sure.oax", str(world.trained.folder)
    done = run(
        app,
        [
            "bundle",
            folder,
            "--calibrate",
            "small-digits",
            "--calibrate-share",
            "1",
            "--out",
            str(out),
            "--confidence",
            "0.95",
            "--calibrate-share",
            "1",
        ],
    )
    assert done.exit_code == 0, done.output
    assert "(alpha 0.05, confidence 0.95)" in done.stderr
    assert "With a probability of 0.95 over calibration sets it flags at most 0.05 of ID images" in done.stderr
    model = offaxis.load(out)
    calibration = model.calibration
    assert calibration.confidence == 0.95
    assert calibration.levels[0] == allowed(359, 0.05, 0.95) / 360 < 0.05
    predictions = model.predict(world.test)
    flagged = [p.verdict is offaxis.Verdict.OUT for p in predictions]
    assert flagged == [p.score > calibration.threshold() for p in predictions]
    assert sum(flagged) < sum(p.p_value <= 0.05 for p in predictions)
    write_images(tmp_path / "pictures", world.test, 58)
    refused = run(app, ["calibrate", str(out), str(tmp_path / "pictures"), "--overwrite"])
    assert isinstance(refused.exception, TooFewImagesError)
    assert "at least 59 calibration images" in str(refused.exception)
    done = run(app, ["calibrate", str(out), str(tmp_path / "pictures"), "--confidence", "0", "--overwrite"])
    assert done.exit_code == 0, done.output
    assert offaxis.load(out).calibration.confidence is None


def test_fitted_detectors_pairs_and_folders(world: World, tmp_path: Path) -> None:
    folder = str(world.trained.folder)
    options = ["--calibrate", "small-digits", "--detector", "knn", "--detector-run", folder, "--folder", "--per-class"]
    done = run(app, ["bundle", folder, *options, "--out", str(tmp_path / "pair")])
    assert done.exit_code == 0, done.output
    model = offaxis.load(tmp_path / "pair")
    assert isinstance(model.network, offaxis.Paired)
    assert model.detector.name == "knn"
    assert model.calibration.per_class


def make_own_network() -> Classifier:
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU()), make_head("cosine", 16, 10))


OWN_NETWORK = """
from torch import nn
from offaxis import Classifier
from offaxis.heads import make_head

def make():
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU()), make_head("cosine", 16, 10))
"""


def test_the_bundle_of_a_network_of_ones_own_is_calibrated_anew(world: World, tmp_path: Path) -> None:
    bundle = tmp_path / "own.oax"
    preprocessing = Preprocessing((1, 8, 8), world.normalise)
    offaxis.Model.calibrated(make_own_network().eval(), world.calibration, preprocessing=preprocessing).save(bundle)
    write_images(tmp_path / "pictures", world.test, 60)
    file = tmp_path / "mine.py"
    file.write_text(OWN_NETWORK)
    command = ["calibrate", str(bundle), str(tmp_path / "pictures"), "--overwrite"]
    assert "--network" in str(run(app, command).exception)
    done = run(app, [*command, "--network", f"{file}:make"])
    assert done.exit_code == 0, done.output
    assert len(offaxis.load(bundle, network=make_own_network()).calibration.scores) == 60


def test_fitting_holds_one_batch_of_training_images(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[int] = []

    def fit(self: KNN, network: Network, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> KNN:
        for _ in range(2):  # some detectors look twice
            seen = [weakref.ref(images) for images, _ in batches]
            alive.append(sum(image() is not None for image in seen))
            assert len(seen) == math.ceil(len(world.train) / 256)
        raise KeyboardInterrupt

    monkeypatch.setattr(KNN, "fit", fit)
    assert world.trained.folder is not None
    with pytest.raises(KeyboardInterrupt):
        make_model(
            BundleOptions(networks=(str(world.trained.folder),), calibrate="small-digits", detector="knn", quiet=True)
        )
    assert max(alive) <= 1


def test_per_class_reports_what_is_in_use(world: World, tmp_path: Path) -> None:
    out = tmp_path / "x.oax"
    options = [
        "--calibrate",
        "small-digits",
        "--calibrate-share",
        "1",
        "--per-class",
        "--alpha",
        "0.1",
        "--out",
        str(out),
    ]
    done = run(app, ["bundle", str(world.trained.folder), *options])
    assert done.exit_code == 0, done.output
    calibration = offaxis.load(out).calibration
    used = [value for value in calibration.class_thresholds() if value is not None]
    assert f"flagged above {min(used):.4g} to {max(used):.4g}, by predicted class" in done.stderr
    rates = [
        flag_rate(n, 0.1) for n, enough in zip(calibration.class_counts(), calibration.enough(), strict=True) if enough
    ]
    assert (
        f"{min(r.mean for r in rates):.2%} to {max(r.mean for r in rates):.2%} of the ID images of a class"
        in done.stderr
    )
    assert f"{min(r.low for r in rates):.2%} to {max(r.high for r in rates):.2%}." in done.stderr


def test_what_cannot_be_is_told(world: World, tmp_path: Path) -> None:
    folder, out = str(world.trained.folder), str(tmp_path / "x.oax")

    def refusal(*options: str) -> BaseException | None:
        return run(app, ["bundle", folder, "--out", out, *options]).exception

    assert isinstance(refusal("--calibrate", "small-digits", "--detector", "magic"), ArgumentError)
    assert isinstance(refusal("--calibrate", "nowhere"), DataError)
    assert isinstance(refusal("--calibrate", "small-digits", "--trained-on", "digits"), DataError)
    assert isinstance(refusal("--calibrate", "small-digits", "--unchecked"), ArgumentError)
    done = run(app, ["bundle", folder, "--calibrate", "small-digits", "--unchecked", "--size", "8", "--out", out])
    assert "not checked" in done.stderr


def test_errors_have_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "x.oax").write_bytes(b"nothing")
    command = [sys.executable, "-m", "offaxis", "calibrate", str(tmp_path / "x.oax"), "digits", "--overwrite"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no zip file" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["bundle", "calibrate"])
def test_help_has_an_example(command: str) -> None:
    assert "Example" in run(app, [command, "--help"]).output


def test_hashes_are_of_what_the_network_sees(world: World) -> None:
    model = offaxis.Model.calibrated(world.trained, world.calibration, used=[world.train])
    assert model.used.dtype == torch.uint8
    assert model.used.shape[1] == 16


@pytest.mark.parametrize(("kind", "named"), [("wide_resnet", False), ("attached", True)])
def test_the_next_command_names_code_only_where_the_bundle_needs_it(
    kind: str, named: bool, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        "from torch import nn",
        "import offaxis",
        "def wide_resnet():",
        "    return offaxis.networks.wide_resnet(10, 1, 10, in_channels=1, stem_stride=2)",
        "def attached():",
        "    return offaxis.attach(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)))",
        "class Mine(offaxis.detectors.KNN):",
        "    name = 'mine'",
    ]
    Path("net.py").write_text("\n".join(lines))
    torch.manual_seed(0)
    save_file(offaxis.open_network(f"net.py:{kind}").network.state_dict(), "w.safetensors")
    write_images(Path("pictures"), world.test, 2)
    words = ["bundle", f"net.py:{kind}", "--weights", "w.safetensors", "--calibrate", "small-digits", "--mean", "0.3"]
    words += ["--std", "0.3", "--fit", "small-digits", "--detector", "net.py:Mine:k=5", "--out", "x.pytorch"]
    done = run(app, words)
    monkeypatch.setattr("offaxis.detectors.registry._FILES", {})
    del DETECTORS["mine"]  # as in another process
    assert done.exit_code == 0, done.output
    told = re.search(
        r"To use it: offaxis (score x\.pytorch) IMAGES(.*), or offaxis serve x\.pytorch(.*)\n", done.stderr
    )
    assert told is not None
    assert (f"--network net.py:{kind}" in told[2]) == named
    assert told[2] == told[3]
    try:
        scored = run(app, [*told[1].split(), "pictures", *shlex.split(told[2])])
    finally:
        DETECTORS.pop("mine", None)
    assert scored.exit_code == 0, scored.output


def test_a_bundle_of_the_hub_is_not_calibrated_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused = run(app, ["calibrate", "hf:me/photos", "small-digits", "--alpha", "0.1"])
    assert isinstance(refused.exception, ArgumentError)
    assert "Expected --out FILE" in str(refused.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--onnx", "x.onnx", "--ood", "nowhere"], "Expected --int8"),
        (["--onnx", "x.onnx", "--skip-bad"], "Expected --int8"),
        (["--published", "x.ckpt", "--int8", "--calibrate", "nowhere"], "got --int8, --calibrate"),
        (["--published", "x.ckpt", "--ood", "nowhere", "--skip-bad"], "got --ood, --skip-bad"),
    ],
)
def test_options_that_an_export_would_ignore_are_refused(words: list[str], message: str, tmp_path: Path) -> None:
    done = run(app, ["export", str(tmp_path / "x.oax"), *words])
    assert isinstance(done.exception, ArgumentError)
    assert message in str(done.exception)


def test_all_images_calibrate_where_half_of_them_would_be_too_few() -> None:
    labels = torch.repeat_interleave(torch.arange(6), torch.tensor([7, 7, 5, 5, 7, 7]))
    images = TensorSet("few", torch.zeros(38, 1, 8, 8, dtype=torch.uint8), labels, tuple("abcdef"))
    assert [part if part is None else len(part) for part in _divide(images, 0.5, 19)] == [38, None]
    assert [part and len(part) for part in _divide(images, 0.5, 18)] == [18, 20]


@pytest.mark.filterwarnings("ignore:The network has learned")
def test_images_that_were_held_out_by_another_seed_are_those_that_calibrate(world: World, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    labels = world.test.labels
    assert labels is not None
    for name in ("zero", "one"):
        chosen = (labels == ("zero", "one").index(name)).nonzero().flatten()
        write_images(photos / name, world.test.subset(chosen), len(chosen))
    images = load_images(photos, "train", holdout=0.5, seed=3)
    size = images.shape[0] * images.shape[1] * images.shape[2]
    network = nn.Sequential(nn.Flatten(), nn.Linear(size, 8), nn.ReLU(), nn.Linear(8, 2))
    trained = offaxis.train(
        offaxis.attach(network), images, laptop().replace(epochs=1, batch_size=4), out=tmp_path / "run", quiet=True
    )
    model = make_model(BundleOptions(networks=(), calibrate=str(photos), alpha=0.2, quiet=True), networks=[trained])
    held_out = load_images(photos, "test", holdout=0.5, seed=3)
    assert len(model.calibration.scores) + model.provenance["held_out"]["images"] == len(held_out)
