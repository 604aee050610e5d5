"""Mahalanobis against a slow and obvious version, and where covariances are singular."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from offaxis.detectors import Detector, Mahalanobis, MahalanobisPlusPlus, RelativeMahalanobis, State, statistics
from offaxis.detectors.odin import fast_gradient_sign
from offaxis.detectors.statistics import ClassMoments, TiedGaussian
from offaxis.errors import ArgumentError, DetectorError, NotFittedError
from offaxis.heads import LinearHead
from offaxis.networks.classifier import Classifier
from tests.detectors.toy import NetworkOf, Toy

STD = (0.5,)


def slowly(train: np.ndarray, labels: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Half the squared distance to the nearest class mean, one image and one class at a time."""
    classes = sorted(set(labels))
    means = {c: np.mean([f for f, y in zip(train, labels, strict=True) if y == c], axis=0) for c in classes}
    covariance = np.zeros((train.shape[1], train.shape[1]))
    for f, y in zip(train, labels, strict=True):
        covariance += np.outer(f - means[y], f - means[y]) / len(train)
    rcond = train.shape[1] * np.finfo(np.float64).eps
    precision = np.linalg.pinv(covariance, rcond=rcond, hermitian=True)
    return np.array([min(0.5 * (f - means[c]) @ precision @ (f - means[c]) for c in classes) for f in test])


def quickly(train: np.ndarray, labels: np.ndarray, test: np.ndarray, batch: int) -> np.ndarray:
    moments = ClassMoments(int(labels.max()) + 1)
    for x, y in zip(torch.from_numpy(train).split(batch), torch.from_numpy(labels).split(batch), strict=True):
        moments.add(x, y)
    gaussian = TiedGaussian()
    gaussian.set(moments.means(), moments.within(), moments.scale())
    half: Tensor = gaussian(torch.from_numpy(test)).amin(1) / 2
    return half.numpy()


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**31),
    st.integers(2, 5),
    st.integers(1, 9),
    st.integers(1, 30),
    st.floats(-50, 50),
)
def test_it_equals_the_slow_version(seed: int, classes: int, width: int, batch: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, 60)])
    train = rng.normal(size=(len(labels), width)) @ rng.normal(size=(width, width)) + shift + labels[:, None]
    test = rng.normal(size=(7, width)) * 3 + shift
    ours = quickly(train, labels, test, batch)
    np.testing.assert_allclose(ours, slowly(train, labels, test), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("count", "dead"), [(40, 3), (8, 0), (8, 2)], ids=["dead", "few images", "both"])
def test_singular_covariances_work(count: int, dead: int) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 2
    train = rng.normal(size=(count, 12))
    train[:, :dead] = 1.0
    test = np.concatenate([train[:3], rng.normal(size=(4, 12))])
    ours = quickly(train, labels, test, 5)
    np.testing.assert_allclose(ours, slowly(train, labels, test), rtol=1e-6, atol=1e-8)
    assert np.isfinite(ours).all()


def test_rounding_errors_of_distant_classes_are_no_directions() -> None:
    """With fewer images than features and classes far apart, what is left of the subtraction is noise, not variance."""
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 10
    centres = rng.normal(size=(10, 256)) * 1000

    def images(count: int) -> np.ndarray:
        return centres[np.arange(count) % 10] + rng.normal(size=(count, 256)) * np.linspace(2, 0.05, 256)

    train, test = images(200), images(40)
    moments = ClassMoments(10)
    for x, y in zip(torch.from_numpy(train).split(64), torch.from_numpy(labels).split(64), strict=True):
        moments.add(x, y)
    gaussian = TiedGaussian()
    gaussian.set(moments.means(), moments.within(), moments.scale())
    assert gaussian.whitener.shape == (256, 190)
    ours = gaussian(torch.from_numpy(test)).amin(1) / 2
    np.testing.assert_allclose(ours, slowly(train, labels, test), rtol=1e-4)
    gaussian.set(moments.means(), moments.within())
    assert gaussian.whitener.shape[1] > 190  # by the covariance alone they cannot be told


