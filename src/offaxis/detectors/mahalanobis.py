r"""Mahalanobis distance over layers (Lee, Lee, Lee, Shin 2018, https://arxiv.org/abs/1807.03888).

.. math::

    M_\ell(x) = \tfrac12 \min_c (f_\ell - \mu_{\ell c})^\top \Sigma_\ell^{+} (f_\ell - \mu_{\ell c}), \qquad
    S(x) = b + \sum_\ell \alpha_\ell M_\ell(x'_\ell), \qquad
    x'_\ell = x - \epsilon \, \mathrm{sign}(\nabla_x M_\ell(x)) / \sigma

:math:`f_\ell` is the spatial mean of layer :math:`\ell`; :math:`\Sigma_\ell` is the covariance within classes, divided
by the number of images. The paper's confidence is the negative; each layer moves the image down its *own* distance. The
weights come from a logistic regression of OOD against ID samples; before tuning all are 1 and :math:`\epsilon` is 0.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from offaxis.detectors.base import Detector, Passes, Reads, best_setting, concatenated
from offaxis.detectors.odin import backbone_of, fast_gradient_sign, features_until, input_gradient, step, watching
from offaxis.detectors.statistics import ClassMoments, TiedGaussian
from offaxis.errors import ArgumentError, DetectorError, channel_std, not_negative, values_to_try
from offaxis.heads import Outputs
from offaxis.networks.run import Batches, Network, eval_mode, to_network

EPSILONS = (0.0, 0.0005, 0.001, 0.0014, 0.002, 0.005, 0.01)
"""The magnitudes that the paper's code tries."""

FEATURES = ("",)
"""The layers of a network that names none: its features, which are the output of the whole backbone."""


