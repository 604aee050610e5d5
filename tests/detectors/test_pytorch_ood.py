"""Every detector of pytorch-ood under our contract."""

import copy
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from offaxis.detectors import DETECTORS, Reads, State, fit_all, load_detector, save_detector, score_all
from offaxis.detectors.pytorch_ood import FED_WITH, Feed, PyTorchOOD
from offaxis.errors import ArgumentError, DetectorError, MissingPackageError, NotFittedError
from tests.detectors.toy import NetworkOf, Toy

KEYWORDS: dict[str, dict[str, Any]] = {
    "KNN": {"k": 5},
    "MCD": {"samples": 3},
    "ViM": {"d": 8},
    "ODIN": {"eps": 0.001, "temperature": 1.0},
    "MahalanobisODIN": {"eps": 0.001},
}
# Some do not solve the toy: RankFeat wants maps with structure, MCD a network with dropout, SHE goes by the features' length.
UNSOLVED = {"RankFeat", "MCD", "SHE"}
TAKE_THE_HEAD = ("DICE", "LTS", "MCM", "NCI", "NNGuide", "PNML", "SHE", "ViM", "fDBD", "ASH", "ReAct", "SCALE", "VRA")


@pytest.fixture(params=FED_WITH)
def case(request: pytest.FixtureRequest, ood: ModuleType, toy: Toy, network_of: NetworkOf) -> tuple[PyTorchOOD, Any]:
    network = network_of("linear")
    return PyTorchOOD(request.param, KEYWORDS.get(request.param)).fit(network, toy.train), network


def test_the_table_is_all_of_pytorch_ood(ood: ModuleType) -> None:
    theirs = importlib.import_module("pytorch_ood.detector").__all__
    assert set(FED_WITH) == {name for name in theirs if name != "odin_preprocessing"}
    assert len(FED_WITH) == 35
    assert {f"pytorch-ood-{kind.lower()}" for kind in FED_WITH} <= set(DETECTORS)


def test_scores(case: tuple[PyTorchOOD, Any], toy: Toy) -> None:
    detector, network = case
    id_scores = detector.score_images(network, toy.images)
    ood_scores = detector.score_images(network, toy.ood_images)
    assert id_scores.shape == (len(toy.images),)
    assert torch.isfinite(id_scores).all()
    assert not id_scores.requires_grad
    if detector.kind not in UNSOLVED:
        assert (ood_scores.unsqueeze(1) >= id_scores).double().mean() > 0.6
    if detector.kind != "MCD":
        alone = torch.cat([detector.score_images(network, image) for image in toy.images[:3].split(1)])
        torch.testing.assert_close(alone, id_scores[:3], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["Gram", "NACUE", "DICE"])
def test_where_a_second_fit_fails_they_are_not_fitted_any_more(
    ood: ModuleType, toy: Toy, network_of: NetworkOf, kind: str
) -> None:
    network = network_of("linear")
    detector = PyTorchOOD(kind).fit(network, toy.train)
    assert detector.fitted
    with pytest.raises(DetectorError, match="NaN"):
        detector.fit(network, [(toy.images * float("nan"), toy.labels)])
    assert not detector.fitted


def test_they_leave_no_trace_in_the_network(case: tuple[PyTorchOOD, Any], toy: Toy) -> None:
    detector, network = case
    network.train()
    modes = [module.training for module in network.modules()]
    before = copy.deepcopy(network.state_dict())
    detector.fit(network, toy.train)
    detector.score_images(network, toy.images)
    assert [module.training for module in network.modules()] == modes
    assert all(parameter.grad is None for parameter in network.parameters())
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_saved_and_loaded_they_score_the_same_to_the_bit(
    case: tuple[PyTorchOOD, Any], toy: Toy, tmp_path: Path
) -> None:
    detector, network = case
    path = tmp_path / "detector.safetensors"
    if not detector.savable:
        with pytest.raises(DetectorError, match="fit it again"):
            save_detector(detector, path)
        return
    detector.score_images(network, toy.images[:2])  # what it has scored with is no part of it
    save_detector(detector, path)
    again = load_detector(path)
    assert again.arguments == detector.arguments
    assert torch.equal(again.score_images(network, toy.images), detector.score_images(network, toy.images))