def test_covariances_do_not_depend_on_batches_and_add_up() -> None:
    x, y = torch.randn(100, 5) + 1e3, torch.arange(100) % 3
    one, many = ClassMoments(3), ClassMoments(3)
    one.add(x, y)
    for part, labels in zip(x.split(7), y.split(7), strict=True):
        many.add(part, labels)
    torch.testing.assert_close(one.within(), many.within(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(one.total(), torch.cov(x.double().T, correction=0), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(one.mean(), x.double().mean(0))


def test_what_is_kept_does_not_grow_with_the_images() -> None:
    moments = ClassMoments(3)
    sizes = set()
    for _ in range(20):
        moments.add(torch.randn(50, 6), torch.arange(50) % 3)
        sizes.add(sum(value.numel() for value in vars(moments).values() if isinstance(value, Tensor)))
    assert sizes == {6 + 3 + 18 + 36}


@pytest.mark.parametrize("kind", [Mahalanobis, MahalanobisPlusPlus, RelativeMahalanobis])
def test_detectors_leave_out_rounding_errors(kind: type[Detector], monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def whitener(covariance: Tensor, scale: float) -> Tensor:
        taken.append(scale)
        return covariance

    monkeypatch.setattr(statistics, "whitener", whitener)
    torch.manual_seed(0)
    network = Classifier(torch.nn.Flatten(), LinearHead(16, 2))
    images, labels = torch.randn(40, 1, 4, 4), torch.arange(40) % 2
    kind().fit(network, [(images, labels)])
    x = (images.flatten(1) if kind is not MahalanobisPlusPlus else F.normalize(images.flatten(1))).double()
    x = x - x.mean(0)
    expected = float(torch.linalg.matrix_norm(x.T @ x / 40))
    assert taken == pytest.approx([expected] * (2 if kind is RelativeMahalanobis else 1), rel=1e-5)


def test_each_layer_moves_the_image_down_its_own_distance(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("linear").double()
    train = [(x.double(), y) for x, y in toy.train]
    images = toy.images.double()
    detector = Mahalanobis(eps=0.002, std=STD).fit(network, train)
    scores = torch.zeros(len(images), dtype=torch.float64)
    for name, gaussian in zip(detector.layers, detector.gaussians.values(), strict=True):

        def distance(x: Tensor, name: str = name, gaussian: Any = gaussian) -> Tensor:
            nearest: Tensor = gaussian(network.outputs(x, (name,)).layers[name]).amin(1)
            return nearest / 2

        x = images.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(distance(x).sum(), x)
        moved = images - 0.002 * gradient.sign() / STD[0]
        with torch.no_grad():
            scores += distance(moved)
    torch.testing.assert_close(detector.score_images(network, images), scores)


def test_the_perturbed_passes_stop_at_the_layer(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("linear")
    detector = Mahalanobis(("first",), eps=0.001).fit(network, toy.train)
    forward, backward = [], []
    network.backbone.second.register_forward_hook(lambda *_: forward.append(1))
    network.backbone.relu.register_full_backward_hook(lambda *_: backward.append(1))
    detector.score_images(network, toy.images)
    assert len(forward) == 1  # the clean pass
    assert not backward
    both = Mahalanobis(("first", "second"), eps=0.001).fit(network, toy.train)
    both.score_images(network, toy.images)
    assert len(backward) == 1  # for the second layer's own distance alone


def test_a_layer_that_runs_twice_is_read_at_its_last_run(toy: Toy) -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = torch.nn.Conv2d(1, 6, 3), torch.nn.Conv2d(6, 6, 3)
            self.relu = torch.nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.relu(self.two(self.relu(self.one(x)))).mean((2, 3))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    network = Classifier(Twice(), LinearHead(6, 4)).eval()
    detector = Mahalanobis(("relu",)).fit(network, toy.train)
    clean = detector.score_images(network, toy.images)
    moved = detector.with_hyperparameters(eps=1e-12).score_images(network, toy.images)
    torch.testing.assert_close(moved, clean, rtol=1e-3, atol=1e-3)


def test_tuning_follows_the_published_protocol(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("linear")
    detector = Mahalanobis(std=STD).fit(network, toy.train)
    assert detector.state is State.DEFAULT
    tuned = detector.tune(network, toy.images.split(16), toy.ood_images.split(16))
    assert tuned.state is State.TUNED
    assert tuned.tuned_on == "OOD samples"
    assert tuned.eps in detector.epsilons
    assert not torch.equal(tuned.weights, detector.weights)
    assert torch.equal(detector.weights, torch.ones(2).double())  # the untuned one is as it was
    id_scores, ood_scores = (tuned.score_images(network, x) for x in (toy.images, toy.ood_images))
    assert (ood_scores.unsqueeze(1) > id_scores).double().mean() > 0.95


def test_tuning_needs_no_ood_sample_with_adversarial_examples(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("linear")
    detector = Mahalanobis(std=STD).fit(network, toy.train)
    tuned = detector.tune_without_ood(network, [(toy.images, toy.labels)], magnitude=0.1)
    assert tuned.tuned_on == "adversarial ID images (FGSM 0.1)"
    assert tuned.state is State.TUNED
    adversarial = fast_gradient_sign(network, toy.images, toy.labels, magnitude=0.1, std=STD)
    torch.testing.assert_close((adversarial - toy.images).abs().amax(), torch.tensor(0.2))
    wrong = [torch.nn.functional.cross_entropy(network(x), toy.labels) for x in (toy.images, adversarial)]
    assert wrong[1] > wrong[0]


def test_fitting_again_forgets_the_tuning(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("linear")
    tuned = Mahalanobis(std=STD).fit(network, toy.train).tune(network, [toy.images], [toy.ood_images])
    again = tuned.fit(network, iter(toy.train))  # an iterator is enough: there is one pass
    assert torch.equal(again.weights, torch.ones(2).double())
    assert again.state is State.DEFAULT


def test_errors_say_what_to_do(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("linear")
    images, labels = toy.train[0]
    with pytest.raises(NotFittedError, match="none of class 3"):
        Mahalanobis().fit(network, [(images[labels != 3], labels[labels != 3])])
    with pytest.raises(NotFittedError, match="there were none"):
        RelativeMahalanobis().fit(network, [])
    with pytest.raises(DetectorError, match=r"labels in 0\.\.3"):
        Mahalanobis().fit(network, [(images, labels + 1)])
    with pytest.raises(DetectorError, match="100 labels"):
        Mahalanobis().fit(network, [(images, labels[:5])])
    fitted = Mahalanobis(("second",)).fit(network, toy.train)
    with pytest.raises(ArgumentError, match="at least 12"):
        fitted.tune(network, [toy.images[:8]], [toy.ood_images])
    with pytest.raises(DetectorError, match="grid_scores_images"):
        fitted.grid_scores(network.outputs(toy.images, ("second",)))
    with pytest.raises(DetectorError, match="single network"):
        fitted.with_hyperparameters(eps=0.1).score_images(network_of("ensemble"), toy.images)
    with pytest.raises(ArgumentError, match="channels"):
        Mahalanobis(("second",), eps=0.1, std=(1, 1, 1)).fit(network, toy.train).score_images(network, toy.images)


@pytest.mark.parametrize("eps", [0.0, 0.002])
def test_without_layers_it_reads_the_features(network_of: NetworkOf, toy: Toy, eps: float) -> None:
    """The plain Mahalanobis of penultimate features, with a perturbation too, and through a saved state."""
    network = network_of("linear")
    network.layers = ()
    plain = Mahalanobis(eps=eps, std=STD).fit(network, toy.train)
    assert plain.layers == ("",)
    features = torch.cat([network.eval().outputs(images).features.detach() for images, _ in toy.train])
    labels = torch.cat([labels for _, labels in toy.train])
    own = network.outputs(toy.images, ("",))
    assert own.layers is not None
    assert torch.equal(own.layers[""], own.features)
    if not eps:
        expected = slowly(features.double().numpy(), labels.numpy(), own.features.detach().double().numpy())
        np.testing.assert_allclose(plain.score(own).numpy(), expected, rtol=1e-4)
    again = Mahalanobis(eps=eps, std=STD)
    again.load_state_dict(plain.state_dict())
    assert again.layers == ("",)
    scores = plain.score_images(network, toy.images)
    assert torch.equal(again.score_images(network, toy.images), scores)
    assert float(plain.score_images(network, toy.ood_images).mean()) > float(scores.mean())


def test_layers_that_were_not_named_are_those_of_the_network_that_it_is_fitted_with(
    toy: Toy, network_of: NetworkOf
) -> None:
    one, other = network_of("linear"), network_of("linear")
    other.layers = ("relu", "second")
    tuned = Mahalanobis(epsilons=(0.0,)).fit(one, toy.train).tune(one, [toy.images], [toy.ood_images])
    for detector in (Mahalanobis().fit(one, toy.train), tuned):
        assert detector.layers == ("first", "second")
        again = detector.fit(other, toy.train)
        assert again.layers == ("relu", "second")
        assert again.score_images(other, toy.images).shape == (len(toy.images),)
    assert Mahalanobis("second").fit(one, toy.train).fit(other, toy.train).layers == ("second",)
