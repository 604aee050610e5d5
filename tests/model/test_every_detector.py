"""Calibration works with every detector, and a bundle holds every one that keeps its state in tensors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import offaxis
from offaxis import Model
from offaxis.data import Normalise
from offaxis.detectors import DETECTORS, NATIVE, Detector
from offaxis.detectors.registry import arguments_for
from offaxis.errors import BundleError, CalibrationError, DetectorError, MissingOutputError
from offaxis.networks.open import combine
from offaxis.networks.opened import OpenedNetwork
from offaxis.training import Trained
from tests.models import World, trained_for_a_moment

HEADS = {"generalized-odin": "deconf-c", "isomax": "isomax"}  # which heads those are for
NOT_KEPT = ("pytorch-ood-gram", "pytorch-ood-nacue")  # what they were fitted with is inside pytorch-ood
OF_ENSEMBLES = ("cosine", "cosine-ensemble", "max-softmax")
OF_LEAVE_OUT = ("leave-out", "max-softmax")
SMALL: dict[str, dict[str, Any]] = {
    "knn": {"k": 5},
    "pytorch-ood-knn": {"keywords": {"k": 5}},
    "pytorch-ood-mcd": {"keywords": {"samples": 2}},
    "pytorch-ood-vim": {"keywords": {"d": 8}},
}


@pytest.fixture(scope="module")
def teams(
    world: World, cosine_runs: list[Trained], leave_out_runs: list[Trained], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, OpenedNetwork]:
    """Networks by the detector that they are for; the rest take the first."""
    folder = tmp_path_factory.mktemp("heads")
    heads = {name: combine([trained_for_a_moment(folder, head)], "single") for name, head in HEADS.items()}
    teams = {"cosine-ensemble": combine(cosine_runs), "leave-out": combine(leave_out_runs, "leave-out")}
    return {"": combine([world.trained], "single"), **heads, **teams}


def normalise_of(team: OpenedNetwork) -> Normalise:
    """Return the normalisation, which these networks know."""
    assert team.normalise is not None
    return team.normalise


def made(name: str, team: OpenedNetwork, world: World) -> Detector:
    """The detector, fitted where it must be."""
    options = NATIVE[name].options if name in NATIVE else ()
    detector = DETECTORS[name](
        **{**arguments_for(options, team.network, normalise_of(team).std), **SMALL.get(name, {})}
    )
    rows = torch.arange(200)
    assert world.train.labels is not None
    return detector.fit(team.network, [(normalise_of(team)(world.train.batch(rows)), world.train.labels[rows])])


@pytest.mark.usefixtures("ood")
@pytest.mark.filterwarnings("ignore:.*:sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", DETECTORS)
def test_every_detector_is_calibrated_and_goes_into_a_bundle(
    name: str, world: World, teams: dict[str, OpenedNetwork], tmp_path: Path
) -> None:
    team = teams.get(name, teams[""])
    detector = made(name, team, world)
    some = world.calibration.subset(torch.arange(60))
    if name == "pytorch-ood-mcd":  # it needs dropout, and without any it gives the same score to every image
        with pytest.raises(CalibrationError, match="differ from image to image"):
            Model.calibrated(team, some, detector=detector, used=[world.train], alpha=0.1)
        return
    model = Model.calibrated(team, some, detector=detector, used=[world.train], alpha=0.1)
    own = np.concatenate([detector.score_images(team.network, normalise_of(team)(p)).cpu() for p in some.batches(60)])
    np.testing.assert_allclose(model.calibration.scores, np.sort(own), rtol=1e-5, atol=1e-6)
    if name in NOT_KEPT:
        with pytest.raises(BundleError, match=f"{name} keeps its state where a bundle cannot"):
            model.save(tmp_path / "x.oax")
        return
    model.save(tmp_path / "x.oax")
    again = offaxis.load(tmp_path / "x.oax")
    assert type(again.network) is type(team.network)
    assert type(again.detector) is type(detector)
    assert again.detector.arguments == detector.arguments
    images = world.test.batch(torch.arange(20))
    said = again.predict(images)
    assert said == model.predict(images)
    assert len({p.score for p in said}) > 1


@pytest.mark.usefixtures("ood")
@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_judges_an_ensemble_or_says_that_it_cannot(
    name: str, world: World, teams: dict[str, OpenedNetwork]
) -> None:
    for kind, suited in (("cosine-ensemble", OF_ENSEMBLES), ("leave-out", OF_LEAVE_OUT)):
        team = teams[kind]
        options = NATIVE[name].options if name in NATIVE else ()
        detector = DETECTORS[name](**arguments_for(options, team.network, normalise_of(team).std))
        if name in suited:
            calibration = offaxis.calibrate(team.network, world.calibration, normalise_of(team), detector)
            assert np.unique(calibration.scores).size > 100
            continue
        with pytest.raises((DetectorError, MissingOutputError), match=f"{name}|cosine") as refusal:
            offaxis.calibrate(team.network, world.calibration, normalise_of(team), detector)
        assert "Expected" in str(refusal.value) or "no cosine" in str(refusal.value)
        if name not in ("cosine", "cosine-ensemble", "leave-out"):
            assert f"for {name} but got {type(team.network).__name__}" in str(refusal.value)


def test_one_network_is_not_judged_as_several(world: World, teams: dict[str, OpenedNetwork]) -> None:
    team = teams[""]
    for name, expected in (("cosine-ensemble", "Ensemble"), ("leave-out", "LeaveOutEnsemble")):
        with pytest.raises(DetectorError, match=f"Expected {expected} for {name} but got Classifier"):
            offaxis.calibrate(team.network, world.calibration, normalise_of(team), NATIVE[name]())


def test_the_usual_detector_is_that_of_the_network(world: World, teams: dict[str, OpenedNetwork]) -> None:
    for team, name in ((teams[""], "cosine"), *((teams[kind], kind) for kind in ("cosine-ensemble", "leave-out"))):
        model = Model.calibrated(team, world.calibration)
        assert model.detector.name == name
        assert offaxis.calibrate(team.network, world.calibration, normalise_of(team)).threshold() == pytest.approx(
            model.calibration.threshold()
        )
        if name != "cosine":
            assert model.detector.arguments["networks"] == 3
    assert model.detector.arguments["std"] == normalise_of(team).std  # steps are in units of pixels