def mahalanobis_score(distances: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    """Compute scores (N,) from half squared distances of L layers (N, L): larger = more OOD."""
    return distances.to(weights.dtype) @ weights + bias


class Mahalanobis(Detector):
    """Distances to the class means of several layers, weighted.

    Args:
        layers: names inside the backbone; None takes the network's own (``network.layers``) when fitted, or where it names
            none, the features alone, the input of the head. These are the layer ``""``.
        eps: how far the image moves, in units of the pixels' range [0, 1]; 0 until tuned.
        std: what each channel was divided by in normalisation.
        epsilons: the magnitudes to try when tuned.
    """

    name = "mahalanobis"
    paper = "https://arxiv.org/abs/1807.03888"
    uses = ("layers",)
    needs_fit = True
    tunable = ("eps",)
    options = ("layers", "std", "epsilons")

    weights: Tensor
    bias: Tensor

    def __init__(
        self,
        layers: Sequence[str] | None = None,
        eps: float = 0.0,
        std: Sequence[float] | None = None,
        epsilons: Sequence[float] = EPSILONS,
    ) -> None:
        super().__init__()
        self.eps = not_negative("eps", float(eps))
        self.std = channel_std(std)
        self.epsilons = values_to_try("epsilons", epsilons)
        self.expect("weights", "bias")
        self._takes_layers = not layers  # those of the network that it is fitted with
        self._build((layers,) if isinstance(layers, str) else layers or ())

    def _build(self, layers: Iterable[str]) -> None:
        # A module's name may not hold a dot, a layer's may: "/" stands for it, so that the state names the layers.
        self.gaussians = nn.ModuleDict({name.replace(".", "/") or "/": TiedGaussian() for name in layers})

    @property
    def layers(self) -> tuple[str, ...]:
        """Return the layers that it reads."""
        return tuple(map(_layer, self.gaussians))

    @property
    def reads(self) -> Reads:
        """Return images, for the gradients; layers where eps is 0."""
        return Reads.IMAGES if self.eps else Reads.LAYERS

    @property
    def grid_reads(self) -> Reads:
        """Return images where any eps of the grid moves them, else layers."""
        return Reads.IMAGES if any(self.epsilons) else Reads.LAYERS

    @property
    def passes(self) -> Passes:
        """Return one forward; with eps also a backward and a second forward up to each layer."""
        count = len(self.gaussians) or 4
        return Passes(1 + count, count) if self.eps else Passes(1)

    @property
    def grid(self) -> dict[str, tuple[float, ...]]:
        """Return the magnitudes to try."""
        return {"eps": self.epsilons}

    @property
    def fitted(self) -> bool:
        """Return whether the statistics of every layer are there."""
        return bool(self.layers) and super().fitted and all(part.fitted for part in self._parts())

    def sizes(self) -> dict[str, int]:
        """Return the width of each layer."""
        return {name: len(part.centre) for name, part in zip(self.layers, self._parts(), strict=True)}

    def begin(self, network: Network) -> None:
        """Take the network's layers where none were given, and start the sums."""
        layers = tuple(network.layers) or FEATURES
        if self._takes_layers and self.layers != layers:
            self._build(layers)
        self.tuned_on = None  # new statistics, new weights
        self._moments = {name: ClassMoments(network.num_classes) for name in self.layers}

    def update(self, outputs: Outputs, labels: Tensor) -> None:
        """Add a batch to the sums of each layer."""
        assert outputs.layers is not None
        for name, moments in self._moments.items():
            moments.add(outputs.layers[name], labels)

    def finish(self) -> None:
        """Compute the means and the whitening of each layer; all weights are 1."""
        for part, moments in zip(self._parts(), self._moments.values(), strict=True):
            part.set(moments.means(), moments.within(), moments.scale())
        del self._moments
        self.weights = self._parts()[0].centre.new_ones(len(self.gaussians))
        self.bias = self.weights.new_zeros(())

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) without a perturbation from the Outputs, with layers, of N images."""
        return mahalanobis_score(torch.stack(self._distances(outputs), 1), self.weights, self.bias)

    def _distances(self, outputs: Outputs) -> list[Tensor]:
        """Compute half the squared distance (N,) to the nearest class mean of each layer."""
        assert outputs.layers is not None
        layers = outputs.layers
        return [half_distance(part, layers[name]) for name, part in zip(self.layers, self._parts(), strict=True)]

    def score_images(self, network: Network, images: Tensor) -> Tensor:
        """Compute scores (N,) of images (N, c, h, w)."""
        if not self.eps:
            return super().score_images(network, images)
        self.check_fitted()
        distances = self._perturbed(network, images, (self.eps,))[:, 0]
        return mahalanobis_score(distances, self.weights, self.bias)

    def with_hyperparameters(self, **hyperparameters: Any) -> Self:
        """Return the same fitted detector with other hyperparameters, which takes its layers from where this one does."""
        other = super().with_hyperparameters(**hyperparameters)
        other._takes_layers = self._takes_layers
        return other

    def grid_scores(self, outputs: Outputs) -> Tensor:
        """Compute distances (N, 1, L) from Outputs; a grid with perturbations needs the images."""
        if any(self.epsilons):
            raise DetectorError("mahalanobis perturbs the images over its grid: call grid_scores_images().")
        self.check_fitted()
        self.check_outputs(outputs)
        return torch.stack(self._distances(outputs), 1).unsqueeze(1)

    def grid_scores_images(self, network: Network, images: Tensor) -> Tensor:
        """Compute distances (N, E, L) at each magnitude, from one clean pass and one backward pass per layer."""
        self.check_fitted()
        return self._perturbed(network, images, self.epsilons)

    def score_from_grid(self, grid_scores: Tensor) -> Tensor:
        """Compute scores (N,) at this detector's magnitude and weights from distances (N, E, L)."""
        weights, bias = self.weights.to(grid_scores.device), self.bias.to(grid_scores.device)
        return mahalanobis_score(super().score_from_grid(grid_scores), weights, bias)

    def choose(self, id_grid: Tensor, ood_grid: Tensor, on: str = "OOD samples") -> Self:
        """Return the detector with weights from the first half of each set and the magnitude with the best TNR on the second.

        A logistic regression (three-fold cross-validated) is fitted for every magnitude; TNR is taken at TPR 95 %. With
        1,000 + 1,000 images this is the published procedure, except that distances are standardised first: they differ by
        orders of magnitude.
        """
        (id_fit, id_choose), (ood_fit, ood_choose) = half_of(id_grid, on), half_of(ood_grid, on)
        candidates = []
        for index, eps in enumerate(self.epsilons):
            candidate = self.with_hyperparameters(eps=eps)
            weights, bias = regress(id_fit[:, index], ood_fit[:, index])
            candidate.weights, candidate.bias = weights.to(self.weights), bias.to(self.bias)
            candidate.tuned_on = on
            candidates.append(candidate)
        scores = [torch.stack([c.score_from_grid(part) for c in candidates], 1) for part in (id_choose, ood_choose)]
        return candidates[best_setting(scores[0], scores[1], self.tuning_metric)]

    def tune_without_ood(self, network: Network, batches: Batches, magnitude: float = 0.05) -> Self:
        """Tune weights and magnitude on ID images against adversarial examples made of them (FGSM), without OOD samples.

        Args:
            network: the network that the detector was fitted with.
            batches: validation images of the ID set with their labels.
            magnitude: of the adversarial step, in units of the pixels' range; 0.05 in the paper's code, which does not
                say how it was chosen.
        """
        clean, adversarial = [], []
        for images, labels in batches:
            moved = fast_gradient_sign(network, images, labels, magnitude=magnitude, std=self.std)
            clean.append(self.grid_scores_images(network, images))
            adversarial.append(self.grid_scores_images(network, moved))
        id_grid, moved_grid = (concatenated(parts, "ID images to tune on") for parts in (clean, adversarial))
        return self.choose(id_grid, moved_grid, on=f"adversarial ID images (FGSM {magnitude})")

    def _perturbed(self, network: Network, images: Tensor, epsilons: Sequence[float]) -> Tensor:
        x, backbone = to_network(network, images), backbone_of(network)
        calls: Counter[str] = Counter()
        with eval_mode(network), torch.inference_mode(False), torch.enable_grad():
            x = x.detach().clone().requires_grad_()
            with watching(backbone, self.layers, lambda name, _: calls.update([name])):
                outputs = network.outputs(x, self.layers)
            self.check_outputs(outputs)
            # Layer by layer: the gradient of a column of their stack would run back through every layer, with zeros.
            clean = self._distances(outputs)
            moved_by = [each for each in clean if any(epsilons)]
            steps = [step(input_gradient(each, x, retain=each is not clean[-1]), self.std) for each in moved_by]
        rows = []
        with eval_mode(network), torch.no_grad():
            for eps in epsilons:
                if not eps:
                    rows.append(torch.stack(clean, 1).detach())
                    continue
                moved = [
                    half_distance(part, features_until(backbone, x.detach() - eps * each, name, calls[name]))
                    for name, part, each in zip(self.layers, self._parts(), steps, strict=True)
                ]
                rows.append(torch.stack(moved, 1))
        return torch.stack(rows, 1)

    def _parts(self) -> list[TiedGaussian]:
        return [part for part in self.gaussians.values() if isinstance(part, TiedGaussian)]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        start = f"{prefix}gaussians."
        keys = [key.removeprefix(start) for key in state_dict if key.startswith(start)]
        names = dict.fromkeys(_layer(key.rpartition(".")[0]) for key in keys)
        if set(names) != set(self.layers):  # files sort their names; the weights follow the order of the layers
            self._build(names)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _layer(key: str) -> str:
    """Return the layer that a name of the state stands for."""
    return key.replace("/", ".") if key != "/" else ""


