"""Small networks, images and trainings for the tests."""

import functools
import os
import signal
from typing import Any, Literal

import torch
from lightning_fabric import Fabric
from torch import Tensor

from offaxis import Classifier, Outputs
from offaxis.data import TensorSet
from offaxis.data.embedded import small_digits
from offaxis.networks import wide_resnet
from offaxis.training import Loss, Recipe, cross_entropy

SHORT = Recipe(epochs=2, batch_size=64, crop=1, flip=False)


def network(seed: int = 0, **arguments: Any) -> Classifier:
    torch.manual_seed(seed)
    return wide_resnet(depth=10, width=1, in_channels=1, **arguments)


def frozen() -> Classifier:
    made = network()
    made.frozen = True
    return made


def fabric(precision: Literal["32-true", "bf16-mixed", "64-true"]) -> Fabric:
    return Fabric(accelerator="cpu", devices=1, precision=precision)


def few(count: int = 200) -> TensorSet:
    digits = small_digits("train")
    assert digits.labels is not None
    return TensorSet("few-digits", digits.images[:count], digits.labels[:count], digits.classes)


def weights(classifier: Classifier) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in classifier.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def stop_after(step: int, how: int = signal.SIGTERM) -> Loss:
    """A loss that sends this process a signal at a step."""
    calls = [0]

    @functools.wraps(cross_entropy)  # a run's settings know a loss by its name
    def loss(out: Outputs, labels: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] == step:
            os.kill(os.getpid(), how)
        return cross_entropy(out, labels)

    return loss
