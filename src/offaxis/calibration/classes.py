"""Logits -> class probabilities that hold, sets of classes that contain the right one, and images to decide alone.

Of labelled calibration images one half gives a temperature. The other half, which it has not seen, gives

- the expected calibration error, of the softmax alone and with the temperature;
- **sets of classes** that hold the right one for a share 1 - alpha of new ID images (adaptive prediction sets: Romano, Sesia,
  Candes 2020). The *mass* of a class is the sum of the probabilities of the classes before it, largest first; a set ends at the
  quantile of the masses of right classes. The class itself does not count, so that no set is empty and nothing need be
  randomised. Where more than 1 - alpha of the predicted classes are right, one class is enough;
- with ``max_error`` **the smallest probability from which on at most such a share of images is wrong**, with a confidence of
  95 % over calibration sets. Probabilities of the first half are tested in the order of their evidence there, each by the
  exact binomial tail of the second half, up to the first that fails (Learn then Test: Angelopoulos et al. 2021).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from offaxis.calibration.conformal import Counts, Floats, check_alpha, smallest_count, threshold
from offaxis.errors import BadOutputsError, CalibrationError
from offaxis.metrics import expected_calibration_error

FEWEST = 20  # labelled images that a temperature is fitted with
SURE = 0.95  # confidence of ``max_error``, over calibration sets
CANDIDATES = 200  # probabilities that are tested at most


class Alone(NamedTuple):
    """The images that can be decided alone.

    Attributes:
        probability: from which on an image is decided alone.
        share: of the ID images, on the half that it was tested on.
    """

    probability: float
    share: float


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassCalibration:
    """What labelled calibration images tell of class probabilities; the first ``n // 2`` have given the temperature.

    Attributes:
        temperature: logits are divided by it.
        ece: expected calibration error in [0, 1] on the second half, without and with the temperature.
        mass: (n,) in [0, 1], of the right class of each image; 0 where that is the predicted one.
        probability: (n,) in (0, 1], of the predicted class.
    """

    temperature: float
    ece: tuple[float, float]
    mass: Floats
    probability: Floats

    @classmethod
    def fitted(cls, logits: NDArray[np.floating[Any]], labels: Counts) -> "Self | None":
        """Return what finite logits (n, C) tell with the right classes (n,); None of fewer than 20 images."""
        if len(labels) < FEWEST:
            return None
        order = np.random.default_rng(0).permutation(len(labels))
        logits, labels, half = logits[order], labels[order], len(labels) // 2
        temperature = fit_temperature(logits[:half], labels[:half])
        raw, tempered = (class_probabilities(logits, None, t) for t in (1.0, temperature))
        sure = [np.minimum(each.max(1), 1).astype(np.float64) for each in (raw, tempered)]
        before, after = (expected_calibration_error(p[half:], logits[half:].argmax(1) == labels[half:]) for p in sure)
        mass = masses(tempered)[np.arange(len(labels)), labels]
        return cls(temperature=temperature, ece=(before, after), mass=mass, probability=sure[1])

    def __post_init__(self) -> None:
        numbers = np.concatenate([self.mass, self.probability])
        within = numbers.size == 2 * len(self.mass) >= 2 * FEWEST and bool(((numbers >= 0) & (numbers <= 1.001)).all())
        if not within or not 1e-3 < self.temperature < 1e3 or not all(0 <= each <= 1 for each in self.ece):
            raise CalibrationError("Expected masses and probabilities of labelled images but these are none.")

    @cached_property
    def half(self) -> int:
        """The number of images that have given the temperature."""
        return len(self.mass) // 2

    def most_mass(self, alpha: float, confidence: float | None = None) -> float | None:
        """Return the mass up to which classes belong to a set; None where images are too few for such sets."""
        tested = np.sort(self.mass[self.half :])
        return threshold(tested, alpha, confidence) if len(tested) >= smallest_count(alpha, confidence) else None

    def alone(self, max_error: float) -> Alone | None:
        """Return from which probability on at most a share ``max_error`` is wrong; None where none can be told."""
        from scipy.stats import binom  # which takes long to import

        check_alpha(max_error, "max_error")
        halves = slice(None, self.half), slice(self.half, None)
        tried = np.sort(self.probability[halves[0]])
        tried = np.unique(tried[np.linspace(0, self.half - 1, min(self.half, CANDIDATES)).round().astype(int)])
        taken = [self.probability[half, None] >= tried for half in halves]
        wrong = [(each & (self.mass[half, None] > 0)).sum(0) for each, half in zip(taken, halves, strict=True)]
        first, second = (binom.cdf(w, each.sum(0), max_error) for w, each in zip(wrong, taken, strict=True))
        order = first.argsort(kind="stable")
        passed = order[np.logical_and.accumulate(second[order] <= 1 - SURE)]
        if not len(passed):
            return None
        lowest = int(passed.min())
        return Alone(float(tried[lowest]), float(taken[1][:, lowest].mean()))


def fit_temperature(logits: NDArray[np.floating[Any]], labels: Counts) -> float:
    """Return the temperature from 0.01 to 100 under which labels (n,) are most likely (Guo et al. 2017).

    One more image, of every class in equal parts, keeps probabilities below 1 where no image is wrong.
    """
    from scipy.optimize import minimize_scalar  # which takes long to import
    from scipy.special import logsumexp

    values = logits.astype(np.float64)
    own, mean = values[np.arange(len(labels)), labels], values.mean(1)

    def loss(log_temperature: float) -> float:
        scale = np.exp(-log_temperature)
        total = logsumexp(values * scale, axis=1)
        return float((total - own * scale).sum() + (total - mean * scale).mean())

    limit = np.log(100)
    return float(np.exp(minimize_scalar(loss, bounds=(-limit, limit), method="bounded").x))


def masses(probabilities: NDArray[np.floating[Any]]) -> Floats:
    """Compute the mass (N, C) before each class: the sum of the probabilities (N, C) of those with larger ones."""
    order = (-probabilities).argsort(1, kind="stable")
    sums = np.take_along_axis(probabilities, order, 1).cumsum(1, np.float64)
    before = np.empty_like(sums)
    np.put_along_axis(before, order, np.concatenate([np.zeros_like(sums[:, :1]), sums[:, :-1]], 1), 1)
    return before


def class_sets(probabilities: NDArray[np.floating[Any]], most_mass: float) -> list[list[int]]:
    """Return the classes of each row (N, C) whose mass is at most ``most_mass``, most probable first."""
    sets = [[best] for best in probabilities.argmax(1).tolist()]
    several = np.flatnonzero(probabilities.max(1) <= most_mass)  # else the mass of the second class is too large
    for row, within in zip(several, masses(probabilities[several]) <= most_mass, strict=True):
        found = np.flatnonzero(within)
        sets[row] = found[(-probabilities[row, found]).argsort(kind="stable")].tolist()
    return sets


def class_probabilities(
    logits: NDArray[np.floating[Any]], cosine: NDArray[np.floating[Any]] | None, temperature: float = 1.0
) -> NDArray[np.floating[Any]]:
    """Compute class probabilities (N, C) from logits (N, C) and cosines (N, C), if any; all of them are finite.

    A predicted scale can be too large for its type, which makes logits infinite and their softmax NaN. The class with the
    largest cosine then has all of the probability, as it has in the limit of a growing scale.

    Raises:
        BadOutputsError: there is no cosine either, or it is not finite.
    """
    probabilities = _softmax(logits if temperature == 1 else logits / np.float32(temperature))
    lost = np.isnan(probabilities[:, 0])  # then all of the row are
    if not lost.any():
        return probabilities
    if cosine is not None:
        probabilities[lost] = _softmax(cosine[lost] * np.finfo(np.float32).max)
    if np.isnan(probabilities[:, 0]).any():
        raise BadOutputsError(
            "Expected finite numbers but there is NaN or infinity in the class probabilities. Check images and training."
        )
    return probabilities


def _softmax(logits: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Compute the softmax of rows (N, C), NaN in rows whose largest value is not finite."""
    most = logits.max(1, keepdims=True)
    if not np.isfinite(most).all():
        most = np.where(np.isfinite(most), most, np.nan)
    raised: NDArray[np.floating[Any]] = np.exp(logits - most)
    raised /= raised.sum(1, keepdims=True)
    return raised
