"""What a detector takes for a network, and how it runs one without leaving a trace."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from offaxis.errors import BadOutputsError, DetectorError
from offaxis.heads import Head, Outputs
from offaxis.networks.classifier import Classifier

Batches = Iterable[tuple[Tensor, Tensor]]
"""(images (N, c, h, w) normalised as in training, labels (N,)), batch by batch."""

ImageBatches = Iterable[Tensor] | Iterable[tuple[Tensor, Tensor]]
"""Images (N, c, h, w) normalised as in training, batch by batch, with labels beside them or without."""


class Network(Protocol):
    """A Classifier, a Paired, an Ensemble: what gives Outputs for images."""

    @property
    def num_classes(self) -> int:
        """C."""

    @property
    def layers(self) -> Sequence[str]:
        """The layers that multi-layer methods read by default."""

    @property
    def head(self) -> Head:
        """The head whose features a detector reads."""

    def outputs(self, images: Tensor, layers: Iterable[str] = ()) -> Outputs:
        """All outputs for a batch."""

    def modules(self) -> Iterator[nn.Module]:
        """Every part, as ``nn.Module`` lists them."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Every parameter, as ``nn.Module`` lists them."""

    def __call__(self, images: Tensor) -> Tensor:
        """Logits (N, C)."""


@contextmanager
def eval_mode(network: Network) -> Iterator[None]:
    """Eval mode inside the block; afterwards every part has the mode that it had."""
    training = [module for module in network.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def stream(network: Network, batches: Batches, layers: Iterable[str] = ()) -> Iterator[tuple[Outputs, Tensor]]:
    """One forward pass over (images, labels), in eval mode and without gradients: (Outputs, labels) batch by batch."""
    names = tuple(layers)
    for images, labels in batches:
        on_device = to_network(network, images)
        check_labels(labels, len(images), network.num_classes)
        with eval_mode(network), torch.no_grad():
            outputs = network.outputs(on_device, names)
        check_finite("What the network says of training images", outputs.logits)
        check_finite("What the network sees in training images", outputs.features)
        yield outputs, labels.to(on_device.device)


def to_network(network: Network, images: Tensor) -> Tensor:
    """The images where the network is, in its type and its fastest layout, after a look at type, shape and values."""
    if images.dim() != 4 or not images.is_floating_point():
        raise BadOutputsError(
            f"Expected normalised images of shape (N, c, h, w) in floating point but got {tuple(images.shape)} in "
            f"{str(images.dtype).removeprefix('torch.')}."
        )
    if not torch.isfinite(images).all():
        raise BadOutputsError("Expected images without NaN or infinity but some pixels are not finite numbers.")
    parameter = next(network.parameters(), None)
    moved = images if parameter is None else images.to(parameter.device, parameter.dtype)
    return moved.contiguous(memory_format=torch.channels_last) if faster_channels_last(network, moved) else moved


def faster_channels_last(network: Network, images: Tensor) -> bool:
    """Whether to lay images out with the channels last: in 32 bits on the CPU, through networks of offaxis.networks.

    Others may flatten their maps with ``view``, which fails in this layout.
    """
    if images.device.type != "cpu" or images.dtype != torch.float32:
        return False
    ours = [module.origin is not None for module in network.modules() if isinstance(module, Classifier)]
    return bool(ours) and all(ours)


def check_labels(labels: Tensor, count: int, num_classes: int) -> None:
    """Refuse labels of a wrong shape or outside 0..C-1."""
    if labels.shape != (count,):
        raise DetectorError(f"Expected {count} labels for {count} images but got shape {tuple(labels.shape)}.")
    if count and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise DetectorError(
            f"Expected labels in 0..{num_classes - 1}, as the network has {num_classes} classes, but got labels from "
            f"{int(labels.min())} to {int(labels.max())}. Fit on training images of the network's own classes."
        )


def images_of(batches: ImageBatches) -> Iterator[Tensor]:
    """The images of every batch, whether labels stand beside them or not."""
    for batch in batches:
        yield batch if isinstance(batch, Tensor) else batch[0]


def check_finite(what: str, tensor: Tensor) -> None:
    """Refuse what a network says where it is not made of finite numbers."""
    if not torch.isfinite(tensor).all():
        raise BadOutputsError(
            f"{what} holds NaN or infinity, where finite numbers were expected. Look at the images and at the training."
        )


def widest(tensor: Tensor) -> Tensor:
    """The tensor in float64; unchanged on Apple's GPUs, which have no float64."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def accumulating(tensor: Tensor) -> Tensor:
    """A detached copy in float64 for sums over a whole data set, on the CPU where the device has no float64."""
    detached = tensor.detach()
    return detached.to("cpu" if detached.device.type == "mps" else detached.device, torch.float64)
