"""Details of the methods that change or split features, for linear and cosine heads."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.neighbors import NearestCentroid
from torch import Tensor

from offaxis.detectors import (
    ASH,
    GEN,
    SCALE,
    Cosine,
    Energy,
    IsoMaxPlus,
    MaxLogit,
    MaxSoftmax,
    MeanCosine,
    ReAct,
    RelativeMahalanobis,
    TwoCosines,
    ViM,
)
from offaxis.detectors.activation_shaping import scale_activations, shape_activations, sum_ratio
from offaxis.detectors.base import best_setting
from offaxis.detectors.logit_scores import energy_score, gen_score, max_softmax_score
from offaxis.detectors.statistics import ClassMoments, HeadCopy, Reservoir
from offaxis.errors import ArgumentError, MissingOutputError, NotFittedError
from offaxis.heads import Outputs
from offaxis.metrics import fpr_at_tpr
from tests.detectors.toy import NetworkOf, Toy

EXPORTED = [
    MaxSoftmax,
    MaxLogit,
    Cosine,
    TwoCosines,
    MeanCosine,
    Energy,
    GEN,
    IsoMaxPlus,
    ReAct,
    ASH,
    SCALE,
    ViM,
    RelativeMahalanobis,
]
ROWS = hnp.arrays("float64", st.tuples(st.integers(1, 5), st.integers(2, 12)), elements=st.floats(-20, 20))


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_the_copied_head_gives_the_networks_logits(kind: str, toy: Toy, network_of: NetworkOf) -> None:
    network = network_of(kind)
    copy = HeadCopy()
    copy.set(network.head)
    outputs = network.outputs(toy.images)
    torch.testing.assert_close(copy.logits(copy.inputs(outputs.features), outputs.scale), outputs.logits)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_shaping_nothing_leaves_the_energy(kind: str, toy: Toy, network_of: NetworkOf) -> None:
    network = network_of(kind)
    energy = Energy().score_images(network, toy.images)
    for detector in (ASH(0.0, "p").fit(network, toy.train), ReAct(0.0).fit(network, toy.train)):
        if isinstance(detector, ReAct):
            detector.thresholds.fill_(1e9)
        torch.testing.assert_close(detector.score_images(network, toy.images), energy)
    for other in (ASH(0.0, "s"), ASH(0.0, "b"), SCALE(0.0), ViM(8)):  # these change or add something even so
        scores = other.fit(network, toy.train).score_images(network, toy.images)
        assert not torch.allclose(scores.to(energy), energy, atol=0.1)


def test_scale_multiplies_the_logits_of_a_cosine_head(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("cosine")
    outputs = network.outputs(toy.images)
    ratio = sum_ratio(outputs.features, 0.85)
    expected = energy_score(outputs.logits * ratio.exp())
    torch.testing.assert_close(SCALE(0.85).fit(network, toy.train).score(outputs), expected)


@settings(deadline=None)
@given(ROWS, st.floats(0, 0.99))
def test_shapes_are_finite_and_keep_what_they_say(rows: Any, percentile: float) -> None:
    features = torch.from_numpy(rows)
    kept = max(features.shape[1] - round(features.shape[1] * percentile), 1)
    for variant in "sbp":
        shaped = shape_activations(features, variant, percentile)
        assert shaped.isfinite().all()
        assert ((shaped != 0).sum(1) <= kept).all()
    assert scale_activations(features, percentile).isfinite().all()
    assert (sum_ratio(features, percentile) <= features.shape[1] / kept + 1e-9).all()
    binarised = shape_activations(features.abs(), "b", percentile)
    torch.testing.assert_close(binarised.sum(1), features.abs().sum(1))


@settings(deadline=None)
@given(ROWS, st.integers(0, 1000), st.floats(-5, 5))
def test_softmax_scores_ignore_order_and_shift_of_logits(rows: Any, seed: int, shift: float) -> None:
    logits = torch.from_numpy(rows)
    mixed = logits[:, torch.randperm(logits.shape[1], generator=torch.Generator().manual_seed(seed))] + shift
    for score in (max_softmax_score, gen_score):
        torch.testing.assert_close(score(mixed), score(logits), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(energy_score(mixed), energy_score(logits) - shift)
    assert (max_softmax_score(logits) >= -1).all()
    assert (max_softmax_score(logits) <= -1 / logits.shape[1] + 1e-12).all()
    assert (gen_score(logits) >= 0).all()


def test_sure_images_do_not_tie() -> None:
    logits = torch.tensor([[20.0, 0.0], [21.0, 0.0]])
    assert max_softmax_score(logits)[0] > max_softmax_score(logits)[1]  # in float32 both would be -1
    assert gen_score(logits)[0] > gen_score(logits)[1]


def test_isomax_orders_as_the_cosine(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("isomax")
    images = torch.cat([toy.images, toy.ood_images])
    distance, cosine = IsoMaxPlus().score_images(network, images), Cosine().score_images(network, images)
    assert torch.equal(distance.argsort(stable=True), cosine.argsort(stable=True))
    nearest = -network.eval()(images).amax(1) / network.head.distance_scale.abs()
    torch.testing.assert_close(distance, nearest)


def test_what_reads_a_cosine_refuses_a_linear_head(toy: Toy, network_of: NetworkOf) -> None:
    for detector in (Cosine(), IsoMaxPlus(), TwoCosines().fit(network_of("linear"), toy.train)):
        with pytest.raises(MissingOutputError, match="head='cosine'"):
            detector.score_images(network_of("linear"), toy.images)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.floats(0.1, 10))
def test_the_mean_cosine_is_scikit_learns_and_ignores_the_length_of_features(seed: int, length: float) -> None:
    generator = np.random.default_rng(seed)
    train, labels = generator.random((60, 7)), generator.integers(0, 4, 60)
    labels[:4] = range(4)
    tested = generator.normal(size=(9, 7))
    expected = NearestCentroid().fit(train, labels).centroids_
    detector = MeanCosine()
    detector._moments = ClassMoments(4)
    for part in (slice(0, 17), slice(17, 60)):
        detector._moments.add(torch.from_numpy(train[part]), torch.from_numpy(labels[part]))
    detector.finish()
    blank = torch.zeros(9, 4, dtype=torch.float64)
    scores = detector.score(Outputs(torch.from_numpy(tested), blank, None, None, {}))
    np.testing.assert_allclose(scores, -cosine_similarity(tested, expected).max(1), atol=1e-12)
    again = detector.score(Outputs(torch.from_numpy(length * tested), blank, None, None, {}))
    np.testing.assert_allclose(again, scores, atol=1e-12)


def test_two_cosines_are_the_mean_of_both(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("cosine")
    images = torch.cat([toy.images, toy.ood_images])
    both, means = (kind().fit(network, toy.train).score_images(network, images) for kind in (TwoCosines, MeanCosine))
    torch.testing.assert_close(both, (Cosine().score_images(network, images) + means) / 2)
    assert (both.abs() <= 1).all()


def test_what_changes_features_refuses_other_heads(toy: Toy, network_of: NetworkOf) -> None:
    with pytest.raises(MissingOutputError, match="IsoMaxHead"):
        ViM().fit(network_of("isomax"), toy.train)


def test_react_knows_the_quantiles_that_it_was_fitted_for(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("linear")
    detector = ReAct(0.7).fit(network, toy.train)
    assert [round(level, 6) for level in detector.levels.tolist()] == [0.7, 0.85, 0.9, 0.95, 0.99]
    with pytest.raises(NotFittedError, match=r"0\.8"):
        detector.with_hyperparameters(percentile=0.8).score_images(network, toy.images)


def test_vim_checks_its_dimension(toy: Toy, network_of: NetworkOf) -> None:
    with pytest.raises(ArgumentError, match="below the 24 features"):
        ViM(24).fit(network_of("linear"), toy.train)


def test_a_reservoir_is_everything_until_it_is_full_and_a_fair_sample_after() -> None:
    rows = torch.arange(30.0).view(-1, 1)
    small = Reservoir(100)
    for part in rows.split(7):
        small.add(part)
    assert torch.equal(small.rows(), rows)
    hits = torch.zeros(1000)
    for seed in range(200):
        full = Reservoir(100)
        full.generator.manual_seed(seed)
        for part in torch.arange(1000).view(-1, 1).split(90):
            full.add(part)
        assert full.rows().shape == (100, 1)
        hits[full.rows().flatten()] += 1
    assert abs(hits[:500].mean() - hits[500:].mean()) < 3  # 20 each on average, standard error 0.3


def test_the_best_setting_is_found_even_where_every_tnr_is_zero() -> None:
    id_scores = torch.stack([torch.arange(20.0), torch.arange(20.0)], 1)
    ood_scores = torch.stack([torch.full((20,), 3.0), torch.full((20,), 15.0)], 1)
    assert [fpr_at_tpr(id_scores[:, i], ood_scores[:, i]) for i in (0, 1)] == [1, 1]
    assert best_setting(id_scores, ood_scores) == 1
    with pytest.raises(ArgumentError, match="non-empty row of finite OOD scores"):
        best_setting(id_scores, ood_scores[:0])


@pytest.mark.parametrize("make", [lambda: GEN(0), lambda: GEN(top=0), lambda: Energy(-1), lambda: ASH(variant="x")])
def test_wrong_arguments(make: Any) -> None:
    with pytest.raises(ArgumentError, match="Expected argument"):
        make()


@pytest.mark.parametrize("make", EXPORTED)
def test_scores_can_be_exported_with_a_dynamic_batch(make: Any, toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("cosine")
    whole = Whole(network, make().fit(network, toy.train)).eval()
    batch = {0: torch.export.Dim("batch", min=2, max=512)}
    program = torch.export.export(whole, (toy.images[:4],), dynamic_shapes=(batch,), strict=False)
    torch.testing.assert_close(program.module()(toy.images), whole(toy.images), rtol=1e-4, atol=1e-5)


class Whole(torch.nn.Module):
    """Images -> scores, as one module."""

    def __init__(self, network: Any, detector: Any) -> None:
        super().__init__()
        self.network, self.detector = network, detector

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.detector(self.network.outputs(images))
        return scores
