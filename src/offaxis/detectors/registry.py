"""Detectors by name: the table of all of them, own detectors, detectors made for a network, and their files."""

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from offaxis.detectors.base import Detector
from offaxis.detectors.cosine import Cosine, CosineEnsemble, TwoCosines, gives_cosine
from offaxis.detectors.feature_mahalanobis import MahalanobisPlusPlus
from offaxis.detectors.leave_out import LeaveOut
from offaxis.detectors.pytorch_ood import FED_WITH, PyTorchOOD
from offaxis.errors import ArgumentError, DetectorError, DetectorFileError, OffaxisError
from offaxis.files import running_python
from offaxis.heads import CosineHead
from offaxis.names import FAMILIES, NATIVE, alike
from offaxis.networks.classifier import Classifier
from offaxis.networks.combine import Ensemble, LeaveOutEnsemble
from offaxis.networks.run import Network
from offaxis.networks.saved import read_tensors, write_tensors

DETECTORS: dict[str, Callable[..., Detector]] = {
    **NATIVE,
    **{f"pytorch-ood-{kind.lower()}": partial(PyTorchOOD, kind=kind) for kind in FED_WITH},
}
"""Name -> constructor of every detector: those of NATIVE, those of pytorch-ood, and those that were registered."""

ENTRY_POINTS = "offaxis.detectors"
"""The group of entry points in which an installed package offers detectors: ``name = "module:Class"``."""

FILE_PREFIX = "offaxis_detector_"
"""What the name of a user's file begins with as a module (``offaxis.files.running_python``)."""

FORMAT, VERSION = "offaxis-detector", 3

_Class = TypeVar("_Class", bound=type[Detector])


# own detectors --------------------------------------------------------------------------------------------------------


