"""fDBD, NCI, ORA, CORE, NNGuide, NECO, WeiPer+KLD and Mahalanobis++: against pytorch-ood, scikit-learn and slow versions."""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from sklearn.covariance import ledoit_wolf as reference_ledoit_wolf
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional as F

from offaxis import Classifier
from offaxis.detectors import (
    CORE,
    FDBD,
    NCI,
    NECO,
    ORA,
    Detector,
    MahalanobisPlusPlus,
    NNGuide,
    RelativeMahalanobis,
    RelativeMahalanobisPlusPlus,
    ViM,
    WeiPerKLD,
    feature_mahalanobis,
)
from offaxis.detectors.feature_mahalanobis import ledoit_wolf
from offaxis.detectors.statistics import Reservoir, TiedGaussian
from offaxis.errors import ArgumentError, MissingOutputError, NotFittedError
from offaxis.heads import HEADS, CosineHead, LinearHead, Outputs


class World(NamedTuple):
    """A linear head, the features and labels that a detector is fitted on, other features."""

    network: Classifier
    train: torch.Tensor
    labels: torch.Tensor
    test: torch.Tensor


def rows(count: int, width: int = 12, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=generator) @ torch.randn(width, width, generator=generator) + 1


def fitted(detector: Detector, network: Classifier, train: torch.Tensor, labels: torch.Tensor) -> Detector:
    detector.begin(network)
    for part in torch.arange(len(train)).split(50):
        detector.update(network.head.outputs(train[part]), labels[part])
    detector.finish()
    return detector


@pytest.fixture
def world() -> World:
    torch.manual_seed(0)
    train, labels = rows(240), torch.arange(240) % 4
    return World(Classifier(nn.Identity(), LinearHead(12, 4)).eval(), train, labels, rows(30, seed=1))


def linear(network: Classifier) -> nn.Linear:
    head: Any = network.head
    layer = nn.Linear(12, 4)
    layer.load_state_dict({"weight": head.weight.data, "bias": head.bias.data})
    return layer.requires_grad_(False)


@pytest.mark.parametrize(("ours", "theirs"), [(FDBD, "fDBD"), (NCI, "NCI")])
def test_equal_to_pytorch_ood(ours: type[Detector], theirs: str, world: World, ood: ModuleType) -> None:
    network, train, labels, test = world
    reference = getattr(ood.detector, theirs)(None, linear(network)).fit_features(train, labels)
    expected = reference.predict_features(test)
    found = fitted(ours(), network, train, labels).score(network.head.outputs(test))
    torch.testing.assert_close(found.float(), expected, rtol=1e-5, atol=1e-6)


def test_fdbd_is_its_formula(world: World) -> None:
    network, train, labels, test = world
    detector = fitted(FDBD(), network, train, labels)
    weight, mean = network.head.weight.detach().double(), train.double().mean(0)
    expected = []
    for f in test.double():
        z = weight @ f + network.head.bias.detach().double()
        best = int(z.argmax())
        gaps = [(z[best] - z[c]) / (weight[best] - weight[c]).norm() for c in range(4) if c != best]
        expected.append(-torch.stack(gaps).mean() / (f - mean).norm())
    torch.testing.assert_close(
        detector.score(network.head.outputs(test)).double(), torch.stack(expected), rtol=1e-5, atol=1e-7
    )


def test_ora_is_the_largest_angle_to_a_projection_on_a_boundary(world: World) -> None:
    network, train, labels, test = world
    detector = fitted(ORA(), network, train, labels)
    weight, bias = network.head.weight.detach().double(), network.head.bias.detach().double()
    mean, expected = train.double().mean(0), []
    for f in test.double():
        z = weight @ f + bias
        best, angles = int(z.argmax()), []
        for c in set(range(4)) - {int(z.argmax())}:
            normal = weight[best] - weight[c]
            on_boundary = f - (z[best] - z[c]) / normal.square().sum() * normal
            there = weight @ on_boundary + bias
            assert there[best] == pytest.approx(float(there[c]), abs=1e-9)
            angles.append(F.cosine_similarity(f - mean, on_boundary - mean, dim=0).acos())
        expected.append(torch.stack(angles).max().cos())
    found = detector.score(network.head.outputs(test)).double()
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-6)


