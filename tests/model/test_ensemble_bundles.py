"""Several networks in one bundle: the same answer elsewhere, and a clear word where they do not belong together."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import offaxis
from offaxis import Classifier, Model, Paired, networks
from offaxis import bundle as bundles
from offaxis.data import Normalise
from offaxis.data.transforms import Preprocessing
from offaxis.detectors import KNN, CosineEnsemble, LeaveOut
from offaxis.errors import ArgumentError, BundleError, DetectorError, ExportError, OffaxisError
from offaxis.heads import make_head
from offaxis.networks.combine import Ensemble, LeaveOutEnsemble, SelectedEpoch
from offaxis.networks.open import combine
from offaxis.training import Trained
from tests.hostile.damage import rewritten
from tests.models import World
from tests.serve.serving import png, running


@pytest.fixture(scope="module")
def kept(ensemble: Model, leave_out: Model, world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Models by name, with their bundles."""
    pair = Model.calibrated(combine([world.trained, world.trained], "paired"), world.calibration)
    folder = tmp_path_factory.mktemp("kept")
    found = {}
    for name, model in (("ensemble", ensemble), ("leave-out", leave_out), ("pair", pair)):
        model.save(folder / f"{name}.oax")
        found[name] = (model, folder / f"{name}.oax")
    return found


def test_one_answer_in_every_process_to_the_bit(kept: dict[str, Any], world: World, tmp_path: Path) -> None:
    pixels = world.test.batch(torch.arange(50))
    torch.save(pixels, tmp_path / "pixels.pt")
    paths = {name: str(path) for name, (_, path) in kept.items()}
    program = (
        "import json, offaxis, torch; torch.set_num_threads(1);"
        f"pixels = torch.load({str(tmp_path / 'pixels.pt')!r});"
        "said = lambda path: [p.to_json() for p in offaxis.load(path).predict(pixels)];"
        f"print(json.dumps({{name: said(path) for name, path in {paths!r}.items()}}))"
    )
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        here = {name: [p.to_json() for p in model.predict(pixels)] for name, (model, _) in kept.items()}
    finally:
        torch.set_num_threads(before)
    assert json.loads(there.stdout) == here


@pytest.mark.parametrize("name", ["ensemble", "leave-out"])
def test_what_is_loaded_is_what_was_saved(name: str, kept: dict[str, Any], tmp_path: Path) -> None:
    model, path = kept[name]
    again = offaxis.load(path)
    assert type(again.network) is type(model.network)
    described = [[networks.description(m) for m in team.networks] for team in (model.network, again.network)]  # type: ignore[arg-type]
    assert described[0] == described[1]
    assert None not in described[0]
    again.save(tmp_path / "again.oax")
    assert (tmp_path / "again.oax").read_bytes() == path.read_bytes()
    weights, others = model.network.state_dict(), again.network.state_dict()
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[key], others[key]) for key in weights)
    first, second = (next(member.parameters()) for member in again.network.networks[:2])
    assert not torch.equal(first, second)


def _tempered(model: Model, probability: torch.Tensor) -> torch.Tensor:
    """Mean probabilities (N, C) at the temperature of the calibration."""
    classes = model.calibration.classes
    assert classes is not None
    raised = probability ** (1 / classes.temperature)
    return raised / raised.sum(1, keepdim=True)


def test_an_ensemble_averages_cosines_and_probabilities(ensemble: Model, world: World) -> None:
    noise = torch.randint(0, 256, (200, *world.test.shape), generator=torch.Generator().manual_seed(0)).byte()
    pixels = torch.cat([world.test.batch(torch.arange(40)), noise])
    images = ensemble.preprocessing.normalise(pixels)
    with torch.no_grad():
        each: list[Any] = [member.eval().outputs(images) for member in ensemble.network.networks]
    cosine = (each[0].cosine + each[1].cosine + each[2].cosine) / 3
    probability = (each[0].logits.softmax(1) + each[1].logits.softmax(1) + each[2].logits.softmax(1)) / 3
    probability = _tempered(ensemble, probability)
    said = ensemble.predict(pixels)
    assert [p.class_index for p in said] == probability.argmax(1).tolist()
    assert [p.probability for p in said] == pytest.approx(probability.amax(1).tolist(), abs=1e-5)
    assert [p.cosine for p in said] == pytest.approx(cosine.amax(1).tolist(), abs=1e-5)
    assert [-p.score for p in said] == pytest.approx(cosine.amax(1).tolist(), abs=1e-5)
    assert said[0].nearest[0][0] == ensemble.classes[cosine[0].argmax()]
    assert any(p.class_index != out for p, out in zip(said, each[0].logits.argmax(1).tolist(), strict=True))  # on noise