def register_detector(kind: _Class) -> _Class:
    """Register a detector class of one's own, so that its name can be used wherever a detector is named.

    That is in ``make_detector``, ``evaluate``, results and bundles of this process; on the command line such a class is
    named as ``file.py:Class``. A package does the same for its users with an entry point of the group
    ``offaxis.detectors``. Registering a class again, as a notebook does when a cell is run twice, replaces it.

    Args:
        kind: a subclass of Detector with a ``name`` of its own, whose constructor arguments are all listed in
            ``tunable`` or ``options``.

    Returns:
        The class, so that this can be used as a decorator.

    Raises:
        ArgumentError: it is not such a class, or its name is taken.
    """
    if not (isinstance(kind, type) and issubclass(kind, Detector)) or inspect.isabstract(kind):
        raise ArgumentError(f"Expected a subclass of offaxis.Detector that defines forward(outputs) but got {kind!r}.")
    label, name = kind.__qualname__, getattr(kind, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or name in FAMILIES:
        raise ArgumentError(
            f"Expected {label} to have a class attribute `name` made of letters, digits, '.', '_' and '-', other than "
            f'{", ".join(FAMILIES)}, but got {name!r}: name = "{label.rpartition(".")[2].lower()}".'
        )
    if name in DETECTORS and _class_path(DETECTORS[name]) != _class_path(kind):
        raise ArgumentError(
            f"Expected a name that is free but {name!r} is the name of {_class_path(DETECTORS[name])}: give {label} "
            "another `name`."
        )
    parameters = inspect.signature(kind).parameters.values()
    named = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    listed = {*kind.tunable, *kind.options}
    if named - listed or (listed - named and not any(p.kind is p.VAR_KEYWORD for p in parameters)):
        raise ArgumentError(
            f"Expected the constructor arguments of {label} to be those of its `tunable` and `options` "
            f"({', '.join(sorted(listed)) or 'none'}) but they are {', '.join(sorted(named)) or 'none'}: a saved detector "
            "is constructed again from the attributes that are listed there."
        )
    DETECTORS[name] = kind
    return kind


def find_detector(name: str) -> Callable[..., Detector]:
    """Return the constructor of a name; an unknown name is looked for among the entry points of installed packages.

    Raises:
        ArgumentError: there is no detector of that name.
    """
    if not _is_known(name):
        own = [other for other in DETECTORS if other not in NATIVE and not _is_pytorch_ood(other)]
        offered = [entry.name for entry in entry_points(group=ENTRY_POINTS)]
        meant = alike(name, [*DETECTORS, *offered, *FAMILIES])
        raise ArgumentError(
            f"Expected a detector out of {', '.join(dict.fromkeys([*NATIVE, *own, *offered]))}, pytorch-ood-... or "
            f"{', '.join(FAMILIES)} but got {name!r}.{meant} A detector of your own is named as file.py:Class, or "
            "by its name after offaxis.register_detector(Class)."
        )
    return DETECTORS[name]


def _is_known(name: str) -> bool:
    """Return whether a detector has a name, once those that installed packages offer under it are registered."""
    for entry in entry_points(group=ENTRY_POINTS, name=name) if name not in DETECTORS else ():
        try:
            kind = entry.load()
        except (ImportError, AttributeError) as error:
            raise ArgumentError(
                f"The detector {name} is offered by an installed package as {entry.value}, which cannot be imported "
                f"({error}): repair or uninstall that package."
            ) from error
        register_detector(kind)
    return name in DETECTORS


def register_file(text: str) -> str:
    """Register the detector class of a Python file, ``file.py:Class``, and return its name.

    A file is run once, and again after it was changed.

    Args:
        text: the file and the class; ``file.py`` alone where it defines one detector.

    Raises:
        ArgumentError: there is no such file or class, the file fails, or the class cannot be registered.
    """
    path, _, wanted = text.rpartition(":") if not text.endswith(".py") else (text, "", "")
    file = Path(path).expanduser()
    key = (file.resolve(), file.stat().st_mtime_ns if file.is_file() else 0)
    if key not in _FILES:
        with running_python(file, "detector") as module:
            classes = inspect.getmembers(module, lambda kind: isinstance(kind, type) and issubclass(kind, Detector))
            _FILES[key] = {name: kind for name, kind in classes if kind.__module__ == module.__name__}
    own = _FILES[key]
    chosen = wanted or (next(iter(own)) if len(own) == 1 else "")
    if chosen not in own:
        raise ArgumentError(
            f"Expected a subclass of offaxis.Detector in {file} but it has {', '.join(own) or 'none'}: name one as "
            f"{file}:CLASS."
        )
    return register_detector(own[chosen]).name


_FILES: dict[tuple[Path, int], dict[str, type[Detector]]] = {}


def _is_pytorch_ood(name: str) -> bool:
    """Return whether a name of DETECTORS is one of pytorch-ood's."""
    return isinstance(DETECTORS[name], partial)


def _class_path(kind: Callable[..., Detector]) -> str:
    """Return "module:Class" of a detector's constructor."""
    found = kind.func if isinstance(kind, partial) else kind
    return f"{found.__module__}:{found.__qualname__}"


# detectors for a network ----------------------------------------------------------------------------------------------


def make_detector(text: str, network: Network, std: Sequence[float] | None = None) -> Detector:
    """Construct the detector that a text names, with the arguments that follow from the network.

    Args:
        text: a name of DETECTORS, perhaps with arguments as in ``"knn:k=10"`` or ``"odin:temperature=1:eps=0.002"``;
            those of pytorch-ood's detectors are its own constructors', as in ``"pytorch-ood-knn:k=10"``. Or a class of a
            Python file, ``"file.py:Class"``, which is registered, perhaps with arguments too, ``"file.py:Class:k=10"``.
        network: the network whose images it will score.
        std: what each channel is divided by in normalisation, for detectors that perturb images; None where unknown.

    Raises:
        ArgumentError: no detector has that name, or it does not take these arguments.
    """
    name, parts = parse_detector(text)
    construct = find_detector(name)
    given: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or key in given:
            raise ArgumentError(f"Expected arguments of a detector as in knn:k=10, each once, but got {text!r}.")
        try:
            given[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            given[key] = value
    options = getattr(construct, "options", ())
    if isinstance(construct, partial):
        inner = given.pop("inner", None)
        given = {"keywords": given, "inner": [inner] if isinstance(inner, str) else inner}
    try:
        return construct(**{**arguments_for(options, network, std), **given})
    except OffaxisError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"The detector {name} does not take these arguments: {text!r} ({error}).") from None


def make_detectors(
    texts: Iterable[str | Detector], network: Network, std: Sequence[float] | None = None
) -> list[Detector]:
    """Construct the detectors that texts name, each once, for a network.

    Args:
        texts: as in ``make_detector``; or ``"native"`` (the package's own that are meant for such a network),
            ``"pytorch-ood"`` (all of pytorch-ood's) or ``"all"`` (both, and those that were registered). A Detector is
            taken unchanged.
        network: the network whose images they will score.
        std: what each channel is divided by in normalisation; None where unknown.
    """
    wanted: dict[str | Detector, None] = {}
    for text in texts:
        names: list[str | Detector] = [text]
        if text in FAMILIES:
            native = [kind for kind in NATIVE if NATIVE[kind]().suits(network)]
            theirs = [kind for kind in DETECTORS if _is_pytorch_ood(kind)]
            own = [kind for kind in DETECTORS if kind not in NATIVE and kind not in theirs]
            names = [*{"native": native, "pytorch-ood": theirs, "all": [*native, *own, *theirs]}[str(text)]]
        wanted |= dict.fromkeys(names)
    made = [make_detector(one, network, std) if isinstance(one, str) else one for one in wanted]
    for detector in made:
        detector.check_grid()
    return made


OWN = re.compile(r"(.+?\.py(?::[A-Za-z_]\w*(?=:|$))?)(?::(.*))?", re.DOTALL)
"""The text of a detector of one's own: file and class, perhaps arguments."""


def parse_detector(text: str) -> tuple[str, list[str]]:
    """Return the name of the detector that a text names, and its arguments; a Python file's class is registered.

    Args:
        text: as in ``make_detector``.
    """
    file = OWN.fullmatch(text)
    if file is not None:
        return register_file(file[1]), file[2].split(":") if file[2] else []
    name, *parts = text.split(":")
    return name, parts


def default_detector(network: Network, std: Sequence[float] | None = None) -> Detector:
    """Construct the detector that a network is scored with where none is named, in Python and in the shell.

    It follows from the network alone: the cosine, or of an ensemble its kind's. A cosine head on a backbone that was frozen, or
    trained from some layer on only, is scored with two-cosines, which sees more there (docs/photographs.md). A network without
    a cosine, such as one whose trained output layer was kept, is scored with Mahalanobis++: it has nothing to tune, and of the
    candidates it found most of other sets at 5 % false alarms (docs/your-classifier.md). Both must be fitted on training
    images.

    Args:
        network: the network.
        std: what each channel is divided by in normalisation; None where unknown.
    """
    kind: type[Detector] = MahalanobisPlusPlus
    if isinstance(network, Ensemble):
        kind = LeaveOut if isinstance(network, LeaveOutEnsemble) else CosineEnsemble
    elif gives_cosine(network.head):
        on_frozen = isinstance(network, Classifier) and network.frozen and isinstance(network.head, CosineHead)
        kind = TwoCosines if on_frozen else Cosine
    return kind(**arguments_for(kind.options, network, std))


def as_detector(detector: Detector | str | None, network: Network, std: Sequence[float] | None = None) -> Detector:
    """Return a detector: itself, the one of a name, or for None the default of the network."""
    if isinstance(detector, str):
        return make_detector(detector, network, std)
    return detector or default_detector(network, std)


def arguments_for(options: Sequence[str], network: Network, std: Sequence[float] | None) -> dict[str, Any]:
    """Return those constructor arguments of a detector that follow from the network.

    Args:
        options: the arguments that the detector takes besides hyperparameters (``Detector.options``).
        network: the network whose images it will score.
        std: what each channel is divided by in normalisation, so that perturbations are in units of pixels; None where
            unknown.
    """
    follows = {
        "std": std and tuple(std),
        "networks": len(network.networks) if isinstance(network, Ensemble) else None,
        "selected_on": network.selected_on if isinstance(network, LeaveOutEnsemble) else None,
    }
    return {name: follows[name] for name in options if follows.get(name) is not None}


def given_arguments(detector: Detector, network: Network) -> dict[str, Any]:
    """Return the arguments of a detector that are neither their defaults nor follow from the network."""
    inner = list(getattr(network, "layers", ()))
    follows = ("std", "networks", "selected_on")
    return {
        name: value
        for name, value in detector.changed.items()
        if name not in follows and not (name in ("layers", "inner") and list(value) == inner)
    }


# files ----------------------------------------------------------------------------------------------------------------


def describe_detector(detector: Detector) -> dict[str, Any]:
    """Return what a detector is besides its buffers, in types that JSON has.

    Returns:
        Its name, the class as "module:Class" (None for a detector of this package), the constructor arguments and what
        it was tuned on.

    Raises:
        DetectorError: its class is neither part of this package nor registered, so that nothing could load it again.
    """
    kind = type(detector)
    own = kind is not PyTorchOOD and kind not in NATIVE.values()
    path = _class_path(kind) if own else None
    if own and DETECTORS.get(detector.name) is not kind:
        raise DetectorError(
            f"Expected a registered detector, so that what is saved can be loaded again, but {path} is not registered: "
            f"call offaxis.register_detector({kind.__qualname__}) first."
        )
    return {"detector": detector.name, "class": path, "arguments": detector.arguments, "tuned_on": detector.tuned_on}


def rebuild_detector(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Detector:
    """Return the detector that ``describe_detector`` and ``state_dict`` were taken from.

    Only classes of this package, registered ones and those of installed packages' entry points are constructed.

    Args:
        description: as ``describe_detector`` returns it.
        tensors: its state_dict.

    Raises:
        DetectorFileError: its class is not known here; the message says how to make it known.
    """
    name, path = description["detector"], description.get("class")
    if not isinstance(path, str | None) or not isinstance(description["tuned_on"], str | None):
        raise TypeError(f"Expected the name of a class and of a set but got {path!r:.60}")
    if not _is_known(name):
        if path is None:
            raise DetectorFileError(f"Expected one of the detectors {', '.join(DETECTORS)} but got {name!r}.")
        module, _, kind = path.partition(":")
        where = "define it again, as in that script or notebook," if module == "__main__" else f"import {module}"
        if module.startswith(FILE_PREFIX):
            file = f"{module.removeprefix(FILE_PREFIX)}.py"
            where = f"name it, --detector {file}:{kind}, or import {file}"
        raise DetectorFileError(
            f"The detector {name!r} was saved from the class {path}, which is not part of offaxis and not registered: "
            f"{where} and call offaxis.register_detector({kind}) before loading. Files never bring code of their own."
        )
    known = DETECTORS[name]
    if path is not None and _class_path(known).partition(":")[2] != path.partition(":")[2]:
        raise DetectorFileError(
            f"The detector {name!r} was saved from the class {path} but {_class_path(known)} is registered under that "
            "name: register the class that it was saved from instead."
        )
    arguments = {key: tuple(v) if isinstance(v, list) else v for key, v in description["arguments"].items()}
    detector = known(**arguments)
    detector.load_state_dict(dict(tensors))
    detector.tuned_on = description["tuned_on"]
    return detector


def save_detector(detector: Detector, path: Path) -> None:
    """Write a fitted detector to a file, whole or not at all."""
    detector.check_fitted()
    if not detector.savable:
        raise DetectorError(
            f"Expected a detector whose fitted statistics are buffers but {detector.name} keeps them inside pytorch-ood: "
            "fit it again in the process that needs it."
        )
    header = {"format": FORMAT, "version": str(VERSION), "description": json.dumps(describe_detector(detector))}
    write_tensors(path, detector.state_dict(), header)


def load_detector(path: Path) -> Detector:
    """Read a detector that ``save_detector`` wrote: its scores are those of the saved one, bit for bit.

    Raises:
        DetectorFileError: the file is absent, damaged, not a detector or of another version, or the detector's class is
            not registered.
    """
    remedy = "is it a file that save_detector() wrote? Fit and save the detector again"
    tensors, header = read_tensors(path, DetectorFileError, remedy)
    if (header.get("format"), header.get("version")) != (FORMAT, str(VERSION)):
        raise DetectorFileError(
            f"Expected a detector of version {VERSION} in {path} but it holds {header.get('format', 'something else')} of "
            f"version {header.get('version')}: fit and save it again, or install the offaxis that wrote it, if that is newer."
        )
    try:
        return rebuild_detector(json.loads(header["description"]), tensors)
    except DetectorError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RuntimeError, OffaxisError) as error:
        raise DetectorFileError(f"{path} does not hold a whole detector ({error}).") from None
