"""Margin heads and L2-constrained softmax: slow versions of their formulas, pytorch-metric-learning, and a training."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

import offaxis
from offaxis import Classifier
from offaxis.cli import app
from offaxis.detectors.statistics import HeadCopy
from offaxis.errors import ArgumentError
from offaxis.heads import ArcFaceHead, CosFaceHead, L2SoftmaxHead, SphereFaceHead, describe_head, head_maker
from offaxis.training import train_head
from tests.heads.makers import MAKERS

NAMES = ("sphereface", "cosface", "arcface")


def rows(count: int = 40, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    features = torch.randn(count, 16, generator=torch.Generator().manual_seed(seed)).double()
    return features, torch.arange(count) % 5


def psi(name: str, angle: float, margin: float) -> float:
    """What the true class gets in place of its cosine, from its angle."""
    if name == "cosface":
        return math.cos(angle) - margin
    if name == "arcface":
        beyond = angle + margin > math.pi
        return math.cos(angle) - margin * math.sin(margin) if beyond else math.cos(angle + margin)
    k = min(int(angle * margin / math.pi), int(margin) - 1)
    return math.cos(margin * angle) * (-1 if k % 2 else 1) - 2 * k


def slow_loss(name: str, head: Any, features: torch.Tensor, labels: torch.Tensor, mixed: float) -> float:
    """The loss by the papers' formulas, an image at a time; ``mixed`` is lambda."""
    total = 0.0
    for f, y in zip(features, labels.tolist(), strict=True):
        cosines = [float(F.cosine_similarity(f, w, dim=0)) for w in head.weight.detach()]
        scale = float(f.norm()) if name == "sphereface" else head.arguments["scale"]
        own = psi(name, math.acos(max(min(cosines[y], 1), -1)), head.margin)
        cosines[y] = (mixed * cosines[y] + own) / (1 + mixed)
        total -= scale * cosines[y] - math.log(sum(math.exp(scale * c) for c in cosines))
    return total / len(labels)


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_is_that_of_the_paper_and_the_logits_have_no_margin(name: str) -> None:
    torch.manual_seed(0)
    head: Any = MAKERS[name](16, 5).double()
    features, labels = rows()
    with torch.no_grad():
        head.weight.copy_(-features[:5])  # five images on the far side of their axis, where the guards are
        cosines = torch.stack([F.cosine_similarity(f, head.weight) for f in features])
        first = head.loss(head.outputs(features), labels)
        second = head.loss(head.outputs(features), labels)
    mixed = (1000.0, 1000 / 1.12) if name == "sphereface" else (0.0, 0.0)
    assert float(first) == pytest.approx(slow_loss(name, head, features, labels, mixed[0]), rel=1e-6)
    assert float(second) == pytest.approx(slow_loss(name, head, features, labels, mixed[1]), rel=1e-6)
    scale = features.norm(dim=1) if name == "sphereface" else torch.full((40,), 64.0).double()
    for outputs in (head.outputs(features), head.eval().outputs(features)):
        torch.testing.assert_close(outputs.cosine, cosines)
        torch.testing.assert_close(outputs.logits, scale.unsqueeze(1) * cosines)
    plain = F.cross_entropy(head(features), labels)
    assert torch.equal(head.loss(head.outputs(features), labels), plain)  # in eval mode


def test_the_margin_of_sphereface_grows_over_the_steps_and_they_are_part_of_the_state() -> None:
    head: Any = SphereFaceHead(16, 5)
    features, labels = rows()
    near = torch.tensor([[math.cos(0.2)]])
    expected = {0: 1000.0, 1: 1000 / 1.12, 100: 1000 / 13, 10**6: 5.0}
    for steps, mixed in expected.items():
        head.steps.fill_(steps)
        value = (mixed * math.cos(0.2) + math.cos(0.8)) / (1 + mixed)
        assert float(head.narrowed(near)) == pytest.approx(value, rel=1e-5)
    head.loss(head.outputs(features), labels)
    head.eval().loss(head.outputs(features), labels)
    assert head.state_dict()["steps"] == 10**6 + 1


