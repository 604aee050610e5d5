"""Network -> description -> network: how runs and bundles describe a network, and how it is built again."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from offaxis.errors import ArgumentError, AttachError, BundleError, OffaxisError
from offaxis.heads import Head, describe_head, head_maker
from offaxis.heads.linear import NoClassesHead
from offaxis.names import HEADS, NETWORKS
from offaxis.networks import library
from offaxis.networks.attaching import attach
from offaxis.networks.classifier import Classifier, FeatureInput
from offaxis.networks.combine import AnyNetwork, Ensemble, LeaveOutEnsemble, Paired, SelectedEpoch
from offaxis.networks.library import Builder

Member = TypeVar("Member", bound=nn.Module)


def describe(network: AnyNetwork, builder: Builder | None = None) -> dict[str, Any]:
    """Describe a network so that ``build_network`` can make it, as JSON can hold it.

    Networks of offaxis.networks are described by their arguments; attached ones of timm, torchvision and transformers by
    name and arguments; any other as ``given``: the user passes the network when loading the bundle.

    Args:
        network: a Classifier, a Paired or an Ensemble.
        builder: how an attached network was made, where it cannot be derived from the network.
    """
    if isinstance(network, Paired):
        parts = {
            "classifier": describe(network.classifier, builder),
            "detector_network": describe(network.detector_network, builder),
        }
        return {"kind": "paired", **parts}
    if isinstance(network, Ensemble):
        members = [describe(member, builder) for member in network.networks]
        if not isinstance(network, LeaveOutEnsemble):
            return {"kind": "ensemble", "members": members}
        return {
            "kind": "leave-out",
            "members": members,
            "left_out": [list(fold) for fold in network.left_out],
            "selected": [epoch._asdict() for epoch in network.selected],
        }
    if not isinstance(network, Classifier):
        raise BundleError(
            f"Expected a Classifier, a Paired or an Ensemble but got a {type(network).__name__}: offaxis.attach makes a "
            "Classifier of any network."
        )
    plan = {**_kind(network, builder), "channels_last": _channels_last(network)}
    return {**plan, "frozen": True} if network.frozen else plan


def _kind(network: Classifier, builder: Builder | None) -> dict[str, Any]:
    if isinstance(network.backbone, FeatureInput):
        sizes = {"in_features": network.head.in_features, "num_classes": network.num_classes}
        return {"kind": "features", "head": describe_head(network.head), **sizes}
    ours = description(network)
    if ours is not None:
        return {"kind": "offaxis", "description": ours}
    head = describe_head(network.head)
    builder = builder or network.builder or library.find_builder(network.backbone)
    if head is None or builder is None:
        return {"kind": "given", "num_classes": network.num_classes, "head": head}
    layer = library.output_layer(network.backbone, library.make_network(builder))
    if layer is None:
        raise BundleError(
            f"{builder['name']} of {builder['library']} with {builder.get('arguments', {})} is not the network that was "
            "attached: pass the builder that made it, save(path, builder={'library': ..., 'name': ..., 'arguments': {...}})."
        )
    return {
        "kind": "attached",
        "builder": builder,
        "layer": layer,
        "head": head,
        "num_classes": network.num_classes,
        "layers": list(network.layers),
    }


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
    if given is None:
        with _building_at_most(len(shapes), elements), torch.device("meta"):
            try:
                sketch: AnyNetwork | None = build_network(plan)
            except OffaxisError:
                raise
            except Exception:  # some networks of other libraries compute with values while they are built
                sketch = None
        if sketch is not None:
            _check_shapes({name: t.shape for name, t in sketch.state_dict().items()}, shapes)
    with _building_at_most(len(shapes), elements):
        return build_network(plan, given)


_ANY_NUMBER = 2**20  # whole numbers up to this are never too large for a description


def _check_numbers(plan: Any, largest: int) -> None:
    """Raise BundleError where a description holds a whole number that no network with these weights can need."""
    parts = plan.values() if isinstance(plan, dict) else plan if isinstance(plan, list) else ()
    for part in parts:
        if isinstance(part, int) and abs(part) > largest:
            raise BundleError(f"The bundle describes a network with {part:,} of something, more than its weights hold.")
        _check_numbers(part, largest)


def _check_shapes(described: Mapping[str, torch.Size], held: Mapping[str, torch.Size]) -> None:
    if described != held:
        differing = sorted(name for name in described.keys() | held.keys() if described.get(name) != held.get(name))
        raise BundleError(
            "The weights do not fit the network that the bundle describes: "
            + "; ".join(f"{n} is {_size(described.get(n))} there and {_size(held.get(n))} here" for n in differing[:3])
            + (f"; and {len(differing) - 3:,} more." if len(differing) > 3 else ".")
        )


def _size(shape: torch.Size | None) -> str:
    return "absent" if shape is None else str(tuple(shape))


@contextmanager
def _building_at_most(tensors: int, elements: int) -> Iterator[None]:
    """Stop with a BundleError where more or larger parameters are made inside the block than a network can have.

    An output layer that ``attach`` replaces is made and dropped, so there may be some more than there are weights.
    """
    made = [0, 0]
    owner = threading.get_ident()

    def count(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        if parameter is None or threading.get_ident() != owner:
            return
        made[0] += 1
        made[1] += parameter.numel()
        if made[0] > 2 * tensors + 16 or made[1] > 4 * elements + _ANY_NUMBER:
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
        BundleError: the network cannot be made by this version, or must be given.
    """
    if plan["kind"] == "paired":
        pair = given if isinstance(given, Paired) else None
        first = build_network(plan["classifier"], None if pair is None else pair.classifier)
        second = build_network(plan["detector_network"], None if pair is None else pair.detector_network)
        return Paired(*_all_of([first, second], (Classifier,)))
    if plan["kind"] in ("ensemble", "leave-out"):
        return _build_ensemble(plan, given)
    network = _make_single(plan, given)
    if plan["channels_last"]:  # other kernels run then, which round differently
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if plan.get("frozen") is True and isinstance(network, Classifier):
        network.frozen = True  # the default detector depends on it
    return network


