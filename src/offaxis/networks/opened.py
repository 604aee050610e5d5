"""An opened network: a network with the facts that training, evaluation and bundles need; several of them as one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from offaxis.data import PUBLISHED, ImageSet, Normalise
from offaxis.data.transforms import Resize
from offaxis.errors import ArgumentError
from offaxis.heads import describe_head
from offaxis.networks.classifier import Classifier
from offaxis.networks.combine import AnyNetwork, Ensemble, LeaveOutEnsemble, Paired
from offaxis.networks.library import LITE
from offaxis.networks.saved import checksum
from offaxis.options import Kind


@dataclass(frozen=True, kw_only=True)
class OpenedNetwork:
    """A network with the facts that evaluation, calibration and bundles need.

    Attributes:
        network: a Classifier, a Paired or an Ensemble; in eval mode, unless it was given in train mode.
        normalise: the normalisation of its images; None where it is not known.
        size: (height, width) of the images that it takes; None where it is not known, or takes any.
        resize: how images come to that size, ``"crop"`` or ``"stretch"``; None where it is not known.
        classes: names of the classes in the order of the logits; empty where they are not known.
        label: the name in tables, made from architecture, head and recipe unless given; seeds share a label.
        seed: of its training.
        origin: the name of the folder or file that it came from.
        id: the name of the set that it was trained on; None where it is not known.
        architecture: as ``open_network`` takes it, such as ``wrn-28-10`` or ``timm:resnet18``; None for other networks.
        head: the name of the head and its arguments.
        recipe: the training recipe; None where it is not known.
        data: the training images: name, number of images, fingerprint; None where they are not known.
        settings: of its training run: the network's description, recipe, loss, precision and what was frozen; empty where
            there is none.
        kind: ``"single"``, ``"ensemble"``, ``"paired"`` or ``"leave-out"``, by the type of the network.
        members: the origins of the members of a combined network.
        command: the command that trained it, word by word; None where it is not known.
        member_commands: the commands that trained the members of a combined network, as far as they are known.
    """

    network: AnyNetwork
    normalise: Normalise | None = None
    size: tuple[int, int] | None = None
    resize: Resize | None = None
    classes: tuple[str, ...] = ()
    label: str = ""
    seed: int = 0
    origin: str = ""
    id: str | None = None
    architecture: str | None = None
    head: dict[str, Any] | None = None
    recipe: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    kind: Kind = "single"
    members: tuple[str, ...] = ()
    command: list[str] | None = None
    member_commands: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        part = _representative(self.network)
        architecture = self.architecture or _architecture(part)
        head = self.head or describe_head(part.head) or {"name": type(part.head).__name__, **part.head.arguments}
        label = self.label or make_label(
            architecture=architecture,
            head=head,
            recipe=self.recipe,
            dropout=(part.origin or {}).get("dropout", 0.0),
            leave_out=self.trained_without_classes,
        )
        kind = _kind(self.network)
        vars(self).update(architecture=architecture, head=head, label=label, kind=kind)

    def was_trained_on(self, name: str) -> bool:
        """Return whether a name is that of the training images, or the path that they lie in."""
        known = self.data or {}
        return name == known.get("name") or str(Path(name).expanduser().resolve()) == known.get("path")

    @cached_property
    def weights(self) -> str:
        """SHA-256 of parameters, buffers and normalisation."""
        return checksum(self.network, self.normalise)

    @property
    def key(self) -> str:
        """The first 16 digits of the checksum; names the network in a store."""
        return self.weights[:16]

    @property
    def trained_without_classes(self) -> bool:
        """Whether this is one network of a leave-out ensemble, by the loss of its training."""
        loss: dict[str, Any] = self.settings.get("loss", {})
        return loss.get("name") == LEAVE_OUT_LOSS


def normalised(opened: OpenedNetwork, id_name: str, training_images: Callable[[], ImageSet]) -> OpenedNetwork:
    """Return the network with a normalisation: its own, that published for the ID set, or that of the training images."""
    if opened.normalise is not None:
        return opened
    return replace(opened, normalise=PUBLISHED.get(id_name) or Normalise.from_images(training_images()))


LEAVE_OUT_LOSS = "MarginEntropyLoss"
"""What records call the loss of a network that was trained without some classes (``offaxis.training.leave_out``)."""
LEAVE_OUT = " leave-out"
"""The end of the label of a network that was trained without some classes."""


NAMES = {
    "wide_resnet": "wrn-{depth}-{width}{half}",
    "densenet_bc": "densenet-{depth}-{growth}{half}",
    "resnet18_32": "resnet18-32",
    "resnet_cifar": "resnet{depth}-cifar",
    "convnet": "convnet-{width}",
}
"""Function of offaxis.networks -> the name of its network; ``-half`` is a stride of 2 in the first convolution."""


def make_label(
    *,
    architecture: str | None,
    head: Mapping[str, Any],
    recipe: Mapping[str, Any] | None = None,
    dropout: float = 0.0,
    leave_out: bool = False,
) -> str:
    """Return a label for networks that differ by their seed alone, such as ``wrn-10-2-half cosine scale=16``."""
    if architecture is None:
        return "own network"
    arguments = dict(head)
    name = arguments.pop("name")
    defaults: dict[str, tuple[Any, ...]] = {
        "scale": (None, {"cosine": "predicted", "cosface": 64.0, "arcface": 64.0}.get(name)),
        "hidden": (None,),
        "tau": (0.04 if name == "logitnorm" else 0.1,),
        "margin": ({"sphereface": 4, "cosface": 0.35}.get(name, 0.5),),
    }
    words = [architecture, name]
    words += [f"{key}={_shorten(v)}" for key, v in arguments.items() if key in defaults and v not in defaults[key]]
    paper = name == "cosine" and arguments.get("scale") == "predicted" and arguments.get("start") == "paper"
    words += ["start=paper"] if paper else []
    words += ["decayed"] if recipe and recipe.get("decay_head") else []
    words += [f"dropout={dropout:g}"] if dropout else []
    return " ".join(words) + (LEAVE_OUT if leave_out else "")


def short_name(network: Mapping[str, Any]) -> str:
    """Return the name that ``offaxis.networks.by_name`` takes for a network's description: ``wrn-10-2-half``."""
    return NAMES[network["name"]].format(half="-half" if network.get("stem_stride") == 2 else "", **network)