@pytest.mark.parametrize("name", NAMES)
def test_a_larger_angle_of_the_true_class_is_never_better(name: str) -> None:
    head: Any = MAKERS[name](16, 5).double()
    head.state_dict().get("steps", torch.zeros(())).fill_(10**6)
    angles = torch.linspace(0, math.pi, 500).double()
    cosines = angles.cos().requires_grad_()
    values = head.narrowed(cosines)
    assert (values.diff() <= 1e-9).all()
    assert (values[1:-1] < cosines[1:-1]).all()
    (slopes,) = torch.autograd.grad(values.sum(), cosines)
    assert slopes.isfinite().all()


def test_l2_softmax_is_a_linear_layer_on_features_of_one_length() -> None:
    head = L2SoftmaxHead(16, 5, scale=20).double()
    features, _ = rows()
    out = head.outputs(features)
    fixed = torch.stack([20 * f / f.norm() for f in features])
    torch.testing.assert_close(out.features, fixed)
    torch.testing.assert_close(out.logits, fixed @ head.weight.T + head.bias)
    assert out.cosine is not None
    torch.testing.assert_close(out.cosine, torch.stack([F.cosine_similarity(f, head.weight) for f in features]))
    copy = HeadCopy()
    copy.set(head)
    torch.testing.assert_close(copy.logits(copy.inputs(out.features), out.scale), out.logits)


@pytest.mark.parametrize("name", NAMES)
def test_what_detectors_copy_of_a_margin_head_gives_its_logits(name: str) -> None:
    head, copy = MAKERS[name](16, 5).eval().double(), HeadCopy()
    copy.set(head)
    out = head.outputs(rows()[0])
    torch.testing.assert_close(copy.logits(copy.inputs(out.features), out.scale), out.logits)