def test_leave_out_networks_sum_the_probabilities_of_what_each_knows(leave_out: Model, world: World) -> None:
    pixels = world.test.batch(torch.arange(40))
    images = leave_out.preprocessing.normalise(pixels)
    team = leave_out.network
    assert isinstance(team, LeaveOutEnsemble)
    total = torch.zeros(40, 10)
    for member, fold in zip(team.networks, team.left_out, strict=True):
        known = [c for c in range(10) if c not in fold]
        with torch.no_grad():
            total[:, known] += member.eval()(images)[:, known].softmax(1)
    said = leave_out.predict(pixels)
    assert [p.class_index for p in said] == total.argmax(1).tolist()
    assert [p.probability for p in said] == pytest.approx(_tempered(leave_out, total / 3).amax(1).tolist(), abs=1e-5)
    assert all(p.cosine is None for p in said)
    assert said[0].nearest[0][0] == said[0].class_name
    assert said[0].nearest[0][1] == pytest.approx(said[0].probability)
    detector = LeaveOut(std=leave_out.preprocessing.normalise.std)
    assert [p.score for p in said] == pytest.approx(detector.score_images(team, images).tolist(), abs=1e-9)


def test_what_the_epochs_were_chosen_on_is_kept(leave_out: Model, world: World, tmp_path: Path) -> None:
    team = leave_out.network
    assert isinstance(team, LeaveOutEnsemble)
    members = [member for member in team.networks if isinstance(member, Classifier)]
    selected = [SelectedEpoch("letters", 1 + number, 0.9, 4) for number in range(3)]
    made = Model.calibrated(
        LeaveOutEnsemble(members, team.left_out, selected), world.calibration, preprocessing=leave_out.preprocessing
    )
    made.save(tmp_path / "x.oax")
    again = offaxis.load(tmp_path / "x.oax")
    assert again.network.selected == tuple(selected)
    assert again.detector.tuned_on == "letters (epochs)"
    assert again.predict(world.test) == made.predict(world.test)


def test_leave_out_networks_come_in_the_order_of_their_folds(leave_out_runs: list[Trained]) -> None:
    first, second, third = leave_out_runs
    with pytest.raises(ArgumentError, match=rf"--leave-out 1/3 in place 1.*{third.folder} was trained with"):
        combine([first, third, second], "leave-out")
    with pytest.raises(ArgumentError, match="--leave-out 0/2"):
        combine([first, second], "leave-out")


def test_recalibrating_needs_no_training(kept: dict[str, Any], world: World) -> None:
    for name in ("ensemble", "leave-out"):
        again = offaxis.load(kept[name][1]).recalibrated(world.test, alpha=0.1, per_class=True)
        assert len(again.calibration.scores) == len(world.test)
        assert len(again.predict(world.calibration)) == len(world.calibration)


def test_members_must_agree(cosine_runs: list[Trained], world: World) -> None:
    first, second, _ = cosine_runs
    other = replace(second, classes=tuple(reversed(second.classes)))
    with pytest.raises(ArgumentError, match=f"same classes.*{first.folder} and {second.folder}.*Train them on one set"):
        Model.calibrated([first, other], world.calibration)
    other = replace(second, normalise=Normalise((0.5,), (0.25,)), folder=None)
    with pytest.raises(ArgumentError, match=r"same normalised images.*network 2 are .*std=\(0.25,\)"):
        Model.calibrated([first, other], world.calibration)
    with pytest.raises(ArgumentError, match="several .ensemble: .* but got 1 as .ensemble."):
        Model.calibrated([first], world.calibration)
    with pytest.raises(ArgumentError, match="Expected one network .single., .* but got 2 as .single.; .*--as ensemble"):
        combine([first, second], "single")
    with pytest.raises(ArgumentError, match="two .paired: .* but got 3 as .paired."):
        combine(cosine_runs, "paired")
    with pytest.raises(ArgumentError, match="Expected one network .* but got 3 as 'heap'"):
        combine(cosine_runs, "heap")
    smaller = networks.wide_resnet(10, 1, 4, in_channels=1)
    with pytest.raises(ArgumentError, match="one with 10 and one with 4: train them on one set"):
        Ensemble([first.classifier, smaller])


def test_networks_of_ones_own_are_given_when_loading(world: World, tmp_path: Path) -> None:
    def make(count: int = 2) -> Ensemble:
        flat = [nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU()) for _ in range(count)]
        return Ensemble([Classifier(each, make_head("cosine", 16, 10)) for each in flat]).eval()

    torch.manual_seed(0)
    preprocessing = Preprocessing((1, 8, 8), world.normalise)
    made = Model.calibrated(make(), world.calibration, preprocessing=preprocessing)
    made.save(tmp_path / "own.oax")
    for given, came in ((None, "nothing"), (make(3), "an ensemble of 3"), (world.trained.classifier, "Classifier")):
        with pytest.raises(BundleError, match=f"ensemble of 2 networks that it cannot build itself but got {came}"):
            offaxis.load(tmp_path / "own.oax", network=given)
    images = world.test.batch(torch.arange(20))
    assert offaxis.load(tmp_path / "own.oax", network=make()).predict(images) == made.predict(images)