def _shorten(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _kind(network: AnyNetwork) -> Kind:
    if isinstance(network, Ensemble):
        return "leave-out" if isinstance(network, LeaveOutEnsemble) else "ensemble"
    return "paired" if isinstance(network, Paired) else "single"


def _representative(network: AnyNetwork) -> Classifier:
    """Return the classifier whose architecture and head are recorded: the detector network of a pair, the first member."""
    if isinstance(network, Ensemble):
        return _representative(network.networks[0])
    return network.detector_network if isinstance(network, Paired) else network


def _architecture(classifier: Classifier) -> str | None:
    if classifier.origin is not None:
        return short_name(classifier.origin)
    if classifier.builder is not None:
        library, name = classifier.builder["library"], classifier.builder["name"]
        return str(name) if library == LITE else f"{library}:{name}"  # as it is named on the command line
    return None


# several as one ------------------------------------------------------------------------------------------------------


def check_folds(members: Sequence[tuple[str, dict[str, Any] | None]], dealt: Sequence[Sequence[int]]) -> None:
    """Raise ArgumentError where a network was trained without other classes than its place requires, as far as known.

    Args:
        members: for each network a name for the message, and the ``loss`` of its run; None where that is not known.
        dealt: the classes that the network in each place leaves out.
    """
    for place, ((name, loss), fold) in enumerate(zip(members, dealt, strict=True)):
        if loss is not None and loss.get("left_out") != sorted(fold):
            without = f" without classes {loss['left_out']}" if "left_out" in loss else ""
            raise ArgumentError(
                f"Expected the network of offaxis train --leave-out {place}/{len(members)} in place {place}, which leaves out "
                f"classes {sorted(fold)}, but {name} was trained with {loss['name']}{without}. Name all {len(members)} in "
                "their order."
            )


def check_agreement(members: Sequence[OpenedNetwork], names: Sequence[str], kind: str) -> None:
    """Refuse members with other classes, another normalisation, size or training set, as far as they are known."""
    facts: dict[str, Callable[[OpenedNetwork], object]] = {
        "that have the same number of classes": lambda member: member.network.num_classes,
        "for the same classes in the same order": lambda member: member.classes,
        "that take the same normalised images": lambda member: member.normalise,
        "that take images of one size": lambda member: member.size and (*member.size, member.resize),
        "that were trained on one set": lambda member: member.id,
    }
    for other, name in zip(members[1:], names[1:], strict=True):
        for expected, fact in facts.items():
            one, another = fact(members[0]), fact(other)
            if one and another and one != another:
                raise ArgumentError(
                    f"Expected networks {expected} ({kind}) but those of {names[0]} and {name} are {str(one)[:200]} "
                    f"and {str(another)[:200]}. Train them on one set."
                )
