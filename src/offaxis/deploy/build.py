"""Build networks from names, third-party libraries and Python files, with weights from a local file."""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offaxis.data import Normalise
from offaxis.errors import ArgumentError, BundleError, CheckpointError
from offaxis.files import is_regular, running_python
from offaxis.heads import HeadLike
from offaxis.networks import by_name, third_party
from offaxis.networks.attach import attach, find_output_layer
from offaxis.networks.classifier import Classifier
from offaxis.networks.resnet import OUTPUT_LAYERS, from_published, is_published, published_classes
from offaxis.training.checkpoint import read_tensors, restore

LIBRARIES = ("timm", "torchvision", "transformers")
"""Prefixes of third-party networks, as in ``timm:resnet18``."""
INSTALLED = {third_party.LITE_NETWORK: third_party.LITE}
"""Networks that are named without their library: their pretrained weights install with it, and are always read."""
_MAX_JSON = 16 * 2**20


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """The options of ``open_network`` that apply to a network that is built, not opened.

    Attributes:
        weights: a file of weights.
        pretrained: let the library fetch its published weights.
        num_classes: number of classes of the head.
        head: the head that the network gets.
        in_channels: number of channels of the images.
    """

    weights: str | Path | None = None
    pretrained: bool | None = None
    num_classes: int | None = None
    head: HeadLike | None = None
    in_channels: int | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The options that are not None, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def refuse(self, what: str) -> None:
        """Raise ArgumentError where an option is given, which does not apply to ``what``."""
        if self.given:
            raise ArgumentError(
                f"Expected no {', '.join(self.given)} beside {what}, which has its own: leave "
                f"{'it' if len(self.given) == 1 else 'them'} out."
            )


