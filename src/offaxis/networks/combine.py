"""Several networks as one: a pair, an ensemble, and the ensemble of the leave-out method."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from offaxis.errors import ArgumentError, DetectorError
from offaxis.heads import Head, Outputs
from offaxis.networks.classifier import Classifier


class Paired(nn.Module):
    """Two networks as one: a standard one classifies, a cosine one detects OOD images.

    The paper's remedy for the small loss of accuracy of the cosine network. ``forward`` and the logits of ``outputs``
    are the classifier's; features, cosine, scale and layers are the detector network's.
    """

    def __init__(self, classifier: Classifier, detector_network: Classifier) -> None:
        super().__init__()
        _check_members("a pair of single networks, a Classifier each", (classifier, detector_network), Classifier)
        self.classifier = classifier
        self.detector_network = detector_network

    @property
    def num_classes(self) -> int:
        """Return C, the number of classes."""
        return self.classifier.num_classes

    @property
    def head(self) -> Head:
        """Return the detector network's head, whose cosine detectors read."""
        return self.detector_network.head

    @property
    def layers(self) -> tuple[str, ...]:
        """Return the names of the detector network's layers for multi-layer methods."""
        return self.detector_network.layers

    def features(self, images: Tensor) -> Tensor:
        """Compute the detector network's features (N, d) of images (N, c, h, w)."""
        return self.detector_network.features(images)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the classifier's logits (N, C) of images (N, c, h, w)."""
        logits: Tensor = self.classifier(images)
        return logits

    def outputs(self, images: Tensor, layers: Iterable[str] = ()) -> Outputs:
        """Compute the classifier's logits with the detector network's features, cosine, scale and layers."""
        return self.detector_network.outputs(images, layers)._replace(logits=self.classifier(images))


