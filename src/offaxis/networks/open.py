"""Open a network from any source, and combine several into one.

``open_network`` takes a name (``wrn-28-10``), ``timm:NAME``, ``torchvision:NAME``, ``transformers:FOLDER``, a function of a
Python file (``file.py:function``), the folder of a training run, a bundle, or an object. ``combine`` makes an ensemble, a
pair or a leave-out ensemble of several.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from offaxis.data import Normalise
from offaxis.data.transforms import Preprocessing
from offaxis.errors import ArgumentError
from offaxis.heads import HEADS, HeadLike, describe_head, make_head
from offaxis.networks.builders import (
    BuildOptions,
    attach_head,
    build_named,
    build_third_party,
    by_name,
    call_function,
)
from offaxis.networks.classifier import Classifier
from offaxis.networks.combine import AnyNetwork, find_network
from offaxis.networks.library import INSTALLED, LIBRARIES
from offaxis.networks.opened import KINDS, OpenedNetwork, check_agreement, combined_label
from offaxis.networks.run import resolve_device
from offaxis.networks.weights import load_weights, read_weights, restore


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
    device: str | torch.device | None = None,
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
        device: where to put the network: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"mps"``. None leaves it where it is.

    Returns:
        The network, in eval mode where it was opened or built; an object keeps its train or eval mode.

    Raises:
        ArgumentError: the source is none of these, or an option does not apply to it.
        AttachError: the output layer of a third-party network cannot be replaced.
        RunError, BundleError, CheckpointError: a run, a bundle or a file of weights is damaged or does not fit.
        MissingPackageError: the library that makes the network is not installed.
    """
    options = BuildOptions(
        weights=weights, pretrained=pretrained or None, num_classes=num_classes, head=head, in_channels=in_channels
    )
    opened = _open_path(str(source), options) if isinstance(source, (str, Path)) else _open_object(source, options)
    if label is not None or seed is not None:
        opened = replace(opened, label=label or opened.label, seed=opened.seed if seed is None else seed)
    if device is not None:
        opened.network.to(resolve_device(device))
    if isinstance(source, (str, Path)):
        opened.network.eval()  # one that is given may be in training still, and eval_mode puts its mode back
    return opened


def open_for_weights(source: NetworkSource, num_classes: int, head: dict[str, Any] | None) -> OpenedNetwork:
    """Open a network that the weights of a run or a bundle are put into.

    Args:
        source: whatever ``open_network`` takes; a function of a Python file is told the classes and the head.
        num_classes: of the run or bundle; 0 where they are not known.
        head: name and arguments of its head, as run.json and bundles record them; None where they are not known.
    """
    if not isinstance(source, (str, Path)) or _PYTHON.fullmatch(str(source)) is None:
        return open_network(source)
    arguments = dict(head or {})
    make = HEADS.get(arguments.pop("name", ""))
    made = None if make is None else partial(make, **arguments)
    return open_network(source, num_classes=num_classes or None, head=made)


def open_trained(source: NetworkSource, **options: Any) -> OpenedNetwork:
    """Open a network that is used as it was trained: one that is built by name, or a bare module, keeps its output layer.

    Args:
        source: as in ``open_network``; any module whose output is a linear layer's will do.
        options: those of ``open_network``, without ``head``.
    """
    return open_network(source, head="keep" if _is_built(source) else None, **options)


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
    if kind not in KINDS:
        raise ArgumentError(f"Expected networks combined as {', '.join(KINDS)} (--as in the shell) but got {kind!r}.")
    make, least, most = KINDS[kind]
    if not least <= len(members) <= (most or len(members)):
        count = f"{least}" if least == most else f"at least {least}"
        raise ArgumentError(
            f"Expected {count} network{'s' if least > 1 else ''} to combine as {kind} but got {len(members)}. Several are "
            "combined as ensemble (cosines and probabilities are averaged), as paired (the first predicts the class, the "
            "second gives the detection score) or as leave-out; in the shell: --as ensemble."
        )
    opened = [open_trained(member) for member in members]
    if kind == "single":
        return opened[0] if label is None else replace(opened[0], label=label)
    names = [_name(source, number) for number, source in enumerate(members, 1)]
    check_agreement(opened, names, kind)
    main = opened[1] if kind == "paired" else opened[0]
    combined = make(opened, names)
    if not any(module.training for member in opened for module in member.network.modules()):
        combined.eval()  # members that are trained still keep their modes
    return replace(
        main,
        network=combined,
        normalise=next((m.normalise for m in opened if m.normalise is not None), None),
        classes=next((m.classes for m in opened if m.classes), ()),
        label=label or combined_label(opened, kind),
        origin=", ".join(m.origin for m in opened),
        members=tuple(m.origin for m in opened),
        command=None,
        member_commands=tuple(tuple(m.command) for m in opened if m.command),
    )


