"""How soon the drift monitor notices OOD images of real data sets, and how often it alarms without any.

    python -m benchmarks.drift_streams study/results              # scores of an evaluation's store
    python -m benchmarks.drift_streams runs/digits-results --detectors cosine --streams 20

Calibration images and streams are drawn from the real scores of the store (with replacement: the data set is the
distribution). For each OOD set and share of OOD images: the median delay in images from the change to the first alarm or
warning, when the stream changes at its start and after 2,000 quiet images. A dash: not within 3,000 images in half of the
streams. Then the false alarms and warnings over 1,000 ID streams of 3,000 images. Prints Markdown.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offaxis.calibration.drift import DriftMonitor
from offaxis.evaluation.store import Store

Scores = NDArray[np.float64]
SHARES = (0.01, 0.05, 0.1, 0.3)
LONGEST = 3000
QUIET = 2000
STRIDE = 10  # images between two looks at the monitor
CALIBRATION = 500


def pairs(store: Store, detectors: list[str]) -> Iterator[tuple[str, float, Scores, Scores]]:
    """Yield (name, AUROC, ID scores, OOD scores) of the first seed of each plain network, by AUROC."""
    found: dict[tuple[str, str, str], tuple[str, float, Scores, Scores]] = {}
    for result in store.results():
        own_head = "cosine" if detectors[0].endswith(("cosine", "cosines")) else result.head["name"]
        plain = (
            result.kind == "single" and result.seed == 0 and result.assumed is None and result.head["name"] == own_head
        )
        key = (result.id, result.detector, result.ood)
        if plain and result.detector in detectors and key not in found and store.has_scores(result.scores[0]):
            id_scores, ood_scores = (store.scores(name).astype(np.float64) for name in result.scores)
            name = f"{result.id}, {result.detector}, {result.ood}"
            found[key] = (name, result.metrics["auroc"], id_scores, ood_scores)
    yield from sorted(found.values(), key=lambda pair: pair[1])


def delay(id_scores: Scores, ood_scores: Scores, share: float, quiet: int, seed: int) -> float:
    """Return the images from the change to the first alarm or warning after it; infinity for none within LONGEST."""
    random = np.random.default_rng(seed)
    monitor = DriftMonitor(random.choice(id_scores, CALIBRATION), seed=seed)
    for score in random.choice(id_scores, quiet).tolist():
        monitor.add(score)
    warnings, alarmed = monitor.state().warnings, monitor.state().alarm
    is_ood = random.random(LONGEST) < share
    stream = np.where(is_ood, random.choice(ood_scores, LONGEST), random.choice(id_scores, LONGEST))
    for start in range(0, LONGEST, STRIDE):
        for score in stream[start : start + STRIDE].tolist():
            monitor.add(score)
        state = monitor.state()
        if state.warnings > warnings or (state.alarm and not alarmed):
            return start + STRIDE
    return float("inf")


def shown(delays: list[float]) -> str:
    """Return the median and the 90th percentile as text."""
    median, late = np.quantile(delays, [0.5, 0.9], method="inverted_cdf")
    return "-" if np.isinf(median) else f"{median:.0f} ({late:.0f})" if np.isfinite(late) else f"{median:.0f} (-)"


def false_alarms(id_scores: Scores, streams: int) -> tuple[int, int]:
    """Return (streams that ever alarmed, warnings in all) of ID streams of LONGEST images."""
    alarms = warnings = 0
    for seed in range(streams):
        random = np.random.default_rng(10**6 + seed)
        monitor = DriftMonitor(random.choice(id_scores, CALIBRATION), seed=seed)
        for score in random.choice(id_scores, LONGEST).tolist():
            monitor.add(score)
        alarms += monitor.state().alarm
        warnings += monitor.state().warnings
    return alarms, warnings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--detectors", default="two-cosines")
    parser.add_argument("--streams", type=int, default=40, help="streams for each OOD set and share")
    parser.add_argument("--id-streams", type=int, default=1000)
    parser.add_argument("--sets", type=int, default=8, help="OOD sets to show, spread over the AUROC")
    options = parser.parse_args()
    print(f"Calibrated on {CALIBRATION} images. Median (90 %) delay by share of OOD images.\n")
    columns = [f"{share:.0%} {when}" for when in ("at the start", f"after {QUIET:,}") for share in SHARES]
    print(f"| ID, detector, OOD | AUROC | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}")
    ids: dict[str, Scores] = {}
    found = list(pairs(Store(options.store), options.detectors.split(",")))
    spread = np.unique(np.linspace(0, len(found) - 1, options.sets).round().astype(int))
    for name, area, id_scores, ood_scores in (found[i] for i in spread):
        ids.setdefault(name.rpartition(",")[0], id_scores)
        cells = [
            shown([delay(id_scores, ood_scores, share, quiet, seed) for seed in range(options.streams)])
            for quiet in (0, QUIET)
            for share in SHARES
        ]
        print(f"| {name} | {100 * area:.1f} | {' | '.join(cells)} |", flush=True)
    for name, id_scores in ids.items():
        alarms, warnings = false_alarms(id_scores, options.id_streams)
        images = options.id_streams * LONGEST
        print(
            f"\n{name}: {alarms} of {options.id_streams} ID streams of {LONGEST:,} images alarmed at level 1 %; {warnings} "
            f"warnings in {images:,} images, one in {images / max(warnings, 1):,.0f}.",
            flush=True,
        )


if __name__ == "__main__":
    main()
