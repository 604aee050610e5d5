"""A detector of one's own with hyperparameters: tuned like ours, and a wrong grid is a sentence."""

from collections.abc import Mapping
from typing import Any

import pytest
from torch import Tensor

import offaxis
from offaxis.detectors import Detector, make_detectors
from offaxis.errors import ArgumentError
from tests.detectors.toy import NetworkOf, Toy


class Power(Detector):
    """The largest probabilities, to a power."""

    name = "power"
    tunable = ("power",)
    options = ("largest",)
    grid: Mapping[str, tuple[float, ...]] = {"power": (0.5, 1, 2)}

    def __init__(self, power: float = 1, largest: int = 2) -> None:
        super().__init__()
        self.power, self.largest = power, largest

    def forward(self, outputs: offaxis.Outputs) -> Tensor:
        return -outputs.logits.softmax(1).topk(self.largest, 1).values.pow(self.power).sum(1)


@pytest.mark.parametrize(
    "grid", [{"powr": (1, 2)}, {"largest": (1, 2)}, {"power": 2}, {"power": ()}, {"power": "12"}, (1, 2), dict]
)
def test_a_wrong_grid_is_a_sentence(grid: Any, toy: Toy, network_of: NetworkOf) -> None:
    network = network_of("linear")
    wrong = type("Wrong", (Power,), {"grid": grid})
    said = r"`grid` of power to give values to try of what `tunable` names \(power\), .*but got"
    with pytest.raises(ArgumentError, match=said):
        wrong().tune(network, [toy.images], [toy.ood_images])
    with pytest.raises(ArgumentError, match=said):
        make_detectors([wrong()], network)


def test_a_right_one_is_tuned_with_its_options(toy: Toy, network_of: NetworkOf) -> None:
    tuned = Power(largest=3).tune(network_of("linear"), [toy.images], [toy.ood_images])
    assert tuned.power in Power.grid["power"]
    assert (tuned.largest, tuned.state, tuned.tuned_on) == (3, "tuned", "OOD samples")