def open_runs(paths: Sequence[str], network: str | None) -> list[NetworkSource]:
    """Return networks as ``open_network`` takes them; runs and bundles of an own network with their weights.

    Args:
        paths: folders of training runs, bundles and so on.
        network: ``file.py:function`` that makes the network of the runs; None where they can be opened without.

    Raises:
        ArgumentError: the function does not make a Classifier.
    """
    if network is None:
        return list(paths)
    from offaxis.bundle import load
    from offaxis.training.record import load_run

    return [load_run(path, network) if (Path(path) / "run.json").exists() else load(path, network) for path in paths]


# sources -------------------------------------------------------------------------------------------------------------


def _open_path(text: str, options: BuildOptions) -> OpenedNetwork:
    path = Path(text)
    python = _PYTHON.fullmatch(text)
    if python is not None and not path.is_dir():
        return _open_file(Path(python[1]), python[2] or "", options)
    package, colon, name = text.partition(":")
    if text in INSTALLED:
        package, name, options = INSTALLED[text], text, replace(options, pretrained=options.weights is None)
    if text in INSTALLED or (colon and package in LIBRARIES):
        classifier, config, classes = build_third_party(package, name, options)
        return OpenedNetwork(
            network=classifier, normalise=config.normalise, size=config.size, classes=classes, origin=text
        )
    if text.startswith("hf:") or (path / "bundle.json").exists() or (path.is_file() and path.suffix == ".oax"):
        from offaxis.bundle import load  # rooms below this one, where one of them wrote what is opened

        options.refuse(f"the bundle {text}")
        opened: OpenedNetwork = load(path).opened()
        return replace(opened, label=path.stem, origin=path.name)
    if path.is_dir() and ((path / "run.json").exists() or not _is_name(text)):
        from offaxis.training.record import load_run

        options.refuse(f"the training run {text}")
        return load_run(path).opened()
    if _is_name(text):
        classifier, normalise = build_named(text, options)
        return OpenedNetwork(network=classifier, normalise=normalise, origin=text)
    raise ArgumentError(
        "Expected a network by name (wrn-28-10, densenet-100-12, resnet18-32, efficientnet-lite0, timm:NAME, torchvision:NAME, "
        "transformers:FOLDER), the folder of a training run, a bundle (x.oax) or a Python file (file.py or file.py:function) "
        f"but got {text}, which is "
        f"{'none of these' if path.exists() else 'not there'}."
    )


def _open_object(source: NetworkSource, options: BuildOptions) -> OpenedNetwork:
    if isinstance(source, nn.Module) and not isinstance(source, AnyNetwork):
        if any(isinstance(part, AnyNetwork) for part in source.modules()):  # a wrapper, such as torch.compile's
            return _open_object(
                find_network(source), replace(options, head=None) if options.head == "keep" else options
            )
        if options.head is None:
            raise ArgumentError(
                f"Expected a Classifier, a Paired or an Ensemble but got a {type(source).__name__}: offaxis.attach makes a "
                "Classifier of it: attach(module, head='keep') of a trained one, or name the head that replaces its output "
                "layer, open_network(module, head='cosine')."
            )
        return OpenedNetwork(network=attach_head(source, options))
    options.refuse("a network that is made already")
    if isinstance(source, OpenedNetwork):
        return source
    if isinstance(source, AnyNetwork):
        return OpenedNetwork(network=source)
    if isinstance(source, HasNetwork):
        return source.opened()
    remedy = "call it and give what it returns" if callable(source) else "see offaxis.open_network for what it takes"
    raise ArgumentError(f"Expected a path, a name or a network but got a {type(source).__name__}: {remedy}.")