def test_core_is_the_energy_and_the_direction_of_what_the_weights_do_not_see(world: World) -> None:
    network, train, labels, test = world
    weight, bias = network.head.weight.detach().double().numpy(), network.head.bias.detach().double().numpy()
    basis, _ = np.linalg.qr(weight.T)
    mean = train.double().numpy().mean(0)

    def terms(x: torch.Tensor) -> np.ndarray:
        centred = x.double().numpy() - mean
        residuals = centred - centred @ basis @ basis.T
        values = []
        for f, r in zip(x.double().numpy(), residuals, strict=True):
            cosines = [r @ own / np.linalg.norm(r) / np.linalg.norm(own) for own in of_classes]
            values.append((np.log(np.exp(weight @ f + bias).sum()), max(cosines)))
        return np.array(values)

    means = np.stack([train.double().numpy()[labels.numpy() == c].mean(0) for c in range(4)]) - mean
    of_classes = means - means @ basis @ basis.T
    training = terms(train)
    expected = -((terms(test) - training.mean(0)) / training.std(0)).sum(1)
    found = fitted(CORE(), network, train, labels).score(network.head.outputs(test))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_nnguide_is_the_energy_times_that_of_the_most_similar_training_images(world: World) -> None:
    network, train, labels, test = world

    def energy(f: torch.Tensor) -> torch.Tensor:
        return network.head.outputs(f).logits.double().exp().sum(1).log()

    expected = []
    for f, own in zip(test.double(), energy(test), strict=True):
        guided = F.cosine_similarity(f, train.double(), dim=1) * energy(train)
        expected.append(-own * guided.sort(descending=True).values[:3].mean())
    found = fitted(NNGuide(3), network, train, labels).score(network.head.outputs(test))
    torch.testing.assert_close(found.double(), torch.stack(expected).detach(), rtol=1e-4, atol=1e-5)
    with pytest.raises(NotFittedError, match="at least k = 241 training images"):
        fitted(NNGuide(241), network, train, labels).score(network.head.outputs(test))


def test_neco_is_the_largest_logit_times_the_share_of_the_principal_subspace(world: World) -> None:
    network, train, labels, test = world
    train, test = (F.pad(x, (0, 2), value=3.0) for x in (train, test))  # two dead features
    network = Classifier(nn.Identity(), LinearHead(14, 4)).eval()
    scaler = StandardScaler().fit(train.double().numpy())
    principal = PCA(14).fit(scaler.transform(train.double().numpy()))
    standard = scaler.transform(test.double().numpy())
    logits = network.head(test).detach().double().numpy().max(1)
    for dim, given in ((3, None), (5, 5)):
        inside = np.linalg.norm(principal.transform(standard)[:, :dim], axis=1)
        found = fitted(NECO(given), network, train, labels).score(network.head.outputs(test))
        np.testing.assert_allclose(found.numpy(), -inside / np.linalg.norm(standard, axis=1) * logits, rtol=1e-6)
    with pytest.raises(ArgumentError, match="at most the 14 features but got 15"):
        fitted(NECO(15), network, train, labels)