def test_pairs_make_an_ensemble_too(cosine_runs: list[Trained], world: World, tmp_path: Path) -> None:
    first, second, third = (trained.classifier for trained in cosine_runs)
    preprocessing = Preprocessing((1, 8, 8), world.normalise)
    made = Model.calibrated(Ensemble([Paired(first, second), third]), world.calibration, preprocessing=preprocessing)
    made.save(tmp_path / "x.oax")
    again = offaxis.load(tmp_path / "x.oax")
    assert [type(member) for member in again.network.networks] == [Paired, Classifier]
    assert again.predict(world.test) == made.predict(world.test)
    with pytest.raises(BundleError, match="leave out the network"):
        offaxis.load(tmp_path / "x.oax", network=made.network)


def test_manifests_that_lie_are_refused(kept: dict[str, Any], tmp_path: Path) -> None:
    def refused(name: str, match: str, **change: Any) -> None:
        path = kept[name][1]
        with pytest.raises(OffaxisError, match=match):
            offaxis.load(rewritten(path, tmp_path / "x.oax", change))

    plans = {name: bundles.read_files(path)[0]["network"] for name, (_, path) in kept.items()}
    team, left = plans["ensemble"], plans["leave-out"]
    refused("ensemble", "do not fit", network={**team, "members": team["members"][:2]})
    refused("ensemble", "do not fit", network={**team, "members": [*team["members"], team["members"][0]]})
    refused("ensemble", "no classes", network={**team, "members": []})
    refused("ensemble", "do not fit", network={**team, "members": [left["members"][0], *team["members"][1:]]})
    refused("ensemble", "Classifier or a Paired", network={"kind": "ensemble", "members": [team, team]})
    refused("pair", "a Classifier each but got Ensemble", network={**plans["pair"], "classifier": team})
    refused("ensemble", "whole bundle", network={"kind": "ensemble"})
    refused("ensemble", "whole bundle", network={"kind": "leave-out", "members": team["members"]})
    refused(
        "ensemble",
        "LeaveOutEnsemble",
        detector={"detector": "leave-out", "class": None, "arguments": {}, "tuned_on": None},
    )
    refused(
        "ensemble",
        "Classifier or Paired for energy",
        detector={"detector": "energy", "class": None, "arguments": {}, "tuned_on": None},
    )
    refused("leave-out", "fold for each of 3", network={**left, "left_out": left["left_out"][:2]})
    refused("leave-out", "whole bundle", network={**left, "selected": [{"surprise": 1}]})
    refused("leave-out", "classes out of 0 to 9", network={**left, "left_out": [[0, 99], [1], [2]]})


@pytest.mark.parametrize("detector", [KNN(5), CosineEnsemble()])
def test_other_detectors_are_refused(detector: Any, leave_out: Model, world: World) -> None:
    with pytest.raises(DetectorError, match="Expected|gives no cosine"):
        Model.calibrated(leave_out.network, world.calibration, detector=detector, preprocessing=leave_out.preprocessing)


def test_an_ensemble_becomes_one_graph_and_leave_out_says_why_not(
    ensemble: Model, leave_out: Model, world: World, tmp_path: Path
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from offaxis.onnx import TOLERANCE, export_onnx, output_names

    export_onnx(ensemble, tmp_path / "x.onnx")
    pixels = world.test.batch(torch.arange(30))
    session = runtime.InferenceSession(str(tmp_path / "x.onnx"), providers=["CPUExecutionProvider"])
    found = dict(
        zip(output_names(ensemble), session.run(output_names(ensemble), {"pixels": pixels.numpy()}), strict=True)
    )
    said = ensemble.predict_batch(pixels)
    assert np.abs(found["score"] - [p.score for p in said]).max() <= TOLERANCE
    assert np.abs(found["cosine"].max(1) - [p.cosine for p in said]).max() <= TOLERANCE
    assert found["logits"].argmax(1).tolist() == [p.class_index for p in said]
    with pytest.raises(ExportError, match="leave-out reads images"):
        export_onnx(leave_out, tmp_path / "y.onnx")


@pytest.mark.parametrize("name", ["ensemble", "leave-out"])
def test_it_is_served(name: str, kept: dict[str, Any], world: World) -> None:
    httpx = pytest.importorskip("httpx")
    model = offaxis.load(kept[name][1])
    with running(model) as (address, _), httpx.Client() as client:
        about = client.get(f"{address}/v1/model").json()
        answer = client.post(f"{address}/v1/predict", content=png(world.test, 3), headers={"content-type": "image/png"})
        assert client.get(address).status_code == 200
    assert about["networks"] == 3
    assert about["detector"] == {"ensemble": "cosine-ensemble"}.get(name, name)
    assert about["calibration"]["histogram"]["of"] == {"ensemble": "cosine"}.get(name, "score")
    assert answer.status_code == 200
    (record,) = answer.json()["predictions"]
    (expected,) = model.predict(world.test.batch(torch.tensor([3])))
    nearest, told = record.pop("nearest"), expected.to_json()
    assert [entry["class"] for entry in nearest] == [entry["class"] for entry in told.pop("nearest")]
    assert len(nearest) == 5
    assert record["could_be"] == told.pop("could_be")
    assert {key: record[key] for key in told} == pytest.approx(told)
    assert (record["cosine"] is None) == (name == "leave-out")
