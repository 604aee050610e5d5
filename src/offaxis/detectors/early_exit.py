"""The features of one inner layer, without running the rest of the network."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from offaxis.errors import DetectorError
from offaxis.networks.classifier import Classifier, Paired, has_channels_last, pooled
from offaxis.networks.inference import Network


class _ReachedError(Exception):
    """Carries a layer's features out of a forward pass that need go no further."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features = features


def backbone_of(network: Network) -> nn.Module:
    """The part of a network whose inner layers detectors read."""
    if isinstance(network, Paired):
        return network.detector_network.backbone
    if isinstance(network, Classifier):
        return network.backbone
    raise DetectorError(
        f"Expected a single network for a method that reads inner layers but got a {type(network).__name__}."
    )


@contextmanager
def counting_calls(backbone: nn.Module, layers: Sequence[str]) -> Iterator[dict[str, int]]:
    """How often each layer runs in the forward passes inside the block (a shared ReLU runs more than once)."""
    calls = dict.fromkeys(layers, 0)

    def counter(name: str) -> Any:
        def count(*_: object) -> None:
            calls[name] += 1

        return count

    handles = [backbone.get_submodule(name).register_forward_hook(counter(name)) for name in layers]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def maps_of(backbone: nn.Module, images: Tensor, layers: Sequence[str]) -> tuple[list[Tensor], Any]:
    """What each layer gives in one forward pass, not pooled, and what the backbone gives at the end."""
    found: dict[str, Tensor] = {}

    def keeper(name: str) -> Any:
        def keep(_module: nn.Module, _inputs: Any, out: Any) -> None:
            found[name] = out

        return keep

    handles = [backbone.get_submodule(name).register_forward_hook(keeper(name)) for name in layers]
    try:
        end = backbone(images)
    finally:
        for handle in handles:
            handle.remove()
    return [found[name] for name in layers], end


def features_until(backbone: nn.Module, images: Tensor, layer: str, calls: int = 1) -> Tensor:
    """The pooled output (N, d) of a layer's last run, after which the forward pass stops.

    Args:
        backbone: the network's body, in eval mode.
        images: (N, c, h, w).
        layer: dotted name inside the backbone.
        calls: how often the layer runs in a whole forward pass.
    """
    channels_last = has_channels_last(backbone)
    left = calls

    def stop(_module: nn.Module, _inputs: Any, out: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise _ReachedError(pooled(out, channels_last))

    handle = backbone.get_submodule(layer).register_forward_hook(stop)
    try:
        backbone(images)
    except _ReachedError as reached:
        return reached.features
    finally:
        handle.remove()
    raise DetectorError(f"Expected layer {layer} to run {calls} times in a forward pass but it ran less often.")