@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_weiper_is_two_divergences_of_histograms_and_a_confidence(head: str, world: World) -> None:
    _, train, labels, test = world
    network = Classifier(nn.Identity(), HEADS[head](12, 4)).eval()
    detector = fitted(WeiPerKLD(1.5, 2.0, 0.5, repeats=7), network, train, labels)
    own = network.head.weight.detach().double()
    bias = np.zeros(4) if head == "cosine" else network.head.bias.detach().double().numpy()
    own = F.normalize(own, dim=1) if head == "cosine" else own
    perturbed: Any = detector.weight.double().view(7, 4, 12)
    offsets = (perturbed - own).norm(dim=2) / own.norm(dim=1)
    torch.testing.assert_close(offsets, torch.full((7, 4), 1.5).double(), rtol=1e-5, atol=1e-5)
    assert len(torch.unique(perturbed[:, 0, 0])) == 7

    def values(x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        x = F.normalize(x, dim=1).double() if head == "cosine" else x.double()
        return x.numpy(), (torch.einsum("rcd,nd->nrc", perturbed, x) + torch.from_numpy(bias)).numpy()

    def histogram(row: np.ndarray, ends: tuple[float, float]) -> np.ndarray:
        return np.histogram(row, 100, ends)[0] / row.size

    def apart(p: np.ndarray, q: np.ndarray) -> float:
        return float(entropy(p, q) + entropy(q, p))

    ends = [(float(part.min()), float(part.max())) for part in values(train)]
    typical = [np.mean([histogram(row, e) for row in part], 0) for part, e in zip(values(train), ends, strict=True)]
    scale = network.head.outputs(test).detached().scale
    expected = []
    for i, (features, logits) in enumerate(zip(*values(test), strict=True)):
        smooth = [
            np.convolve(np.pad(histogram(row, e), (before, after), mode="edge"), np.full(size, 1 / size), "valid")
            for row, e, size, before, after in ((features, ends[0], 4, 1, 2), (logits, ends[1], 15, 7, 7))
        ]
        exponents = np.exp(logits * (1.0 if scale is None else float(scale[i])))
        confidence = (exponents.max(1) / exponents.sum(1)).mean()
        divergences = [apart(p + e, q + e) for p, q, e in zip(typical, smooth, (0.01, 0.025), strict=True)]
        expected.append(divergences[0] + 2 * divergences[1] - 0.5 * confidence)
    found = detector.score(network.head.outputs(test))
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=2e-3)


@pytest.mark.parametrize(
    ("detector", "change"), [(NECO(3), {"dim": 4}), (ViM(3), {"dim": 4}), (WeiPerKLD(), {"distance": 1})]
)
def test_what_fitting_used_cannot_be_changed_afterwards(
    detector: Detector, change: dict[str, Any], world: World
) -> None:
    network, train, labels, _ = world
    assert detector.with_hyperparameters(**change).hyperparameters != detector.hyperparameters
    fitted(detector, network, train, labels)
    with pytest.raises(ArgumentError, match=f"{next(iter(change))} that {detector.name} was fitted with"):
        detector.with_hyperparameters(**change)


def test_core_needs_more_features_than_classes(world: World) -> None:
    network = Classifier(nn.Identity(), LinearHead(12, 12)).eval()
    with pytest.raises(ArgumentError, match="its 12 rows span all 12"):
        fitted(CORE(), network, world.train, world.labels)


@pytest.mark.parametrize("kind", [FDBD, NCI, ORA, CORE, partial(WeiPerKLD, repeats=5)])
def test_a_cosine_head_is_taken_on_unit_features_and_other_heads_are_refused(
    kind: Callable[[], Detector], world: World
) -> None:
    _, train, labels, test = world
    network = Classifier(nn.Identity(), CosineHead(12, 4)).eval()
    scores = fitted(kind(), network, train, labels).score(network.head.outputs(test))
    longer = fitted(kind(), network, 3 * train, labels).score(network.head.outputs(7 * test))
    torch.testing.assert_close(scores, longer, rtol=1e-4, atol=1e-5)
    with pytest.raises(MissingOutputError, match="linear or cosine head"):
        kind().begin(Classifier(nn.Identity(), HEADS["isomax"](12, 4)))


def test_equal_weight_rows_stay_finite(world: World) -> None:
    network, train, labels, test = world
    network.head.weight.data[1] = network.head.weight.data[0]
    for kind in (FDBD, NCI, ORA):
        assert torch.isfinite(fitted(kind(), network, train, labels).score(network.head.outputs(test))).all()


