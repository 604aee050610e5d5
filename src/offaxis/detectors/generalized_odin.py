r"""Generalized ODIN's score (Hsu, Shen, Jin, Kira 2020, https://arxiv.org/abs/2002.11297).

.. math:: S(x) = -\max_i h_i(x'), \qquad x' = x + \epsilon \, \mathrm{sign}(\nabla_x \max_i h_i(x)) / \sigma

h is the numerator of the decomposed logits :math:`z_i = h_i / g` (see the heads ``deconf-c``, ``deconf-i``,
``deconf-e``). The magnitude is the one that raises the score of ID images most, so no OOD sample is needed:
:math:`\epsilon^* = \arg\max_\epsilon \sum_{x \in \text{ID}} \max_i h_i(x')`.
"""

from collections.abc import Iterator, Sequence, Sized
from contextlib import suppress
from math import ceil

import torch
from torch import Tensor

from offaxis.data.transforms import NO_LABELS
from offaxis.detectors.base import Detector, Passes, Reads
from offaxis.detectors.cosine import gives_cosine
from offaxis.detectors.odin import perturbed_scores
from offaxis.errors import (
    DataError,
    DetectorError,
    NotFittedError,
    at_least_one,
    channel_std,
    true_or_false,
    values_to_try,
)
from offaxis.heads import DeConfHead, Outputs
from offaxis.networks.combine import Paired
from offaxis.networks.run import (
    Batches,
    ImageBatches,
    Network,
    device_of,
    eval_mode,
    prepared_batches,
    to_network,
)

EPSILONS = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08)


def numerators(outputs: Outputs) -> Tensor:
    """Return the numerators h (N, C): the cosine where the head has one, else the logits without their scale 1 / g."""
    if outputs.cosine is not None:
        return outputs.cosine
    assert outputs.scale is not None  # checked
    return outputs.logits / outputs.scale.unsqueeze(1)


def generalized_odin_score(h: Tensor, _temperature: float = 1.0) -> Tensor:
    """Compute scores (N,) from numerators (N, C): larger = more OOD."""
    return -h.amax(1)


def _some_of(batches: ImageBatches, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the first ``count`` images; where the first batch is sorted by class, as many in evenly spread parts."""
    taken, step = 0, 1.0
    for number, batch in enumerate(batches):
        images, labels = (batch, NO_LABELS) if isinstance(batch, Tensor) else batch
        if number == 0 and isinstance(batches, Sized) and _is_sorted(labels):
            with suppress(DataError):  # a loader of a dataset that does not know its length
                step = 1 / len(batches)
        goal = min(count, ceil(count * step * (number + 1))) - taken
        if goal:
            yield images[:goal], labels[:goal]
            taken += len(images[:goal])
        if taken >= count:
            break


def _is_sorted(labels: Tensor) -> bool:
    """Return whether the labels of a batch ascend, which those of a shuffled one do not: where it has eight or more."""
    return len(labels) >= 8 and bool((labels.diff() >= 0).all())


class GeneralizedODIN(Detector):
    """The largest numerator of a decomposed-confidence head, negated, for an image moved to raise it.

    Args:
        perturb: move the image; the magnitude is chosen by ``fit`` on ID images alone. Without it there is nothing to
            fit, and outputs are enough.
        std: what each channel was divided by in normalisation.
        epsilons: the magnitudes that ``fit`` tries.
        images: how many ID images ``fit`` uses, the first ones, of batches sorted by class some of each batch: one pass for
            each magnitude.
    """

    name = "generalized-odin"
    paper = "https://arxiv.org/abs/2002.11297"
    uses = ("logits", "scale")
    options = ("perturb", "std", "epsilons", "images")

    eps: Tensor

    def __init__(
        self,
        perturb: bool = True,
        std: Sequence[float] | None = None,
        epsilons: Sequence[float] = EPSILONS,
        images: int = 1000,
    ) -> None:
        super().__init__()
        self.perturb = true_or_false("perturb", perturb)
        self.std = channel_std(std)
        self.epsilons = values_to_try("epsilons", epsilons)
        self.images = at_least_one("images", images)
        self.needs_fit = self.fits_on_images = perturb
        if perturb:
            self.expect("eps")

    @property
    def reads(self) -> Reads:
        """Return images, for the gradient; outputs without a perturbation."""
        return Reads.IMAGES if self.perturb else Reads.OUTPUTS

    @property
    def passes(self) -> Passes:
        """Return two forward and one backward; one forward without a perturbation."""
        return Passes(2, 1) if self.perturb else Passes(1)

    def check_network(self, network: Network) -> None:
        """Raise DetectorError for an ensemble, and for a Paired without a cosine: its scale is not that of its logits."""
        super().check_network(network)
        if isinstance(network, Paired) and not gives_cosine(network.head):
            raise DetectorError(
                f"Expected a Paired whose detector network gives a cosine for {self.name} but its "
                f"{type(network.head).__name__} gives none, and the logits are the classifier's: score "
                "network.detector_network instead."
            )

    def suits(self, network: Network) -> bool:
        """Return whether the network has a head of the method."""
        return super().suits(network) and isinstance(network.head, DeConfHead)

    def fit_batches(self, network: Network, batches: Batches) -> None:
        """Choose the magnitude that raises the score of these ID images most; labels are not needed."""
        self.check_network(network)
        scores = [
            self._scores(network, images, self.epsilons)
            for images, _ in prepared_batches(network, _some_of(batches, self.images))
        ]
        if not scores:
            raise NotFittedError("Expected ID images to choose the perturbation with but there were none.")
        best = int(torch.cat(scores).cpu().double().mean(0).argmin())
        self.eps = torch.tensor(self.epsilons[best], dtype=torch.float64)
        self.move_to(device_of(network))

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) without a perturbation from the Outputs of N images."""
        return generalized_odin_score(numerators(outputs))

    def score_images(self, network: Network, images: Tensor) -> Tensor:
        """Compute scores (N,) of images (N, c, h, w)."""
        self.check_network(network)
        if not self.perturb:
            return super().score_images(network, images)
        self.check_fitted()
        return self._scores(network, images, (float(self.eps),))[:, 0]

    def _scores(self, network: Network, images: Tensor, epsilons: Sequence[float]) -> Tensor:
        def h(x: Tensor) -> Tensor:
            outputs = network.outputs(x)
            self.check_outputs(outputs)
            return numerators(outputs)

        x, score = to_network(network, images), generalized_odin_score
        with eval_mode(network):
            return perturbed_scores(h, x, (1.0,), epsilons, self.std, score, score)[:, 0]
