"""Train the networks of the leave-out method (Vyas et al. 2018), each with one fold of classes as OOD images."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.data import ImageSet, Normalise
from offaxis.detectors.leave_out import leave_out_score
from offaxis.errors import DetectorError
from offaxis.heads import Outputs
from offaxis.metrics import auroc
from offaxis.networks.classifier import Classifier
from offaxis.networks.combine import LeaveOutEnsemble, SelectedEpoch, folds, kept_classes
from offaxis.networks.run import run
from offaxis.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class SelectOn:
    """The images that epochs are compared on: the one with the highest AUROC is selected.

    Attributes:
        id_images: validation images of the ID set, of all classes, not trained on. The left-out classes count as ID: the
            ensemble has to accept them.
        ood_images: the OOD validation set, whose name is reported.
        normalise: what the images are normalised with, as in training.
        temperature: of the score; its perturbation is left out here, so that an epoch costs one forward pass.
        batch_size: images at a time.
    """

    id_images: ImageSet
    ood_images: ImageSet
    normalise: Normalise
    temperature: float = 1000.0
    batch_size: int = 256


@dataclass
class BestEpoch:
    """Keeps the weights of the best epoch so far: an ``after_epoch`` for the training loop.

    Of equal epochs the first is kept. The weights are held in memory: a training that is resumed compares the epochs
    from there on, and ``SelectedEpoch.compared`` says how many they were.

    Attributes:
        select: the images that epochs are compared on.
        kept: the classes that are not left out.
        aurocs: of each epoch so far.
        best: the number of the best epoch.
        weights: of the network after it.
    """

    select: SelectOn
    kept: Tensor
    aurocs: dict[int, float] = field(default_factory=dict)
    best: int | None = None
    weights: dict[str, Tensor] = field(default_factory=dict)

    def __call__(self, epoch: int, network: Classifier) -> None:
        """Compute the AUROC of the network after an epoch (from 1) and keep its weights if it is the best so far."""
        value = auroc(self._scores(network, self.select.id_images), self._scores(network, self.select.ood_images))
        self.aurocs[epoch] = value
        if self.best is None or value > self.aurocs[self.best]:
            self.best = epoch
            self.weights = {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}

    def restore(self, network: Classifier) -> SelectedEpoch:
        """Load the best weights into the network, and return which epoch they are of."""
        if self.best is None:
            raise DetectorError(
                "Expected epochs to select from but there was none: `train` gets a fourth argument that it must call after "
                "every epoch, as offaxis.train(..., after_epoch=...) does. A finished run that is resumed has no epochs left."
            )
        network.load_state_dict(self.weights)
        return SelectedEpoch(self.select.ood_images.name, self.best, self.aurocs[self.best], len(self.aurocs))

    def _scores(self, network: Classifier, images: ImageSet) -> list[float]:
        batches = (self.select.normalise(batch) for batch in images.batches(self.select.batch_size))
        logits = (outputs.logits for outputs, _, _ in run(network, batches, check_finite=False))
        parts = [leave_out_score(z[:, self.kept.to(z.device)], self.select.temperature) for z in logits]
        scores: list[float] = torch.cat(parts).tolist()
        return scores


class MarginEntropyLoss(nn.Module):
    """The margin-entropy loss of one network: a callable (outputs, labels) -> loss for the training loop.

    The network has an output for every class, so that it trains on all images and their labels; the outputs of the
    left-out classes are not used.

    Args:
        left_out: the classes whose images serve as OOD images.
        num_classes: C.
        weight: beta.
        margin: m, in nats.

    Attributes:
        arguments: what it was made with, for the settings of a run: ``left_out``, ``weight``, ``margin`` and ``fold``,
            ``"k/n"`` where ``for_fold`` made it.
    """

    kept: Tensor
    position: Tensor

    def __init__(self, left_out: Iterable[int], num_classes: int, weight: float = 0.2, margin: float = 0.4) -> None:
        super().__init__()
        left_out = sorted(left_out)
        self.arguments: dict[str, Any] = {"left_out": left_out, "weight": weight, "margin": margin, "fold": None}
        self.register_buffer("kept", kept_classes(left_out, num_classes))
        position = torch.full((num_classes,), -1)
        position[self.kept] = torch.arange(len(self.kept))
        self.register_buffer("position", position)
        self.weight, self.margin = weight, margin

    @classmethod
    def for_fold(cls, member: int, count: int, num_classes: int) -> Self:
        """Return the loss of one of ``count`` networks, from 0, for the folds that ``folds(num_classes, count)`` deals."""
        loss = cls(folds(num_classes, count)[member], num_classes)
        loss.arguments["fold"] = f"{member}/{count}"
        return loss

    def extra_repr(self) -> str:
        """Return the arguments, as ``nn.Module`` shows them."""
        return ", ".join(f"{name}={value}" for name, value in self.arguments.items() if name != "fold")

    def forward(self, outputs: Outputs, labels: Tensor) -> Tensor:
        """Compute the loss, a scalar, of the outputs of N images with labels (N,)."""
        logits = outputs.logits[:, self.kept.to(labels.device)]
        target = self.position.to(labels.device)[labels]
        inside = (target >= 0).to(logits.dtype)
        outside = 1 - inside
        wrong = F.cross_entropy(logits, target, ignore_index=-1, reduction="sum") / inside.sum().clamp_min(1)
        log_p = logits.log_softmax(1)
        h = -(log_p.exp() * log_p).sum(1)
        gap = (h * inside).sum() / inside.sum().clamp_min(1) - (h * outside).sum() / outside.sum().clamp_min(1)
        both = inside.amax() * outside.amax()  # a batch without left-out classes, or of these alone, has no gap
        return wrong + self.weight * both * F.relu(self.margin + gap)


def train_leave_out(
    num_classes: int,
    make: Callable[[int], Classifier],
    train: Callable[..., object],
    count: int = 5,
    seed: int = 0,
    select: SelectOn | None = None,
) -> LeaveOutEnsemble:
    """Train one network per fold and return them as a LeaveOutEnsemble.

    With our training loop ``train`` is ``lambda network, loss, seed, after_epoch=None: offaxis.train(network, data,
    published_recipe(), loss=loss, seed=seed, after_epoch=after_epoch)``. Without ``select`` each network keeps its last
    epoch. With it, the best epoch on an OOD validation set is kept, as published: a use of OOD samples, which
    ``selected_on`` and ``selected`` of the result and ``tuned_on`` of ``make_detector("leave-out", result)`` report. A folder
    that ``train`` writes to holds the last epoch all the same. With several processes each selects by its own batch
    normalisation: take the networks of the first.

    Args:
        num_classes: C.
        make: number of classes -> an untrained network.
        train: (network, loss, seed) -> anything; trains the network in place on all images, those of the left-out classes
            included. With ``select`` it gets a fourth argument, which it must call with (epoch, network) after each epoch.
        count: K, the number of folds.
        seed: deals the classes; network k is made and trained with seed + k.
        select: the images that the epochs of each network are compared on; None keeps the last.
    """
    left_out = folds(num_classes, count, seed)
    members, selected = [], []
    for k, fold in enumerate(left_out):
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed + k)
            member = make(num_classes)
        loss = MarginEntropyLoss(fold, num_classes)
        if select is None:
            train(member, loss, seed + k)
        else:
            best = BestEpoch(select, kept_classes(fold, num_classes))
            train(member, loss, seed + k, best)
            selected.append(best.restore(member))
        members.append(member)
    return LeaveOutEnsemble(members, left_out, selected)


def published_recipe() -> Recipe:
    """Return the recipe of the leave-out paper; its wide ResNets have dropout 0.3."""
    return Recipe(epochs=100, batch_size=100, learning_rate=0.1, weight_decay=5e-4, clip=None)