def half_distance(gaussian: TiedGaussian, features: Tensor) -> Tensor:
    """Compute half the squared distance of features (N, d) to the nearest centre: (N,)."""
    nearest: Tensor = gaussian(features).min(1).values
    return nearest / 2


def half_of(grid_scores: Tensor, what: str) -> tuple[Tensor, Tensor]:
    """Return the first and the second half of a validation set."""
    if len(grid_scores) < 12:
        raise ArgumentError(
            f"Expected at least 12 validation images of each kind to tune mahalanobis but got {len(grid_scores)} "
            f"(tuning on {what}): half of them fit a cross-validated regression. The published number is 1,000."
        )
    middle = len(grid_scores) // 2
    return grid_scores[:middle], grid_scores[middle:]


def regress(id_distances: Tensor, ood_distances: Tensor) -> tuple[Tensor, Tensor]:
    """Fit a logistic regression of OOD (1) against ID (0) over distances (N, L), (M, L); return weights (L,) and bias."""
    from sklearn.linear_model import LogisticRegressionCV  # takes two seconds to import, which no other detector needs

    x = torch.cat([id_distances, ood_distances]).cpu().double()
    centre, spread = x.mean(0), x.std(0).clamp_min(torch.finfo(torch.float64).tiny)
    y = np.repeat([0, 1], [len(id_distances), len(ood_distances)])
    model = LogisticRegressionCV(cv=3, max_iter=1000, scoring="accuracy", use_legacy_attributes=False, l1_ratios=(0,))
    model.fit(((x - centre) / spread).numpy(), y)
    weights = torch.from_numpy(model.coef_[0]) / spread
    return weights, torch.tensor(float(model.intercept_[0])) - weights @ centre
