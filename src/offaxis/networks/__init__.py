"""Images -> features: the paper's two networks, and their small relatives, each with a head."""

from collections.abc import Callable

from offaxis.classifier import Classifier
from offaxis.networks.densenet import densenet_bc
from offaxis.networks.wide_resnet import wide_resnet

NETWORKS: dict[str, Callable[..., Classifier]] = {"wide_resnet": wide_resnet, "densenet_bc": densenet_bc}

__all__ = ["NETWORKS", "densenet_bc", "wide_resnet"]
