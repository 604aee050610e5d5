"""Networks: Classifier, Paired and Ensemble; attach; the paper's two architectures and others; any network opened by name."""

from typing import TYPE_CHECKING

from offaxis.names import lazy

if TYPE_CHECKING:
    from offaxis.names import NETWORKS as NETWORKS
    from offaxis.networks.attaching import attach as attach
    from offaxis.networks.builders import by_name as by_name
    from offaxis.networks.cifar import densenet_bc as densenet_bc
    from offaxis.networks.cifar import wide_resnet as wide_resnet
    from offaxis.networks.classifier import Classifier as Classifier
    from offaxis.networks.combine import AnyNetwork as AnyNetwork
    from offaxis.networks.combine import Ensemble as Ensemble
    from offaxis.networks.combine import LeaveOutEnsemble as LeaveOutEnsemble
    from offaxis.networks.combine import Paired as Paired
    from offaxis.networks.convnet import convnet as convnet
    from offaxis.networks.describe import build as build
    from offaxis.networks.describe import description as description
    from offaxis.networks.open import combine as combine
    from offaxis.networks.open import open_network as open_network
    from offaxis.networks.opened import OpenedNetwork as OpenedNetwork
    from offaxis.networks.resnet import resnet18_32 as resnet18_32
    from offaxis.networks.resnet import resnet_cifar as resnet_cifar

_HOMES = {
    "AnyNetwork": "offaxis.networks.combine",
    "Classifier": "offaxis.networks.classifier",
    "Ensemble": "offaxis.networks.combine",
    "LeaveOutEnsemble": "offaxis.networks.combine",
    "NETWORKS": "offaxis.names",
    "OpenedNetwork": "offaxis.networks.opened",
    "Paired": "offaxis.networks.combine",
    "attach": "offaxis.networks.attaching",
    "build": "offaxis.networks.describe",
    "by_name": "offaxis.networks.builders",
    "combine": "offaxis.networks.open",
    "convnet": "offaxis.networks.convnet",
    "densenet_bc": "offaxis.networks.cifar",
    "description": "offaxis.networks.describe",
    "open_network": "offaxis.networks.open",
    "resnet18_32": "offaxis.networks.resnet",
    "resnet_cifar": "offaxis.networks.resnet",
    "wide_resnet": "offaxis.networks.cifar",
}
__all__ = [*_HOMES]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__name__, _HOMES)
