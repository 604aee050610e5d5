"""How each detector of pytorch-ood 0.4.0 is constructed, what it is given, and the parts of a network that it takes."""

from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from offaxis.detectors.odin import backbone_of, maps_of
from offaxis.errors import DetectorError
from offaxis.networks.classifier import feature_tensor
from offaxis.networks.run import Batches, Network, eval_mode, prepared_batches


class Feed(StrEnum):
    """What a detector of pytorch-ood is given."""

    LOGITS = "logits"
    FEATURES = "features"
    MAPS = "feature maps"  # pooled features as maps of one pixel
    LAYERS = "layers"
    MODEL = "model"  # the network itself, called with images


class NetworkParts(NamedTuple):
    """What the constructors of pytorch-ood take of a network; what a detector does not need may be absent.

    Attributes:
        num_classes: C.
        linear: the head as an ``nn.Linear`` over the features that the detector is given.
        network: images -> logits.
        encoder: images -> features.
        layers: the network's modules that multi-layer methods hook.
        taps: functions that, called one after the other from the images on, give the maps of these layers.
        tapped_logits: gives the logits of the images that the taps saw last.
        maps: images -> maps (N, c, h, w) of the last of these layers.
        after_maps: such maps -> logits.
    """

    num_classes: int = 0
    linear: nn.Linear | None = None
    network: nn.Module | None = None
    encoder: Callable[[Tensor], Tensor] | None = None
    layers: Sequence[nn.Module] = ()
    taps: Sequence[Callable[[Tensor], Tensor]] = ()
    tapped_logits: Callable[[Tensor], Tensor] | None = None
    maps: Callable[[Tensor], Tensor] | None = None
    after_maps: Callable[[Tensor], Tensor] | None = None


class DetectorSpec(NamedTuple):
    """A row of the table: what the detector is given, whether it needs the head, how it is constructed."""

    feed: Feed
    head: bool
    build: Callable[[Any, NetworkParts, dict[str, Any]], Any]


def _flat(linear: nn.Linear | None) -> nn.Module:
    assert linear is not None
    return nn.Sequential(nn.Flatten(), linear)


def _weights(parts: NetworkParts) -> dict[str, Tensor]:
    assert parts.linear is not None
    return {"w": parts.linear.weight.detach(), "b": parts.linear.bias.detach()}


