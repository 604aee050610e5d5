r"""Adversarial examples by the fast gradient sign method (Goodfellow, Shlens, Szegedy 2015, https://arxiv.org/abs/1412.6572).

.. math:: x_{adv} = x + \eta \, \mathrm{sign}(\nabla_x \mathrm{CE}(z(x), y)) / \sigma
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from offaxis.detectors.perturbation import input_gradient, step
from offaxis.networks.inference import Network, check_labels, evaluating, to_device


def fast_gradient_sign(
    network: Network, images: Tensor, labels: Tensor, magnitude: float, std: Sequence[float] | None = None
) -> Tensor:
    """Images (N, c, h, w) moved up the loss of their own labels; pixels may leave their range by eta.

    Args:
        network: the network to mislead.
        images: normalised as in training.
        labels: (N,).
        magnitude: eta, in units of the pixels' range [0, 1].
        std: what each channel was divided by in normalisation.
    """
    x = to_device(network, images)
    check_labels(labels, len(x), network.num_classes)
    with evaluating(network), torch.inference_mode(False), torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        loss = F.cross_entropy(network(x), labels.to(x.device), reduction="none")
        return x.detach() + magnitude * step(input_gradient(loss, x), std)
