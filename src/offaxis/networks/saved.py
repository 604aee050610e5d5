"""What files hold of a network: its description, of which it is built again, and its weights, whole and checked."""

import hashlib
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from offaxis.errors import ArgumentError, BundleError, CheckpointError, OffaxisError
from offaxis.files import UNSEALED, check_plain, check_seal, sealed
from offaxis.heads import describe_head, head_maker
from offaxis.heads.linear import NoClassesHead, two_rows
from offaxis.names import HEADS, NETWORKS
from offaxis.networks import library
from offaxis.networks.attaching import attach
from offaxis.networks.classifier import Classifier, FeatureInput
from offaxis.networks.combine import AnyNetwork, Ensemble, LeaveOutEnsemble, Paired, SelectedEpoch
from offaxis.networks.library import Builder

PAIR = ("classifier", "detector_network")
UNCHECKED_FORMATS = ("offaxis-checkpoint-2", "offaxis-model-1")
"""Formats of older versions, whose files have no checksum."""
_ANY_NUMBER = 2**20  # whole numbers up to this are never too large for a description
_TOO_LARGE = "The bundle describes a network, or images, far larger than its weights are for."


# network -> description -> network -------------------------------------------------------------------------------------


def describe(network: AnyNetwork, builder: Builder | None = None) -> dict[str, Any]:
    """Describe a network so that ``build_network`` can make it, as JSON can hold it.

    Networks of offaxis.networks are described by their arguments; attached ones of timm, torchvision and transformers by
    name and arguments; any other as ``given``: the user passes the network when loading the bundle.

    Args:
        network: a Classifier, a Paired or an Ensemble.
        builder: how an attached network was made, where it cannot be derived from the network.
    """
    if isinstance(network, Paired):
        return {"kind": "paired", **{name: describe(getattr(network, name), builder) for name in PAIR}}
    if isinstance(network, Ensemble):
        members = [describe(member, builder) for member in network.networks]
        if not isinstance(network, LeaveOutEnsemble):
            return {"kind": "ensemble", "members": members}
        selected = [epoch._asdict() for epoch in network.selected]
        left_out = [list(fold) for fold in network.left_out]
        return {"kind": "leave-out", "members": members, "left_out": left_out, "selected": selected}
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
    head = plan.get("description", plan).get("head")
    own = plan["kind"] == "given" or (head is not None and head["name"] not in HEADS)
    return own or any(map(must_be_given, _plans(plan)))


