"""What a model can be expected to find: classes left out, probes, and advice where a score is poor."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor
from typer.testing import CliRunner

from offaxis import Detector, Model, load
from offaxis.cli import app
from offaxis.detectors import KNN, MaxSoftmax
from offaxis.detectors.registry import make_detector
from offaxis.expectation import expect, new_classes
from offaxis.heads import CosineHead, LinearHead, Outputs
from offaxis.networks.classifier import Classifier, FeatureInput
from tests.models import World


def blobs(spread: float, count: int = 900) -> tuple[Tensor, Tensor]:
    """Features of six classes whose centres lie ``spread`` apart, in noise."""
    random = torch.Generator().manual_seed(0)
    centres, labels = spread * torch.randn(6, 16, generator=random), torch.arange(count) % 6
    return centres[labels] + torch.randn(count, 16, generator=random), labels


def test_it_is_near_what_an_independent_head_finds() -> None:
    """Each class left out of scikit-learn's logistic regression, with the largest probability."""
    features, labels = blobs(0.7)
    found = new_classes(features, labels, LinearHead(16, 6), MaxSoftmax(), 0.05)
    assert found is not None
    x, y = features.numpy(), labels.numpy()
    expected = []
    for out in range(6):
        kept = y != out
        test = np.random.default_rng(out).random(len(y)) < 1 / 3
        network = LogisticRegression(C=1, max_iter=500).fit(x[kept & ~test], y[kept & ~test])
        scores = -network.predict_proba(x).max(1)
        chosen = ~kept | test
        expected.append(roc_auc_score(~kept[chosen], scores[chosen]))
    assert found["auroc"] == pytest.approx(np.mean(expected), abs=0.08)
    assert found["low"] <= found["auroc"] <= found["high"]
    assert 0.5 < found["auroc"] < 0.95


def test_classes_apart_are_found_and_noise_is_not() -> None:
    far = new_classes(*blobs(4.0), LinearHead(16, 6), KNN(5), 0.05)
    none = new_classes(torch.randn(600, 16), torch.arange(600) % 6, LinearHead(16, 6), KNN(5), 0.05)
    assert far is not None
    assert none is not None
    assert far["auroc"] > 0.98
    assert far["found"] > 0.9
    assert none["auroc"] == pytest.approx(0.5, abs=0.08)
    assert none["found"] == pytest.approx(0.05, abs=0.05)
    two = torch.arange(600) % 2
    assert new_classes(torch.randn(600, 16), two, LinearHead(16, 2), KNN(5), 0.05) is None


@pytest.mark.parametrize("name", ["mahalanobis++", "vim", "combined"])
def test_detectors_of_every_kind_are_fitted_anew(name: str) -> None:
    features, labels = blobs(2.0)
    head = CosineHead(16, 6)
    network = Classifier(FeatureInput(), head).double().eval()
    detector = make_detector(name, network)
    detector.fit(network, [(features.double(), labels)])
    found = new_classes(features, labels, head, detector, 0.05)
    assert found is not None
    assert found["auroc"] > 0.7


class Backwards(Detector):
    """The wrong sign."""

    name = "backwards"
    uses = ("cosine",)

    def forward(self, outputs: Outputs) -> Tensor:
        assert outputs.cosine is not None
        return outputs.cosine.amax(1)


def test_a_score_that_finds_nothing_is_warned_of(world: World) -> None:
    model = Model.calibrated(world.trained, world.calibration, used=[world.train], detector=Backwards())
    said = expect(model, world.train, world.calibration)["sentences"]
    assert any("backwards hardly tells images that are nothing like yours" in line for line in said)
    assert any("backwards hardly tells new classes like yours" in line for line in said)


def test_the_shell_the_bundle_and_the_card_say_it(world: World, tmp_path: Path) -> None:
    out = tmp_path / "x.oax"
    done = CliRunner().invoke(
        app, ["bundle", str(world.trained.folder), "--calibrate", "small-digits", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    expected = load(out).expectation
    assert expected is not None
    said = " ".join(done.output.split())
    assert all(line in said for line in expected["sentences"])
    assert "New classes like yours (at best, as the network was trained on them all): AUROC" in said
    assert "Nothing like yours:" in said
    assert expected["nothing_like"]["kinds"]["noise"] > 0.5
    hub = pytest.importorskip("offaxis.hub")
    pytest.importorskip("huggingface_hub")
    assert "- " + expected["sentences"][0] in hub.model_card(load(out), "me/digits")