def _vim(ood: Any, parts: NetworkParts, options: dict[str, Any]) -> Any:
    width = _weights(parts)["w"].shape[1]
    return ood.ViM(None, **{"d": width // 2, **options}, **_weights(parts))


def _weighted(ood: Any, parts: NetworkParts, options: dict[str, Any]) -> Any:
    return ood.WeightedEBO(None, torch.tensor(options.get("weights", [1.0] * parts.num_classes)))


TABLE: dict[str, DetectorSpec] = {
    # given logits
    "EnergyBased": DetectorSpec(Feed.LOGITS, False, lambda ood, _, o: ood.EnergyBased(None, **o)),
    "Entropy": DetectorSpec(Feed.LOGITS, False, lambda ood, _, o: ood.Entropy(None, **o)),
    "GEN": DetectorSpec(Feed.LOGITS, False, lambda ood, _, o: ood.GEN(None, **o)),
    "KLMatching": DetectorSpec(Feed.LOGITS, False, lambda ood, _, o: ood.KLMatching(None, **o)),
    "MaxLogit": DetectorSpec(Feed.LOGITS, False, lambda ood, _, o: ood.MaxLogit(None, **o)),
    "MaxSoftmax": DetectorSpec(Feed.LOGITS, False, lambda ood, _, o: ood.MaxSoftmax(None, **o)),
    "OpenMax": DetectorSpec(Feed.LOGITS, False, lambda ood, _, o: ood.OpenMax(None, **o)),
    "TemperatureScaling": DetectorSpec(Feed.LOGITS, False, lambda ood, _, o: ood.TemperatureScaling(None, **o)),
    "WeightedEBO": DetectorSpec(Feed.LOGITS, False, _weighted),
    # given features
    "DICE": DetectorSpec(Feed.FEATURES, True, lambda ood, p, o: ood.DICE(None, **_weights(p), **{"p": 0.7, **o})),
    "GMM": DetectorSpec(Feed.FEATURES, False, lambda ood, _, o: ood.GMM(None, **o)),
    "KNN": DetectorSpec(Feed.FEATURES, False, lambda ood, _, o: ood.KNN(None, **o)),
    "LTS": DetectorSpec(Feed.FEATURES, True, lambda ood, p, o: ood.LTS(None, p.linear, **o)),
    "MCM": DetectorSpec(Feed.FEATURES, True, lambda ood, p, o: ood.MCM(None, _weights(p)["w"], **o)),
    "Mahalanobis": DetectorSpec(Feed.FEATURES, False, lambda ood, _, o: ood.Mahalanobis(None, **o)),
    "NCI": DetectorSpec(Feed.FEATURES, True, lambda ood, p, o: ood.NCI(None, p.linear, **o)),
    "NNGuide": DetectorSpec(Feed.FEATURES, True, lambda ood, p, o: ood.NNGuide(None, p.linear, **o)),
    "PNML": DetectorSpec(Feed.FEATURES, True, lambda ood, p, o: ood.PNML(None, p.linear, **o)),
    "RMD": DetectorSpec(Feed.FEATURES, False, lambda ood, _, o: ood.RMD(None, **o)),
    "SHE": DetectorSpec(Feed.FEATURES, True, lambda ood, p, o: ood.SHE(None, p.linear, **o)),
    "ViM": DetectorSpec(Feed.FEATURES, True, _vim),
    "fDBD": DetectorSpec(Feed.FEATURES, True, lambda ood, p, o: ood.fDBD(None, p.linear, **o)),
    # given features as maps of one pixel
    "ASH": DetectorSpec(Feed.MAPS, True, lambda ood, p, o: ood.ASH(None, _flat(p.linear), **o)),
    "ReAct": DetectorSpec(Feed.MAPS, True, lambda ood, p, o: ood.ReAct(None, _flat(p.linear), **o)),
    "SCALE": DetectorSpec(Feed.MAPS, True, lambda ood, p, o: ood.SCALE(None, _flat(p.linear), **o)),
    "VRA": DetectorSpec(Feed.MAPS, True, lambda ood, p, o: ood.VRA(None, _flat(p.linear), **o)),
    # given the pooled features of several layers
    "MultiMahalanobis": DetectorSpec(
        Feed.LAYERS, False, lambda ood, p, o: ood.MultiMahalanobis([nn.Identity()] * max(len(p.layers), 1), **o)
    ),
    # given images, through the network
    "GradNorm": DetectorSpec(Feed.MODEL, False, lambda ood, p, o: ood.GradNorm(p.network, **o)),
    "GradUncertainty": DetectorSpec(Feed.MODEL, False, lambda ood, p, o: ood.GradUncertainty(p.network, **o)),
    "Gram": DetectorSpec(Feed.MODEL, False, lambda ood, p, o: ood.Gram(p.tapped_logits, p.taps, p.num_classes, **o)),
    "MCD": DetectorSpec(Feed.MODEL, False, lambda ood, p, o: ood.MCD(p.network, **o)),
    "MahalanobisODIN": DetectorSpec(Feed.MODEL, False, lambda ood, p, o: ood.MahalanobisODIN(p.encoder, **o)),
    "NACUE": DetectorSpec(Feed.MODEL, False, lambda ood, p, o: ood.NACUE(p.network, p.layers, **o)),
    "ODIN": DetectorSpec(Feed.MODEL, False, lambda ood, p, o: ood.ODIN(p.network, **o)),
    "RankFeat": DetectorSpec(Feed.MODEL, False, lambda ood, p, o: ood.RankFeat(p.maps, p.after_maps, **o)),
}

PASSES: dict[str, tuple[float, float]] = {
    "GradNorm": (1, 1),
    "GradUncertainty": (1, 1),
    "MCD": (30, 0),
    "MahalanobisODIN": (2, 1),
    "NACUE": (1, 1),
    "ODIN": (2, 1),
}
"""Forward and backward passes per image, where they are not one and none."""


@contextmanager
def unchanged(network: Network) -> Iterator[None]:
    """Set eval mode inside the block; afterwards restore modes, gradients and buffers, whatever was called."""
    modules = list(network.modules())
    parameters = list(network.parameters())
    modes = [module.training for module in modules]
    gradients = [parameter.grad for parameter in parameters]
    buffers = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers(recurse=False)]
    for parameter in parameters:
        parameter.grad = None
    try:
        with eval_mode(network), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


class FixedBatchNorm(nn.Module):
    """A network whose batch normalisations keep their statistics when dropout is switched on for sampling."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits (N, C) of images (N, c, h, w)."""
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
        self.maps: list[Tensor] = []

    def first(self, images: Tensor) -> Tensor:
        """Run the network and return the first layer's maps."""
        self.maps, end = maps_of(backbone_of(self.network), images, self.layers)
        self.last_logits: Tensor = self.network.head(feature_tensor(end))
        return self.maps[0]

    def functions(self) -> list[object]:
        """Return one function per layer: the first takes images, the others ignore their argument."""
        rest = [lambda _maps, i=i: self.maps[i] for i in range(1, len(self.layers))]
        return [lambda images: self.first(images), *rest]

    def logits(self, _maps: Tensor) -> Tensor:
        """Return the logits of the images of the last run."""
        return self.last_logits


def network_parts(network: Network, inner: Sequence[str]) -> NetworkParts:
    """Return all that a detector of pytorch-ood may take of a network."""
    if not isinstance(network, nn.Module):
        raise DetectorError(f"Expected a network that is an nn.Module but got a {type(network).__name__}.")
    names = tuple(inner or network.layers)
    backbone = backbone_of(network)
    taps = Taps(network, names)
    return NetworkParts(
        num_classes=network.num_classes,
        network=FixedBatchNorm(network),
        encoder=lambda images: network.outputs(images).features,
        layers=[backbone.get_submodule(name) for name in names],
        taps=taps.functions() if names else (),  # type: ignore[arg-type]
        tapped_logits=lambda maps: taps.logits(maps),
        maps=lambda images: maps_of(backbone, images, names[-1:])[0][0],
        after_maps=lambda maps: network.head(maps.mean((2, 3))),
    )


class PreparedLoader:
    """Batches as pytorch-ood's ``fit`` takes them: on the network's device, with a length; re-iterable if they were."""

    def __init__(self, network: Network, batches: Batches) -> None:
        self.network = network
        self.batches = batches

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in prepared_batches(self.network, self.batches, labels=True):
            assert labels is not None
            yield images, labels

    def __len__(self) -> int:
        return len(self.batches) if isinstance(self.batches, Sized) else 0
