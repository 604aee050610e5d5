r"""ODIN (Liang, Li, Srikant 2018, https://arxiv.org/abs/1706.02690).

.. math::

    S(x) = -\max_i p_i(x'; T), \qquad p(x; T) = \mathrm{softmax}(z(x) / T), \qquad
    x' = x - \epsilon \, \mathrm{sign}(\nabla_x [-\log \max_i p_i(x; T)]) / \sigma

The image moves so that the network becomes more confident in its prediction, which helps ID images more. Images are normalised,
so the step is divided by each channel's :math:`\sigma`. Two forward passes and one backward pass an image.
"""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

from offaxis.detectors.base import Detector, Passes, Reads
from offaxis.detectors.checks import channel_std, not_negative, positive
from offaxis.detectors.logit_scores import max_softmax_score
from offaxis.detectors.perturbation import detection_function, perturbed_scores
from offaxis.heads import Outputs
from offaxis.networks.inference import Network, eval_mode, to_network

TEMPERATURES = (1.0, 10.0, 100.0, 1000.0)
EPSILONS = (0.0, 0.0005, 0.001, 0.0014, 0.002, 0.0024, 0.005, 0.01, 0.05, 0.1, 0.2)
"""The grid of Lee et al. 2018, which the paper's comparison used."""

OD_TEST_TEMPERATURES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
OD_TEST_EPSILONS = tuple(round(0.0002 * i, 4) for i in range(21))
"""The grid of Shafaei et al. 2019, who proposed the less-biased evaluation: 21 steps in [0, 0.004]."""


def odin_scores(
    network: Network,
    images: Tensor,
    *,
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
    on_device = to_network(network, images) if begun is None else images
    with eval_mode(network):
        return perturbed_scores(
            detection_function(network),
            on_device,
            temperatures=temperatures,
            epsilons=epsilons,
            std=std,
            loss=uncertainty,
            score=max_softmax_score,
            begun=begun,
        )


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
        self.temperatures = tuple(float(t) for t in temperatures)
        self.epsilons = tuple(float(e) for e in epsilons)

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
        scores = odin_scores(network, images, temperatures=(self.temperature,), epsilons=(self.eps,), std=self.std)
        return scores[:, 0, 0]

    def grid_scores_images(self, network: Network, images: Tensor) -> Tensor:
        """Compute scores (N, S) over the grid, with passes shared between settings."""
        scores = odin_scores(network, images, temperatures=self.temperatures, epsilons=self.epsilons, std=self.std)
        return scores.flatten(1)

    def scores_after(self, network: Network, images: Tensor, outputs: Outputs, *, grid: bool) -> Tensor:
        """Compute scores (N,), or (N, S) over the grid, that begin with a forward pass made already."""
        settings = (self.temperatures, self.epsilons) if grid else ((self.temperature,), (self.eps,))
        scores = odin_scores(
            network,
            images,
            temperatures=settings[0],
            epsilons=settings[1],
            std=self.std,
            begun=outputs.detection_logits,
        )
        return scores.flatten(1) if grid else scores[:, 0, 0]
