r"""Two cosines: with the class weights of the head and with the class means of the training features.

.. math:: S(x) = -\tfrac12 \left[\max_i \cos(f, w_i) + \max_i \cos(f, \mu_i)\right]

The first is the score of cosine.py, the second that of mean_cosine.py. There is nothing to tune and no OOD image is needed;
the means take one pass over training images. docs/results.md compares it with both.
"""

from torch import Tensor

from offaxis.detectors.cosine import cosine_score
from offaxis.detectors.mean_cosine import MeanCosine
from offaxis.heads import Outputs


class TwoCosines(MeanCosine):
    """The mean of the largest cosine with a class weight and the largest with a class mean, negated."""

    name = "two-cosines"
    paper = "https://arxiv.org/abs/1905.10628"
    uses = ("features", "cosine")

    def forward(self, outputs: Outputs) -> Tensor:
        """Compute scores (N,) in [-1, 1] from the Outputs of N images."""
        assert outputs.cosine is not None  # score() has checked it
        return (cosine_score(outputs.cosine) + super().forward(outputs)) / 2