def _open_file(file: Path, name: str, options: BuildOptions) -> OpenedNetwork:
    # What the function returns is kept as it is where "keep" is asked for: its own head is none of the function's arguments.
    passed = replace(options, head=None) if options.head == "keep" else options
    result, left = call_function(file, name, passed)
    known: Normalise | Preprocessing | None = None
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Normalise | Preprocessing):
        result, known = result
    plain = isinstance(result, nn.Module) and (options.num_classes is not None or options.head is not None)
    if not isinstance(result, AnyNetwork | HasNetwork) and not plain:
        raise ArgumentError(
            f"Expected {file} to return an offaxis Classifier, Paired or Ensemble (offaxis.attach makes one of any "
            f"network), alone or with its Normalise or Preprocessing, but it returned a {type(result).__name__}. Any other "
            "module will do where a head is to be trained."
        )
    if isinstance(result, AnyNetwork | HasNetwork):
        opened = open_network(result)
        _check_taken(file, opened.network, left)
        if isinstance(opened.network, Classifier) and options.weights is not None:
            load_weights(opened.network, options.weights)
        elif options.weights is not None:
            restore(opened.network, read_weights(options.weights), Path(options.weights))
    else:
        opened = OpenedNetwork(network=attach_head(result, options))
        _check_taken(file, opened.network, {key: value for key, value in left.items() if key != "head"})
    opened = replace(opened, label=file.stem, origin=file.name)
    if isinstance(known, Preprocessing):
        return replace(opened, normalise=known.normalise, size=known.shape[1:], resize=known.resize)
    return opened if known is None else replace(opened, normalise=known)


def _check_taken(file: Path, network: AnyNetwork, left: dict[str, Any]) -> None:
    """Refuse options that a function did not take, unless its network is what they ask for anyway."""
    if left.get("num_classes", network.num_classes) != network.num_classes:
        raise ArgumentError(
            f"Expected a network for {left['num_classes']} classes but that of {file} has {network.num_classes}: give its "
            "function an argument num_classes."
        )
    met = {"num_classes"}
    first = next((part for part in network.modules() if isinstance(part, nn.Conv2d)), None)
    if first is None or first.in_channels == left.get("in_channels"):
        met.add("in_channels")
    if "head" in left and isinstance(network, Classifier):
        asked = make_head(left["head"], network.head.in_features, network.num_classes)
        if describe_head(asked) == describe_head(network.head) is not None:
            met.add("head")
    if left.keys() - met:
        raise ArgumentError(
            f"Expected no {', '.join(sorted(left.keys() - met))} beside {file}, which has its own: leave it out, or give its "
            "function an argument of that name."
        )


def _is_built(source: object) -> bool:
    """Return whether ``open_network`` builds this source, so that it takes a head and weights, and does not open it."""
    if not isinstance(source, (str, Path)):
        return isinstance(source, nn.Module) and not isinstance(source, AnyNetwork)
    text, path = str(source), Path(source)
    if path.is_dir() and (path / "run.json").exists():
        return False
    package = text.partition(":")[0] if ":" in text else ""
    return (
        text in INSTALLED
        or package in LIBRARIES
        or (_PYTHON.fullmatch(text) is not None and not path.is_dir())
        or _is_name(text)
    )


def _is_name(text: str) -> bool:
    try:
        by_name(text)
    except ArgumentError:
        return False
    return True


def _name(source: NetworkSource, number: int) -> str:
    """Return what messages call a member: its path where it has one."""
    if isinstance(source, (str, Path)):
        return str(source)
    path = getattr(source, "folder", None) or getattr(source, "origin", None)
    return str(path) if path and not isinstance(source, nn.Module) else f"network {number}"