def test_they_share_our_pass(ood: ModuleType, toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("linear")
    kinds = [kind for kind, feed in FED_WITH.items() if feed is not Feed.MODEL]
    detectors = [PyTorchOOD(kind, KEYWORDS.get(kind)) for kind in kinds]
    assert all(detector.reads is not Reads.IMAGES for detector in detectors)
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    network.backbone.register_forward_hook(count)
    fit_all(network, toy.train, detectors)
    score_all(network, [toy.images], detectors)
    assert calls == len(toy.train) + 1


@pytest.mark.parametrize("kind", TAKE_THE_HEAD)
def test_those_that_need_a_linear_head_work_with_a_cosine_head(
    kind: str, ood: ModuleType, toy: Toy, network_of: NetworkOf
) -> None:
    network = network_of("cosine")
    detector = PyTorchOOD(kind, KEYWORDS.get(kind)).fit(network, toy.train)
    assert torch.isfinite(detector.score_images(network, toy.images)).all()


def test_tuning_takes_their_search_space(ood: ModuleType, toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("linear")
    detector = PyTorchOOD("DICE").fit(network, toy.train)
    assert detector.state is State.DEFAULT
    tuned = detector.tune(network, [toy.images], [toy.ood_images])
    assert tuned.state is State.TUNED
    assert tuned.keywords["p"] in (0.1, 0.3, 0.5, 0.7, 0.9)
    assert PyTorchOOD("Entropy").state is State.NONE


def test_too_few_training_images_are_refused_with_the_reason(ood: ModuleType, toy: Toy, network_of: NetworkOf) -> None:
    detector = PyTorchOOD("KNN", {"k": 5000})
    detector.fit(network_of("linear"), toy.train)
    with pytest.raises(NotFittedError, match="k=5000 exceeds"):
        detector.check_fitted()
    assert all(setting["keywords"]["k"] <= len(detector.bank) for setting in detector.settings[:-1])


def test_errors(ood: ModuleType, toy: Toy, network_of: NetworkOf) -> None:
    with pytest.raises(ArgumentError, match="DICE"):
        PyTorchOOD("Dice")
    with pytest.raises(ArgumentError, match=r"pytorch-ood's GEN .*gamma.* but got k\."):
        PyTorchOOD("GEN", {"k": 5})
    with pytest.raises(NotFittedError, match="pytorch-ood-dice"):
        PyTorchOOD("DICE").score_images(network_of("linear"), toy.images)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("no", name="pytorch_ood"), r"offaxis\[pytorch-ood\]"),
        (RuntimeError("operator torchvision::nms does not exist"), "matching pair"),
    ],
)
def test_where_it_cannot_be_imported_the_error_says_what_to_install(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> Any:
        raise error

    monkeypatch.delitem(sys.modules, "pytorch_ood.detector", raising=False)
    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(MissingPackageError, match=said):
        PyTorchOOD("DICE")


def test_tuning_keeps_the_arguments_that_it_does_not_search_for(
    ood: ModuleType, toy: Toy, network_of: NetworkOf
) -> None:
    network = network_of("linear")
    detector = PyTorchOOD("ASH", {"variant": "ash-b"}).fit(network, toy.train)
    assert {keywords["variant"] for keywords in detector.grid["keywords"]} == {"ash-b"}
    tuned = detector.tune(network, [toy.images], [toy.ood_images])
    assert tuned.keywords["variant"] == "ash-b"
    again = PyTorchOOD("ASH", tuned.keywords).fit(network, toy.train)
    assert torch.equal(tuned.score_images(network, toy.images), again.score_images(network, toy.images))


def test_layers_that_were_not_named_are_those_of_the_network(ood: ModuleType, toy: Toy, network_of: NetworkOf) -> None:
    one, other = network_of("linear"), network_of("linear")
    other.layers = ("relu", "second")
    detector = PyTorchOOD("MultiMahalanobis").fit(one, toy.train)
    assert detector.layers == ("first", "second")
    assert detector.fit(other, toy.train).layers == ("relu", "second")
    named = PyTorchOOD("MultiMahalanobis", inner=("second",)).fit(one, toy.train)
    assert named.fit(other, toy.train).layers == ("second",)
