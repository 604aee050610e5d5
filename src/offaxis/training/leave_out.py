"""Train the networks of the leave-out method (Vyas et al. 2018), each with one fold of classes as outsiders."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.data import ImageSet, Normalise
from offaxis.errors import ArgumentError, DetectorError
from offaxis.heads import Outputs
from offaxis.metrics import auroc
from offaxis.networks.classifier import Classifier
from offaxis.networks.ensemble import Chosen, LeaveOutEnsemble, folds, kept_classes
from offaxis.networks.inference import eval_mode, to_network, widest
from offaxis.training.recipe import Recipe


def entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """The entropy of softmax(logits / T), in nats: (N, C) -> (N,) in [0, ln C].

    In float64: at T = 1000 every image lies within 1e-4 of ln C, where float32 counts in steps of 2e-7.
    """
    log_p = (widest(logits) / temperature).log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


def leave_out_score(logits: Tensor, temperature: float = 1000.0) -> Tensor:
    """One network's part of the score, H(p) - max p: logits (N, C) -> (N,), larger = more OOD."""
    return entropy(logits, temperature) - (widest(logits) / temperature).softmax(1).amax(1)


@dataclass(frozen=True)
class SelectOn:
    """What the epochs are compared on.

    Attributes:
        known: validation images of the ID set, of all classes, not trained on. The left-out classes count as ID: the
            ensemble has to accept them.
        strange: the selecting OOD set, whose name is reported.
        normalise: what the images go through first, as in training.
        temperature: of the score; its perturbation is left out here, so that an epoch costs one forward pass.
        batch_size: images at a time.
    """

    known: ImageSet
    strange: ImageSet
    normalise: Normalise
    temperature: float = 1000.0
    batch_size: int = 256


class BestEpoch:
    """Keeps the weights of the best epoch so far: an ``after_epoch`` for the training loop.

    Of equal epochs the first is kept. The weights are held in memory: a training that is resumed compares the epochs
    from there on, and ``Chosen.compared`` says how many they were.

    Args:
        select: what the epochs are compared on.
        kept: the classes that the network knows.
    """

    def __init__(self, select: SelectOn, kept: Tensor) -> None:
        self.select = select
        self.kept = kept
        self.aurocs: dict[int, float] = {}
        self.best: int | None = None
        self.weights: dict[str, Tensor] = {}

    def __call__(self, epoch: int, network: Classifier) -> None:
        """Measure the network as it is after an epoch (from 1)."""
        found = auroc(self._scores(network, self.select.known), self._scores(network, self.select.strange))
        self.aurocs[epoch] = found
        if self.best is None or found > self.aurocs[self.best]:
            self.best = epoch
            self.weights = {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}

    def restore(self, network: Classifier) -> Chosen:
        """Put the best weights back into the network, and say which they were."""
        if self.best is None:
            raise DetectorError(
                "Expected epochs to choose from but none was seen: `train` gets the choice as a fourth argument and must "
                "call it after every epoch, as offaxis.train(..., after_epoch=...) does. A finished run that is resumed has "
                "no epochs left."
            )
        network.load_state_dict(self.weights)
        return Chosen(self.select.strange.name, self.best, self.aurocs[self.best], len(self.aurocs))

    @torch.no_grad()
    def _scores(self, network: Classifier, images: ImageSet) -> list[float]:
        parts = []
        with eval_mode(network):
            for batch in images.batches(self.select.batch_size):
                logits = network(to_network(network, self.select.normalise(batch)))
                parts.append(leave_out_score(logits[:, self.kept.to(logits.device)], self.select.temperature))
        scores: list[float] = torch.cat(parts).tolist()
        return scores


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
    ``selected_on`` and ``chosen`` of the result tell, and ``LeaveOut.for_ensemble(result)`` in its ``tuned_on``. A folder that
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
