"""ODIN's grid: the same scores as a plain loop, in fewer passes."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis.detectors import ODIN, Mahalanobis, State
from offaxis.detectors.odin import EPSILONS, OD_TEST_EPSILONS, OD_TEST_TEMPERATURES, TEMPERATURES, odin_scores
from offaxis.errors import ArgumentError
from offaxis.networks import wide_resnet
from tests.detectors.toy import NetworkOf, Toy

STD = (0.5,)


def plainly(network: Any, images: Tensor, temperature: float, eps: float) -> Tensor:
    """Forward, input gradient, forward."""
    x = images.clone().requires_grad_()
    logits = network(x) / temperature
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits, logits.argmax(1), reduction="sum"), x)
    with torch.no_grad():
        moved = network(images - eps * gradient.sign() / STD[0])
        confidence: Tensor = (moved.double() / temperature).softmax(1).amax(1)
    return -confidence


def test_the_grid_equals_a_plain_loop(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("linear")
    together = odin_scores(network, toy.images, std=STD)
    assert together.shape == (60, 4, 11)
    for i, temperature in enumerate(TEMPERATURES):
        for j, eps in enumerate(EPSILONS):
            torch.testing.assert_close(together[:, i, j], plainly(network, toy.images, temperature, eps))


def test_it_counts_its_passes(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("linear")
    passes: Counter[str] = Counter()
    network.backbone.register_forward_hook(lambda *_: passes.update(["forward"]))
    network.backbone.first.register_full_backward_hook(lambda *_: passes.update(["backward"]))
    ODIN(std=STD).grid_scores_images(network, toy.images)
    assert dict(passes) == {"forward": 1 + 4 * 10, "backward": 4}
    passes.clear()
    ODIN(std=STD).score_images(network, toy.images)
    assert dict(passes) == {"forward": 2, "backward": 1}
    assert ODIN(std=STD).passes == (2, 1)
    passes.clear()
    ODIN(eps=0).score_images(network, toy.images)
    assert dict(passes) == {"forward": 1}


def test_grids_are_the_published_ones() -> None:
    assert len(ODIN().settings) == 44
    wide = ODIN(temperatures=OD_TEST_TEMPERATURES, epsilons=OD_TEST_EPSILONS)
    assert len(wide.grid["temperature"]) == 10
    assert len(wide.grid["eps"]) == 21
    assert wide.grid["eps"][0] == 0
    assert wide.grid["eps"][-1] == 0.004
    assert Mahalanobis().grid == {"eps": (0.0, 0.0005, 0.001, 0.0014, 0.002, 0.005, 0.01)}


def test_tuning_takes_the_best_of_the_grid(toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("linear")
    tuned = ODIN(std=STD).tune(network, [toy.images], [toy.ood_images])
    assert tuned.state is State.TUNED
    assert {"temperature": tuned.temperature, "eps": tuned.eps} in ODIN().settings
    assert tuned.std == STD


@pytest.mark.parametrize(
    "arguments",
    [{"temperature": 0}, {"temperature": float("nan")}, {"eps": -1}, {"std": ()}, {"std": (0.0,)}],
)
def test_wrong_arguments(arguments: Any) -> None:
    with pytest.raises(ArgumentError, match=next(iter(arguments))):
        ODIN(**arguments)
    with pytest.raises(ArgumentError, match="hyperparameters of odin"):
        ODIN().with_hyperparameters(gamma=1)


def test_a_head_that_scores_with_other_logits_is_perturbed_by_them() -> None:
    """T2FNorm classifies with unit features and scores with plain ones: so is the image moved."""
    torch.manual_seed(0)
    network = wide_resnet(10, 1, num_classes=4, head="t2fnorm", in_channels=1).double().eval()
    images = torch.randn(6, 1, 12, 12, dtype=torch.float64)
    x = images.clone().requires_grad_()
    plain = network.features(x) @ network.head.weight.T / network.head.tau + network.head.bias  # type: ignore[union-attr,operator]
    (gradient,) = torch.autograd.grad(-(plain / 1000).log_softmax(1).max(1).values.sum(), x)
    with torch.no_grad():
        moved = network.outputs(images - 0.01 * gradient.sign()).detection_logits
    expected = -(moved / 1000).softmax(1).max(1).values
    torch.testing.assert_close(ODIN(1000, 0.01).score_images(network, images), expected)
    outputs = network.outputs(x)
    after = ODIN(1000, 0.01).scores_after(network, x, outputs, grid=False)
    torch.testing.assert_close(after, expected)
