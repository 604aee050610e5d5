"""Generalized ODIN's score and the magnitude that it chooses on ID images alone."""

import pytest
import torch

from offaxis.detectors import GeneralizedODIN, State, fit_all
from offaxis.errors import DetectorError, MissingOutputError, NotFittedError
from offaxis.networks.combine import Paired
from tests.detectors.toy import NetworkOf, Toy

STD = (0.5,)


@pytest.mark.parametrize("kind", ["deconf-c", "deconf-i", "deconf-e"])
def test_the_score_is_the_largest_numerator(kind: str, toy: Toy, network_of: NetworkOf) -> None:
    network = network_of(kind)
    with torch.no_grad():
        outputs = network.outputs(toy.images)
    h = network.head._numerators(outputs.features)
    score = GeneralizedODIN(perturb=False).score(outputs)
    torch.testing.assert_close(score, -h.max(1).values, rtol=1e-4, atol=1e-4)


def test_the_magnitude_is_the_one_that_raises_the_score_of_id_images_most(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("deconf-c")
    detector = GeneralizedODIN(std=STD, epsilons=(0.0, 0.01, 0.05))
    fit_all(network, toy.train, [detector])
    totals = []
    images = torch.cat([x for x, _ in toy.train])
    for eps in detector.epsilons:
        x = images.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(network.outputs(x).cosine.amax(1).sum(), x)
        with torch.no_grad():
            totals.append(network.outputs(images + eps * gradient.sign() / STD[0]).cosine.amax(1).mean())
    assert float(detector.eps) == detector.epsilons[int(torch.stack(totals).argmax())]
    assert detector.state is State.NONE  # no hyperparameter is left to choose


def test_it_looks_at_no_more_images_than_it_was_told_to(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("deconf-c")
    seen = []
    network.backbone.register_forward_hook(lambda module, inputs, out: seen.append(len(out)))
    GeneralizedODIN(epsilons=(0.0,), images=130).fit(network, toy.train)
    assert seen == [100, 30]


def test_of_images_sorted_by_class_it_looks_at_some_of_every_class(toy: Toy, network_of: NetworkOf) -> None:
    images, labels = (torch.cat(parts) for parts in zip(*toy.train, strict=True))
    order = labels.argsort(stable=True)
    network = network_of("deconf-c")
    seen: list[torch.Tensor] = []
    network.backbone.register_forward_hook(lambda module, inputs, out: seen.append(inputs[0]))
    batches = list(zip(images[order].split(20), labels[order].split(20), strict=True))
    GeneralizedODIN(epsilons=(0.0,), images=50).fit(network, batches)
    looked_at = torch.cat(seen)
    own = (images.unsqueeze(0) == looked_at.unsqueeze(1)).flatten(2).all(2).long().argmax(1)
    counts = labels[own].bincount(minlength=4)
    assert counts.sum() == 50
    assert counts.min() >= 10


def test_it_moves_the_image_up_the_score(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("deconf-c")
    still = GeneralizedODIN(perturb=False).score_images(network, toy.images)
    moved = GeneralizedODIN(std=STD, epsilons=(0.002,)).fit(network, toy.train).score_images(network, toy.images)
    assert (moved <= still).double().mean() > 0.95


def test_errors(toy: Toy, network_of: NetworkOf) -> None:
    with pytest.raises(MissingOutputError, match="scale"):
        GeneralizedODIN(perturb=False).score_images(network_of("linear"), toy.images)
    with pytest.raises(MissingOutputError, match="scale"):
        GeneralizedODIN().fit(network_of("linear"), toy.train)
    with pytest.raises(NotFittedError, match="there were none"):
        GeneralizedODIN().fit(network_of("deconf-c"), [])
    fitted = GeneralizedODIN().fit(network_of("deconf-c"), toy.train)
    with pytest.raises(DetectorError, match="score_images"):
        fitted.score(network_of("deconf-c").outputs(toy.images))


@pytest.mark.parametrize("perturb", [True, False])
def test_of_a_pair_it_scores_the_detector_network_or_none(perturb: bool, toy: Toy, network_of: NetworkOf) -> None:
    single = network_of("deconf-c")
    pair = Paired(network_of("linear"), single)
    one, other = (GeneralizedODIN(perturb).fit(network, toy.train) for network in (single, pair))
    assert torch.equal(one.score_images(single, toy.images), other.score_images(pair, toy.images))
    for kind in ("deconf-i", "deconf-e"):
        mixed = Paired(network_of("linear"), network_of(kind))
        with pytest.raises(DetectorError, match=r"score network\.detector_network"):
            other.check_network(mixed)
        with pytest.raises(DetectorError, match=r"score network\.detector_network"):
            other.score_images(mixed, toy.images)
    if perturb:
        with pytest.raises(DetectorError, match=r"score network\.detector_network"):
            GeneralizedODIN().fit(mixed, toy.train)
