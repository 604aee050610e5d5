"""Build networks from names, of other libraries and from Python files, with weights from a local file."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from offaxis.data import Normalise
from offaxis.errors import ArgumentError, BundleError
from offaxis.files import running_python
from offaxis.heads import HeadLike
from offaxis.names import alike
from offaxis.networks import library
from offaxis.networks.attaching import attach, find_output_layer
from offaxis.networks.cifar import densenet_bc, wide_resnet
from offaxis.networks.classifier import Classifier
from offaxis.networks.convnet import convnet
from offaxis.networks.resnet import (
    OUTPUT_LAYERS,
    from_published,
    is_published,
    published_classes,
    resnet18_32,
    resnet_cifar,
)
from offaxis.networks.weights import is_of_classifier, load_weights, read_weights, restore

PUBLISHED_NORMALISE = {
    ("resnet_cifar", 10): Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ("resnet18_32", 10): Normalise((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ("resnet18_32", 100): Normalise((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}
"""The normalisation that published weights were trained with: by the function of offaxis.networks and the classes."""


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
    if cifar := re.fullmatch(r"resnet(\d+)-cifar", name):
        return partial(resnet_cifar, depth=int(cifar[1]))
    if small := re.fullmatch(r"convnet-(\d+)", name):
        return partial(convnet, width=int(small[1]))
    parts = re.fullmatch(r"(wrn|densenet)-(\d+)-(\d+)(-half)?", name)
    if parts is None:
        raise ArgumentError(
            "Expected a network such as wrn-28-10 (depth, width), densenet-100-12 (depth, growth), resnet18-32, "
            "resnet20-cifar, convnet-256 or, with halved maps, wrn-10-4-half; or a pretrained one, efficientnet-lite0, "
            f"timm:NAME or torchvision:NAME; or file.py:function; but got {name!r}."
            + alike(name, ["efficientnet-lite0", "resnet18-32", "convnet-256"])
        )
    kind, depth, size, half = parts.groups()
    stride = 2 if half else 1
    if kind == "wrn":
        return partial(wide_resnet, depth=int(depth), width=int(size), stem_stride=stride)
    return partial(densenet_bc, depth=int(depth), growth=int(size), stem_stride=stride)


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
    package: str, name: str, options: BuildOptions
) -> tuple[Classifier, library.InputConfig, tuple[str, ...]]:
    """Build a network of timm, torchvision or transformers and give it one of our heads.

    Returns:
        The classifier; the images that it was made for; the names of its classes where the folder of transformers has them.
    """
    classes: tuple[str, ...] = ()
    builder: library.Builder = {"library": package, "name": name, "arguments": {}}
    channels = options.in_channels
    if options.pretrained and options.weights is not None:
        raise ArgumentError("Expected either --pretrained or --weights FILE but got both: leave one of them out.")
    if options.pretrained and package == "transformers":
        raise ArgumentError(f"Expected no --pretrained beside transformers:{name}, whose folder holds the weights.")
    if channels not in (None, 3) and package != "timm":
        raise ArgumentError(
            f"Expected colour images for {package}:{name} but got in_channels={channels}: repeat grey images three times, or "
            "use timm, which has networks for any number of channels."
        )
    if options.head == "keep" and package != "transformers" and not (options.weights or options.pretrained):
        raise ArgumentError(
            f"Expected --weights FILE (or --pretrained) beside {package}:{name}, whose output layer is to be kept: without "
            f"them nothing in it is trained. In Python: open_network('{package}:{name}', head='keep', pretrained=True), or "
            "weights=FILE."
        )
    try:
        if package == "transformers":
            builder, network = library.read_transformers(
                Path(name).expanduser(), None if options.head == "keep" else find_output_layer
            )
            config = library.image_config(Path(name).expanduser())
            classes = library.class_names(builder["arguments"]) if options.num_classes is None else ()
        else:
            if channels is None and package == "timm" and options.weights is not None:
                channels = _channels_of(library.make_network(builder), read_weights(options.weights))
            if channels is not None and package == "timm":
                builder["arguments"] = {"in_chans": channels}
            network = library.make_network(builder, bool(options.pretrained))
            config = library.input_config(package, name, network)
    except BundleError as error:
        raise ArgumentError(f"{package}:{name} cannot be built. {error}") from error
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