class Ensemble(nn.Module):
    """An ensemble of networks for the same classes, usually one architecture trained from different seeds.

    Logits are the logarithm of the mean probability; cosines are averaged class by class, so that ``Cosine`` on an
    Ensemble is the paper's ensemble; features are concatenated.

    Args:
        members: at least one network.
    """

    def __init__(self, members: Sequence[Classifier | Paired]) -> None:
        super().__init__()
        members = [getattr(member, "_orig_mod", member) for member in members]  # torch.compile wraps them
        _check_members("members that are a Classifier or a Paired each", members, (Classifier, Paired))
        self.members = nn.ModuleList(members)
        self.num_classes = members[0].num_classes
        self.layers: tuple[str, ...] = ()

    @property
    def networks(self) -> list[Classifier | Paired]:
        """Return the members in their order."""
        return [member for member in self.members if isinstance(member, (Classifier, Paired))]

    @property
    def head(self) -> Head:
        """Raise DetectorError: an ensemble has no single head."""
        raise DetectorError(
            f"Expected one network but got an ensemble of {len(self.members)}, which has no head of its own: this "
            "detector works on a single network."
        )

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits (N, C), the logarithm of the mean probability, of images (N, c, h, w)."""
        return self.outputs(images).logits

    def outputs(self, images: Tensor, layers: Iterable[str] = ()) -> Outputs:
        """Compute concatenated features, log mean probability and mean cosine (None where a member has none); no scale.

        Where members are scored by other logits than they classify with, ``score_logits`` are averaged likewise.
        """
        each = self._member_outputs(images, layers)
        cosines = [out.cosine for out in each if out.cosine is not None]
        cosine = torch.stack(cosines).mean(0) if len(cosines) == len(each) else None
        apart = any(out.score_logits is not None for out in each)
        return Outputs(
            torch.cat([out.features for out in each], 1),
            _log_mean_probability([out.logits for out in each]),
            cosine,
            score_logits=_log_mean_probability([out.detection_logits for out in each]) if apart else None,
        )

    def _member_outputs(self, images: Tensor, layers: Iterable[str]) -> list[Outputs]:
        if tuple(layers):
            raise DetectorError("Expected no inner layers for an ensemble: score its members one by one.")
        return [member.outputs(images) for member in self.networks]


def _check_members(expected: str, members: Sequence[nn.Module], kinds: type | tuple[type, ...]) -> None:
    """Raise ArgumentError unless there are members, each of one of these kinds, for the same number of classes."""
    others = [type(member).__name__ for member in members if not isinstance(member, kinds)]
    if others:
        raise ArgumentError(
            f"Expected {expected} but got {', '.join(others)}: name single networks, and give others a head with "
            "offaxis.attach."
        )
    classes = [str(member.num_classes) for member in members]
    if len(set(classes)) != 1:
        raise ArgumentError(
            f"Expected networks for the same classes but got {' and '.join(f'one with {n}' for n in classes) or 'no classes'}: "
            "train them on one set."
        )


def _log_mean_probability(logits: Sequence[Tensor]) -> Tensor:
    """Compute the logarithm of the mean softmax (N, C) of the logits of several networks."""
    return torch.stack([each.log_softmax(1) for each in logits]).logsumexp(0) - math.log(len(logits))


AnyNetwork = Classifier | Paired | Ensemble
"""A network that can be evaluated, calibrated and saved in a bundle."""


def find_network(module: nn.Module) -> AnyNetwork:
    """Return the network of offaxis in a module: the module itself, or the outermost Classifier, Paired or Ensemble in it.

    So is a network found that ``torch.compile``, DistributedDataParallel or a LightningModule holds.

    Raises:
        ArgumentError: there is none.
    """
    for part in module.modules():
        if isinstance(part, AnyNetwork):
            return part
    raise ArgumentError(
        f"Expected a module with a Classifier in it but {type(module).__name__} has none: make one with offaxis.attach(model, "
        "head='cosine'), or head='keep' for its own output layer, and keep it in an attribute."
    )


class SelectedEpoch(NamedTuple):
    """The epoch whose weights a network has kept.

    Attributes:
        on: the OOD set that it was selected on.
        epoch: from 1.
        auroc: of ID validation images against that set, at that epoch.
        compared: how many epochs were compared.
    """

    on: str
    epoch: int
    auroc: float
    compared: int


def folds(num_classes: int, count: int = 5, seed: int = 0) -> list[tuple[int, ...]]:
    """Deal the classes into folds of nearly equal size: fold k holds the classes that network k leaves out."""
    if not 2 <= count <= num_classes:
        raise ArgumentError(f"Expected argument `count` to be from 2 to {num_classes} folds but got {count}.")
    order = torch.randperm(num_classes, generator=torch.Generator().manual_seed(seed))
    dealt = [tuple(sorted(fold.tolist())) for fold in torch.tensor_split(order, count)]
    if num_classes - max(map(len, dealt)) < 2:
        raise ArgumentError(
            f"Expected folds that leave every network at least 2 classes but {count} folds of {num_classes} classes do not."
        )
    return dealt


def kept_classes(left_out: Iterable[int], num_classes: int) -> Tensor:
    """Return the classes (K,) that are not left out, in order."""
    out = set(left_out)
    return torch.tensor([c for c in range(num_classes) if c not in out])


class LeaveOutEnsemble(Ensemble):
    """The ensemble of the leave-out method: K networks, each trained without the classes of its fold.

    Logits are the logarithm of their summed probabilities.

    Args:
        members: K networks with C outputs each.
        left_out: the classes that each left out, in the order of the members.
        selected: the epoch that each has kept, where it was selected; empty where each has kept its last.
    """

    def __init__(
        self, members: Sequence[Classifier], left_out: Sequence[Sequence[int]], selected: Sequence[SelectedEpoch] = ()
    ) -> None:
        super().__init__(members)
        if len(left_out) != len(members):
            raise ArgumentError(f"Expected a fold for each of {len(members)} networks but got {len(left_out)} folds.")
        self.left_out = tuple(tuple(fold) for fold in left_out)
        if not set().union(*self.left_out) <= set(range(self.num_classes)):
            raise ArgumentError(
                f"Expected folds of classes out of 0 to {self.num_classes - 1} but got {self.left_out}."
            )
        self.kept = [kept_classes(fold, self.num_classes) for fold in self.left_out]
        self.selected = tuple(selected)

    @property
    def selected_on(self) -> str | None:
        """Return the OOD set that the networks' epochs were selected on; None where each has kept its last."""
        return ", ".join(dict.fromkeys(epoch.on for epoch in self.selected)) or None

    def member_functions(self) -> list[Callable[[Tensor], Tensor]]:
        """Return for each network a function from images to the logits of the classes that it was trained on."""

        def kept_logits(network: Classifier | Paired, kept: Tensor, images: Tensor) -> Tensor:
            logits: Tensor = network(images)
            return logits[:, kept.to(images.device)]

        return [partial(kept_logits, member, kept) for member, kept in zip(self.networks, self.kept, strict=True)]

    def outputs(self, images: Tensor, layers: Iterable[str] = ()) -> Outputs:
        """Compute concatenated features and, as logits, the logarithm of the summed probabilities of each class."""
        each = self._member_outputs(images, layers)
        total = torch.zeros_like(each[0].logits)
        for out, kept in zip(each, self.kept, strict=True):
            known = kept.to(total.device)
            total = total.index_add(1, known, out.logits[:, known].softmax(1))
        tiny = torch.finfo(total.dtype).tiny
        return Outputs(torch.cat([out.features for out in each], 1), total.clamp_min(tiny).log())
