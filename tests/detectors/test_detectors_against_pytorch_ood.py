"""Our scores beside those of pytorch-ood 0.4.0, on the same network and images, in float64 to 1e-8.

Where the definitions differ by a constant factor the factor is in the test, with the paper's formula beside it.
"""

import copy
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from offaxis.detectors import (
    ASH,
    GEN,
    KNN,
    ODIN,
    SCALE,
    Energy,
    Mahalanobis,
    MaxLogit,
    MaxSoftmax,
    NNGuide,
    ReAct,
    RelativeMahalanobis,
    ViM,
)
from tests.detectors.toy import NetworkOf, Toy

EXACT: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-8}
STD = (0.5,)


class World(NamedTuple):
    """Their detectors, a network in float64, training images with labels, test images."""

    theirs: ModuleType
    network: Any
    train: tuple[Tensor, Tensor]
    images: Tensor


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """pytorch-ood makes its statistics in the default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def world(ood: ModuleType, toy: Toy, network_of: NetworkOf) -> World:
    network = network_of("linear").double()
    images, labels = (torch.cat(column) for column in zip(*toy.train, strict=True))
    return World(ood.detector, network, (images.double(), labels), toy.images.double())


@torch.no_grad()
def features(network: Any, images: Tensor) -> Tensor:
    return network.outputs(images).features  # type: ignore[no-any-return]


def flat_head(network: Any) -> nn.Module:
    return nn.Sequential(nn.Flatten(), copy.deepcopy(network.head))


def test_max_softmax(world: World) -> None:
    theirs, network, _, images = world
    with torch.no_grad():
        expected = theirs.MaxSoftmax(network).predict(images)
    torch.testing.assert_close(MaxSoftmax().score_images(network, images), expected, **EXACT)


def test_max_logit(world: World) -> None:
    theirs, network, _, images = world
    with torch.no_grad():
        expected = theirs.MaxLogit(network).predict(images)
    torch.testing.assert_close(MaxLogit().score_images(network, images), expected, **EXACT)


@pytest.mark.parametrize("temperature", [1.0, 10.0])
def test_energy(world: World, temperature: float) -> None:
    theirs, network, _, images = world
    with torch.no_grad():
        expected = theirs.EnergyBased(network, t=temperature).predict(images)
    torch.testing.assert_close(Energy(temperature).score_images(network, images), expected, **EXACT)


@pytest.mark.parametrize("top", [None, 2])
def test_gen_is_the_sum_of_the_paper_where_theirs_is_the_mean(world: World, top: int | None) -> None:
    # G_gamma(p) = -sum_j p_j^gamma (1 - p_j)^gamma. Theirs divides by the number of terms, and clamps p at 1e-7: the
    # logits here are small enough for that not to matter.
    theirs, network, _, images = world
    with torch.no_grad():
        logits = network(images) / 3
    expected = theirs.GEN.score(logits, gamma=0.1, M=top) * (top or 4)
    ours = GEN(0.1, top).score(network.outputs(images)._replace(logits=logits))
    assert logits.softmax(1).amin() > 1e-7
    torch.testing.assert_close(ours, expected, **EXACT)


@pytest.mark.parametrize(("temperature", "eps"), [(1000.0, 0.0014), (1.0, 0.01), (10.0, 0.0)])
def test_odin(world: World, temperature: float, eps: float) -> None:
    theirs, network, _, images = world
    expected = theirs.ODIN(network, eps=eps, temperature=temperature, norm_std=list(STD)).predict(images)
    torch.testing.assert_close(ODIN(temperature, eps, std=STD).score_images(network, images), expected, **EXACT)


def test_knn(world: World) -> None:
    theirs, network, (train, labels), images = world
    reference = theirs.KNN(None, k=7).fit_features(features(network, train), labels)
    expected = reference.predict_features(features(network, images))
    ours = KNN(7).fit(network, [(train, labels)])
    torch.testing.assert_close(ours.score_images(network, images), expected, **EXACT)


@pytest.mark.parametrize("k", [1, 10])
def test_nnguide(world: World, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)  # theirs would take its bank in float32
    theirs, network, (train, labels), images = world
    reference = theirs.NNGuide(None, copy.deepcopy(network.head), k=k).fit_features(features(network, train), labels)
    expected = reference.predict_features(features(network, images))
    ours = NNGuide(k).fit(network, [(train, labels)])
    torch.testing.assert_close(ours.score_images(network, images), expected, **EXACT)


@pytest.mark.parametrize("percentile", [0.85, 0.9, 0.99])
def test_react(world: World, percentile: float) -> None:
    theirs, network, (train, labels), images = world
    reference = theirs.ReAct(None, flat_head(network), percentile=percentile)
    reference.fit_feature_maps(features(network, train)[:, :, None, None], labels)
    expected = reference.predict_feature_maps(features(network, images)[:, :, None, None])
    ours = ReAct(percentile).fit(network, [(train, labels)])
    torch.testing.assert_close(ours.score_images(network, images), expected, **EXACT)


@pytest.mark.parametrize("variant", ["s", "b", "p"])
@pytest.mark.parametrize("percentile", [0.65, 0.9])
def test_ash(world: World, variant: str, percentile: float) -> None:
    theirs, network, train, images = world
    reference = theirs.ASH(None, flat_head(network), variant=f"ash-{variant}", percentile=percentile)
    expected = reference.predict_feature_maps(features(network, images)[:, :, None, None])
    ours = ASH(percentile, variant).fit(network, [train])
    torch.testing.assert_close(ours.score_images(network, images), expected, **EXACT)


@pytest.mark.parametrize("percentile", [0.65, 0.85])
def test_scale(world: World, percentile: float) -> None:
    theirs, network, train, images = world
    reference = theirs.SCALE(None, flat_head(network), percentile=percentile)
    expected = reference.predict_feature_maps(features(network, images)[:, :, None, None])
    ours = SCALE(percentile).fit(network, [train])
    torch.testing.assert_close(ours.score_images(network, images), expected, **EXACT)


def test_vim(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # Theirs turns everything to float32, in which the residual space of these features is not well defined: it is made
    # to compute in float64.
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    theirs, network, (train, labels), images = world
    head = network.head
    reference = theirs.ViM(None, d=12, w=head.weight, b=head.bias).fit_features(features(network, train), labels)
    expected = reference.predict_features(features(network, images))
    ours = ViM(12).fit(network, [(train, labels)]).score_images(network, images)
    torch.testing.assert_close(ours, expected, **EXACT)


def test_multi_layer_mahalanobis_divides_the_covariance_by_the_number_of_images(world: World) -> None:
    # Lee et al.: Sigma = 1/N sum (f - mu)(f - mu)'. Theirs leaves out 1/N, so that its distances are ours over N, and
    # adds 1e-6 to the diagonal, which their scale makes tiny but visible: it is taken away here.
    theirs, network, (train, labels), images = world
    layers = ("first", "second")
    with torch.no_grad():
        known, unknown = (list(network.outputs(x, layers).layers.values()) for x in (train, images))
    reference = theirs.MultiMahalanobis([nn.Identity(), nn.Identity()]).fit_structured(known, labels)
    reference.precision = [torch.linalg.inv(cov - 1e-6 * torch.eye(len(cov))) for cov in reference.cov]
    expected = reference.predict_structured(unknown) * len(train)
    ours = Mahalanobis(layers).fit(network, [(train, labels)])
    torch.testing.assert_close(ours.score_images(network, images), expected, rtol=1e-8, atol=1e-8)


def test_mahalanobis_with_a_perturbation(world: World) -> None:
    theirs, network, (train, labels), images = world

    def encoder(x: Tensor) -> Tensor:
        return network.outputs(x, ("second",)).layers["second"]  # type: ignore[no-any-return]

    reference = theirs.MahalanobisODIN(encoder, eps=0.002, norm_std=list(STD))
    with torch.no_grad():
        reference.fit_features(encoder(train), labels)
    base = reference._base
    base.precision = torch.linalg.inv(base.cov - 1e-6 * torch.eye(len(base.cov)))
    expected = reference.predict(images) * len(train)
    network.zero_grad()
    ours = Mahalanobis(("second",), eps=0.002, std=STD).fit(network, [(train, labels)])
    torch.testing.assert_close(ours.score_images(network, images), expected, rtol=1e-8, atol=1e-8)


def test_relative_mahalanobis_divides_the_covariances_by_the_number_of_images(world: World) -> None:
    # Ren et al. divide both covariances by N, as we do; theirs divides neither, so its scores are ours over N. Theirs has
    # no pseudo-inverse, so the features are what a layer without ReLU gives: one of the last layer's is dead.
    theirs, network, (train, labels), images = world
    layer = ("second",)
    with torch.no_grad():
        known, unknown = (network.outputs(x, layer) for x in (train, images))
    known, unknown = (out._replace(features=out.layers["second"]) for out in (known, unknown))
    reference = theirs.RMD(None).fit_features(known.features, labels)
    ridge = 1e-6 * torch.eye(24)
    reference.precision = torch.linalg.inv(reference.cov - ridge)
    reference.background_precision = torch.linalg.inv(reference.background_cov - ridge)
    expected = reference.predict_features(unknown.features) * len(train)
    ours = RelativeMahalanobis()
    ours.begin(network)
    ours.update(known, labels)
    ours.finish()
    torch.testing.assert_close(ours.score(unknown), expected, rtol=1e-8, atol=1e-8)
