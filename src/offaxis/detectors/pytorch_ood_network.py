"""A network as the detectors of pytorch-ood want to have it, and its state put back when they are done with it."""

from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from offaxis.detectors.early_exit import backbone_of, maps_of
from offaxis.detectors.pytorch_ood_table import Parts
from offaxis.errors import DetectorError
from offaxis.networks.classifier import feature_tensor
from offaxis.networks.inference import Batches, Network, evaluating, to_device


@contextmanager
def untouched(network: Network) -> Iterator[None]:
    """Eval mode inside the block; afterwards modes, gradients and buffers are as they were, whatever was called."""
    modules = list(network.modules())
    parameters = list(network.parameters())
    modes = [module.training for module in modules]
    gradients = [parameter.grad for parameter in parameters]
    buffers = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers(recurse=False)]
    for parameter in parameters:
        parameter.grad = None
    try:
        with evaluating(network), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


class Steady(nn.Module):
    """A network whose batch normalisations keep their statistics when dropout is switched on for sampling."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """(N, c, h, w) -> logits (N, C)."""
        logits: Tensor = self.network(images)
        return logits

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all but the batch normalisations."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, _BatchNorm):
                module.training = False
        return self


class Taps:
    """The maps of several layers from one forward pass, handed out as if each layer were called in turn."""

    def __init__(self, network: Network, layers: Sequence[str]) -> None:
        self.network = network
        self.layers = layers
        self.found: list[Tensor] = []

    def first(self, images: Tensor) -> Tensor:
        """Run the network; the first layer's maps."""
        self.found, end = maps_of(backbone_of(self.network), images, self.layers)
        self.said: Tensor = self.network.head(feature_tensor(end))
        return self.found[0]

    def functions(self) -> list[object]:
        """One function a layer: the first takes images, the others ignore what they are given."""
        rest = [lambda _maps, i=i: self.found[i] for i in range(1, len(self.layers))]
        return [lambda images: self.first(images), *rest]

    def logits(self, _maps: Tensor) -> Tensor:
        """The logits of the images that were seen last."""
        return self.said


def parts_of(network: Network, inner: Sequence[str]) -> Parts:
    """All that a detector of pytorch-ood may want of a network."""
    if not isinstance(network, nn.Module):
        raise DetectorError(f"Expected a network that is an nn.Module but got a {type(network).__name__}.")
    names = tuple(inner or network.layers)
    backbone = backbone_of(network)
    taps = Taps(network, names)
    return Parts(
        num_classes=network.num_classes,
        network=Steady(network),
        encoder=lambda images: network.outputs(images).features,
        layers=[backbone.get_submodule(name) for name in names],
        taps=taps.functions() if names else (),  # type: ignore[arg-type]
        tapped_logits=lambda maps: taps.logits(maps),
        maps=lambda images: maps_of(backbone, images, names[-1:])[0][0],
        after_maps=lambda maps: network.head(maps.mean((2, 3))),
    )


class _Loader:
    """Batches with a length, where the network is."""

    def __init__(self, network: Network, batches: Batches) -> None:
        self.network = network
        self.batches = batches

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in self.batches:
            yield to_device(self.network, images), labels

    def __len__(self) -> int:
        return len(self.batches) if isinstance(self.batches, Sized) else 0


def loader(network: Network, batches: Batches) -> _Loader:
    """Batches as pytorch-ood's ``fit`` takes them: iterable more than once, if they were."""
    return _Loader(network, batches)