def test_mahalanobis_plus_plus_is_the_distance_of_unit_features(world: World) -> None:
    network, train, labels, test = world
    unit, points = (F.normalize(x.double(), dim=1).numpy() for x in (train, test))
    means = np.stack([unit[labels.numpy() == c].mean(0) for c in range(4)])
    centred = unit - means[labels.numpy()]
    precision = np.linalg.pinv(centred.T @ centred / len(unit))
    distances = np.stack([np.einsum("nd,de,ne->n", points - m, precision, points - m) for m in means], 1)
    found = fitted(MahalanobisPlusPlus(), network, train, labels).score(network.head.outputs(test))
    np.testing.assert_allclose(found.numpy(), distances.min(1), rtol=1e-6)
    total = unit - unit.mean(0)
    background = np.linalg.pinv(total.T @ total / len(unit))
    apart = np.einsum("nd,de,ne->n", points - unit.mean(0), background, points - unit.mean(0))
    relative = fitted(RelativeMahalanobisPlusPlus(), network, train, labels).score(network.head.outputs(test))
    np.testing.assert_allclose(relative.numpy(), (distances - apart[:, None]).min(1), rtol=1e-6)


def test_the_length_of_features_does_not_matter_to_unit_features(world: World) -> None:
    network, train, labels, test = world
    detector = fitted(MahalanobisPlusPlus(), network, train, labels)
    longer = Outputs(5 * test, network.head(test))
    torch.testing.assert_close(detector.score(network.head.outputs(test)), detector.score(longer), rtol=1e-5, atol=1e-6)


def test_shrunk_data_as_a_whole_is_nowhere_narrower_than_a_class() -> None:
    random = torch.Generator().manual_seed(0)
    centres, labels = torch.zeros(4, 60), torch.arange(40) % 4
    centres[:, :2] = torch.tensor([[3.0, 3.0], [-3.0, 3.0], [3.0, -3.0], [-3.0, -3.0]])
    training = centres[labels] + torch.logspace(0, -1, 60) * torch.randn(40, 60, generator=random)
    network = Classifier(nn.Flatten(), LinearHead(60, 4))
    detector = fitted(RelativeMahalanobisPlusPlus(shrinkage=True), network, training, labels)
    offsets = torch.eye(60).double()
    unit = F.normalize(training.double(), dim=1)
    from_class = detector.classes(unit[labels == 0].mean(0) + offsets)[:, 0]
    from_all = detector.background(unit.mean(0) + offsets).squeeze(1)
    assert (from_class >= from_all * (1 - 1e-9)).all()


@pytest.mark.parametrize("count", [30, 400])
def test_shrinkage_is_that_of_scikit_learn(count: int) -> None:
    x = rows(count).double()
    x = x - x.mean(0)
    expected, _ = reference_ledoit_wolf(x.numpy(), assume_centered=True)
    np.testing.assert_allclose(ledoit_wolf(x.T @ x / count, x).numpy(), expected, rtol=1e-10)


def test_shrinkage_goes_by_all_images_where_a_sample_of_them_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_mahalanobis, "Reservoir", partial(Reservoir, 500))
    taken: list[torch.Tensor] = []
    monkeypatch.setattr(TiedGaussian, "set", lambda self, means, covariance, *rest: taken.append(covariance))
    x, labels = rows(4000), torch.arange(4000) % 4
    fitted(RelativeMahalanobis(shrinkage=True), world.network, x, labels)
    centred = x.double() - torch.stack([x[labels == c].double().mean(0) for c in range(4)])[labels]
    _, expected = reference_ledoit_wolf(centred.numpy(), assume_centered=True)
    covariance = centred.T @ centred / 4000
    away = ~torch.eye(12, dtype=torch.bool)
    assert float(1 - taken[0][away].norm() / covariance[away].norm()) == pytest.approx(expected, rel=0.2)
