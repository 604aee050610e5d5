"""How the networks of the leave-out method are trained: each on all images, with one fold of classes as outsiders."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.errors import ArgumentError
from offaxis.heads import Outputs
from offaxis.networks.classifier import Classifier
from offaxis.networks.leave_out_ensemble import LeaveOutEnsemble, folds, kept_classes
from offaxis.training.leave_out_selection import BestEpoch, SelectOn
from offaxis.training.recipe import Recipe


class MarginEntropyLoss(nn.Module):
    """The margin-entropy loss of one network: a callable (outputs, labels) -> loss for the training loop.

    The network has an output for every class, so that it trains on the data as it is; those of the left-out classes are
    never looked at.

    Args:
        left_out: the classes whose images play the outsiders.
        num_classes: C.
        weight: beta.
        margin: m, in nats.
    """

    kept: Tensor
    position: Tensor

    def __init__(self, left_out: Iterable[int], num_classes: int, weight: float = 0.2, margin: float = 0.4) -> None:
        super().__init__()
        self.register_buffer("kept", kept_classes(left_out, num_classes))
        position = torch.full((num_classes,), -1)
        position[self.kept] = torch.arange(len(self.kept))
        self.register_buffer("position", position)
        self.weight = weight
        self.margin = margin

    def extra_repr(self) -> str:
        """What makes it one of its kind, for the settings of a run."""
        left_out = (self.position < 0).nonzero().flatten().tolist()
        return f"{left_out=}, weight={self.weight}, margin={self.margin}"

    def forward(self, outputs: Outputs, labels: Tensor) -> Tensor:
        """Outputs of N images with labels (N,) -> the loss, a scalar."""
        logits = outputs.logits[:, self.kept.to(labels.device)]
        target = self.position.to(labels.device)[labels]
        inside = (target >= 0).to(logits.dtype)
        outside = 1 - inside
        wrong = F.cross_entropy(logits, target, ignore_index=-1, reduction="sum") / inside.sum().clamp_min(1)
        log_p = logits.log_softmax(1)
        h = -(log_p.exp() * log_p).sum(1)
        gap = (h * inside).sum() / inside.sum().clamp_min(1) - (h * outside).sum() / outside.sum().clamp_min(1)
        both = inside.amax() * outside.amax()  # a batch without outsiders, or of outsiders alone, has no gap
        return wrong + self.weight * both * F.relu(self.margin + gap)


def check_dealt(members: Sequence[tuple[str, str | None]], dealt: Sequence[Sequence[int]]) -> None:
    """Refuse networks that were trained without other classes than their place says, where that is known.

    Args:
        members: for each network what to call it, and what its run calls its loss; None where that is not known.
        dealt: the classes that the network in each place leaves out.

    Raises:
        ArgumentError: a network is not the one that belongs in its place.
    """
    for place, ((name, known), fold) in enumerate(zip(members, dealt, strict=True)):
        if known is not None and f"left_out={sorted(fold)}," not in known:
            raise ArgumentError(
                f"Expected the network of offaxis train --leave-out {place}/{len(members)} in place {place}, which leaves out "
                f"classes {sorted(fold)}, but {name} was trained with {known}. Name all {len(members)} in their order."
            )


def train_leave_out(
    num_classes: int,
    make: Callable[[int], Classifier],
    train: Callable[..., object],
    count: int = 5,
    seed: int = 0,
    select: SelectOn | None = None,
) -> LeaveOutEnsemble:
    """Train one network a fold and return them together.

    With our training loop ``train`` is ``lambda network, loss, seed, after_epoch=None: offaxis.train(network, data,
    published_recipe(), loss=loss, seed=seed, after_epoch=after_epoch)``. Without ``select`` each network keeps its last
    state. With it, the best epoch on an OOD validation set is kept, as published: a use of OOD samples, which
    ``selected_on`` and ``chosen`` of the result tell, and ``LeaveOut.of(result)`` in its ``tuned_on``. A folder that
    ``train`` writes to holds the last state all the same. With several processes each chooses by its own batch
    normalisation: take the networks of the first.

    Args:
        num_classes: C.
        make: number of classes -> an untrained network.
        train: (network, loss, seed) -> anything; trains the network in place on all images, outsiders included. With
            ``select`` it gets a fourth argument, which it must call with (epoch, network) after each epoch.
        count: K, the number of folds.
        seed: deals the classes; network k is made and trained with seed + k.
        select: what the epochs of each network are compared on; None keeps the last.
    """
    left_out = folds(num_classes, count, seed)
    members, chosen = [], []
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
            chosen.append(best.restore(member))
        members.append(member)
    return LeaveOutEnsemble(members, left_out, chosen)


def published_recipe() -> Recipe:
    """How the paper's networks were trained; its wide ResNets have dropout 0.3."""
    return Recipe(epochs=100, batch_size=100, learning_rate=0.1, weight_decay=5e-4, clip=None)
