"""The initialisation that both of the paper's networks share."""

from torch import nn


def initialise(network: nn.Module) -> None:
    """Convolutions from N(0, sqrt(2 / (k * k * out_channels))), batch normalisations to 1 and 0."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            height, width = module.kernel_size
            nn.init.normal_(module.weight, 0.0, (2.0 / (height * width * module.out_channels)) ** 0.5)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
