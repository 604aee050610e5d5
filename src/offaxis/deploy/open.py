"""Open a network by one syntax, and combine several: a trained run, a bundle, or a Python file that makes one."""

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from offaxis.data import PUBLISHED, ImageSet, Normalise
from offaxis.errors import ArgumentError, BundleError, EvaluationError, OffaxisError
from offaxis.networks.classifier import Classifier, Paired
from offaxis.networks.ensemble import AnyNetwork, Ensemble, LeaveOutEnsemble, folds
from offaxis.training import Trained, load_run
from offaxis.training.leave_out import MarginEntropyLoss, check_folds


@dataclass(frozen=True)
class EvaluatedNetwork:
    """A network with what must be known to evaluate it.

    Attributes:
        network: in eval mode.
        normalise: what its images go through first; None where that is not known.
        label: what tables call it; networks that differ by their seed alone share it.
        seed: of its training.
        origin: the folder or file that it came from, by name.
        id: the set that it was trained on, where that is known.
        settings: how it was trained, where that is known; of several as one the settings of one, and how they go together.
    """

    network: AnyNetwork
    normalise: Normalise | None
    label: str
    seed: int = 0
    origin: str = ""
    id: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def weights(self) -> str:
        """SHA-256 of parameters, buffers and normalisation."""
        return checksum(self.network, self.normalise)

    @property
    def key(self) -> str:
        """The beginning of the checksum, which names the network in a store."""
        return self.weights[:16]


def checksum(network: nn.Module, normalise: Normalise | None) -> str:
    """SHA-256 of all that a network's answers depend on."""
    digest = hashlib.sha256(repr(normalise).encode())
    for name, tensor in sorted(network.state_dict().items()):
        array = tensor.detach().cpu().contiguous().numpy()
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def open_network(path: str | Path, label: str | None = None) -> EvaluatedNetwork:
    """The network at a path.

    Args:
        path: the folder of a finished training run; a bundle; or ``file.py`` or ``file.py:function``, where the function (named
            ``network``, or the only one in the file) takes nothing and returns a Classifier, a Paired or an Ensemble,
            alone or with its Normalise, or what ``train`` returned.
        label: what tables shall call it, in place of a name made of network and head.

    Raises:
        EvaluationError: the path is none of these, or the file does not give a network.
        BundleError: the bundle is damaged.
    """
    text = str(path)
    python = re.fullmatch(r"(.+\.py)(?::(\w+))?", text, re.DOTALL)
    if python is not None and not Path(text).is_dir():
        return _from_file(Path(python[1]), python[2] or "", label)
    if (Path(text) / "bundle.json").exists() or (Path(text).is_file() and Path(text).suffix == ".oax"):
        return _from_bundle(Path(text), label)
    if Path(text).is_dir():
        return _from_run(Path(text), label)
    raise EvaluationError(
        "Expected the folder of a training run, a bundle (x.oax) or a Python file (file.py or file.py:function) but got "
        f"{text}, which is {'none of these' if Path(text).exists() else 'not there'}."
    )


def normalised(subject: EvaluatedNetwork, id_name: str, training_images: Callable[[], ImageSet]) -> EvaluatedNetwork:
    """The subject with a normalisation: its own, the one published for the ID set, or that of the training images."""
    if subject.normalise is not None:
        return subject
    return replace(subject, normalise=PUBLISHED.get(id_name) or Normalise.from_images(training_images()))


def ensemble(members: Sequence[EvaluatedNetwork], label: str | None = None) -> EvaluatedNetwork:
    """Several networks as one, whose cosines and probabilities are averaged."""
    first = members[0]
    networks = [m.network for m in members if not isinstance(m.network, Ensemble)]
    if len(networks) < len(members):
        raise ArgumentError("Expected single networks to make an ensemble of but one is an ensemble already.")
    _check_same(members, "an ensemble")
    made = label or f"{first.label} x{len(members)}"
    return EvaluatedNetwork(
        Ensemble(networks).eval(),
        first.normalise,
        made,
        first.seed,
        _origins(members),
        first.id,
        {**first.settings, "together": "ensemble"},
    )


def leave_out_ensemble(members: Sequence[EvaluatedNetwork], label: str | None = None) -> EvaluatedNetwork:
    """The networks of ``offaxis train --leave-out 0/N`` to ``N-1/N``, in this order, as one."""
    networks = [m.network for m in members if isinstance(m.network, Classifier)]
    if len(networks) < len(members) or len(members) < 2:
        raise ArgumentError(f"Expected at least two leave-out classifiers but got {len(networks)}.")
    _check_same(members, "a leave-out ensemble")
    first = members[0]
    dealt = folds(first.network.num_classes, len(members))
    check_folds([(member.origin, member.settings.get("loss")) for member in members], dealt)
    team = LeaveOutEnsemble(networks, dealt).eval()
    made = label or f"{first.label.removesuffix(_LEFT_OUT)}{_LEFT_OUT} x{len(members)}"
    settings = {**first.settings, "together": "leave-out"}
    return EvaluatedNetwork(team, first.normalise, made, first.seed, _origins(members), first.id, settings)