def _plans(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the descriptions of the networks of a pair or an ensemble; of a single one there are none."""
    if plan["kind"] == "paired":
        return [plan[name] for name in PAIR]
    return list(plan["members"]) if plan["kind"] in ("ensemble", "leave-out") else []


def build_checked(
    plan: dict[str, Any], weights: Mapping[str, Tensor], shape: tuple[int, ...], given: nn.Module | None = None
) -> AnyNetwork:
    """Make the network of a description that may be hostile, for these weights.

    Nothing much larger than the weights is made: what is described is first built without memory (on PyTorch's meta device),
    compared with the weights, and run on one image.

    Args:
        plan: the description.
        weights: by name.
        shape: of an image (c, h, w), or of a vector (d,).
        given: the network itself, where it must be given; it is trusted, and so is the size of its images.

    Raises:
        BundleError: the description describes another network than the weights are of, or a larger one.
    """
    elements = sum(tensor.numel() for tensor in weights.values())
    _check_numbers(plan, max(elements, _ANY_NUMBER))
    with _Bounded(weights):
        if given is not None:
            return build_network(plan, given)
        try:
            with torch.device("meta"):
                described = build_network(plan)
        except NotImplementedError:  # of networks that compute their sizes with values
            described = build_network(plan).to("meta")
        if wrong := _compare_shapes(described.state_dict(), weights):
            raise BundleError(f"The weights do not fit the network that the bundle describes: {_first_three(wrong)}.")
        if sum(buffer.nbytes for buffer in described.buffers()) > _most_bytes(weights):
            raise BundleError(_TOO_LARGE)
    with _Bounded(weights), torch.no_grad():
        try:
            for part in described.eval().modules():
                if isinstance(part, Classifier):
                    part.features(torch.empty(1, *shape, device="meta"))
        except OffaxisError:
            raise
        except Exception as error:  # of networks that compute with values
            if math.prod(shape) > _ANY_NUMBER:
                raise BundleError(f"What an image of {shape} takes in this network cannot be told: {error}") from error
    with _Bounded(weights):
        return build_network(plan)


def _check_numbers(plan: Any, largest: int) -> None:
    """Raise BundleError where a description holds a whole number that no network with these weights can need."""
    parts = plan.values() if isinstance(plan, dict) else plan if isinstance(plan, list) else ()
    for part in parts:
        if isinstance(part, int) and abs(part) > largest:
            raise BundleError(f"The bundle describes a network with {part:,} of something, more than its weights hold.")
        _check_numbers(part, largest)


def _most_bytes(weights: Mapping[str, Tensor]) -> int:
    """Return the most bytes that the buffers of a network, or a tensor of it for one image, may have beside its weights."""
    return 2**29 + 4 * sum(tensor.nbytes for tensor in weights.values())


class _Bounded(TorchDispatchMode):
    """Stop with a BundleError where operations are too many for some weights, or make a tensor that is too large for them.

    On the meta device there is no memory in such a tensor; a number that is read of one there, such as a rate, is 0.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.left, self.most = 200 * len(weights) + 2000, _most_bytes(weights)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and check what it makes."""
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return args[0].new_zeros((), device="cpu").item()
        result = func(*args, **(kwargs or {}))
        self.left -= 1
        made = result if isinstance(result, (tuple, list)) else [result]
        if self.left < 0 or any(isinstance(each, Tensor) and each.nbytes > self.most for each in made):
            raise BundleError(_TOO_LARGE)
        return result


def build_network(plan: dict[str, Any], given: nn.Module | None = None) -> AnyNetwork:
    """Make the network of a description, with new weights.

    Args:
        plan: what ``describe`` returned.
        given: the network itself, or an Ensemble or a Paired like it, where the plan or a part of it is ``given``.

    Raises:
        ArgumentError, BundleError: the network cannot be made by this version, or must be given.
    """
    if plan["kind"] in ("paired", "ensemble", "leave-out"):
        return _build_combined(plan, given)
    network = _build_single(plan, given)
    if plan["channels_last"]:  # other kernels run then, which round differently
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if plan.get("frozen") is True and isinstance(network, Classifier):
        network.frozen = True  # the default detector depends on it
    return network


def _build_combined(plan: dict[str, Any], given: nn.Module | None) -> Paired | Ensemble:
    kind, plans = plan["kind"], _plans(plan)
    parts: list[Any] = [None] * len(plans)
    if must_be_given(plan):
        parts = given.networks if isinstance(given, Ensemble) else []
        if isinstance(given, Paired):
            parts = [given.classifier, given.detector_network]
        if len(parts) != len(plans):
            came = f"an ensemble of {len(parts)}" if parts else "nothing" if given is None else type(given).__name__
            whole = "a pair" if kind == "paired" else "an ensemble"
            raise BundleError(
                f"it holds the weights of {whole} of {len(plans)} networks that it cannot build itself but got {came}: make "
                "the same networks and pass them as one, offaxis.load(path, network=offaxis.Ensemble([...])), or name "
                "a function that does, --network file.py:function."
            )
    built = [build_network(each, part) for each, part in zip(plans, parts, strict=True)]
    members = cast(list[Classifier], built)  # a pair and an ensemble refuse others
    if kind == "paired":
        return Paired(*members)
    if kind == "ensemble":
        return Ensemble(members)
    return LeaveOutEnsemble(members, plan["left_out"], [SelectedEpoch(**epoch) for epoch in plan["selected"]])


def _build_single(plan: dict[str, Any], given: nn.Module | None) -> Classifier | Paired:
    kind, head = plan["kind"], plan.get("head")
    if isinstance(given, (Classifier, Paired)):
        return given
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
    if head is None:
        raise BundleError(
            f"It holds the weights of a Classifier but got a {type(given).__name__}: give it the head that it was saved with, "
            "offaxis.load(path, network=offaxis.attach(module, head=...))."
        )
    return attach(given, head_maker(head), int(plan["num_classes"]), layer=plan.get("layer"))


# weights in files ------------------------------------------------------------------------------------------------------


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return tensors as the bytes of a safetensors file."""
    # Tied parameters would share memory, which safetensors refuses; a clone of each is the plain way out.
    whole = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    return save(whole, None if metadata is None else dict(metadata))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file with a checksum among its metadata, whole or not at all.

    Raises:
        StorageError: the disk is full or the folder cannot be written to.
    """
    with sealed(path) as temporary:
        temporary.write_bytes(tensor_bytes(tensors, {**metadata, "checksum": UNSEALED}))


def read_tensors(
    path: Path,
    error: type[OffaxisError] = CheckpointError,
    remedy: str = "train again, or restore the file",
    *,
    required: bool | None = None,
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a safetensors file and check its checksum.

    Args:
        path: the file.
        error: the exception to raise where it is missing, damaged or not of this kind.
        remedy: what to do then.
        required: whether a file without a checksum is refused; if None, where it says that it is one of offaxis.
    """
    try:
        check_plain(path)
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            kind = metadata.get("format", "")
            ours = kind.startswith("offaxis-") and kind not in UNCHECKED_FORMATS
            check_seal(path, error, remedy, required=ours if required is None else required)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except (SafetensorError, OSError, ValueError) as problem:
        raise error(f"{path} cannot be read as a safetensors file ({problem}): {remedy}.") from problem
    return tensors, metadata


def restore(network: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    """Load saved weights into a network of the same shape, in place.

    Raises:
        CheckpointError: names or shapes differ, or weights are not finite numbers.
    """
    own = network.state_dict()
    finite = {name for name, _ in network.named_parameters()}  # buffers may hold infinity, as masks of attention do
    finite |= {name for name in own if name.endswith(("running_mean", "running_var"))}
    wrong = _compare_shapes(own, weights)
    if not wrong:
        reasons = {name: _why_unusable(weights[name], own[name], name in finite) for name in own}
        wrong = [f"{name} {reason}" for name, reason in reasons.items() if reason]
    if wrong:
        raise CheckpointError(
            f"The weights in {path} do not fit this network: {_first_three(wrong)}. Was it made with another network?"
        )
    network.load_state_dict(weights)


def _compare_shapes(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """Return in words how given weights differ from those of a network, by names and shapes."""
    wrong = [f"{name} is missing" for name in own.keys() - given.keys()]
    wrong += [f"{name} is unknown" for name in given.keys() - own.keys()]
    return wrong + [
        f"{name} has shape {tuple(given[name].shape)} where {tuple(own[name].shape)} was expected"
        for name in own.keys() & given.keys()
        if own[name].shape != given[name].shape
    ]


def _first_three(said: list[str]) -> str:
    return "; ".join(sorted(said)[:3]) + (f"; and {len(said) - 3} more" if len(said) > 3 else "")


def _why_unusable(weight: Tensor, own: Tensor, finite: bool) -> str:
    """Return why a tensor cannot take the place of a network's own; empty where it can."""
    if weight.layout != torch.strided or weight.is_meta or weight.is_quantized:
        return "is no plain tensor with values"
    if own.is_floating_point() and not weight.is_floating_point():
        return f"is of type {weight.dtype}, which holds no real numbers"
    return "has NaN or infinity" if finite and not weight.isfinite().all() else ""


def is_of_classifier(weights: Mapping[str, Tensor]) -> bool:
    """Return whether weights are those of a Classifier, by their names: a backbone's and a head's."""
    return any(n.startswith("head.") for n in weights) and any(n.startswith("backbone.") for n in weights)


def load_weights(
    network: nn.Module, weights: dict[str, Tensor], path: str | Path, output: str | None = None, *, take: bool = False
) -> None:
    """Load weights into a network: its own, or those of the original one that a Classifier was made of.

    Args:
        network: a Classifier, a Paired or an Ensemble.
        weights: by name.
        path: where they are from, for messages.
        output: what the original network calls its output layer; None for the layer that ``attach`` replaced.
        take: load the original output layer into the head; otherwise the head keeps the weights that it has.

    Raises:
        CheckpointError: the weights do not fit.
    """
    if isinstance(network, Classifier) and not is_of_classifier(weights):
        own, backbone = network.state_dict(), network.backbone
        replaced = [name for name, part in backbone.named_modules() if isinstance(part, nn.Identity)]
        counters = [name for name in own if name.endswith("num_batches_tracked")]  # files of before 2018 have none
        named = {n: own[n] for n in own if n in counters or (n.startswith("head.") and not take)}
        for name, tensor in weights.items():
            layer, _, leaf = name.rpartition(".")
            if f"backbone.{name}" in own or layer not in (replaced if output is None else [output]):
                named[f"backbone.{name}"] = tensor
            elif take:
                named[f"head.{leaf}"] = two_rows(tensor) if len(tensor) == 1 else tensor
        weights = named
    restore(network, weights, Path(path))


def trained_channels(network: nn.Module, weights: Mapping[str, Tensor]) -> int | None:
    """Return the number of channels that weights take, where it is not that of the network's first convolution."""
    named = ((name, part) for name, part in network.named_modules() if isinstance(part, nn.Conv2d) and part.groups == 1)
    name, first = next(named, ("", None))
    trained = weights.get(f"{name}.weight", weights.get(f"backbone.{name}.weight"))
    if first is None or trained is None or trained.dim() != 4 or trained.shape[1] == first.in_channels:
        return None
    return trained.shape[1]


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read a file of weights: safetensors, or a state dictionary of PyTorch, read without running code.

    A dictionary that holds the weights under ``state_dict`` or ``model`` is understood, and so are names that begin with
    ``module.`` or ``_orig_mod.``, as those of distributed and of compiled networks do.

    Raises:
        ArgumentError: there is no such file; nothing is downloaded.
        CheckpointError: the file does not hold weights.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise ArgumentError(
            f"Expected a file of weights but {path} is not there. Weights are never downloaded: fetch the file first and name "
            "it (safetensors, or a state dictionary of PyTorch)."
        )
    if file.suffix == ".safetensors":
        return _without_prefix(read_tensors(file)[0], "_orig_mod.")
    try:
        if zipfile.is_zipfile(file):  # torch.load does not look at its checksums
            with zipfile.ZipFile(file) as parts:
                if damaged := parts.testzip():
                    raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")
        loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
    except zipfile.BadZipFile as error:
        raise CheckpointError(f"The weights in {path} are damaged ({error}): get the file again.") from error
    except Exception as error:  # PyTorch raises many kinds of errors for a damaged file
        reason = str(error).strip().split("\n")[0].split(". ")[0][:200]  # torch then tells how to run it all the same
        raise CheckpointError(
            f"The weights in {path} cannot be read without running code of the file ({type(error).__name__}: {reason}). Save "
            "them as safetensors, or as torch.save(network.state_dict(), file)."
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not loaded or not all(isinstance(t, Tensor) for t in loaded.values()):
        raise CheckpointError(
            f"Expected a state dictionary in {path} but it holds something else: save torch.save(network.state_dict(), file)."
        )
    return _without_prefix({str(name): tensor for name, tensor in loaded.items()}, "module.", "_orig_mod.")


def _without_prefix(weights: dict[str, Tensor], *prefixes: str) -> dict[str, Tensor]:
    """Take from the names whatever of the prefixes they all begin with, one inside the other."""
    while weights:
        shared = next((p for p in prefixes if all(name.startswith(p) for name in weights)), None)
        if shared is None:
            break
        weights = {name.removeprefix(shared): tensor for name, tensor in weights.items()}
    return weights


def checksum(network: nn.Module, normalise: object) -> str:
    """Return the SHA-256 of all that a network's outputs depend on: parameters, buffers and normalisation."""
    digest = hashlib.sha256(repr(normalise).encode())
    for name, tensor in sorted(network.state_dict().items()):
        plain = tensor.detach().cpu().contiguous()
        kind = ""
        if plain.dtype == torch.bfloat16:  # which NumPy has not
            kind, plain = "bfloat16 ", plain.view(torch.int16)
        array = plain.numpy()
        digest.update(f"{name} {kind}{array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
