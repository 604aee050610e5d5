"""Several trainings on the same images -> one network with what its images go through first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from offaxis.data import Normalise
from offaxis.detectors import Ensemble, LeaveOutEnsemble
from offaxis.errors import ArgumentError, BundleError
from offaxis.networks.classifier import Classifier, Paired
from offaxis.networks.ensemble import AnyNetwork
from offaxis.networks.leave_out_ensemble import folds
from offaxis.training import Trained
from offaxis.training.leave_out import check_dealt
from offaxis.training.run import read_about


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
    _check_same(members, kind)
    if kind == "leave-out":
        _check_order(members)
    first = members[0]
    return Together(make([member.classifier for member in members]).eval(), first.normalise, first.classes)


def _leave_out(networks: Sequence[Classifier]) -> LeaveOutEnsemble:
    return LeaveOutEnsemble(networks, folds(networks[0].num_classes, len(networks)))


KINDS: dict[str, tuple[Callable[[Sequence[Classifier]], AnyNetwork], int, int | None]] = {
    "single": (lambda networks: networks[0], 1, 1),
    "ensemble": (Ensemble, 2, None),
    "paired": (lambda networks: Paired(*networks), 2, 2),
    "leave-out": (_leave_out, 2, None),
}
"""Name -> how it is made, and of how many networks at least and at most; the names are those of ``offaxis evaluate --as``."""


def _check_same(members: Sequence[Trained], kind: str) -> None:
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
                f"and std: {first.normalise.mean}, {first.normalise.std} and {other.normalise.mean}, "
                f"{other.normalise.std}. Train them on one set, or with the same normalise."
            )


def _check_order(members: Sequence[Trained]) -> None:
    """Refuse leave-out networks that do not come in the order of their folds, where their runs tell."""
    told = [None if m.folder is None else read_about(m.folder)["settings"].get("loss") for m in members]
    names = [_name(member, number) for number, member in enumerate(members, 1)]
    check_dealt(list(zip(names, told, strict=True)), folds(members[0].classifier.num_classes, len(members)))


def _name(trained: Trained, number: int) -> str:
    return f"network {number}" if trained.folder is None else str(trained.folder)


def _shown(trained: Trained) -> str:
    names = trained.classes or tuple(map(str, range(trained.classifier.num_classes)))
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