_LEFT_OUT = " leave-out"


def paired(members: Sequence[EvaluatedNetwork], label: str | None = None) -> EvaluatedNetwork:
    """Two networks: the first names the class, the second judges familiarity."""
    networks = [m.network for m in members if isinstance(m.network, Classifier)]
    if len(members) != 2 or len(networks) != 2:
        raise ArgumentError(f"Expected two classifiers to pair but got {len(members)} networks.")
    _check_same(members, "a pair")
    first, second = members
    made = label or f"{first.label} + {second.label}"
    return EvaluatedNetwork(
        Paired(*networks).eval(),
        second.normalise,
        made,
        second.seed,
        _origins(members),
        second.id,
        {**second.settings, "together": "paired"},
    )


def run_label(settings: dict[str, Any]) -> str:
    """A name for the runs that differ by their seed alone, out of run.json: "wrn-10-2-half cosine scale=16"."""
    network = settings.get("network")
    if network is None:
        return "own network"
    words = [short_name(network)]
    head = dict(network["head"])
    words.append(head.pop("name"))
    usual = {"scale": (None, "predicted") if words[-1] == "cosine" else (None,), "hidden": (None,)}
    words += [f"{key}={_short(value)}" for key, value in head.items() if key in usual and value not in usual[key]]
    if settings["recipe"].get("decay_head"):
        words.append("decayed")
    if network["dropout"]:
        words.append(f"dropout={network['dropout']:g}")
    left_out = settings["loss"]["name"] == MarginEntropyLoss.__name__
    return " ".join(words) + (_LEFT_OUT if left_out else "")


def short_name(network: dict[str, Any]) -> str:
    """The name that ``offaxis.networks.by_name`` takes, out of a description: "wrn-10-2-half"."""
    kind, second = ("wrn", "width") if network["name"] == "wide_resnet" else ("densenet", "growth")
    return f"{kind}-{network['depth']}-{network[second]}" + ("-half" if network["stem_stride"] == 2 else "")


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _from_run(folder: Path, label: str | None) -> EvaluatedNetwork:
    trained = load_run(folder)
    settings = trained.record["settings"]
    return EvaluatedNetwork(
        trained.classifier,
        trained.normalise,
        label or run_label(settings),
        int(settings["seed"]),
        folder.resolve().name,
        settings["data"]["name"],
        {key: settings[key] for key in ("recipe", "network", "loss") if key in settings},
    )


def _from_bundle(path: Path, label: str | None) -> EvaluatedNetwork:
    from offaxis.deploy.bundle import load  # only where a bundle is given

    model = load(path)
    known: list[dict[str, Any]] = model.provenance.get("id_sets", [])
    name = known[0].get("name") if known else None
    return EvaluatedNetwork(model.network.eval(), model.preprocessing.normalise, label or path.stem, 0, path.name, name)


def _from_file(file: Path, name: str, label: str | None) -> EvaluatedNetwork:
    if not file.is_file():
        raise EvaluationError(f"Expected a Python file that makes a network but {file} is not there.")
    spec = importlib.util.spec_from_file_location(f"offaxis_network_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        made: Any = _function(file, module, name)()
    except OffaxisError:
        raise
    except Exception as error:
        raise EvaluationError(f"{file} could not make the network: {type(error).__name__}: {error}") from error
    normalise: Normalise | None = None
    if isinstance(made, Trained):
        made, normalise = made.classifier, made.normalise
    elif isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Normalise):
        made, normalise = made
    if not isinstance(made, AnyNetwork):
        raise EvaluationError(
            f"Expected {file} to return an offaxis Classifier, Paired or Ensemble (offaxis.attach makes one of any "
            f"network), alone or with its Normalise, but it returned a {type(made).__name__}."
        )
    return EvaluatedNetwork(made.eval(), normalise, label or file.stem, 0, file.name)


def _function(file: Path, module: Any, name: str) -> Callable[[], Any]:
    own = {
        n: f
        for n, f in inspect.getmembers(module, inspect.isfunction)
        if f.__module__ == module.__name__ and not n.startswith("_")
    }
    chosen = name or ("network" if "network" in own else next(iter(own)) if len(own) == 1 else "")
    if chosen not in own:
        raise EvaluationError(
            f"Expected a function that returns a network in {file} but it has {', '.join(own) or 'none'}: name one as "
            f"{file}:FUNCTION, or call it `network`."
        )
    return own[chosen]


def _check_same(members: Sequence[EvaluatedNetwork], what: str) -> None:
    if len({m.normalise for m in members}) > 1 or len({m.id for m in members}) > 1:
        raise ArgumentError(
            f"Expected networks that were trained on one set and take images normalised alike for {what} but got "
            f"{', '.join(f'{m.origin} ({m.id})' for m in members)}."
        )


