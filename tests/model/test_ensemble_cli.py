"""Several runs as one bundle, from training to the service's inputs, as a user types it."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import offaxis
from offaxis import bundle as bundles
from offaxis import networks, train
from offaxis.cli import app
from offaxis.data import load_images
from offaxis.errors import ArgumentError, BundleError, DetectorError, ExportError
from offaxis.evaluation import Store
from offaxis.networks.combine import Ensemble, LeaveOutEnsemble
from offaxis.training import Trained, laptop
from tests.models import World, trained_for_a_moment, write_images


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "120", "OFFAXIS_DATA": "/nowhere"})


@pytest.mark.parametrize(
    ("kind", "detector", "member"),
    [
        ("ensemble", "cosine-ensemble", ("--seed", "{0}")),
        ("leave-out", "leave-out", ("--seed", "{0}", "--head", "linear", "--leave-out", "{0}/2")),
    ],
)
def test_from_training_to_verdicts(
    kind: str, detector: str, member: tuple[str, ...], world: World, tmp_path: Path
) -> None:
    runs = [tmp_path / str(number) for number in range(2)]
    for number, folder in enumerate(runs):
        options = [word.format(number) for word in member]
        same = (
            "--id",
            "small-digits",
            "--network",
            "wrn-10-1-half",
            "--epochs",
            3,
            "--batch-size",
            32,
            "--quiet",
            "--out",
            folder,
        )
        assert run("train", *same, *options).exit_code == 0
    out = tmp_path / "x.oax"
    done = run(
        "bundle",
        *runs,
        "--as",
        kind,
        "--calibrate",
        "small-digits",
        "--calibrate-share",
        1,
        "--alpha",
        0.1,
        "--out",
        out,
    )
    assert done.exit_code == 0, done.output
    assert f"{detector} on 359 calibration images" in done.stderr
    model = offaxis.load(out)
    assert type(model.network) is (Ensemble if kind == "ensemble" else LeaveOutEnsemble)
    assert model.detector.arguments["networks"] == 2
    assert len(model.used) > 1000

    write_images(tmp_path / "pictures", world.test, 40)
    done = run("score", out, tmp_path / "pictures", "--out", tmp_path / "rows.jsonl", "--quiet")
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    said = model.predict(world.test.batch(torch.arange(40)))
    assert [row["score"] for row in rows] == pytest.approx([p.score for p in said], abs=1e-5)
    assert [row["class"] for row in rows] == [p.class_name for p in said]
    assert all((row["cosine"] is None) == (kind == "leave-out") for row in rows)

    done = run("calibrate", out, tmp_path / "pictures", "--alpha", 0.05, "--overwrite")
    assert done.exit_code == 0, done.output
    assert len(offaxis.load(out).calibration.scores) == 40
    exported = run("export", out, "--onnx", tmp_path / "x.onnx")
    if kind == "leave-out":
        assert isinstance(exported.exception, ExportError)
        assert "reads images" in str(exported.exception)
    else:
        assert exported.exit_code == 0, exported.output

    words = ("--ood", "letters", "--images", 40, "--no-tune", "--quiet", "--out", tmp_path / "store")
    assert run("evaluate", out, "--detectors", "native", *words).exit_code == 0
    assert {result.detector for result in Store(tmp_path / "store").results()} == {detector, "max-softmax"}
    refused = run("evaluate", out, "--detectors", "odin", *words)
    assert "No detector fits x: odin: Expected Classifier or Paired for odin but got" in str(refused.exception)


def test_pairs_may_be_named_in_either_way(world: World, tmp_path: Path) -> None:
    folder = world.trained.folder
    same = ("--calibrate", "small-digits", "--out")
    assert run("bundle", folder, folder, "--as", "paired", *same, tmp_path / "a.oax").exit_code == 0
    assert run("bundle", folder, "--detector-run", folder, *same, tmp_path / "b.oax").exit_code == 0
    (first, first_files), (second, second_files) = (bundles.read_files(tmp_path / f"{n}.oax") for n in "ab")
    assert first_files == second_files
    assert first["provenance"].pop("command") != second["provenance"].pop("command")  # as they were typed
    assert {**first, "sha256": None} == {**second, "sha256": None}
    both = run("bundle", folder, "--detector-run", folder, "--as", "ensemble", *same, tmp_path / "c.oax")
    assert isinstance(both.exception, ArgumentError)


def test_perturbing_detectors_are_told_the_normalisation(world: World, tmp_path: Path) -> None:
    words = ("--calibrate", "small-digits", "--detector", "odin", "--out", tmp_path / "x.oax")
    assert run("bundle", world.trained.folder, *words).exit_code == 0
    assert offaxis.load(tmp_path / "x.oax").detector.arguments["std"] == world.trained.normalise.std


def test_what_cannot_be_is_told(cosine_runs: list[Trained], world: World, tmp_path: Path) -> None:
    first, second = cosine_runs[0].folder, cosine_runs[1].folder

    def refusal(kind: type[BaseException], *words: object) -> str:
        done = run("bundle", *words, "--calibrate", "small-digits", "--out", tmp_path / "x.oax")
        assert isinstance(done.exception, kind), done.output
        assert not (tmp_path / "x.oax").exists()
        return str(done.exception)

    assert "--as ensemble" in refusal(ArgumentError, first, second)
    assert "got 1 as 'ensemble'" in refusal(ArgumentError, first, "--as", "ensemble")
    assert "score its members one by one" in refusal(
        DetectorError, first, second, "--as", "ensemble", "--detector", "knn"
    )
    assert "LeaveOutEnsemble" in refusal(DetectorError, first, second, "--as", "ensemble", "--detector", "leave-out")
    assert "Expected Ensemble" in refusal(DetectorError, first, "--detector", "cosine-ensemble")
    linear = trained_for_a_moment(tmp_path / "linear", "linear").folder
    assert "cosine" in refusal(DetectorError, first, linear, "--as", "ensemble")

    network = networks.wide_resnet(10, 1, 10, in_channels=1, stem_stride=2)
    some = load_images("small-digits", "train").subset(torch.arange(300))
    recipe = laptop().replace(epochs=3, batch_size=16, crop=0, flip=False)
    train(network, some, recipe, normalise=world.trained.normalise, out=tmp_path / "some", quiet=True)
    told = refusal(BundleError, first, tmp_path / "some", "--as", "ensemble")
    assert "300 images" in told
    assert "one set" in told
