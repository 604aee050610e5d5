r"""Ensemble of leave-out classifiers (Vyas et al. 2018, https://arxiv.org/abs/1809.03576).

The classes are divided into K folds. Network k is trained on all images, with those of fold k as its OOD samples:

.. math::

    L = \mathrm{CE}(\text{ID}) + \beta \max(0,\; m + \bar H_{\text{ID}} - \bar H_{\text{OOD}})

with :math:`\beta = 0.2` and margin :math:`m = 0.4`. The score, the negative of the paper's, is

.. math::

    S(x) = -\sum_k \left[\max_i p^{(k)}_i(x'_k) - H(p^{(k)}(x'_k))\right], \qquad
    x'_k = x - \epsilon \, \mathrm{sign}(\nabla_x H(p^{(k)}(x))) / \sigma

with probabilities at temperature T. The published training: 100 epochs, batches of 100, learning rate 0.1 dropped at 50
and 75 %, weight decay 5e-4, dropout 0.3 in wide ResNets, and the checkpoint with the best AUROC on an OOD validation set.
"""

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from offaxis.detectors.base import Detector, Passes, Reads
from offaxis.detectors.odin import perturbed_scores
from offaxis.errors import DetectorError, channel_std, not_negative, positive
from offaxis.heads import Outputs
from offaxis.networks.combine import LeaveOutEnsemble
from offaxis.networks.run import Network, eval_mode, to_network, widest


def entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Compute the entropy of softmax(logits / T) in nats: (N, C) -> (N,) in [0, ln C].

    In float64: at T = 1000 every image lies within 1e-4 of ln C, where float32 counts in steps of 2e-7.
    """
    log_p = (widest(logits) / temperature).log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


def leave_out_score(logits: Tensor, temperature: float = 1000.0) -> Tensor:
    """Compute one network's part of the score, H(p) - max p: logits (N, C) -> (N,), larger = more OOD."""
    return entropy(logits, temperature) - (widest(logits) / temperature).softmax(1).amax(1)


class LeaveOut(Detector):
    """The summed score of a ``LeaveOutEnsemble``, each network with its own perturbed image.

    ``make_detector("leave-out", ensemble)`` takes the number of networks and what their epochs were chosen on from it.

    Args:
        temperature: T; 1000 as published.
        eps: how far the image moves, in units of the pixels' range; 0.002 as published, chosen on iSUN.
        std: what each channel was divided by in normalisation.
        networks: how many networks the ensemble has, for ``passes``.
        selected_on: the OOD set that the networks' epochs were chosen on, a part of ``tuned_on``; None where they were not.
    """

    name = "leave-out"
    paper = "https://arxiv.org/abs/1809.03576"
    uses = ()
    takes = (LeaveOutEnsemble,)
    reads = Reads.IMAGES  # every network has its own outputs and its own perturbation
    tunable = ("temperature", "eps")
    grid: Mapping[str, tuple[float, ...]] = {
        "temperature": (1.0, 10.0, 100.0, 1000.0),
        "eps": (0.0, 0.0005, 0.001, 0.0014, 0.002, 0.0024, 0.005, 0.01),
    }
    options = ("std", "networks", "selected_on")

    def __init__(
        self,
        temperature: float = 1000.0,
        eps: float = 0.002,
        *,
        std: Sequence[float] | None = None,
        networks: int = 5,
        selected_on: str | None = None,
    ) -> None:
        super().__init__()
        self.temperature = positive("temperature", float(temperature))
        self.eps = not_negative("eps", float(eps))
        self.std = channel_std(std)
        self.networks = networks
        self.selected_on = selected_on
        self.tuned_on = selected_on and f"{selected_on} (epochs)"

    @property
    def passes(self) -> Passes:
        """Return two forward and one backward pass through each network; one forward where eps is 0."""
        return Passes(2 * self.networks, self.networks) if self.eps else Passes(self.networks)

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute one network's part of the score (N,), without a perturbation."""
        return leave_out_score(outputs.logits, self.temperature)

    def score_images(self, network: Network, images: Tensor) -> Tensor:
        """Compute scores (N,) of images (N, c, h, w)."""
        return self._scores(network, images, (self.temperature,), (self.eps,))[:, 0, 0]

    def grid_scores_images(self, network: Network, images: Tensor) -> Tensor:
        """Compute scores (N, S) over the grid, with passes shared between settings."""
        return self._scores(network, images, *self.grid.values()).flatten(1)

    def choose(self, id_grid: Tensor, ood_grid: Tensor, on: str = "OOD samples") -> Self:
        """Choose as every detector does; ``tuned_on`` keeps naming what the epochs were chosen on too."""
        return super().choose(id_grid, ood_grid, f"{self.selected_on} (epochs), {on}" if self.selected_on else on)

    def _scores(
        self, network: Network, images: Tensor, temperatures: Sequence[float], epsilons: Sequence[float]
    ) -> Tensor:
        self.check_network(network)
        assert isinstance(network, LeaveOutEnsemble)
        if network.selected_on not in (None, self.selected_on):
            raise DetectorError(
                f"Expected a detector with selected_on={network.selected_on!r}, as the networks' epochs were chosen on that "
                f"set, but got {self.selected_on!r}: construct it with make_detector('leave-out', ensemble)."
            )
        x = to_network(network, images)
        with eval_mode(network):
            parts = [
                perturbed_scores(member, x, temperatures, epsilons, self.std, entropy, leave_out_score)
                for member in network.member_functions()
            ]
        return torch.stack(parts).sum(0)
