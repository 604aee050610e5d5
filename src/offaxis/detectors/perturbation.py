"""Small steps of the image along the sign of a gradient: ODIN's trick, and what others made of it."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from offaxis.errors import ArgumentError
from offaxis.networks.inference import check_finite

Judge = Callable[[Tensor, float], Tensor]
"""(what the network says (N, C), temperature) -> one value an image (N,)."""


def perturbed_scores(
    network: Callable[[Tensor], Tensor],
    images: Tensor,
    temperatures: Sequence[float],
    epsilons: Sequence[float],
    std: Sequence[float] | None,
    loss: Judge,
    score: Judge,
) -> Tensor:
    """Scores after a step down a loss, over a whole grid: images (N, c, h, w) -> (N, T, E).

    The clean forward pass serves every temperature and every eps = 0; each temperature takes one backward pass, each
    (temperature, eps > 0) one forward pass.

    Args:
        network: images -> what ``loss`` and ``score`` judge; already in eval mode.
        images: normalised, where the network is.
        temperatures: T values.
        epsilons: E magnitudes, in units of the pixels' range [0, 1].
        std: what each channel was divided by.
        loss: what the step goes down.
        score: the score of what the network says of the moved image.
    """
    moving = any(epsilons)
    with torch.inference_mode(False):
        x = images.detach().clone().requires_grad_(moving)  # a clone is a leaf, in inference mode too
        with torch.set_grad_enabled(moving):
            said = network(x)
            check_finite("What the network says", said)
            losses = [loss(said, temperature) for temperature in temperatures] if moving else []
            steps = [step(input_gradient(each, x, retain=each is not losses[-1]), std) for each in losses]
        clean, start = said.detach(), x.detach()
        with torch.no_grad():
            rows = [
                [score(network(start - eps * steps[i]) if eps else clean, temperature) for eps in epsilons]
                for i, temperature in enumerate(temperatures)
            ]
    return torch.stack([torch.stack(row, 1) for row in rows], 1)


def input_gradient(loss: Tensor, images: Tensor, retain: bool = False) -> Tensor:
    """The gradient of a sum over images with respect to the images: the parameters collect none.

    Args:
        loss: (N,), one value an image.
        images: (N, c, h, w), a leaf that requires a gradient.
        retain: keep the graph, where another gradient of it is wanted.
    """
    (gradient,) = torch.autograd.grad(loss.sum(), images, retain_graph=retain)
    return gradient


def step(gradient: Tensor, std: Sequence[float] | None) -> Tensor:
    """sign(gradient) / std by channel: a step of one unit of the pixels' own range [0, 1]; zero gradients stay."""
    sign = gradient.sign()
    if std is None:
        return sign
    if sign.shape[1] != len(std):
        raise ArgumentError(f"Expected images with {len(std)} channels, as `std` has, but got {sign.shape[1]}.")
    return sign / torch.tensor(std, dtype=sign.dtype, device=sign.device).view(1, -1, 1, 1)
