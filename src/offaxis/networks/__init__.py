"""Networks: Classifier, Paired and Ensemble; attach; the paper's two architectures, their small versions, and ResNets."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from offaxis.errors import ArgumentError
from offaxis.heads import HEADS, describe_head, head_maker
from offaxis.networks.attach import attach
from offaxis.networks.cifar import densenet_bc, wide_resnet
from offaxis.networks.classifier import Classifier, Paired
from offaxis.networks.ensemble import AnyNetwork, Ensemble, LeaveOutEnsemble
from offaxis.networks.resnet import resnet18_32, resnet_cifar
from offaxis.networks.third_party import alike

NETWORKS: dict[str, Callable[..., Classifier]] = {
    "wide_resnet": wide_resnet,
    "densenet_bc": densenet_bc,
    "resnet18_32": resnet18_32,
    "resnet_cifar": resnet_cifar,
}


def by_name(name: str) -> Callable[..., Classifier]:
    """Return the function that makes the network of a name: ``wrn-28-10``, ``densenet-100-12``, ``resnet18-32``.

    The numbers are depth and width, or depth and growth; ``-half`` adds a stride of 2 in the first convolution, which
    makes a network about four times faster. ``resnet18-32`` is OpenOOD's network, ``resnet20-cifar`` and ``resnet56-cifar``
    (6n + 2) are those of He et al. for CIFAR.

    Examples:
        >>> by_name("wrn-10-2-half")(num_classes=10).backbone.num_features
        128
    """
    if name == "resnet18-32":
        return resnet18_32
    cifar = re.fullmatch(r"resnet(\d+)-cifar", name)
    if cifar is not None:
        return partial(resnet_cifar, depth=int(cifar[1]))
    parts = re.fullmatch(r"(wrn|densenet)-(\d+)-(\d+)(-half)?", name)
    if parts is None:
        raise ArgumentError(
            "Expected a network such as wrn-28-10 (depth, width), densenet-100-12 (depth, growth), resnet18-32, "
            f"resnet20-cifar or, with halved maps, wrn-10-4-half; or a pretrained one, efficientnet-lite0, timm:NAME or "
            f"torchvision:NAME; or file.py:function; but got {name!r}.{alike(name, ['efficientnet-lite0', 'resnet18-32'])}"
        )
    kind, depth, size, half = parts.groups()
    stride = 2 if half else 1
    if kind == "wrn":
        return partial(wide_resnet, depth=int(depth), width=int(size), stem_stride=stride)
    return partial(densenet_bc, depth=int(depth), growth=int(size), stem_stride=stride)


def description(classifier: Classifier) -> dict[str, Any] | None:
    """Return what ``build`` needs to make such a network, as JSON can hold it; None for one that is not of this package."""
    head = describe_head(classifier.head)
    if classifier.origin is None or head is None:
        return None
    return {**classifier.origin, "num_classes": classifier.num_classes, "head": head}


def build(description: dict[str, Any]) -> Classifier:
    """Make the network of a ``description``, with new weights.

    Raises:
        ArgumentError: the description names a network or a head that this version does not have.
    """
    arguments = dict(description)
    name, head = arguments.pop("name"), arguments.pop("head")
    if name not in NETWORKS or head["name"] not in HEADS:
        raise ArgumentError(
            f"Expected a network out of {', '.join(NETWORKS)} and a head out of {', '.join(HEADS)} but got {name!r} with "
            f"{head['name']!r}. It may be of a newer version of offaxis."
        )
    return NETWORKS[name](head=head_maker(head), **arguments)


__all__ = [
    "NETWORKS",
    "AnyNetwork",
    "Classifier",
    "Ensemble",
    "LeaveOutEnsemble",
    "Paired",
    "attach",
    "build",
    "by_name",
    "densenet_bc",
    "description",
    "resnet18_32",
    "resnet_cifar",
    "wide_resnet",
]
