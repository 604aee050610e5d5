"""Class probabilities, sets of classes and the verdict unsure, in models, bundles, graphs and rows."""

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import offaxis
from offaxis import Model, Verdict
from offaxis.calibration.classes import class_probabilities
from offaxis.cli import app
from offaxis.data import TensorSet
from offaxis.errors import CalibrationError
from offaxis.onnx import export_onnx
from tests.models import World

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def sure(world: World) -> Model:
    return Model.calibrated(world.trained, world.calibration, used=[world.train], alpha=0.1, max_error=0.2)


def test_a_bundle_and_its_graph_say_the_same_as_the_model(sure: Model, world: World, tmp_path: Path) -> None:
    sure.save(tmp_path / "x.oax")
    again = offaxis.load(tmp_path / "x.oax")
    pixels = world.test.batch(torch.arange(60))
    expected, found = sure.predict_batch(pixels), again.predict_batch(pixels)
    assert [p.to_json() for p in expected] == [p.to_json() for p in found]
    known, alone = again.calibration.classes, again.calibration.alone
    assert known is not None
    assert alone is not None
    assert 0.5 < known.temperature < 20
    assert again.calibration.max_error == 0.2
    for said in found:
        assert said.classes is not None
        assert said.classes[0] == said.class_name
        flagged = said.p_value <= 0.1
        assert (said.verdict is Verdict.OUT) == flagged
        assert (said.verdict is Verdict.UNSURE) == (not flagged and said.probability < alone.probability)

    export_onnx(again, tmp_path / "x.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "x.onnx")
    names = [out.name for out in session.get_outputs()]
    answers = dict(zip(names, session.run(names, {"pixels": pixels.numpy()}), strict=True))
    tempered = class_probabilities(answers["logits"], None, known.temperature)
    assert np.allclose(answers["probability"], tempered, atol=1e-5)
    assert [p.probability for p in found] == pytest.approx(answers["probability"].max(1), abs=1e-4)
    assert [len(p.classes or ()) for p in found] == answers["could_be"].sum(1).tolist()
    about = session.get_modelmeta().custom_metadata_map
    assert float(about["temperature"]) == known.temperature
    assert f"unsure where the largest probability < {alone.probability!r}" in about["verdict"]


def test_without_labels_nothing_is_known_and_said(world: World, tmp_path: Path) -> None:
    pixels = world.calibration.batch(torch.arange(len(world.calibration)))
    model = Model.calibrated(world.trained, TensorSet("new", pixels), used=[world.train])
    said = model.predict_batch(pixels[:3])
    assert model.calibration.classes is None
    assert [each.classes for each in said] == [None] * 3
    assert said[0].to_json()["could_be"] is None
    with pytest.raises(CalibrationError, match=r"max|at most 0\.2 are wrong.*have no labels"):
        model.recalibrated(max_error=0.2)
    model.save(tmp_path / "x.oax")
    assert offaxis.load(tmp_path / "x.oax").calibration.classes is None


def test_another_promise_needs_no_images(sure: Model) -> None:
    none = sure.recalibrated(max_error=0)
    assert none.calibration.alone is None
    wider = sure.recalibrated(alpha=0.05).calibration
    assert wider.most_mass is not None
    assert sure.calibration.most_mass is not None
    assert wider.most_mass >= sure.calibration.most_mass
    with pytest.raises(CalibrationError, match=r"at least 59,912"):
        sure.recalibrated(max_error=0.0001)


def test_rows_name_the_classes_and_the_shell_says_what_is_known(
    sure: Model, world: World, pictures: list[Path], tmp_path: Path
) -> None:
    sure.save(tmp_path / "x.oax")
    out = tmp_path / "rows.csv"
    done = CliRunner().invoke(app, ["score", str(tmp_path / "x.oax"), *map(str, pictures), "--out", str(out)])
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert all(row["could_be"].split("|")[0] == row["class"] for row in rows)
    done = CliRunner().invoke(app, ["calibrate", str(tmp_path / "x.oax"), "--alpha", "0.2", "--overwrite"])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "expected calibration error on 120 images" in said
    assert "of ID images can be decided alone" in said


def test_a_bundle_that_lies_about_classes_is_refused(sure: Model) -> None:
    known = sure.calibration.classes
    assert known is not None
    for change in ({"temperature": 0.0}, {"temperature": float("nan")}, {"ece": (0.1, 2.0)}, {"mass": known.mass - 1}):
        with pytest.raises(CalibrationError, match="Expected masses"):
            dataclasses.replace(known, **change)  # type: ignore[arg-type]