PUBLISHED_NORMALISE = {
    ("resnet_cifar", 10): Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ("resnet18_32", 10): Normalise((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ("resnet18_32", 100): Normalise((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}
"""The normalisation that published weights were trained with: by the function of offaxis.networks and the classes."""


def build_named(name: str, options: BuildOptions) -> tuple[Classifier, Normalise | None]:
    """Build a network of offaxis.networks from its short name.

    Published weights (with the names of ``offaxis.networks.resnet``) bring their output layer and its number of classes; the
    head is then linear unless another is named. With the head ``keep`` it is linear too, and all weights must be there.

    Returns:
        The classifier; its normalisation where published weights have a known one.
    """
    make, num_classes, head = by_name(name), options.num_classes, options.head
    weights = None if options.weights is None else read_weights(options.weights)
    published = weights is not None and is_published(weights)
    function = getattr(make, "func", make).__name__
    if weights is not None and published and (found := published_classes(function, weights)) is not None:
        num_classes, head = num_classes or found, "linear" if head in (None, "keep") else head
    if head == "keep":
        head = "linear"
        if weights is None:
            raise ArgumentError(
                f"Expected --weights FILE, the trained weights of {name}, whose output layer is to be kept."
            )
    if num_classes is None and weights is not None and "head.weight" in weights:
        num_classes = len(weights["head.weight"])
    if num_classes is None:
        raise ArgumentError(f"Expected the number of classes of {name}: open_network({name!r}, num_classes=10).")
    classifier = make(num_classes=num_classes, head=head or "cosine", in_channels=options.in_channels or 3)
    if weights is None:
        return classifier, None
    if options.in_channels is None and (channels := _channels_of(classifier, weights)) is not None:
        classifier = make(num_classes=num_classes, head=head or "cosine", in_channels=channels)
    known = published and function in OUTPUT_LAYERS
    restore(classifier, from_published(classifier, weights) if known else weights, Path(str(options.weights)))
    return classifier, PUBLISHED_NORMALISE.get((function, num_classes)) if known else None


def build_third_party(
    library: str, name: str, options: BuildOptions
) -> tuple[Classifier, third_party.InputConfig, tuple[str, ...]]:
    """Build a network of timm, torchvision or transformers and give it one of our heads.

    Returns:
        The classifier; the images that it was made for; the names of its classes where the folder of transformers has them.
    """
    classes: tuple[str, ...] = ()
    builder: third_party.Builder = {"library": library, "name": name, "arguments": {}}
    channels = options.in_channels
    if options.pretrained and options.weights is not None:
        raise ArgumentError("Expected either --pretrained or --weights FILE but got both: leave one of them out.")
    if options.pretrained and library == "transformers":
        raise ArgumentError(f"Expected no --pretrained beside transformers:{name}, whose folder holds the weights.")
    if channels not in (None, 3) and library != "timm":
        raise ArgumentError(
            f"Expected colour images for {library}:{name} but got in_channels={channels}: repeat grey images three times, or "
            "use timm, which has networks for any number of channels."
        )
    if options.head == "keep" and library != "transformers" and not (options.weights or options.pretrained):
        raise ArgumentError(
            f"Expected --weights FILE (or --pretrained) beside {library}:{name}, whose output layer is to be kept: without "
            f"them nothing in it is trained. In Python: open_network('{library}:{name}', head='keep', pretrained=True), or "
            "weights=FILE."
        )
    try:
        if library == "transformers":
            builder, network = _read_transformers(Path(name).expanduser(), keep=options.head == "keep")
            config = _image_config(Path(name).expanduser())
            classes = _class_names(builder["arguments"]) if options.num_classes is None else ()
        else:
            if channels is None and library == "timm" and options.weights is not None:
                channels = _channels_of(third_party.make_network(builder), read_weights(options.weights))
            if channels is not None and library == "timm":
                builder["arguments"] = {"in_chans": channels}
            network = third_party.make_network(builder, bool(options.pretrained))
            config = third_party.input_config(library, name, network)
    except BundleError as error:
        raise ArgumentError(f"{library}:{name} cannot be built. {error}") from error
    classifier = attach_head(network, options)
    classifier.builder = builder
    if config.normalise is not None and len(config.normalise.mean) != (channels or 3):
        config = replace(config, normalise=None)
    return classifier, config, classes


def _channels_of(network: nn.Module, weights: Mapping[str, Tensor]) -> int | None:
    """Return the number of channels that trained weights take, by those of the network's first convolution."""
    named = ((name, part) for name, part in network.named_modules() if isinstance(part, nn.Conv2d) and part.groups == 1)
    name, first = next(named, ("", None))
    trained = weights.get(f"{name}.weight", weights.get(f"backbone.{name}.weight"))
    if first is None or trained is None or trained.dim() != 4 or trained.shape[1] == first.in_channels:
        return None
    return trained.shape[1]


def attach_head(network: nn.Module, options: BuildOptions) -> Classifier:
    """Replace the output layer of a network by the head of the options (by default the cosine), and load weights.

    With the head ``keep`` the weights are those of the whole network; its output layer takes their number of classes.
    """
    if options.head == "keep" and options.weights is not None:
        return _load_kept(network, options)
    classifier = attach(network, options.head or "cosine", options.num_classes)
    if options.weights is not None:
        load_weights(classifier, options.weights)
    return classifier


def _load_kept(network: nn.Module, options: BuildOptions) -> Classifier:
    """Load the weights of a whole trained network, or of a Classifier that was made of it, and keep its output layer."""
    assert options.weights is not None
    weights, path = read_weights(options.weights), Path(options.weights)
    name = find_output_layer(network)
    layer = network.get_submodule(name)
    own = is_of_classifier(weights)
    trained = weights.get("head.weight" if own else f"{name}.weight")
    if trained is not None and isinstance(layer, nn.Linear) and len(trained) != layer.out_features:
        parent, _, child = name.rpartition(".")
        fresh = nn.Linear(layer.in_features, len(trained), bias=layer.bias is not None)
        setattr(network.get_submodule(parent), child, fresh)
    if not own:
        restore(network, weights, path)
    classifier = attach(network, "keep", options.num_classes, layer=name)
    if own:
        restore(classifier, weights, path)
    return classifier


def is_of_classifier(weights: Mapping[str, Tensor]) -> bool:
    """Return whether weights are those of a Classifier, by their names: a backbone's and a head's."""
    return any(n.startswith("head.") for n in weights) and any(n.startswith("backbone.") for n in weights)


def load_weights(classifier: Classifier, path: str | Path) -> None:
    """Load weights of an attached network: all of them, or those of the original network with its own output layer.

    The weights of the replaced output layer are left out, and the head keeps its fresh weights.

    Raises:
        CheckpointError: the weights do not fit.
    """
    weights = read_weights(path)
    if weights.keys() & {f"head.{name}" for name in classifier.head.state_dict()} and any(
        name.startswith("backbone.") for name in weights
    ):
        restore(classifier, weights, Path(path))
        return
    backbone = classifier.backbone
    replaced = {name for name, module in backbone.named_modules() if isinstance(module, nn.Identity)}
    own = backbone.state_dict()
    kept = {name: t for name, t in weights.items() if name in own or name.rpartition(".")[0] not in replaced}
    restore(backbone, kept, Path(path))


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
        loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
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


def call_function(file: Path, name: str, options: BuildOptions) -> tuple[Any, dict[str, Any]]:
    """Run a Python file and return the result of one of its functions, and the options that it did not take.

    Args:
        file: the Python file; modules beside it can be imported.
        name: the function; if empty, the one called ``network``, or the only one.
        options: those of ``num_classes``, ``head``, ``in_channels`` and ``pretrained`` that are given are passed on by name,
            as far as the function takes them.

    Raises:
        ArgumentError: there is no such file or function, or it fails.
    """
    passed = {key: value for key, value in options.given.items() if key != "weights"}
    with running_python(file, "network") as module:
        function = _find_function(file, module, name)
        taken = inspect.signature(function).parameters.keys() & passed.keys()
        result = function(**{key: passed[key] for key in taken})
        return result, {key: value for key, value in passed.items() if key not in taken}


def _find_function(file: Path, module: Any, name: str) -> Callable[..., Any]:
    own = {
        n: f
        for n, f in inspect.getmembers(module, inspect.isfunction)
        if f.__module__ == module.__name__ and not n.startswith("_")
    }
    chosen = name or ("network" if "network" in own else next(iter(own)) if len(own) == 1 else "")
    if chosen not in own:
        raise ArgumentError(
            f"Expected a function that returns a network in {file} but it has {', '.join(own) or 'none'}: name one as "
            f"{file}:FUNCTION, or call it `network`."
        )
    return own[chosen]


def _read_transformers(folder: Path, keep: bool) -> tuple[third_party.Builder, nn.Module]:
    """Return the builder and the network, with its weights, of a folder that ``save_pretrained`` wrote.

    All weights must be there: transformers itself would draw those that are missing. Those of the output layer may be
    missing unless it is to be kept.
    """
    config = _read_json(folder / "config.json")
    if config is None:
        raise ArgumentError(
            f"Expected a local folder with config.json, as save_pretrained writes it, but {folder} has none. Nothing is "
            "downloaded: fetch the model first, huggingface-cli download NAME --local-dir FOLDER."
        )
    names = config.get("architectures") or [""]
    builder: third_party.Builder = {"library": "transformers", "name": str(names[0]), "arguments": config}
    with torch.device("meta"):
        kind: Any = type(third_party.make_network(builder))  # refuses configurations that would fetch or run something
    try:
        network, about = kind.from_pretrained(
            str(folder), local_files_only=True, weights_only=True, output_loading_info=True
        )
    except Exception as error:  # transformers, PyTorch and safetensors raise many kinds of errors for damaged files
        reason = str(error).strip().split("\n")[0][:200]
        raise CheckpointError(f"The weights in {folder} cannot be read ({type(error).__name__}: {reason}).") from error
    replaced = None if keep else find_output_layer(network)
    missing = sorted(name for name in about["missing_keys"] if name.rpartition(".")[0] != replaced)
    if missing:
        raise CheckpointError(
            f"The weights in {folder} are not whole: {missing[0]} is missing, one of {len(missing)}. Fetch the model again, or "
            "name a folder of this architecture."
        )
    loaded = json.loads(kind.config_class.from_dict(config).to_json_string(use_diff=False))
    loaded.pop("_name_or_path", None)
    return {**builder, "arguments": loaded}, network


def _image_config(folder: Path) -> third_party.InputConfig:
    """Return size, mean and standard deviation of ``preprocessor_config.json``, as far as they are there."""
    config = _read_json(folder / "preprocessor_config.json") or {}
    mean, std = config.get("image_mean"), config.get("image_std")
    normalise = None
    if config.get("do_normalize") is False:
        normalise = Normalise((0.0,) * 3, (1.0,) * 3)
    elif isinstance(mean, list) and isinstance(std, list):
        try:
            normalise = Normalise(tuple(map(float, mean)), tuple(map(float, std)))
        except (TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(f"Expected numbers in {folder / 'preprocessor_config.json'} ({error}).") from error
    size: Any = (config.get("do_center_crop") and config.get("crop_size")) or config.get("size")
    if size is None:
        size = (_read_json(folder / "config.json") or {}).get("image_size")
    if isinstance(size, Mapping):
        sides = [size.get("height", size.get("shortest_edge")), size.get("width", size.get("shortest_edge"))]
    else:
        sides = list(size) if isinstance(size, list) else [size, size]
    whole = len(sides) == 2 and all(isinstance(side, int) and side > 0 for side in sides)
    return third_party.InputConfig((sides[0], sides[1]) if whole else None, normalise)


def _class_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    names = config.get("id2label") or {}
    try:
        return tuple(str(names[key]) for key in sorted(names, key=int))
    except (TypeError, ValueError, KeyError) as error:
        raise ArgumentError(f"Expected names by number in `id2label` of config.json but got {names!r:.60}.") from error


def _read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file of a model's folder; None where there is no such file."""
    if not is_regular(path):
        return None
    try:
        if path.stat().st_size > _MAX_JSON:
            raise ValueError(f"it has more than {_MAX_JSON:,} bytes")
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no object")
    except (OSError, ValueError, RecursionError) as error:
        raise ArgumentError(f"{path} is damaged ({error}): fetch the model again.") from error
    return found