@pytest.mark.thirdparty
@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")
@pytest.mark.parametrize("name", NAMES)
def test_equal_to_pytorch_metric_learning(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    head: Any = MAKERS[name](16, 5).double()
    features, labels = rows()
    given: dict[str, tuple[str, dict[str, float]]] = {
        "sphereface": ("SphereFaceLoss", {"margin": 4}),
        "cosface": ("CosFaceLoss", {"margin": 0.35, "scale": 64}),
        "arcface": ("ArcFaceLoss", {"margin": math.degrees(0.5), "scale": 64}),
    }
    kind, arguments = given[name]
    theirs = getattr(losses, kind)(num_classes=5, embedding_size=16, **arguments).double()
    theirs.W.data.copy_(head.weight.data.T)
    if name == "sphereface":  # theirs has no annealing
        whole = theirs.modify_cosine_of_target_classes
        monkeypatch.setattr(theirs, "modify_cosine_of_target_classes", lambda c: (5 * c + whole(c)) / 6)
        head.steps.fill_(10**6)
    ours, reference = features.clone().requires_grad_(), features.clone().requires_grad_()
    loss, expected = head.loss(head.outputs(ours), labels), theirs(reference, labels)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    gradients = torch.autograd.grad(loss, [ours, head.weight])
    wanted = torch.autograd.grad(expected, [reference, theirs.W])
    torch.testing.assert_close(gradients[0], wanted[0], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(gradients[1], wanted[1].T, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", [*NAMES, "l2-softmax"])
def test_they_learn_on_features_and_are_described(name: str) -> None:
    features, labels = rows(200)
    features = (features + 4 * torch.eye(16)[labels]).float()
    head = train_head(features, labels, head=MAKERS[name], epochs=40)
    assert (head(features).argmax(1) == labels).float().mean() > 0.9
    description = describe_head(head)
    assert description is not None
    again = head_maker(json.loads(json.dumps(description)))(16, 5).eval()
    again.load_state_dict(head.state_dict())
    assert torch.equal(again(features), head(features))


@pytest.mark.filterwarnings("ignore:The network has learned next to nothing")
def test_a_classifier_with_labels_and_the_loop_minimise_the_loss_with_the_margin() -> None:
    torch.manual_seed(0)
    head = ArcFaceHead(16, 5)
    network = Classifier(nn.Flatten(), head).train()
    features, labels = rows()
    images = features.float().sigmoid().view(-1, 1, 4, 4)
    expected = head.loss(head.outputs(images.flatten(1)), labels)
    assert torch.equal(network(images, labels=labels)["loss"], expected)
    assert expected > F.cross_entropy(network(images), labels) + 1
    settings: list[dict[str, Any]] = [{}, {"loss": nn.CrossEntropyLoss()}]
    plan: dict[str, Any] = {"recipe": offaxis.Recipe(epochs=1, batch_size=40, crop=0, flip=False), "quiet": True}
    with_margin, without = (
        offaxis.train(Classifier(nn.Flatten(), ArcFaceHead(16, 5)), (images, labels), **plan, **loss)
        for loss in settings
    )
    assert with_margin.history[0]["loss"] > without.history[0]["loss"] + 1


def test_the_trainer_of_transformers_gets_the_loss_with_the_margin() -> None:
    transformers = pytest.importorskip("offaxis.integrations.transformers", exc_type=ImportError)
    network = Classifier(nn.Flatten(), CosFaceHead(16, 5)).train()
    features, labels = rows()
    images = features.float().view(-1, 1, 4, 4)
    found = transformers.TrainerClassifier(network)(images, labels)
    assert torch.equal(found.loss, network(images, labels=labels)["loss"])
    assert transformers.TrainerClassifier(network)(images).loss is None
    plain = transformers.TrainerClassifier(network, F.cross_entropy)(images, labels)
    assert torch.equal(plain.loss, F.cross_entropy(network(images), labels))


@pytest.mark.filterwarnings(
    "ignore:The network has learned next to nothing", "ignore:The class of .* of the calibration"
)
@pytest.mark.parametrize(
    ("head", "options", "frozen"),
    [
        ("arcface", ["--margin", "0.3"], False),
        ("sphereface", ["--margin", "2"], False),
        ("l2-softmax", ["--scale", "16"], True),
    ],
)
def test_the_command_trains_them(head: str, options: list[str], frozen: bool, tmp_path: Path) -> None:
    common = ["train", "--id", "digits", "--epochs", "1", "--quiet"]
    if frozen:
        start = ["--network", "convnet-4", "--out", str(tmp_path / "start")]
        assert CliRunner().invoke(app, [*common, *start]).exit_code == 0
        options = [*options, "--from", str(tmp_path / "start"), "--freeze"]
    else:
        options = [*options, "--network", "convnet-4"]
    done = CliRunner().invoke(app, [*common, "--head", head, *options, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    opened = offaxis.open_network(tmp_path / "run")
    described = describe_head(opened.network.head)
    assert described is not None
    assert described["name"] == head
    assert described[options[0].removeprefix("--")] == float(options[1])
    bundle = ["bundle", str(tmp_path / "run"), "--calibrate", "digits", "--out", str(tmp_path / "x.oax")]
    done = CliRunner().invoke(app, bundle)
    assert done.exit_code == 0, done.output
    assert offaxis.load(tmp_path / "x.oax").detector.name in ("cosine", "two-cosines")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--head", "l2-softmax"], "takes 16 to 64"),
        (["--head", "arcface", "--scale", "learned"], "positive number"),
        (["--head", "sphereface", "--margin", "1.5"], "whole number"),
        (["--head", "sphereface", "--scale", "30"], "takes no --scale"),
        (["--head", "cosine", "--margin", "0.5"], "takes no --margin"),
    ],
)
def test_what_does_not_fit_is_a_sentence(options: list[str], said: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["train", "--id", "digits", "--out", str(tmp_path / "run"), *options])
    assert isinstance(done.exception, ArgumentError)
    assert said in str(done.exception)
    assert not (tmp_path / "run").exists()


def test_errors() -> None:
    with pytest.raises(ArgumentError, match="`margin` to be a positive number"):
        CosFaceHead(16, 5, margin=0)
    with pytest.raises(ArgumentError, match="l2-softmax"):
        L2SoftmaxHead(16, 5)
