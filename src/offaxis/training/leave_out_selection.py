"""Which epoch of a network of the leave-out method to keep: the one that best tells an OOD validation set from ID images.

The publication chose on iSUN. That is a use of OOD samples, so which set it was is written down with the networks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from offaxis.data import ImageSet, Normalise
from offaxis.detectors.leave_out import leave_out_score
from offaxis.errors import DetectorError
from offaxis.metrics import auroc
from offaxis.networks.classifier import Classifier
from offaxis.networks.inference import evaluating, to_device
from offaxis.networks.leave_out_ensemble import Chosen


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
        with evaluating(network):
            for batch in images.batches(self.select.batch_size):
                logits = network(to_device(network, self.select.normalise(batch)))
                parts.append(leave_out_score(logits[:, self.kept.to(logits.device)], self.select.temperature))
        scores: list[float] = torch.cat(parts).tolist()
        return scores
