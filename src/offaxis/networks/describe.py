"""Network -> description -> network: how runs and bundles describe a network, and how it is built again."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from offaxis.errors import ArgumentError, BundleError, OffaxisError
from offaxis.heads import describe_head, head_maker
from offaxis.heads.linear import NoClassesHead
from offaxis.names import NETWORKS
from offaxis.networks import library
from offaxis.networks.attaching import attach
from offaxis.networks.classifier import Classifier, FeatureInput
from offaxis.networks.combine import AnyNetwork, Ensemble, LeaveOutEnsemble, Paired, SelectedEpoch
from offaxis.networks.library import Builder
from offaxis.networks.weights import differences


def describe(network: AnyNetwork, builder: Builder | None = None) -> dict[str, Any]:
    """Describe a network so that ``build_network`` can make it, as JSON can hold it.

    Networks of offaxis.networks are described by their arguments; attached ones of timm, torchvision and transformers by
    name and arguments; any other as ``given``: the user passes the network when loading the bundle.

    Args:
        network: a Classifier, a Paired or an Ensemble.
        builder: how an attached network was made, where it cannot be derived from the network.
    """
    if isinstance(network, Paired):
        parts = {name: describe(getattr(network, name), builder) for name in ("classifier", "detector_network")}
        return {"kind": "paired", **parts}
    if isinstance(network, Ensemble):
        members = [describe(member, builder) for member in network.networks]
        if not isinstance(network, LeaveOutEnsemble):
            return {"kind": "ensemble", "members": members}
        left_out, selected = map(list, network.left_out), [epoch._asdict() for epoch in network.selected]
        return {"kind": "leave-out", "members": members, "left_out": list(left_out), "selected": selected}
    maps = [p for p in network.parameters() if p.dim() == 4 and not p.is_contiguous()]
    channels_last = any(p.is_contiguous(memory_format=torch.channels_last) for p in maps)  # as training leaves them
    plan = {**_describe_single(network, builder), "channels_last": channels_last}
    return {**plan, "frozen": True} if network.frozen else plan


def _describe_single(network: Classifier, builder: Builder | None) -> dict[str, Any]:
    head, num_classes = describe_head(network.head), network.num_classes
    if isinstance(network.backbone, FeatureInput):
        return {"kind": "features", "head": head, "in_features": network.head.in_features, "num_classes": num_classes}
    ours = description(network)
    if ours is not None:
        return {"kind": "offaxis", "description": ours}
    builder = builder or network.builder or library.find_builder(network.backbone)
    if head is None or builder is None:
        return {"kind": "given", "num_classes": num_classes, "head": head, "layer": network.replaced}
    layer = library.output_layer(network.backbone, library.make_network(builder))
    if layer is None:
        raise BundleError(
            f"{builder['name']} of {builder['library']} with {builder.get('arguments', {})} is not the network that was "
            "attached: pass the builder that made it, save(path, builder={'library': ..., 'name': ..., 'arguments': {...}})."
        )
    attached = {"builder": builder, "layer": layer, "head": head, "num_classes": num_classes}
    return {"kind": "attached", **attached, "layers": list(network.layers)}


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
    if name not in NETWORKS:
        raise ArgumentError(
            f"Expected a network out of {', '.join(NETWORKS)} but got {name!r}. It may be of a newer version of offaxis."
        )
    return NETWORKS[name](head=head_maker(head), **arguments)


def must_be_given(plan: dict[str, Any]) -> bool:
    """Return whether the network of a description, or a part of it, must be passed by the user."""
    parts = [plan.get("classifier"), plan.get("detector_network"), *plan.get("members", ())]
    return plan["kind"] == "given" or any(must_be_given(part) for part in parts if part is not None)


def build_checked(plan: dict[str, Any], shapes: Mapping[str, torch.Size], given: nn.Module | None = None) -> AnyNetwork:
    """Make the network of a description that may be hostile, for weights of these shapes.

    Nothing of another size than the weights is made: what is described is first built without memory (on PyTorch's meta
    device) and compared with the weights, and building stops as soon as there are more parameters than weights.

    Raises:
        BundleError: the description describes another network than the weights are of.
    """
    elements = sum(shape.numel() for shape in shapes.values())
    _check_numbers(plan, max(elements, _ANY_NUMBER))
    with _building_at_most(len(shapes), elements):
        if given is None:
            try:
                with torch.device("meta"):
                    described = build_network(plan).state_dict()
            except OffaxisError:
                raise
            except Exception:  # some networks of other libraries compute with values while they are built
                return build_network(plan)
            wrong = differences({name: tensor.shape for name, tensor in described.items()}, shapes)
            if wrong:
                raise BundleError(f"The weights do not fit the network that the bundle describes: {wrong}.")
        return build_network(plan, given)


_ANY_NUMBER = 2**20  # whole numbers up to this are never too large for a description


def _check_numbers(plan: Any, largest: int) -> None:
    """Raise BundleError where a description holds a whole number that no network with these weights can need."""
    parts = plan.values() if isinstance(plan, dict) else plan if isinstance(plan, list) else ()
    for part in parts:
        if isinstance(part, int) and abs(part) > largest:
            raise BundleError(f"The bundle describes a network with {part:,} of something, more than its weights hold.")
        _check_numbers(part, largest)


@contextmanager
def _building_at_most(tensors: int, elements: int) -> Iterator[None]:
    """Stop with a BundleError where one network too many or too large is made by this thread inside the block.

    It is made twice, and an output layer that ``attach`` replaces is made and dropped.
    """
    made, owner = [0, 0], threading.get_ident()

    def count(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and threading.get_ident() == owner:
            made[0] += 1
            made[1] += parameter.numel()
            if made[0] > 4 * tensors + 16 or made[1] > 8 * elements + _ANY_NUMBER:
                raise BundleError("The bundle describes a larger network than its weights are of.")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def build_network(plan: dict[str, Any], given: nn.Module | None = None) -> AnyNetwork:
    """Make the network of a description, with new weights.

    Args:
        plan: what ``describe`` returned.
        given: the network itself, or an Ensemble or a Paired like it, where the plan or a part of it is ``given``.

    Raises:
        ArgumentError, BundleError: the network cannot be made by this version, or must be given.
    """
    if plan["kind"] == "paired":
        names = ("classifier", "detector_network")
        parts = [getattr(given, name) if isinstance(given, Paired) else None for name in names]
        pair = [build_network(plan[name], part) for name, part in zip(names, parts, strict=True)]
        return Paired(*cast(list[Classifier], pair))
    if plan["kind"] in ("ensemble", "leave-out"):
        return _build_ensemble(plan, given)
    network = _build_single(plan, given)
    if plan["channels_last"]:  # other kernels run then, which round differently
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if plan.get("frozen") is True and isinstance(network, Classifier):
        network.frozen = True  # the default detector depends on it
    return network


def _build_ensemble(plan: dict[str, Any], given: nn.Module | None) -> Ensemble:
    plans = plan["members"]
    parts: list[Any] = [None] * len(plans)
    if must_be_given(plan):
        parts = given.networks if isinstance(given, Ensemble) else []
        if len(parts) != len(plans):
            came = f"an ensemble of {len(parts)}" if parts else "nothing" if given is None else type(given).__name__
            raise BundleError(
                f"it holds the weights of an ensemble of {len(plans)} networks that it cannot build itself but got {came}: "
                "make the same networks and pass them as one, offaxis.load(path, network=offaxis.Ensemble([...])), or name "
                "a function that does, --network file.py:function."
            )
    built = [build_network(each, part) for each, part in zip(plans, parts, strict=True)]
    members = cast(list[Classifier], built)  # an Ensemble refuses others
    if plan["kind"] == "ensemble":
        return Ensemble(members)
    return LeaveOutEnsemble(members, plan["left_out"], [SelectedEpoch(**epoch) for epoch in plan["selected"]])


def _build_single(plan: dict[str, Any], given: nn.Module | None) -> Classifier | Paired:
    kind, head = plan["kind"], plan.get("head")
    if kind == "offaxis":
        return build(plan["description"])
    if kind == "features":
        make = NoClassesHead if head is None else head_maker(head)
        return Classifier(FeatureInput(), make(int(plan["in_features"]), int(plan["num_classes"])))
    if kind == "attached":
        network = library.make_network(plan["builder"])
        classifier = attach(network, head_maker(plan["head"]), int(plan["num_classes"]), layer=plan["layer"])
        classifier.layers = tuple(plan.get("layers", ()))
        classifier.builder = plan["builder"]  # it may not be derivable from the network
        return classifier
    if kind != "given":
        raise BundleError(f"Expected a network that this version can build but got the kind {kind!r}.")
    if given is None or isinstance(given, Ensemble):
        raise BundleError(
            "The bundle holds the weights of a network that is not one of offaxis.networks, timm, torchvision or "
            "transformers: make the same network and pass it, offaxis.load(path, network=module), or name a function "
            "that makes it, --network file.py:function."
        )
    if isinstance(given, (Classifier, Paired)):
        return given
    if head is None:
        raise BundleError(
            f"It holds the weights of a Classifier but got a {type(given).__name__}: give it the head that it was saved with, "
            "offaxis.load(path, network=offaxis.attach(module, head=...))."
        )
    return attach(given, head_maker(head), int(plan["num_classes"]), layer=plan.get("layer"))
