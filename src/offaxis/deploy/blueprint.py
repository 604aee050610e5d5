"""How a bundle says what its network is, and makes it again."""

from functools import partial
from typing import Any

import torch
from torch import nn

from offaxis import networks
from offaxis.attach import attach
from offaxis.classifier import Classifier, Paired
from offaxis.deploy import third_party
from offaxis.deploy.third_party import Builder
from offaxis.errors import BundleError
from offaxis.heads import HEADS, describe


def blueprint(network: Classifier | Paired, builder: Builder | None = None) -> dict[str, Any]:
    """What ``rebuild`` needs to make such a network again, as JSON can hold it.

    Networks of offaxis.networks are kept by their description; attached ones of timm, torchvision and transformers by
    name and arguments; any other as ``given``: whoever loads the bundle brings the network.

    Args:
        network: what is described.
        builder: how an attached network was made, where looking at it does not tell.
    """
    if isinstance(network, Paired):
        parts = {
            "classifier": blueprint(network.classifier, builder),
            "detector_network": blueprint(network.detector_network, builder),
        }
        return {"kind": "paired", **parts}
    if not isinstance(network, Classifier):
        raise BundleError(
            f"Expected a Classifier or a Paired but got a {type(network).__name__}: a bundle holds one network or a pair."
        )
    return {**_kind(network, builder), "channels_last": _channels_last(network)}


def _kind(network: Classifier, builder: Builder | None) -> dict[str, Any]:
    ours = networks.description(network)
    if ours is not None:
        return {"kind": "offaxis", "description": ours}
    head = describe(network.head)
    builder = builder or third_party.find_builder(network.backbone)
    if head is None or builder is None:
        return {"kind": "given", "num_classes": network.num_classes}
    layer = third_party.output_layer(network.backbone, third_party.make(builder))
    if layer is None:
        raise BundleError(
            f"{builder['name']} of {builder['library']} with {builder.get('arguments', {})} is not the network that was "
            "attached: give the builder that made it, save(path, builder={'library': ..., 'name': ..., 'arguments': {...}})."
        )
    return {
        "kind": "attached",
        "builder": builder,
        "layer": layer,
        "head": head,
        "num_classes": network.num_classes,
        "layers": list(network.layers),
    }


def rebuild(plan: dict[str, Any], given: nn.Module | None = None) -> Classifier | Paired:
    """The network that a blueprint stands for, with fresh weights.

    Args:
        plan: what ``blueprint`` gave.
        given: the network itself, where the plan's kind is ``given``.

    Raises:
        BundleError: the plan cannot be followed.
    """
    if plan["kind"] == "paired":
        pair = given if isinstance(given, Paired) else None
        first = rebuild(plan["classifier"], None if pair is None else pair.classifier)
        second = rebuild(plan["detector_network"], None if pair is None else pair.detector_network)
        assert isinstance(first, Classifier)
        assert isinstance(second, Classifier)
        return Paired(first, second)
    made = _make(plan, given)
    if plan["channels_last"]:  # other kernels run then, and round in another way
        made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return made


def _make(plan: dict[str, Any], given: nn.Module | None) -> Classifier | Paired:
    kind = plan["kind"]
    if kind == "given":
        if not isinstance(given, (Classifier, Paired)):
            raise BundleError(
                "The bundle holds the weights of a network that is not one of offaxis.networks, timm, torchvision or "
                "transformers: make the same network and pass it, offaxis.load(path, network=classifier), or name a function "
                "that makes it, --network module:function."
            )
        return given
    if kind == "offaxis":
        return networks.build(plan["description"])
    if kind == "attached":
        head = dict(plan["head"])
        name = head.pop("name")
        if name not in HEADS:
            raise BundleError(f"Expected a head out of {', '.join(HEADS)} but got {name!r}.")
        network = third_party.make(plan["builder"])
        made = attach(network, partial(HEADS[name], **head), int(plan["num_classes"]), layer=plan["layer"])
        made.layers = tuple(plan.get("layers", ()))
        return made
    raise BundleError(f"Expected a network that this version can build but got the kind {kind!r}.")


def _channels_last(network: nn.Module) -> bool:
    """Whether the weights of convolutions lie in memory with their channels last, as training leaves them."""
    maps = [p for p in network.parameters() if p.dim() == 4 and not p.is_contiguous()]
    return any(p.is_contiguous(memory_format=torch.channels_last) for p in maps)
