"""Several networks as one: the ensemble of cosines and the leave-out classifiers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from offaxis.data import TensorSet
from offaxis.detectors import (
    Cosine,
    CosineEnsemble,
    LeaveOut,
    MaxSoftmax,
    Passes,
    ReAct,
    State,
    load_detector,
    make_detector,
    save_detector,
)
from offaxis.detectors.leave_out import entropy, leave_out_score
from offaxis.errors import ArgumentError, DetectorError, MissingOutputError
from offaxis.heads import Outputs, make_head
from offaxis.networks import wide_resnet
from offaxis.networks.classifier import Classifier
from offaxis.networks.combine import Ensemble, LeaveOutEnsemble, SelectedEpoch, folds
from offaxis.training import train
from offaxis.training.leave_out import MarginEntropyLoss, published_recipe, train_leave_out
from tests.detectors.toy import NetworkOf, Toy


def test_cosines_are_averaged_by_class_and_then_the_largest_is_taken(toy: Toy, network_of: NetworkOf) -> None:
    ensemble = network_of("ensemble")
    images = toy.ood_images
    cosines = torch.stack([member.outputs(images).cosine for member in ensemble.networks])
    expected = -(cosines.sum(0) / 2).max(1).values
    torch.testing.assert_close(CosineEnsemble(2).score_images(ensemble, images), expected)
    assert not torch.allclose(expected, -cosines.max(2).values.mean(0))  # not the mean of the maxima
    torch.testing.assert_close(Cosine().score_images(ensemble, images), expected)
    assert CosineEnsemble(2).passes == (2, 0)


def test_an_ensemble_of_one_is_that_network(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("cosine")
    one = Ensemble([network])
    torch.testing.assert_close(Cosine().score_images(one, toy.images), Cosine().score_images(network, toy.images))
    torch.testing.assert_close(one(toy.images), network(toy.images).log_softmax(1))


def test_the_probabilities_of_an_ensemble_are_the_mean(toy: Toy, network_of: NetworkOf) -> None:
    ensemble = network_of("ensemble")
    mean = torch.stack([member(toy.images).softmax(1) for member in ensemble.networks]).mean(0)
    torch.testing.assert_close(ensemble(toy.images).exp(), mean)


def test_compiled_members_count_and_the_scores_of_t2fnorm_are_those_of_its_method(toy: Toy) -> None:
    images = toy.images[:8]
    made = [Classifier(nn.Flatten(), make_head("t2fnorm", images[0].numel(), 3)).eval() for _ in range(2)]
    compiled: Any = torch.compile(made[0], backend="eager")
    ensemble = Ensemble([compiled, made[1]])
    assert ensemble.networks == made
    scored = torch.stack([member.outputs(images).detection_logits.softmax(1) for member in made]).mean(0)
    torch.testing.assert_close(MaxSoftmax().score_images(ensemble, images).float(), -scored.max(1).values)
    assert not torch.allclose(ensemble(images).exp(), scored)


def test_what_an_ensemble_refuses(toy: Toy, network_of: NetworkOf) -> None:
    ensemble, linear = network_of("ensemble"), network_of("linear")
    with pytest.raises(DetectorError, match="Expected Ensemble"):
        CosineEnsemble().score_images(network_of("cosine"), toy.images)
    with pytest.raises(MissingOutputError, match="cosine"):
        CosineEnsemble().score_images(Ensemble([linear]), toy.images)
    with pytest.raises(DetectorError, match="ensemble of 2"):
        ReAct().fit(ensemble, toy.train)
    with pytest.raises(DetectorError, match="inner layers"):
        ensemble.outputs(toy.images, ("first",))
    with pytest.raises(ArgumentError, match="no classes"):
        Ensemble([])
    with pytest.raises(ArgumentError, match="a Classifier or a Paired each but got Ensemble"):
        Ensemble([ensemble, linear])  # type: ignore[list-item]
    with pytest.raises(DetectorError, match="LeaveOutEnsemble"):
        LeaveOut().score_images(linear, toy.images)


@given(st.integers(4, 100), st.integers(2, 10), st.integers(0, 100))
def test_folds_deal_every_class_once(classes: int, count: int, seed: int) -> None:
    if count > classes or classes - -(-classes // count) < 2:
        with pytest.raises(ArgumentError, match="folds"):
            folds(classes, count, seed)
        return
    dealt = folds(classes, count, seed)
    assert sorted(c for fold in dealt for c in fold) == list(range(classes))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    assert dealt == folds(classes, count, seed)


def test_the_margin_entropy_loss_is_the_papers() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 5, requires_grad=True)
    labels = torch.tensor([0, 1, 4, 2, 3, 0])
    loss = MarginEntropyLoss(left_out=(1, 3), num_classes=5)
    seen, inside, target = logits[:, [0, 2, 4]], [0, 2, 3, 5], torch.tensor([0, 2, 1, 0])
    p = seen.softmax(1)
    h = -(p * p.log()).sum(1)
    expected = F.cross_entropy(seen[inside], target)
    expected = expected + 0.2 * torch.relu(0.4 + h[inside].mean() - h[[1, 4]].mean())
    torch.testing.assert_close(loss(Outputs(logits, logits), labels), expected)
    loss(Outputs(logits, logits), labels).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert not logits.grad[:, [1, 3]].any()  # what is left out is not looked at


@pytest.mark.parametrize("labels", [[0, 2, 4], [1, 3, 1]], ids=["insiders alone", "outsiders alone"])
def test_one_sided_batches_have_no_margin(labels: list[int]) -> None:
    logits = torch.randn(3, 5)
    value = MarginEntropyLoss((1, 3), 5)(Outputs(logits, logits), torch.tensor(labels))
    seen = logits[:, [0, 2, 4]]
    expected = F.cross_entropy(seen, torch.tensor([0, 1, 2])) if labels[0] == 0 else torch.tensor(0.0)
    torch.testing.assert_close(value, expected)


@pytest.mark.filterwarnings("ignore:The network has learned next to nothing")  # after two steps
def test_our_training_loop_trains_the_members() -> None:
    data = TensorSet("toy", torch.rand(40, 1, 8, 8), torch.arange(40) % 4, classes=("a", "b", "c", "d"))
    recipe = published_recipe().replace(epochs=1, batch_size=20)

    def fit(network: Classifier, loss: MarginEntropyLoss, seed: int) -> None:
        train(network, data, recipe, loss=loss, seed=seed, quiet=True)

    ensemble = train_leave_out(4, lambda c: wide_resnet(10, 1, num_classes=c, head="linear", in_channels=1), fit, 2)
    assert ensemble(data.images[:3]).shape == (3, 4)
    assert LeaveOut().score_images(ensemble, data.images[:3]).isfinite().all()
    first, second = (next(member.parameters()) for member in ensemble.networks)
    assert not torch.equal(first, second)


def test_the_leave_out_score_sums_confidence_less_entropy_over_networks(toy: Toy, network_of: NetworkOf) -> None:
    ensemble = network_of("leave-out")
    assert isinstance(ensemble, LeaveOutEnsemble)
    expected = torch.zeros(60, dtype=torch.float64)
    for member, left_out in zip(ensemble.networks, ensemble.left_out, strict=True):
        known = [c for c in range(4) if c not in left_out]
        x = toy.images.clone().requires_grad_()
        p = (member(x)[:, known].double() / 1000).softmax(1)
        (gradient,) = torch.autograd.grad(-(p * p.log()).sum(), x)
        with torch.no_grad():
            p = (member(toy.images - 0.002 * gradient.sign() / 0.5)[:, known].double() / 1000).softmax(1)
        expected -= p.amax(1) + (p * p.log()).sum(1)
    torch.testing.assert_close(LeaveOut(std=(0.5,)).score_images(ensemble, toy.images), expected, rtol=0, atol=1e-10)


def test_the_leave_out_ensemble_names_the_class(toy: Toy, network_of: NetworkOf) -> None:
    ensemble = network_of("leave-out")
    assert ensemble(toy.images).shape == (60, 4)
    assert (ensemble(toy.images).argmax(1) == toy.labels).double().mean() > 0.9
    with pytest.raises(ArgumentError, match="1 folds"):
        LeaveOutEnsemble(ensemble.networks, [(0,)])
    with pytest.raises(ArgumentError, match="out of 0 to 3"):
        LeaveOutEnsemble(ensemble.networks, [(0,), (4,)])


def test_entropy_keeps_its_digits_at_high_temperature() -> None:
    logits = torch.tensor([[1.0, 0.0, 0.0], [1.0001, 0.0, 0.0]])
    high = entropy(logits, 1000.0)
    assert high[0] > high[1]
    assert leave_out_score(logits)[0] > leave_out_score(logits)[1]


def test_the_detector_says_what_the_epochs_were_chosen_on(toy: Toy, network_of: NetworkOf, tmp_path: Path) -> None:
    plain = network_of("leave-out")
    chosen = [SelectedEpoch("iSUN", epoch, 0.9, 5) for epoch in (3, 5)]
    ensemble = LeaveOutEnsemble(plain.networks, plain.left_out, chosen)
    detector = make_detector("leave-out", ensemble, (0.5,))
    assert detector.passes == Passes(4, 2)
    assert detector.state is State.TUNED
    assert detector.tuned_on == "iSUN (epochs)"
    assert detector.with_hyperparameters(eps=0.0).tuned_on == "iSUN (epochs)"
    tuned = detector.tune(ensemble, [toy.images[:20]], [toy.ood_images[:20]])
    assert tuned.tuned_on == "iSUN (epochs), OOD samples"
    save_detector(tuned, tmp_path / "detector.safetensors")
    loaded = load_detector(tmp_path / "detector.safetensors")
    assert isinstance(loaded, LeaveOut)
    assert (loaded.tuned_on, loaded.selected_on) == (tuned.tuned_on, "iSUN")
    assert torch.equal(loaded.score_images(ensemble, toy.images), tuned.score_images(ensemble, toy.images))
    with pytest.raises(DetectorError, match=r"selected_on='iSUN'.* but got None: .*make_detector"):
        LeaveOut().score_images(ensemble, toy.images)
