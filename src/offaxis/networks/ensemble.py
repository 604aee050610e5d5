"""Several networks that answer as one."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from offaxis.errors import ArgumentError, DetectorError
from offaxis.heads import Head, Outputs
from offaxis.networks.classifier import Classifier, Paired


class Ensemble(nn.Module):
    """Networks for the same classes, usually the same architecture trained from different seeds.

    ``forward`` gives the logarithm of the mean probability; the cosine of ``outputs`` is the mean over the networks,
    class by class, so that ``Cosine`` on an Ensemble is the paper's ensemble; features stand side by side.

    Args:
        members: at least one network.
    """

    def __init__(self, members: Sequence[Classifier | Paired]) -> None:
        super().__init__()
        if not members or len({member.num_classes for member in members}) > 1:
            raise ArgumentError(
                "Expected networks for the same classes but got "
                f"{', '.join(str(member.num_classes) for member in members) or 'no'} classes: train the members of an "
                "ensemble on one set."
            )
        self.members = nn.ModuleList(members)
        self.num_classes = members[0].num_classes
        self.layers: tuple[str, ...] = ()

    @property
    def networks(self) -> list[Classifier | Paired]:
        """The members in their order."""
        return [member for member in self.members if isinstance(member, (Classifier, Paired))]

    @property
    def head(self) -> Head:
        """None in particular: what copies one head's weights cannot be asked of an ensemble."""
        raise DetectorError(
            f"Expected one network but got an ensemble of {len(self.members)}, which has no head of its own: this "
            "detector works on a single network."
        )

    def forward(self, images: Tensor) -> Tensor:
        """(N, c, h, w) -> logits (N, C), the logarithm of the mean probability."""
        return self.outputs(images).logits

    def outputs(self, images: Tensor, layers: Iterable[str] = ()) -> Outputs:
        """Features side by side, log mean probability, mean cosine (None where a member has none); no scale."""
        if tuple(layers):
            raise DetectorError("Expected no inner layers to be asked of an ensemble: score its members one by one.")
        each = [member.outputs(images) for member in self.networks]
        cosines = [out.cosine for out in each if out.cosine is not None]
        cosine = torch.stack(cosines).mean(0) if len(cosines) == len(each) else None
        log_p = torch.stack([out.logits.log_softmax(1) for out in each]).logsumexp(0) - math.log(len(each))
        return Outputs(torch.cat([out.features for out in each], 1), log_p, cosine)


AnyNetwork = Classifier | Paired | Ensemble
"""One network, a pair, or several as one: what can be evaluated, calibrated and kept in a bundle."""


def check_single(detector: str, network: object) -> None:
    """Refuse an ensemble for a detector whose score is that of one network.

    Raises:
        DetectorError: the network is an ensemble. Its logits are logarithms of averaged probabilities and its features
            stand side by side, which is not what such a detector was made for.
    """
    if isinstance(network, Ensemble):
        raise DetectorError(
            f"Expected one network for {detector} but got an ensemble of {len(network.members)}: {detector} judges its members "
            "one by one. An ensemble of cosine networks is judged by cosine-ensemble, leave-out networks by leave-out, both "
            "also by max-softmax."
        )