def _build_ensemble(plan: dict[str, Any], given: nn.Module | None) -> Ensemble:
    plans = plan["members"]
    parts: list[nn.Module | None] = [None] * len(plans)
    if must_be_given(plan):
        if not isinstance(given, Ensemble) or len(given.networks) != len(plans):
            came = f"an ensemble of {len(given.networks)}" if isinstance(given, Ensemble) else type(given).__name__
            raise BundleError(
                f"it holds the weights of an ensemble of {len(plans)} networks that it cannot build itself but got "
                f"{'nothing' if given is None else came}: make the same networks and pass them as one, offaxis.load(path, "
                "network=offaxis.Ensemble([...])), or name a function that does, --network file.py:function."
            )
        parts = list(given.networks)
    members = [build_network(each, part) for each, part in zip(plans, parts, strict=True)]
    if plan["kind"] == "ensemble":
        return Ensemble(_all_of(members, (Classifier, Paired)))
    selected = [SelectedEpoch(**epoch) for epoch in plan["selected"]]
    return LeaveOutEnsemble(_all_of(members, (Classifier,)), plan["left_out"], selected)


def _all_of(members: Sequence[nn.Module], kinds: tuple[type[Member], ...]) -> list[Member]:
    """Return the members; raise BundleError where one is not of the kinds that a pair or an ensemble takes."""
    fitting = [member for member in members if isinstance(member, kinds)]
    if len(fitting) < len(members):
        raise BundleError(f"Expected members that are {' or '.join(kind.__name__ for kind in kinds)} but got others.")
    return fitting


def _make_single(plan: dict[str, Any], given: nn.Module | None) -> Classifier | Paired:
    kind = plan["kind"]
    if kind == "given":
        if given is None or isinstance(given, Ensemble):
            raise BundleError(
                "The bundle holds the weights of a network that is not one of offaxis.networks, timm, torchvision or "
                "transformers: make the same network and pass it, offaxis.load(path, network=module), or name a function "
                "that makes it, --network file.py:function."
            )
        return given if isinstance(given, (Classifier, Paired)) else _attach_bare(plan, given)
    if kind == "offaxis":
        return build(plan["description"])
    if kind == "features":
        make = NoClassesHead if plan["head"] is None else _head_maker(plan)
        return Classifier(FeatureInput(), make(int(plan["in_features"]), int(plan["num_classes"])))
    if kind == "attached":
        network = library.make_network(plan["builder"])
        classifier = attach(network, _head_maker(plan), int(plan["num_classes"]), layer=plan["layer"])
        classifier.layers = tuple(plan.get("layers", ()))
        classifier.builder = plan["builder"]  # it may not be derivable from the network
        return classifier
    raise BundleError(f"Expected a network that this version can build but got the kind {kind!r}.")


def _attach_bare(plan: dict[str, Any], given: nn.Module) -> Classifier:
    """Give a module that is not a Classifier the head that the bundle's weights were saved with."""
    if plan.get("head") is None:
        raise BundleError(
            f"It holds the weights of a Classifier but got a {type(given).__name__}: give it the head that it was saved with, "
            "offaxis.load(path, network=offaxis.attach(module, head=...))."
        )
    try:
        return attach(given, _head_maker(plan), int(plan["num_classes"]))
    except AttachError as error:
        raise BundleError(
            f"{error} Give the module its head yourself: offaxis.load(path, network=offaxis.attach(module, "
            f"head={plan['head']['name']!r}, layer=...))."
        ) from error


def _head_maker(plan: dict[str, Any]) -> Callable[[int, int], Head]:
    try:
        return head_maker(plan["head"])
    except ArgumentError as error:
        raise BundleError(str(error)) from error


def _channels_last(network: nn.Module) -> bool:
    """Return whether the weights of convolutions have the channels-last memory format, as training leaves them."""
    maps = [p for p in network.parameters() if p.dim() == 4 and not p.is_contiguous()]
    return any(p.is_contiguous(memory_format=torch.channels_last) for p in maps)
