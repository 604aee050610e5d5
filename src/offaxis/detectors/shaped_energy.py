r"""The energy after a change of the features: what ReAct, ASH and SCALE have in common.

.. math:: S(x) = -\log \sum_i e^{z_i(g(f))}

They differ in g alone. For a cosine head f is the unit feature vector that the head sees (``HeadCopy``).
"""

from abc import abstractmethod

from torch import Tensor

from offaxis.detectors.base import Detector
from offaxis.detectors.energy import energy_score
from offaxis.detectors.head_copy import HeadCopy
from offaxis.heads import Outputs
from offaxis.networks.inference import Network


class ShapedEnergy(Detector):
    """The energy of the logits that the head gives for changed features; a subclass says how in ``shape``."""

    uses = ("features",)
    needs_fit = True

    def __init__(self) -> None:
        super().__init__()
        self.head = HeadCopy()

    @abstractmethod
    def shape(self, inputs: Tensor) -> Tensor:
        """What the head's linear map is applied to (N, d) -> the same, changed (N, d)."""

    def sizes(self) -> dict[str, int]:
        """The width of the features."""
        return self.head.sizes()

    def begin(self, network: Network) -> None:
        """Copy the head."""
        self.head.set(network.head)

    def forward(self, outputs: Outputs) -> Tensor:
        """Outputs of N images -> scores (N,)."""
        return energy_score(self.head.logits(self.shape(self.head.inputs(outputs.features)), outputs.scale))
