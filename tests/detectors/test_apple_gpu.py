"""Apple's GPUs, which have no float64: every detector is fitted, scores and is calibrated there."""

from collections.abc import Callable

import pytest
import torch

from offaxis.detectors import NATIVE, Detector, GeneralizedODIN, Mahalanobis, fit_all
from offaxis.detectors.base import score_batches
from tests.apple import GPU, AppleGPU
from tests.detectors.test_detector_contract import CASES
from tests.detectors.toy import NetworkOf, Toy


@pytest.mark.parametrize("name", CASES)
def test_fitted_and_scored_there_it_is_nearly_what_it_is_on_the_cpu(name: str, toy: Toy, network_of: NetworkOf) -> None:
    make, kind = CASES[name]
    network = network_of(kind)
    expected = score_batches(network, [(toy.images, toy.labels)], make().fit(network, toy.train))
    with AppleGPU():
        network.to(GPU)
        detector = make().fit(network, toy.train)
        scored = score_batches(network, [(toy.images, toy.labels)], detector)
        assert all(tensor.device == GPU for tensor in detector.state_dict().values())
    close = torch.isclose(torch.from_numpy(scored.scores), torch.from_numpy(expected.scores), rtol=1e-2, atol=1e-2)
    assert close.double().mean() > 0.9, name


def test_several_are_fitted_in_one_pass_there(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("linear")
    detectors = [make() for make, kind in CASES.values() if kind == "linear"]
    with AppleGPU():
        fit_all(network.to(GPU), toy.train, detectors)
        devices = {tensor.device for detector in detectors for tensor in detector.state_dict().values()}
    assert devices == {GPU}


@pytest.mark.parametrize("make", [lambda: Mahalanobis(epsilons=(0.0, 0.001)), *map(NATIVE.get, ("react", "odin"))])
def test_it_is_tuned_there(make: Callable[[], Detector], toy: Toy, network_of: NetworkOf) -> None:
    with AppleGPU():
        network = network_of("linear").to(GPU)
        tuned = make().fit(network, toy.train).tune(network, [toy.images], [toy.ood_images])
        assert tuned.score_images(network, toy.images).device == GPU


def test_a_training_is_checked_there(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("cosine")
    expected = network.check_training(toy.train)
    with AppleGPU():
        found = network.to(GPU).check_training(toy.train)
    assert found.problems == expected.problems == ()
    assert (found.accuracy, found.class_means) == (expected.accuracy, expected.class_means)
    assert (found.loss, found.guessing_loss) == pytest.approx((expected.loss, expected.guessing_loss), rel=1e-4)


@pytest.mark.skipif(not torch.backends.mps.is_available(), reason="needs an Apple GPU")
def test_it_is_so_on_a_real_one(toy: Toy, network_of: NetworkOf) -> None:
    for make, kind in ((NATIVE["react"], "linear"), (NATIVE["vim"], "linear"), (GeneralizedODIN, "deconf-c")):
        network = network_of(kind).to("mps")
        scored = score_batches(network, [toy.images], make().fit(network, toy.train))
        assert len(scored.scores) == len(toy.images)
