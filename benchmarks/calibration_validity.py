"""Does a calibration flag as many ID images as it promises? Over many calibration sets, against the exact law.

    python -m benchmarks.calibration_validity

With n calibration images and k = floor(alpha (n + 1)), the number of flags among m new ID images is beta-binomial,
betabinom(m, k, n + 1 - k), over all calibration sets; its mean is m k / (n + 1), at most alpha m. Two looks at it:

- simulated: scores drawn from N(0, 1), 2,000 calibration sets of 500 images, each with 500 new images;
- digits: a small cosine network is trained on digits; the 1,000 test images that it has not seen are split at random into
  500 to calibrate on and 500 to judge, 2,000 times. Given the images, the law over splits is the same one.

The chi-square test compares the counts of flags with the law in ten bins of about equal probability.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

import offaxis
from offaxis.calibration.conformal import allowed, threshold
from offaxis.data import load_images

LEVELS = (0.01, 0.05, 0.1)
CALIBRATION = 500
NEW = 500
SETS = 2000

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """What came out at one level.

    Attributes:
        alpha: the level.
        mean: share of new ID images that was flagged, over all calibration sets.
        expected: what the law says of it, k / (n + 1).
        error: the standard error of the mean.
        observed, law: between which shares nine of ten calibration sets lie, observed and by the law.
        p_value: of the chi-square test against the law.
    """

    alpha: float
    mean: float
    expected: float
    error: float
    observed: tuple[float, float]
    law: tuple[float, float]
    p_value: float

    def __str__(self) -> str:
        low, high = (
            f"{100 * share:4.1f} ({100 * law:4.1f})" for share, law in zip(self.observed, self.law, strict=True)
        )
        return (
            f"{100 * self.alpha:5g} %   {100 * self.mean:6.3f} ± {100 * self.error:.3f}   {100 * self.expected:6.3f}   "
            f"{low}   {high}   {self.p_value:8.3f}"
        )


def compare(calibration: Floats, new: Floats, alpha: float) -> Line:
    """Scores of S calibration sets (S, n) and of their new ID images (S, m) -> the flags beside their law."""
    count, each = calibration.shape[1], new.shape[1]
    limits = np.array([threshold(row, alpha) for row in np.sort(calibration, axis=1)])
    flags = (new > limits[:, None]).sum(1)
    k = allowed(count, alpha)
    law = stats.betabinom(each, k, count + 1 - k)
    edges = np.unique(law.ppf(np.linspace(0.1, 0.9, 9)))
    expected = np.diff(np.concatenate(([0.0], law.cdf(edges), [1.0]))) * len(flags)
    observed = np.histogram(flags, np.concatenate(([-1.0], edges, [float(each)])) + 0.5)[0]
    low, high = np.quantile(flags, (0.05, 0.95)) / each
    return Line(
        alpha,
        float(flags.mean()) / each,
        k / (count + 1),
        float(flags.std(ddof=1)) / each / len(flags) ** 0.5,
        (float(low), float(high)),
        (float(law.ppf(0.05)) / each, float(law.ppf(0.95)) / each),
        float(stats.chisquare(observed, expected).pvalue),
    )


def simulated(sets: int = SETS, seed: int = 0) -> list[Line]:
    random = np.random.default_rng(seed)
    drawn = random.standard_normal((sets, CALIBRATION)), random.standard_normal((sets, NEW))
    return [compare(*drawn, alpha) for alpha in LEVELS]


def split(scores: Floats, sets: int = SETS, seed: int = 0) -> list[Line]:
    """The same for scores (N,) of real images, split at random into equal halves."""
    shuffled = np.random.default_rng(seed).permuted(np.tile(scores, (sets, 1)), axis=1)
    half = len(scores) // 2
    return [compare(shuffled[:, :half], shuffled[:, half:], alpha) for alpha in LEVELS]


def unseen_scores(seed: int = 0) -> tuple[Floats, float]:
    """The cosine scores of 1,000 digits that a small network has not seen, and its accuracy on them."""
    torch.manual_seed(seed)
    training, unseen = load_images("digits", "train"), load_images("digits", "test")
    network = offaxis.networks.wide_resnet(10, 1, num_classes=10, in_channels=1, stem_stride=2)
    trained = offaxis.train(
        network, training, offaxis.Recipe(epochs=4, batch_size=64, crop=2, flip=False), seed=seed, quiet=True
    )
    model = offaxis.Model.calibrated(trained, unseen, used=[training])
    assert unseen.labels is not None
    right = [
        prediction.class_index == label
        for prediction, label in zip(model.predict(unseen), unseen.labels.tolist(), strict=True)
    ]
    return model.calibration.scores, float(np.mean(right))


def main() -> None:
    torch.set_num_threads(1)
    began = time.perf_counter()
    print(f"{SETS:,} calibration sets of {CALIBRATION} images, {NEW} new ID images each; flagged in percent (law)")
    print("level     mean ± error       law    5th percentile   95th percentile   chi-square p")
    print("simulated scores, N(0, 1)")
    print(*simulated(), sep="\n")
    scores, accuracy = unseen_scores()
    ties = len(scores) - len(np.unique(scores))
    print(f"cosine scores of {len(scores):,} unseen digits (accuracy {accuracy:.1%}, {ties} tied scores)")
    print(*split(scores), sep="\n")
    print(f"{time.perf_counter() - began:.0f} seconds")


if __name__ == "__main__":
    main()
