r"""Ensemble of leave-out classifiers (Vyas et al. 2018, https://arxiv.org/abs/1809.03576).

The classes are dealt into K folds. Network k is trained on all images, but those of fold k play the outsiders:

.. math::

    L = \mathrm{CE}(\text{insiders}) + \beta \max(0,\; m + \bar H_{\text{insiders}} - \bar H_{\text{outsiders}})

with :math:`\beta = 0.2` and margin :math:`m = 0.4`. The score, here with the sign turned, is

.. math::

    S(x) = -\sum_k \left[\max_i p^{(k)}_i(x'_k) - H(p^{(k)}(x'_k))\right], \qquad
    x'_k = x - \epsilon \, \mathrm{sign}(\nabla_x H(p^{(k)}(x))) / \sigma

with probabilities at temperature T. The published training: 100 epochs, batches of 100, learning rate 0.1 dropped at 50
and 75 %, weight decay 5e-4, dropout 0.3 in wide ResNets, and the checkpoint with the best AUROC on an OOD validation set.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.classifier import Classifier, Paired
from offaxis.detectors.arguments import channel_std, not_negative, positive
from offaxis.detectors.detector import Detector, Passes, Reads
from offaxis.detectors.ensemble import Ensemble
from offaxis.detectors.network import Network, evaluating, to_device
from offaxis.detectors.perturbation import perturbed_scores
from offaxis.detectors.precision import widest
from offaxis.errors import ArgumentError, DetectorError
from offaxis.heads import Outputs
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


def folds(num_classes: int, count: int = 5, seed: int = 0) -> list[tuple[int, ...]]:
    """Deal the classes into folds as equal as can be: fold k holds the classes that network k leaves out."""
    if not 2 <= count <= num_classes:
        raise ArgumentError(f"Expected argument `count` to be from 2 to {num_classes} folds but got {count}.")
    order = torch.randperm(num_classes, generator=torch.Generator().manual_seed(seed))
    dealt = [tuple(sorted(fold.tolist())) for fold in torch.tensor_split(order, count)]
    if num_classes - max(map(len, dealt)) < 2:
        raise ArgumentError(
            f"Expected folds that leave every network at least 2 classes but {count} folds of {num_classes} classes do not."
        )
    return dealt


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


def kept_classes(left_out: Iterable[int], num_classes: int) -> Tensor:
    """The classes that are not left out, in order."""
    out = set(left_out)
    return torch.tensor([c for c in range(num_classes) if c not in out])


class LeaveOutEnsemble(Ensemble):
    """The K networks, each of which knows the classes that its fold does not leave out.

    ``forward`` gives the logarithm of their summed probabilities.

    Args:
        members: K networks with C outputs each.
        left_out: the classes that each left out, in the order of the members.
    """

    def __init__(self, members: Sequence[Classifier], left_out: Sequence[Sequence[int]]) -> None:
        super().__init__(members)
        if len(left_out) != len(members):
            raise ArgumentError(f"Expected a fold for each of {len(members)} networks but got {len(left_out)} folds.")
        self.left_out = tuple(tuple(fold) for fold in left_out)
        self.kept = [kept_classes(fold, self.num_classes) for fold in self.left_out]

    def judges(self) -> list[Callable[[Tensor], Tensor]]:
        """For each network: images -> logits of the classes that it knows."""

        def judge(network: Classifier | Paired, kept: Tensor, images: Tensor) -> Tensor:
            logits: Tensor = network(images)
            return logits[:, kept.to(images.device)]

        return [partial(judge, member, kept) for member, kept in zip(self.networks, self.kept, strict=True)]

    def outputs(self, images: Tensor, layers: Iterable[str] = ()) -> Outputs:
        """Features side by side and, as logits, the logarithm of the summed probabilities of each class."""
        if tuple(layers):
            raise DetectorError("Expected no inner layers to be asked of an ensemble: score its members one by one.")
        each = [member.outputs(images) for member in self.networks]
        total = torch.zeros_like(each[0].logits)
        for out, kept in zip(each, self.kept, strict=True):
            known = kept.to(total.device)
            total = total.index_add(1, known, out.logits[:, known].softmax(1))
        tiny = torch.finfo(total.dtype).tiny
        return Outputs(torch.cat([out.features for out in each], 1), total.clamp_min(tiny).log())


def train_leave_out(
    num_classes: int,
    make: Callable[[int], Classifier],
    train: Callable[[Classifier, MarginEntropyLoss, int], object],
    count: int = 5,
    seed: int = 0,
) -> LeaveOutEnsemble:
    """Train one network a fold and return them together.

    With our training loop ``train`` is ``lambda network, loss, seed: offaxis.training.train(network, data,
    published_recipe(), loss=loss, seed=seed)``. The last state of each network is kept: the published choice of the best
    epoch on an OOD validation set is a use of OOD samples.

    Args:
        num_classes: C.
        make: number of classes -> an untrained network.
        train: (network, loss, seed) -> anything; trains the network in place on all images, outsiders included.
        count: K, the number of folds.
        seed: deals the classes; network k is made and trained with seed + k.
    """
    left_out = folds(num_classes, count, seed)
    members = []
    for k, fold in enumerate(left_out):
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed + k)
            member = make(num_classes)
        train(member, MarginEntropyLoss(fold, num_classes), seed + k)
        members.append(member)
    return LeaveOutEnsemble(members, left_out)


def published_recipe() -> Recipe:
    """How the paper's networks were trained; its wide ResNets have dropout 0.3."""
    return Recipe(epochs=100, batch_size=100, learning_rate=0.1, weight_decay=5e-4, clip=None)


