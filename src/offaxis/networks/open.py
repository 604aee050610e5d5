"""Open a network from any source, and combine several into one.

``open_network`` takes a name (``wrn-28-10``), ``timm:NAME``, ``torchvision:NAME``, ``transformers:FOLDER``, a function of a
Python file (``file.py:function``), the folder of a training run, a bundle, or an object. ``combine`` makes an ensemble, a
pair or a leave-out ensemble of several.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from torch import nn

from offaxis.data import Normalise
from offaxis.data.transforms import Preprocessing
from offaxis.errors import ArgumentError
from offaxis.files import running_python
from offaxis.heads import HEADS, HeadLike, describe_head, make_head
from offaxis.names import NETWORKS, alike
from offaxis.networks.attaching import attach, find_output_layer
from offaxis.networks.classifier import Classifier
from offaxis.networks.combine import AnyNetwork, Ensemble, LeaveOutEnsemble, Paired, find_network, folds
from offaxis.networks.library import INSTALLED, LIBRARIES, make_named, make_network
from offaxis.networks.opened import LEAVE_OUT, NAMES, OpenedNetwork, check_agreement, check_folds
from offaxis.networks.resnet import OUTPUT_LAYERS, PUBLISHED_NORMALISE
from offaxis.networks.saved import is_of_classifier, load_weights, read_weights, trained_channels


@runtime_checkable
class HasNetwork(Protocol):
    """A trained or a calibrated network, such as the result of ``train`` or a Model, that says how it is opened."""

    def opened(self) -> OpenedNetwork:
        """Return its network with what is known of it."""


NetworkSource = str | Path | nn.Module | HasNetwork | OpenedNetwork
"""What ``open_network`` takes."""
_PYTHON = re.compile(r"(.+\.py)(?::(\w+))?", re.DOTALL)


def open_network(
    source: NetworkSource,
    *,
    label: str | None = None,
    seed: int | None = None,
    weights: str | Path | None = None,
    pretrained: bool = False,
    num_classes: int | None = None,
    head: HeadLike | None = None,
    in_channels: int | None = None,
    network: NetworkSource | None = None,
) -> OpenedNetwork:
    """Open a network. Nothing is downloaded without ``pretrained``: weights come from the source itself or from a file.

    Args:
        source: one of

            - a name of offaxis.networks: ``wrn-28-10``, ``densenet-100-12`` (with ``num_classes``); ``resnet18-32``,
              ``resnet20-cifar``, ``resnet56-cifar``, which also read published weights, output layer included;
            - ``timm:NAME``, ``torchvision:NAME`` (fresh weights unless ``weights`` is given), ``transformers:FOLDER`` (a
              local folder that ``save_pretrained`` wrote, with its weights); their output layer is replaced by ``head``;
            - ``file.py:function``, or ``file.py`` with one function or one that is called ``network``: it returns a
              Classifier, a Paired or an Ensemble, alone or with its Normalise or Preprocessing; any other module, whose
              output layer is replaced, where ``head`` or ``num_classes`` is given; or the result of ``train``. The options
              below are passed to it as far as it has arguments of these names;
            - the folder of a finished training run, or a bundle;
            - a Classifier, Paired, Ensemble, Trained, Model or OpenedNetwork; any other module needs ``head``.
        label: the name in tables; None makes one from the architecture, the head and the recipe.
        seed: of its training, by which tables tell networks of one label apart; None for the recorded one, else 0.
        weights: a file of weights: safetensors, or a state dictionary of PyTorch (read with ``weights_only=True``).
        pretrained: let timm or torchvision fetch their published weights.
        num_classes: number of classes of the head; None keeps that of the third-party network.
        head: ``"cosine"`` (the default for named networks), another name of ``offaxis.heads.HEADS``, a callable, or
            ``"keep"``: the trained output layer as it is, with the weights of the whole network.
        in_channels: 3 for colour, 1 for grey; None is 3.
        network: of a run or a bundle whose network Python code had made: that network, which gets the weights: a Classifier,
            a module, which gets the recorded head, or ``file.py:function``.

    Returns:
        The network, in eval mode where it was opened or built; an object keeps its train or eval mode.

    Raises:
        ArgumentError: the source is none of these, or an option does not apply to it.
        AttachError: the output layer of a third-party network cannot be replaced.
        RunError, BundleError, CheckpointError: a run, a bundle or a file of weights is damaged or does not fit.
        MissingPackageError: the library that makes the network is not installed.
    """
    options = _Options(weights, pretrained or None, num_classes, head, in_channels)
    if network is not None and (not isinstance(source, (str, Path)) or not _is_recorded(str(source))):
        raise ArgumentError(f"Expected a run or a bundle beside `network` but got {source!r:.60}: leave `network` out.")
    if isinstance(source, (str, Path)):
        opened = _open_path(str(source), options, network)
        opened.network.eval()  # one that is given may be in training still, and eval_mode puts its mode back
    else:
        opened = _open_object(source, options)
    if label is None and seed is None:
        return opened
    return replace(opened, label=label or opened.label, seed=opened.seed if seed is None else seed)


def open_for_weights(source: NetworkSource, num_classes: int, head: dict[str, Any] | None) -> OpenedNetwork:
    """Open a network that the weights of a run or a bundle are put into.

    Args:
        source: whatever ``open_network`` takes; a function of a Python file is told the classes and the head.
        num_classes: of the run or bundle; 0 where they are not known.
        head: name and arguments of its head, as run.json and bundles record them; None where they are not known.
    """
    bare = isinstance(source, nn.Module) and not any(isinstance(part, AnyNetwork) for part in source.modules())
    if not bare and (not isinstance(source, (str, Path)) or _PYTHON.fullmatch(str(source)) is None):
        return open_network(source)
    arguments = dict(head or {})
    make = HEADS.get(arguments.pop("name", ""))
    made = None if make is None else partial(make, **arguments)
    return open_network(source, num_classes=num_classes or None, head=made)


def open_runs(paths: Sequence[str], network: str | None) -> list[NetworkSource]:
    """Return networks as ``open_network`` takes them; runs and bundles of an own network with their weights.

    Args:
        paths: folders of training runs, bundles and so on.
        network: ``file.py:function`` that makes the network of the runs; None where they can be opened without.

    Raises:
        ArgumentError: the function does not make a Classifier.
    """
    return [path if network is None else _read_recorded(path, network) for path in paths]


def combine(members: Sequence[NetworkSource], kind: str = "ensemble", label: str | None = None) -> OpenedNetwork:
    """Combine networks into one.

    Args:
        members: whatever ``open_network`` takes. For a pair, first the network that predicts the class, then the one whose
            cosine is the detection score; for leave-out networks, in the order of their folds, as ``offaxis train
            --leave-out 0/N`` to ``N-1/N`` made them.
        kind: ``"ensemble"`` (cosines and probabilities are averaged), ``"paired"``, ``"leave-out"``, or ``"single"`` for
            one network as it is.
        label: the name in tables; None makes one from the members' labels.

    Raises:
        ArgumentError: an unknown kind, too few or too many members, members in another order, or members that differ in
            their classes, their normalisation or the set that they were trained on.
    """
    count = len(members)
    fits = {"single": count == 1, "paired": count == 2, "ensemble": count > 1, "leave-out": count > 1}
    if not fits.get(kind):
        raise ArgumentError(
            f"Expected one network (single), two (paired: the first predicts the class, the second gives the detection score) "
            "or several (ensemble: cosines and probabilities are averaged; leave-out) but got "
            f"{count} as {kind!r}; in the shell: --as ensemble."
        )
    opened = [open_network(member, head="keep") for member in members]
    first, main = opened[0], opened[1 if kind == "paired" else 0]
    if kind == "single":
        return first if label is None else replace(first, label=label)
    names = [_name(source, number) for number, source in enumerate(members, 1)]
    check_agreement(opened, names, kind)
    made = f"{first.label} + {main.label}" if kind == "paired" else f"{first.label} x{len(members)}"
    if kind == "leave-out" and not first.trained_without_classes:
        made = f"{first.label}{LEAVE_OUT} x{len(members)}"
    combined = _combined(opened, names, kind)
    if not any(module.training for member in opened for module in member.network.modules()):
        combined.eval()  # members that are trained still keep their modes
    return replace(
        main,
        network=combined,
        normalise=next((m.normalise for m in opened if m.normalise is not None), None),
        classes=next((m.classes for m in opened if m.classes), ()),
        label=label or made,
        origin=", ".join(m.origin for m in opened),
        members=tuple(m.origin for m in opened),
        command=None,
        member_commands=tuple(tuple(m.command) for m in opened if m.command),
    )


def _combined(opened: Sequence[OpenedNetwork], names: Sequence[str], kind: str) -> AnyNetwork:
    networks: list[Any] = [member.network for member in opened]  # a pair and an ensemble refuse what they do not take
    if kind == "paired":
        return Paired(*networks)
    if kind == "ensemble":
        return Ensemble(networks)
    left_out = folds(networks[0].num_classes, len(networks))
    check_folds([(name, member.settings.get("loss")) for name, member in zip(names, opened, strict=True)], left_out)
    return LeaveOutEnsemble(networks, left_out)


def _name(source: NetworkSource, number: int) -> str:
    """Return what messages call a member: its path where it has one."""
    if isinstance(source, (str, Path)):
        return str(source)
    path = getattr(source, "folder", None) or getattr(source, "origin", None)
    return str(path) if path and not isinstance(source, nn.Module) else f"network {number}"


# networks by name ----------------------------------------------------------------------------------------------------


def by_name(name: str) -> Callable[..., Classifier]:
    """Return the function that makes the network of a name: ``wrn-28-10``, ``densenet-100-12``, ``resnet18-32``.

    The numbers are depth and width, or depth and growth; ``-half`` adds a stride of 2 in the first convolution, which
    makes a network about four times faster. ``resnet18-32`` is OpenOOD's network, ``resnet20-cifar`` and ``resnet56-cifar``
    (6n + 2) are those of He et al. for CIFAR.

    Examples:
        >>> by_name("wrn-10-2-half")(num_classes=10).backbone.num_features
        128
    """
    if (parsed := _parse_name(name)) is None:
        raise ArgumentError(
            "Expected a network such as wrn-28-10 (depth, width), densenet-100-12 (depth, growth), resnet18-32, "
            "resnet20-cifar, convnet-256 or, with halved maps, wrn-10-4-half; or a pretrained one, efficientnet-lite0, "
            f"timm:NAME or torchvision:NAME; or file.py:function; but got {name!r}."
            + alike(name, ["efficientnet-lite0", "resnet18-32", "convnet-256"])
        )
    function, sizes = parsed
    return partial(NETWORKS[function], **sizes)


def _parse_name(name: str) -> tuple[str, dict[str, int]] | None:
    """Return the function of offaxis.networks that a name stands for, and its sizes."""
    for function, template in NAMES.items():
        pattern = re.sub(r"{(\w+)}", r"(?P<\1>\\d+)", template.replace("{half}", "(?P<half>-half)?"))
        if found := re.fullmatch(pattern, name):
            parts = found.groupdict()
            half = {"stem_stride": 2} if parts.pop("half", None) else {}
            return function, {**{key: int(size) for key, size in parts.items()}, **half}
    return None


# sources -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Options:
    """The options of ``open_network`` that apply to a network that is built, not opened."""

    weights: str | Path | None
    pretrained: bool | None
    num_classes: int | None
    head: HeadLike | None
    in_channels: int | None

    @property
    def given(self) -> dict[str, Any]:
        """The options that are given, by name; what is opened and not built keeps its head anyway."""
        return {name: value for name, value in vars(self).items() if value is not None and value != "keep"}

    def refuse(self, what: str) -> None:
        """Raise ArgumentError where an option is given, which does not apply to ``what``."""
        if self.given:
            raise ArgumentError(
                f"Expected no {', '.join(self.given)} beside {what}, which has its own: leave "
                f"{'it' if len(self.given) == 1 else 'them'} out."
            )


def _is_recorded(text: str) -> bool:
    """Return whether a text names a run or a bundle."""
    return text.startswith("hf:") or text.endswith(".oax") or Path(text).is_dir()


def _open_path(text: str, options: _Options, network: NetworkSource | None) -> OpenedNetwork:
    path = Path(text)
    if (python := _PYTHON.fullmatch(text)) and not path.is_dir():
        return _open_file(Path(python[1]), python[2] or "", options)
    package, colon, name = text.partition(":")
    if text in INSTALLED:
        package, name = INSTALLED[text], text
        options = replace(options, pretrained=options.weights is None)
    if text in INSTALLED or (colon and package in LIBRARIES):
        return _open_library(package, name, options)
    if text.startswith("hf:") or path.suffix == ".oax" or (path / "bundle.json").exists():
        options.refuse(f"the bundle {text}")
        return replace(_read_recorded(text, network).opened(), label=path.stem, origin=path.name)
    if path.is_dir() and ((path / "run.json").exists() or _parse_name(text) is None):
        options.refuse(f"the training run {text}")
        return _read_recorded(text, network).opened()
    if _parse_name(text) is not None:
        return _open_named(text, options)
    raise ArgumentError(
        "Expected a network by name (wrn-28-10, densenet-100-12, resnet18-32, efficientnet-lite0, timm:NAME, torchvision:NAME, "
        "transformers:FOLDER), the folder of a training run, a bundle (x.oax) or a Python file (file.py or file.py:function) "
        f"but got {text}, which is {'none of these' if path.exists() else 'not there'}."
    )


def _read_recorded(path: str, network: NetworkSource | None = None) -> HasNetwork:
    """Read a run or a bundle, by the rooms below this one, which wrote it."""
    if Path(path).is_dir() and not (Path(path) / "bundle.json").exists():
        from offaxis.training.record import load_run

        return load_run(path, network)
    from offaxis.bundle import load

    return load(path, network)


def _open_object(source: NetworkSource, options: _Options) -> OpenedNetwork:
    if isinstance(source, nn.Module):
        bare = not any(isinstance(part, AnyNetwork) for part in source.modules())
        if bare and options.head is not None:
            return OpenedNetwork(network=_attach(source, options))
        source = OpenedNetwork(network=find_network(source))
    options.refuse("a network that is made already")
    if isinstance(source, OpenedNetwork):
        return source
    if isinstance(source, HasNetwork):
        return source.opened()
    raise ArgumentError(
        f"Expected a path, a name or a network but got a {type(source).__name__}: call a function and give what it returns; "
        "see offaxis.open_network for what it takes."
    )


def _open_file(file: Path, name: str, options: _Options) -> OpenedNetwork:
    with running_python(file, "network") as module:
        function = _find_function(file, module, name)
        left = {key: value for key, value in options.given.items() if key != "weights"}
        taken = inspect.signature(function).parameters.keys() & left.keys()
        result = function(**{key: left.pop(key) for key in taken})
    known: Normalise | Preprocessing | None = None
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Normalise | Preprocessing):
        result, known = result
    if isinstance(result, AnyNetwork | HasNetwork):
        opened = open_network(result)
        if options.weights is not None:
            load_weights(opened.network, read_weights(options.weights), options.weights)
    elif isinstance(result, nn.Module) and (options.num_classes is not None or options.head is not None):
        opened = OpenedNetwork(network=_attach(result, options))
        left.pop("head", None)
    else:
        raise ArgumentError(
            f"Expected {file} to return an offaxis Classifier, Paired or Ensemble (offaxis.attach makes one of any "
            f"network), alone or with its Normalise or Preprocessing, but it returned a {type(result).__name__}. Any other "
            "module will do where a head is to be trained."
        )
    _check_left(file, opened.network, left)
    opened = replace(opened, label=file.stem, origin=file.name)
    if isinstance(known, Preprocessing):
        return replace(opened, normalise=known.normalise, size=known.shape[1:], resize=known.resize)
    return opened if known is None else replace(opened, normalise=known)


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


def _check_left(file: Path, network: AnyNetwork, left: dict[str, Any]) -> None:
    """Refuse options that a function did not take, unless its network is what they ask for anyway."""
    classes = left.pop("num_classes", network.num_classes)
    if classes != network.num_classes:
        raise ArgumentError(
            f"Expected a network for {classes} classes but that of {file} has {network.num_classes}: give its function an "
            "argument num_classes."
        )
    if getattr(network, "in_channels", None) in (None, left.get("in_channels")):
        left.pop("in_channels", None)
    if isinstance(network, Classifier) and "head" in left and (own := describe_head(network.head)) is not None:
        asked = make_head(left["head"], network.head.in_features, classes)
        left = {key: value for key, value in left.items() if key != "head" or describe_head(asked) != own}
    if left:
        raise ArgumentError(
            f"Expected no {', '.join(sorted(left))} beside {file}, which has its own: leave it out, or give its function an "
            "argument of that name."
        )


def _open_named(name: str, options: _Options) -> OpenedNetwork:
    """Build a network of offaxis.networks.

    Published weights bring their output layer and its number of classes; the head is then linear unless another is named.
    With the head ``keep`` it is linear too, and all weights must be there.
    """
    make, (function, _) = by_name(name), cast("tuple[str, dict[str, int]]", _parse_name(name))
    weights = {} if options.weights is None else read_weights(options.weights)
    published = OUTPUT_LAYERS.get(function) if "conv1.weight" in weights else None
    output = weights.get(f"{published}.weight" if published else "head.weight")
    head = options.head or ("linear" if published and output is not None else "cosine")
    if head == "keep":
        head = "linear"
        if not weights:
            raise ArgumentError(
                f"Expected --weights FILE, the trained weights of {name}, whose output layer is to be kept."
            )
    num_classes = options.num_classes or (None if output is None else len(output))
    if num_classes is None:
        raise ArgumentError(f"Expected the number of classes of {name}: open_network({name!r}, num_classes=10).")
    classifier = make(num_classes=num_classes, head=head, in_channels=options.in_channels or 3)
    if options.weights is None:
        return OpenedNetwork(network=classifier, origin=name)
    if options.in_channels is None and (channels := trained_channels(classifier, weights)) is not None:
        classifier = make(num_classes=num_classes, head=head, in_channels=channels)
    linear = classifier.head.state_dict().keys() == {"weight", "bias"}
    load_weights(classifier, weights, options.weights, published, take=linear)
    normalise = PUBLISHED_NORMALISE.get((function, num_classes)) if published else None
    return OpenedNetwork(network=classifier, normalise=normalise, origin=name)


def _open_library(package: str, name: str, options: _Options) -> OpenedNetwork:
    """Build a network of timm, torchvision or transformers and give it one of our heads."""
    channels, weights, keep = options.in_channels, options.weights, options.head == "keep"
    own = weights is not None or package == "transformers"
    if options.pretrained and own:
        raise ArgumentError(
            f"Expected no --pretrained beside {package}:{name} and its weights in a file: leave it out."
        )
    if channels not in (None, 3) and package != "timm":
        raise ArgumentError(
            f"Expected colour images for {package}:{name} but got in_channels={channels}: repeat grey images three times, or "
            "use timm, which has networks for any number of channels."
        )
    if keep and not (own or options.pretrained):
        raise ArgumentError(
            f"Expected --weights FILE (or --pretrained) beside {package}:{name}, whose output layer is to be kept: without "
            "them nothing in it is trained."
        )
    if channels is None and package == "timm" and weights is not None:
        channels = trained_channels(make_network({"library": package, "name": name}), read_weights(weights))
    builder, network, known = make_named(package, name, bool(options.pretrained), channels, keep)
    classifier = _attach(network, options)
    classifier.builder = builder
    fits = known.normalise is not None and len(known.normalise.mean) == (channels or 3)
    return OpenedNetwork(
        network=classifier,
        normalise=known.normalise if fits else None,
        size=known.size,
        classes=known.classes if options.num_classes is None else (),
        origin=name if name in INSTALLED else f"{package}:{name}",
    )


def _attach(network: nn.Module, options: _Options) -> Classifier:
    """Give a network the head of the options (by default the cosine), and load weights.

    With the head ``keep`` the weights are those of the whole network; its output layer takes their number of classes.
    """
    if options.weights is None:
        return attach(network, options.head or "cosine", options.num_classes)
    weights, keep = read_weights(options.weights), options.head == "keep"
    if keep:
        layer = find_output_layer(network)
        old = network.get_submodule(layer)
        trained = weights.get("head.weight" if is_of_classifier(weights) else f"{layer}.weight")
        if trained is not None and isinstance(old, nn.Linear) and len(trained) != old.out_features:
            parent, _, child = layer.rpartition(".")
            fresh = nn.Linear(old.in_features, len(trained), bias=old.bias is not None)
            setattr(network.get_submodule(parent), child, fresh)
    classifier = attach(network, options.head or "cosine", options.num_classes)
    load_weights(classifier, weights, options.weights, take=keep)
    return classifier
