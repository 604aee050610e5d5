"""How soon the drift monitor notices OOD images of real data sets, and how often it alarms without any.

    python -m benchmarks.drift_streams study/results --simulated                 # scores of an evaluation's store
    python -m benchmarks.drift_streams runs/digits-results --detectors cosine    # another store, another detector
    python -m benchmarks.drift_streams --photographs FEATURES                    # what benchmarks.photo_features wrote
    python -m benchmarks.drift_streams ... --figure docs/images/drift-delays     # the delays as a figure too

Calibration images and streams are drawn from the real scores (with replacement: the data set is the distribution). For each
OOD set and share of OOD images: the median delay in images from the change to the first alarm or warning, when the stream
changes at its start and after 2,000 quiet images, in brackets the 90th percentile. A dash: not within 3,000 images. With
--simulated also Gaussian scores with some of the same AUROCs. Then the false alarms and warnings over 1,000 ID streams of
3,000 images. Prints Markdown.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from offaxis.calibration.drift import DriftMonitor
from offaxis.embeddings import EmbeddingDetector
from offaxis.evaluation.store import Store
from offaxis.metrics import auroc
from offaxis.reports.figures.style import blank, mark, save_figure, styled

Scores = NDArray[np.float64]
SHARES = (0.01, 0.05, 0.1, 0.3)
LONGEST = 3000
QUIET = 2000
STRIDE = 10  # images between two looks at the monitor
CALIBRATION = 500
SIMULATED = (0.6, 0.75, 0.85, 0.9, 0.95, 0.983, 0.998)
PHOTOGRAPHS = {"fruit": ("vegetables", "clothing-test", "packages"), "clothing": ("packages", "fruit-test")}


class Pair(NamedTuple):
    """The scores of an ID set and an OOD set by one detector."""

    id: str
    ood: str
    auroc: float
    id_scores: Scores
    ood_scores: Scores


class Delays(NamedTuple):
    """The delays of streams, by (quiet images before the change, share of OOD images)."""

    pair: Pair
    images: dict[tuple[int, float], list[float]]


def stored(store: Store, detectors: list[str], most: int) -> list[Pair]:
    """Return the sets of the first seed of each plain network, by AUROC; of more than ``most``, some that are evenly spread."""
    found: dict[tuple[str, str, str], Pair] = {}
    for result in store.results():
        own_head = "cosine" if detectors[0].endswith(("cosine", "cosines")) else result.head["name"]
        plain = (
            result.kind == "single" and result.seed == 0 and result.assumed is None and result.head["name"] == own_head
        )
        key = (result.id, result.detector, result.ood)
        if plain and result.detector in detectors and key not in found and store.has_scores(result.scores[0]):
            id_scores, ood_scores = (store.scores(name).astype(np.float64) for name in result.scores)
            name = f"{result.id}, {result.detector}"
            found[key] = Pair(name, result.ood, result.metrics["auroc"], id_scores, ood_scores)
    pairs = sorted(found.values(), key=lambda pair: pair.auroc)
    return [pairs[i] for i in np.unique(np.linspace(0, len(pairs) - 1, min(most, len(pairs))).round().astype(int))]


def photographed(folder: Path, detectors: list[str]) -> Iterator[Pair]:
    """Yield the sets of photographs, by features of a network that was pretrained on ImageNet."""
    features: dict[str, Scores] = {}
    for name in {name for kind, oods in PHOTOGRAPHS.items() for name in (f"{kind}-train", f"{kind}-test", *oods)}:
        with np.load(folder / f"{name}.npz") as arrays:
            features[name] = arrays["features"].astype(np.float64)
    for kind, oods in PHOTOGRAPHS.items():
        with np.load(folder / f"{kind}-train.npz") as arrays:
            labels = arrays["labels"]
        for detector in detectors:
            known = EmbeddingDetector(detector, random_state=0).fit(features[f"{kind}-train"], labels)
            scores = {name: -known.score_samples(features[name]) for name in (f"{kind}-test", *oods)}
            for ood in oods:
                area = auroc(scores[f"{kind}-test"], scores[ood])
                yield Pair(
                    f"{kind} photographs, {detector}", ood.partition("-")[0], area, scores[f"{kind}-test"], scores[ood]
                )


def simulated() -> Iterator[Pair]:
    """Yield Gaussian scores with standard deviation 1 whose means are so far apart that they have these AUROCs."""
    random = np.random.default_rng(0)
    for area in SIMULATED:
        apart = math.sqrt(2) * NormalDist().inv_cdf(area)
        id_scores, ood_scores = random.standard_normal((2, 100_000))
        yield Pair("simulated N(0, 1)", f"N({apart:.2f}, 1)", area, id_scores, ood_scores + apart)


def delay(pair: Pair, share: float, quiet: int, seed: int) -> float:
    """Return the images from the change to the first alarm or warning after it; infinity for none within LONGEST."""
    random = np.random.default_rng(seed)
    monitor = DriftMonitor(random.choice(pair.id_scores, CALIBRATION), seed=seed)
    for score in random.choice(pair.id_scores, quiet).tolist():
        monitor.add(score)
    warnings, alarmed = monitor.state().warnings, monitor.state().alarm
    is_ood = random.random(LONGEST) < share
    stream = np.where(is_ood, random.choice(pair.ood_scores, LONGEST), random.choice(pair.id_scores, LONGEST))
    for start in range(0, LONGEST, STRIDE):
        for score in stream[start : start + STRIDE].tolist():
            monitor.add(score)
        state = monitor.state()
        if state.warnings > warnings or (state.alarm and not alarmed):
            return start + STRIDE
    return float("inf")


def delays(pair: Pair, streams: int) -> Delays:
    """Return the delays of some streams of every kind."""
    kinds = [(quiet, share) for quiet in (0, QUIET) for share in SHARES]
    return Delays(pair, {(q, s): [delay(pair, s, q, seed) for seed in range(streams)] for q, s in kinds})


def quantiles(images: list[float]) -> tuple[float, float]:
    """Return the median and the 90th percentile."""
    median, late = np.quantile(images, [0.5, 0.9], method="inverted_cdf")
    return float(median), float(late)


def shown(images: list[float]) -> str:
    """Return the median and the 90th percentile as text."""
    median, late = quantiles(images)
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


@styled
def draw(found: list[Delays]) -> Figure:
    """Draw the median delay over the AUROC, a colour for each share: real sets as marks, simulated ones as lines."""
    figure = blank(9, 4.2)
    never = 1.5 * LONGEST
    for number, (quiet, panel) in enumerate(zip((0, QUIET), figure.subplots(1, 2, sharey=True), strict=True)):
        for k, share in enumerate(SHARES):
            look = mark(k)
            for real in (True, False):
                chosen = [d for d in found if (not d.pair.id.startswith("simulated")) == real]
                x = [_place(d.pair.auroc) for d in chosen]
                y = [min(quantiles(d.images[quiet, share])[0], never) for d in chosen]
                if real:
                    panel.plot(x, y, look.marker, color=look.colour, label=f"{share:.0%} OOD images", alpha=0.85)
                else:
                    panel.plot(x, y, look.line, color=look.colour, linewidth=1)
        areas = (0.6, 0.75, 0.85, 0.9, 0.95, 0.98, 0.995, 0.999)
        panel.set(yscale="log", xlabel="AUROC of the detector, in %")
        panel.set_xticks([_place(area) for area in areas], [f"{100 * area:g}" for area in areas])
        panel.set_yticks(
            [10, 30, 100, 300, 1000, LONGEST, never], ["10", "30", "100", "300", "1,000", "3,000", "never"]
        )
        panel.minorticks_off()
        panel.axhline(LONGEST, color="0.8", linewidth=0.8)
        panel.set_title(f"change after {quiet:,} quiet images" if quiet else "change at the start")
        if not number:
            panel.set_ylabel("median delay, in images")
            panel.legend(loc="lower left", title="marks: real sets; lines: simulated", fontsize=8, title_fontsize=8)
    return figure


def _place(area: float) -> float:
    """Return the distance between two Gaussians with this AUROC, at most that of 99.9 %."""
    return math.sqrt(2) * NormalDist().inv_cdf(min(max(area, 0.5), 0.999))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", type=Path, nargs="*")
    parser.add_argument("--photographs", type=Path, help="the folder that benchmarks.photo_features wrote")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--detectors", default="two-cosines")
    parser.add_argument("--streams", type=int, default=20, help="streams for each OOD set and share")
    parser.add_argument("--id-streams", type=int, default=1000)
    parser.add_argument("--sets", type=int, default=8, help="OOD sets of a store to show, spread over the AUROC")
    parser.add_argument("--figure", type=Path, help="where to write the figure, without an ending")
    options = parser.parse_args()
    detectors = options.detectors.split(",")
    pairs = [pair for store in options.stores for pair in stored(Store(store), detectors, options.sets)]
    pairs += photographed(options.photographs, detectors) if options.photographs else []
    pairs += simulated() if options.simulated else []
    print(f"Calibrated on {CALIBRATION} images. Median (90 %) delay by share of OOD images.\n")
    columns = [f"{share:.0%} {when}" for when in ("at the start", f"after {QUIET:,}") for share in SHARES]
    print(f"| ID, detector, OOD | AUROC | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}")
    found: list[Delays] = []
    for pair in pairs:
        found.append(delays(pair, options.streams))
        cells = [shown(images) for images in found[-1].images.values()]
        print(f"| {pair.id}, {pair.ood} | {100 * pair.auroc:.1f} | {' | '.join(cells)} |", flush=True)
    if options.figure:
        save_figure(draw(found), options.figure)
    for name, id_scores in {pair.id: pair.id_scores for pair in pairs}.items():
        alarms, warnings = false_alarms(id_scores, options.id_streams)
        images = options.id_streams * LONGEST
        print(
            f"\n{name}: {alarms} of {options.id_streams} ID streams of {LONGEST:,} images alarmed at level 1 %; {warnings} "
            f"warnings in {images:,} images, one in {images / max(warnings, 1):,.0f}.",
            flush=True,
        )


if __name__ == "__main__":
    main()