class LeaveOut(Detector):
    """The summed score of a ``LeaveOutEnsemble``, each network with its own perturbed image.

    Args:
        temperature: T; 1000 as published.
        eps: how far the image moves, in units of the pixels' range; 0.002 as published, chosen on iSUN.
        std: what each channel was divided by in normalisation.
        networks: how many networks the ensemble has, for the account of passes.
    """

    name = "leave-out"
    paper = "https://arxiv.org/abs/1809.03576"
    uses = ()
    tunable = ("temperature", "eps")
    options = ("std", "networks")

    def __init__(
        self,
        temperature: float = 1000.0,
        eps: float = 0.002,
        std: Sequence[float] | None = None,
        networks: int = 5,
    ) -> None:
        super().__init__()
        self.temperature = positive("temperature", float(temperature))
        self.eps = not_negative("eps", float(eps))
        self.std = channel_std(std)
        self.networks = networks

    @property
    def reads(self) -> Reads:
        """Images: every network has its own outputs and its own perturbation."""
        return Reads.IMAGES

    @property
    def passes(self) -> Passes:
        """Two forward and one backward through each network."""
        return Passes(2 * self.networks, self.networks) if self.eps else Passes(self.networks)

    @property
    def grid(self) -> dict[str, tuple[float, ...]]:
        """Temperatures x magnitudes."""
        return {
            "temperature": (1.0, 10.0, 100.0, 1000.0),
            "eps": (0.0, 0.0005, 0.001, 0.0014, 0.002, 0.0024, 0.005, 0.01),
        }

    def forward(self, outputs: Outputs) -> Tensor:
        """One network's part of the score, without a perturbation: Outputs of N images -> (N,)."""
        return leave_out_score(outputs.logits, self.temperature)

    def score_images(self, network: Network, images: Tensor) -> Tensor:
        """Images (N, c, h, w) -> scores (N,)."""
        return self._scores(network, images, (self.temperature,), (self.eps,))[:, 0, 0]

    def evidence_images(self, network: Network, images: Tensor) -> Tensor:
        """Images -> scores (N, S) over the grid, with shared passes."""
        return self._scores(network, images, *self.grid.values()).flatten(1)

    def _scores(
        self, network: Network, images: Tensor, temperatures: Sequence[float], epsilons: Sequence[float]
    ) -> Tensor:
        if not isinstance(network, LeaveOutEnsemble):
            raise DetectorError(
                f"Expected a LeaveOutEnsemble for {self.name} but got a {type(network).__name__}: "
                "train_leave_out() makes one."
            )
        on_device = to_device(network, images)
        with evaluating(network):
            parts = [
                perturbed_scores(judge, on_device, temperatures, epsilons, self.std, entropy, leave_out_score)
                for judge in network.judges()
            ]
        return torch.stack(parts).sum(0)
