"""Do lists of flagged images and thresholds with a confidence keep what they promise? Simulated, with and without ties.

    python -m benchmarks.batch_guarantees

Scores of ID images are drawn from N(0, 1), those of OOD images from N(3, 1); with ties they are rounded to halves.

- A list (``control_fdr``, ``offaxis score --fdr 0.1``): 1,000 draws of 1,000 calibration images and of a batch of 500, of
  which 0, 1, 10 or 50 % are OOD. The mean share of false alarms among the flagged images must be at most 10 %; at 0 % OOD it is
  the chance that anything is flagged.
- A confidence (``--confidence 0.95``): the long-run false positive rate of 10,000 calibration sets of one size, computed
  exactly from the threshold; at least 95 % of them must be at most alpha.
"""

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from offaxis.calibration.conformal import allowed, control_fdr, p_values, threshold

Floats = NDArray[np.float64]
FDR = 0.1
SHARES = (0.0, 0.01, 0.1, 0.5)
ALPHA, CONFIDENCE = 0.05, 0.95
SIZES = (59, 100, 500, 2000)


@dataclass(frozen=True)
class BatchLine:
    """What came out for one share of OOD images.

    Attributes:
        share: of the batch that is OOD.
        ties: whether scores are rounded.
        fdr: mean share of false alarms among the flagged images.
        error: its standard error.
        power: mean share of the OOD images that is flagged; NaN without any.
        any_flag: share of the draws in which anything is flagged.
    """

    share: float
    ties: bool
    fdr: float
    error: float
    power: float
    any_flag: float


def simulate_batches(
    share: float, ties: bool, *, draws: int = 1000, calibration: int = 1000, batch: int = 500, seed: int = 0
) -> BatchLine:
    """Draw calibration sets and batches, and count false alarms among the flagged images."""
    random = np.random.default_rng(seed)
    out = round(share * batch)
    false, found, flags = np.zeros(draws), np.zeros(draws), np.zeros(draws)
    for i in range(draws):
        known = np.sort(_rounded(random.standard_normal(calibration), ties))
        new = random.standard_normal(batch)
        new[:out] += 3
        values = p_values(calibration_scores=known, scores=_rounded(new, ties))
        flagged = control_fdr(values, FDR, calibration_images=calibration).flagged
        flags[i] = flagged.sum()
        false[i] = flagged[out:].sum() / max(flags[i], 1)
        found[i] = flagged[:out].mean() if out else np.nan
    error = float(false.std() / np.sqrt(draws))
    return BatchLine(share, ties, float(false.mean()), error, float(found.mean()), float((flags > 0).mean()))


@dataclass(frozen=True)
class ConfidenceLine:
    """What came out for one number of calibration images.

    Attributes:
        images: n.
        ties: whether scores are rounded.
        kept: share of calibration sets whose long-run false positive rate is at most alpha.
        law: the same by the Beta law of scores without ties.
        marginal: the share without a confidence.
        rate: mean false positive rate.
    """

    images: int
    ties: bool
    kept: float
    law: float
    marginal: float
    rate: float


def simulate_confidence(images: int, ties: bool, *, sets: int = 10_000, seed: int = 0) -> ConfidenceLine:
    """Draw calibration sets and compute the false positive rate of each threshold."""
    random = np.random.default_rng(seed)
    rates, marginal = np.zeros(sets), np.zeros(sets)
    for i in range(sets):
        known = np.sort(_rounded(random.standard_normal(images), ties))
        rates[i] = _rate(threshold(known, ALPHA, CONFIDENCE), ties)
        marginal[i] = _rate(threshold(known, ALPHA), ties)
    k = allowed(images, ALPHA, CONFIDENCE)
    law = float(stats.beta(k, images + 1 - k).cdf(ALPHA))
    kept, without = float((rates <= ALPHA).mean()), float((marginal <= ALPHA).mean())
    return ConfidenceLine(images, ties, kept, law, without, float(rates.mean()))


def _rounded(scores: Floats, ties: bool) -> Floats:
    return np.round(2 * scores) / 2 if ties else scores


def _rate(limit: float, ties: bool) -> float:
    """Return the probability that a score of N(0, 1), rounded or not, is above the threshold."""
    return float(stats.norm.sf(limit + (0.25 if ties else 0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--sets", type=int, default=10_000)
    options = parser.parse_args()
    print("| OOD in the batch | scores | false alarms among the flagged | OOD images found | any flag |")
    print("|---:|---|---:|---:|---:|")
    for ties in (False, True):
        for share in SHARES:
            line = simulate_batches(share, ties, draws=options.draws)
            power = "" if np.isnan(line.power) else f"{line.power:.1%}"
            kind = "ties" if ties else "continuous"
            print(f"| {share:.0%} | {kind} | {line.fdr:.1%} ± {line.error:.1%} | {power} | {line.any_flag:.1%} |")
    print()
    print("| calibration images | scores | sets at most 5 % | by the law | without a confidence | mean rate |")
    print("|---:|---|---:|---:|---:|---:|")
    for ties in (False, True):
        for images in SIZES:
            row = simulate_confidence(images, ties, sets=options.sets)
            kind = "ties" if ties else "continuous"
            print(f"| {images:,} | {kind} | {row.kept:.1%} | {row.law:.1%} | {row.marginal:.1%} | {row.rate:.2%} |")


if __name__ == "__main__":
    main()