def _origins(members: Sequence[EvaluatedNetwork]) -> str:
    return ", ".join(m.origin for m in members)


@dataclass(frozen=True)
class Together:
    """What several trainings are as one.

    Attributes:
        network: an Ensemble, a Paired, a LeaveOutEnsemble; or the network itself, of one training.
        normalise: what its images must go through first, the same for every member.
        classes: names of the classes, in the order of the logits; empty where they have none.
    """

    network: AnyNetwork
    normalise: Normalise
    classes: tuple[str, ...]


def together(members: Sequence[Trained], kind: str = "ensemble") -> Together:
    """Trained networks as one.

    Args:
        members: in their order: for a pair, first the one that names the class; for leave-out networks, that of fold 0
            first, as ``offaxis train --leave-out 0/N`` to ``N-1/N`` made them.
        kind: ``"single"``, ``"ensemble"``, ``"paired"`` or ``"leave-out"``.

    Raises:
        ArgumentError: there are too few or too many members, they are in another order, or there is no such kind.
        BundleError: they do not agree in classes or in mean and standard deviation.
    """
    if kind not in KINDS:
        raise ArgumentError(f"Expected networks as one out of {', '.join(KINDS)} but got {kind!r}.")
    make, least, most = KINDS[kind]
    if not least <= len(members) <= (most or len(members)):
        wanted = f"{least}" if least == most else f"at least {least}"
        raise ArgumentError(
            f"Expected {wanted} trained network{'s' if least > 1 else ''} to take as {kind} but got {len(members)}. Several "
            "are one as ensemble (cosines and probabilities are averaged), as paired (the first names the class, the second "
            "judges familiarity) or as leave-out; in the shell: --as ensemble."
        )
    normalise = _check_members(members, kind)
    if kind == "leave-out":
        _check_order(members)
    return Together(make([member.classifier for member in members]).eval(), normalise, members[0].classes)


def _leave_out(networks: Sequence[Classifier]) -> LeaveOutEnsemble:
    return LeaveOutEnsemble(networks, folds(networks[0].num_classes, len(networks)))


KINDS: dict[str, tuple[Callable[[Sequence[Classifier]], AnyNetwork], int, int | None]] = {
    "single": (lambda networks: networks[0], 1, 1),
    "ensemble": (Ensemble, 2, None),
    "paired": (lambda networks: Paired(*networks), 2, 2),
    "leave-out": (_leave_out, 2, None),
}
"""Name -> how it is made, and of how many networks at least and at most; the names are those of ``offaxis evaluate --as``."""


def _check_members(members: Sequence[Trained], kind: str) -> Normalise:
    """Refuse members that would have to see another picture, or that mean another class by the same number."""
    first = members[0]
    for number, other in enumerate(members[1:], 2):
        where = f"{_name(first, 1)} and {_name(other, number)}"
        if (other.classes, other.classifier.num_classes) != (first.classes, first.classifier.num_classes):
            raise BundleError(
                f"Expected networks for the same classes in the same order ({kind}) but {where} differ: "
                f"{_shown(first)} and {_shown(other)}. Train them on one set."
            )
        if other.normalise != first.normalise:
            raise BundleError(
                f"Expected networks that take one and the same picture ({kind}) but {where} were trained with another mean "
                f"and std: {first.normalise} and {other.normalise}. Train them on one set, or with the same normalise."
            )
    if first.normalise is None:
        raise BundleError(f"Expected to know mean and std but {_name(first, 1)} was trained on a DataLoader.")
    return first.normalise


def _check_order(members: Sequence[Trained]) -> None:
    """Refuse leave-out networks that do not come in the order of their folds, where their runs tell."""
    losses = [None if m.folder is None else m.record["settings"]["loss"] for m in members]
    names = [_name(member, number) for number, member in enumerate(members, 1)]
    check_folds(list(zip(names, losses, strict=True)), folds(members[0].classifier.num_classes, len(members)))


def _name(trained: Trained, number: int) -> str:
    return f"network {number}" if trained.folder is None else str(trained.folder)


def _shown(trained: Trained) -> str:
    names = trained.classes or tuple(map(str, range(trained.classifier.num_classes)))
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")


def made_by(reference: str | None) -> nn.Module | None:
    """What the function ``module:function`` returns; None for None. Only what a user typed is imported, never a bundle's word.

    Raises:
        ArgumentError: there is no such function, or it gives no network.
    """
    if reference is None:
        return None
    module, _, function = reference.partition(":")
    if not module or not function:
        raise ArgumentError(f"Expected --network module:function but got {reference!r}.")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        made = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"--network {reference} cannot be found ({error}).") from error
    if not isinstance(made, nn.Module):
        raise ArgumentError(
            f"Expected {reference} to return a Classifier, a Paired or an Ensemble but got a {type(made).__name__}."
        )
    return made
