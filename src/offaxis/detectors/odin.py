r"""ODIN (Liang, Li, Srikant 2018, https://arxiv.org/abs/1706.02690).

.. math::

    S(x) = -\max_i p_i(x'; T), \qquad p(x; T) = \mathrm{softmax}(z(x) / T), \qquad
    x' = x - \epsilon \, \mathrm{sign}(\nabla_x [-\log \max_i p_i(x; T)]) / \sigma

The image moves so that the network becomes more confident in its prediction, which helps ID images more. Images are normalised,
so the step is divided by each channel's :math:`\sigma`. Two forward passes and one backward pass an image. Steps along the
gradient's sign, adversarial examples and passes that end at a layer are here for the other detectors that move images, too.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offaxis.detectors.base import Detector, Passes, Reads
from offaxis.detectors.logit_scores import max_softmax_score
from offaxis.errors import ArgumentError, DetectorError, channel_std, not_negative, positive, values_to_try
from offaxis.heads import Outputs
from offaxis.networks.classifier import Classifier, has_channels_last, pooled
from offaxis.networks.combine import Paired
from offaxis.networks.run import Network, check_labels, eval_mode, require_finite, to_network

PerImage = Callable[[Tensor, float], Tensor]
"""(the network's logits (N, C), temperature) -> one value per image (N,)."""


def perturbed_scores(
    network: Callable[[Tensor], Tensor],
    images: Tensor,
    temperatures: Sequence[float],
    epsilons: Sequence[float],
    std: Sequence[float] | None,
    loss: PerImage,
    score: PerImage,
    begun: Tensor | None = None,
) -> Tensor:
    """Compute scores (N, T, E) of images (N, c, h, w) moved one step down a loss, over a whole grid.

    The clean forward pass serves every temperature and every eps = 0; each temperature takes one backward pass, each
    (temperature, eps > 0) one forward pass.

    Args:
        network: images -> the logits that ``loss`` and ``score`` take; already in eval mode.
        images: normalised, as ``to_network`` returns them.
        temperatures: T values.
        epsilons: E magnitudes, in units of the pixels' range [0, 1].
        std: what each channel was divided by.
        loss: the step goes down its gradient.
        score: the score, from the logits of the moved image.
        begun: the logits of the clean forward pass, where it was made already, with its graph; ``images`` is its leaf.
    """
    moving = any(epsilons)
    with torch.inference_mode(False):
        x = images if begun is not None else images.detach().clone().requires_grad_(moving)  # a clone is a leaf
        with torch.set_grad_enabled(moving):
            logits = network(x) if begun is None else begun
            require_finite("the network's logits", logits)
            losses = [loss(logits, temperature) for temperature in temperatures] if moving else []
            kept = begun is not None  # others may take gradients of the same pass
            steps = [step(input_gradient(each, x, retain=kept or each is not losses[-1]), std) for each in losses]
        clean, start = logits.detach(), x.detach()
        with torch.no_grad():
            rows = [
                [score(network(start - eps * steps[i]) if eps else clean, temperature) for eps in epsilons]
                for i, temperature in enumerate(temperatures)
            ]
    return torch.stack([torch.stack(row, 1) for row in rows], 1)


def input_gradient(loss: Tensor, images: Tensor, retain: bool = False) -> Tensor:
    """Compute the gradient of a sum over images with respect to the images; parameters collect none.

    Args:
        loss: (N,), one value per image.
        images: (N, c, h, w), a leaf that requires a gradient.
        retain: keep the graph for another gradient of it.
    """
    (gradient,) = torch.autograd.grad(loss.sum(), images, retain_graph=retain)
    return gradient


def step(gradient: Tensor, std: Sequence[float] | None) -> Tensor:
    """Compute sign(gradient) / std by channel: a step of one unit of the pixels' range [0, 1]; 0 where the gradient is 0."""
    sign = gradient.sign()
    if std is None:
        return sign
    if sign.shape[1] != len(std):
        raise ArgumentError(f"Expected images with {len(std)} channels, as `std` has, but got {sign.shape[1]}.")
    return sign / sign.new_tensor(std).view(1, -1, 1, 1)


def fast_gradient_sign(
    network: Network, images: Tensor, labels: Tensor, *, magnitude: float, std: Sequence[float] | None = None
) -> Tensor:
    """Move images (N, c, h, w) up the loss of their own labels; pixels may leave their range by eta.

    Args:
        network: the network whose loss is raised.
        images: normalised as in training.
        labels: (N,).
        magnitude: eta, in units of the pixels' range [0, 1].
        std: what each channel was divided by in normalisation.
    """
    x = to_network(network, images)
    labels = check_labels(labels, len(x), network.num_classes).to(x.device)
    with eval_mode(network), torch.inference_mode(False), torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        loss = F.cross_entropy(network(x), labels, reduction="none")
        return x.detach() + magnitude * step(input_gradient(loss, x), std)


class _ReachedError(Exception):
    """Carries a layer's features out of a forward pass that stops there."""


def backbone_of(network: Network) -> nn.Module:
    """Return the backbone whose inner layers detectors read."""
    if isinstance(network, Paired):
        return network.detector_network.backbone
    if isinstance(network, Classifier):
        return network.backbone
    raise DetectorError(
        f"Expected a single network for a method that reads inner layers but got a {type(network).__name__}."
    )


@contextmanager
def watching(backbone: nn.Module, layers: Iterable[str], see: Callable[[str, Any], None]) -> Iterator[None]:
    """Call ``see`` with the name and the output of a layer whenever it runs inside the block (a shared ReLU runs often)."""

    def seen(name: str, _module: nn.Module, _inputs: Any, out: Any) -> None:
        see(name, out)

    handles = [backbone.get_submodule(name).register_forward_hook(partial(seen, name)) for name in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def features_until(backbone: nn.Module, images: Tensor, layer: str, calls: int = 1) -> Tensor:
    """Return the pooled output (N, d) of a layer's last run; the forward pass stops there.

    Args:
        backbone: in eval mode.
        images: (N, c, h, w).
        layer: dotted name inside the backbone.
        calls: how often the layer runs in a whole forward pass.
    """
    channels_last = has_channels_last(backbone)
    left = calls

    def stop(_name: str, out: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise _ReachedError(pooled(out, channels_last))

    try:
        with watching(backbone, [layer], stop):
            backbone(images)
    except _ReachedError as reached:
        features: Tensor = reached.args[0]
        return features
    raise AssertionError(f"the layer {layer} ran less than {calls} times in a forward pass")


TEMPERATURES = (1.0, 10.0, 100.0, 1000.0)
EPSILONS = (0.0, 0.0005, 0.001, 0.0014, 0.002, 0.0024, 0.005, 0.01, 0.05, 0.1, 0.2)
"""The grid of Lee et al. 2018, which the paper's comparison used."""

OD_TEST_TEMPERATURES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
OD_TEST_EPSILONS = tuple(round(0.0002 * i, 4) for i in range(21))
"""The grid of Shafaei et al. 2019, who proposed the less-biased evaluation: 21 steps in [0, 0.004]."""


def odin_scores(
    network: Network,
    images: Tensor,
    temperatures: Sequence[float] = TEMPERATURES,
    epsilons: Sequence[float] = EPSILONS,
    std: Sequence[float] | None = None,
    begun: Tensor | None = None,
) -> Tensor:
    """Compute ODIN's scores (N, T, E) of images (N, c, h, w) over a whole grid: larger = more OOD.

    The clean forward pass serves every temperature and every eps = 0; each temperature takes one backward pass, each
    (temperature, eps > 0) one forward pass. For 4 x 11 settings that is 41 forward and 4 backward passes in place of 88
    and 44, with the same scores. Where the clean pass was made already, ``begun`` are its logits and ``images`` their leaf.
    """
    x = to_network(network, images) if begun is None else images
    with eval_mode(network):
        # a plain forward pass, unless the head scores with other logits than it classifies with
        logits_of = (lambda x: network.outputs(x).detection_logits) if network.head.scores_apart else network
        return perturbed_scores(logits_of, x, temperatures, epsilons, std, uncertainty, max_softmax_score, begun)


def uncertainty(logits: Tensor, temperature: float) -> Tensor:
    """Compute the cross-entropy with the predicted class, -log max p, from logits (N, C): (N,)."""
    return F.cross_entropy(logits / temperature, logits.argmax(1), reduction="none")


class ODIN(Detector):
    """The temperature-scaled confidence in a slightly moved image, negated.

    Args:
        temperature: T; 1000 in the paper.
        eps: how far the image moves, in units of the pixels' range [0, 1]; 0.0014 in the paper.
        std: the standard deviation that each channel was divided by in normalisation; None where it was not.
        temperatures: the values of T to try when tuned; Lee et al.'s, or OD_TEST_TEMPERATURES.
        epsilons: the values of eps to try when tuned; Lee et al.'s, or OD_TEST_EPSILONS.
    """

    name = "odin"
    paper = "https://arxiv.org/abs/1706.02690"
    tunable = ("temperature", "eps")
    options = ("std", "temperatures", "epsilons")
    shares_pass = True

    def __init__(
        self,
        temperature: float = 1000.0,
        eps: float = 0.0014,
        *,
        std: Sequence[float] | None = None,
        temperatures: Sequence[float] = TEMPERATURES,
        epsilons: Sequence[float] = EPSILONS,
    ) -> None:
        super().__init__()
        self.temperature = positive("temperature", float(temperature))
        self.eps = not_negative("eps", float(eps))
        self.std = channel_std(std)
        self.temperatures = values_to_try("temperatures", temperatures, zero=False)
        self.epsilons = values_to_try("epsilons", epsilons)

    @property
    def reads(self) -> Reads:
        """Return images, for the gradient; outputs where eps is 0."""
        return Reads.IMAGES if self.eps else Reads.OUTPUTS

    @property
    def grid_reads(self) -> Reads:
        """Return images where any eps of the grid moves them, else outputs."""
        return Reads.IMAGES if any(self.epsilons) else Reads.OUTPUTS

    @property
    def passes(self) -> Passes:
        """Return two forward and one backward; one forward where eps is 0."""
        return Passes(2, 1) if self.eps else Passes(1)

    @property
    def grid(self) -> dict[str, tuple[float, ...]]:
        """Return the temperatures and the magnitudes to try."""
        return {"temperature": self.temperatures, "eps": self.epsilons}

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) without a perturbation from the Outputs of N images."""
        return max_softmax_score(outputs.detection_logits, self.temperature)

    def score_images(self, network: Network, images: Tensor) -> Tensor:
        """Compute scores (N,) in [-1, -1/C] of images (N, c, h, w)."""
        return odin_scores(network, images, (self.temperature,), (self.eps,), self.std)[:, 0, 0]

    def grid_scores_images(self, network: Network, images: Tensor) -> Tensor:
        """Compute scores (N, S) over the grid, with passes shared between settings."""
        return odin_scores(network, images, self.temperatures, self.epsilons, self.std).flatten(1)

    def scores_after(self, network: Network, images: Tensor, outputs: Outputs, *, grid: bool) -> Tensor:
        """Compute scores (N,), or (N, S) over the grid, that begin with a forward pass made already."""
        temperatures, epsilons = (self.temperatures, self.epsilons) if grid else ((self.temperature,), (self.eps,))
        scores = odin_scores(network, images, temperatures, epsilons, self.std, outputs.detection_logits)
        return scores.flatten(1) if grid else scores[:, 0, 0]
