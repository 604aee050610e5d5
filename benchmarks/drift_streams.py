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
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from offaxis.calibration.drift import AT_ONCE, BETS, RUN_LENGTH, reserve, slot
from offaxis.embeddings import EmbeddingDetector
from offaxis.evaluation.store import Store
from offaxis.metrics import auroc
from offaxis.reports.figures.style import blank, mark, save_figure, styled

Scores = NDArray[np.float64]
SHARES = (0.01, 0.05, 0.1, 0.3)
LONGEST = 3000
QUIET = 2000
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
    draw = np.random.default_rng(0)
    for area in SIMULATED:
        apart = math.sqrt(2) * NormalDist().inv_cdf(area)
        id_scores, ood_scores = draw.standard_normal((2, 100_000))
        yield Pair("simulated N(0, 1)", f"N({apart:.2f}, 1)", area, id_scores, ood_scores + apart)


def online_p_values(calibration: Scores, stream: Scores, seed: int) -> Scores:
    """Return the p-values that a DriftMonitor gives a stream, exactly, in a tenth of the time."""
    ordered = sorted(map(slot, calibration.tolist()))
    ties = random.Random(seed)
    ps = np.empty(len(stream))
    for number, score in enumerate(map(slot, stream.tolist())):
        first, last = bisect_left(ordered, score), bisect_right(ordered, score)
        ps[number] = (len(ordered) - last + (1 - ties.random()) * (last - first + 1)) / (len(ordered) + 1)
        ordered.insert(last, score)
    return ps


def notices(ps: Scores, level: float = 0.01) -> tuple[Scores, NDArray[np.bool_]]:
    """Bet on the p-values (S, T) of S streams at once, as ``Bets`` does on one.

    Returns:
        The image (S,) of the alarm, infinity without one; and whether there is a warning (S, T).
    """
    w, a = (np.array(column)[:, None] for column in zip(*BETS, strict=True))
    in_play = np.full((len(BETS), len(ps)), math.log(AT_ONCE / len(BETS)))
    since = np.full_like(in_play, -np.inf)
    alarmed_at, warned = np.full(len(ps), np.inf), np.zeros(ps.shape, bool)
    for number, p in enumerate(ps.T):
        gain = np.log(1 - w + w * a * p ** (a - 1))
        before, after = reserve(number), reserve(number + 1)
        in_play = np.logaddexp(in_play, math.log((before - after) / len(BETS))) + gain
        since = np.logaddexp(since, -math.log(len(BETS))) + gain
        wealth = after + np.exp(in_play).sum(0)
        alarmed_at[(wealth >= 1 / level) & np.isinf(alarmed_at)] = number + 1
        warned[:, number] = np.exp(since).sum(0) >= RUN_LENGTH
        since[:, warned[:, number]] = -np.inf
    return alarmed_at, warned


def delays(pair: Pair, streams: int) -> Delays:
    """Return the images from the change to the first alarm or warning after it; infinity for none within LONGEST."""
    found: dict[tuple[int, float], list[float]] = {}
    for quiet in (0, QUIET):
        for share in SHARES:
            ps = np.array([_p_values_of_change(pair, share, quiet, seed) for seed in range(streams)])
            alarmed_at, warned = notices(ps)
            later = warned[:, quiet:]
            first_warning = np.where(later.any(1), later.argmax(1) + 1.0, np.inf)
            found[quiet, share] = np.minimum(
                first_warning, np.where(alarmed_at > quiet, alarmed_at - quiet, np.inf)
            ).tolist()
    return Delays(pair, found)


def _p_values_of_change(pair: Pair, share: float, quiet: int, seed: int) -> Scores:
    draw = np.random.default_rng(seed)
    calibration, before = draw.choice(pair.id_scores, CALIBRATION), draw.choice(pair.id_scores, quiet)
    is_ood = draw.random(LONGEST) < share
    after = np.where(is_ood, draw.choice(pair.ood_scores, LONGEST), draw.choice(pair.id_scores, LONGEST))
    return online_p_values(calibration, np.concatenate([before, after]), seed)


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
    for start in range(0, streams, 100):
        ps = np.empty((min(100, streams - start), LONGEST))
        for row in range(len(ps)):
            draw = np.random.default_rng(10**6 + start + row)
            calibration = draw.choice(id_scores, CALIBRATION)
            ps[row] = online_p_values(calibration, draw.choice(id_scores, LONGEST), start + row)
        alarmed_at, warned = notices(ps)
        alarms += int(np.isfinite(alarmed_at).sum())
        warnings += int(warned.sum())
    return alarms, warnings


@styled
def delay_figure(found: list[Delays]) -> Figure:
    """Show the median delay over the AUROC, a colour for each share: real sets as marks, simulated ones as lines."""
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
                    panel.plot(x, y, linestyle=look.line, color=look.colour, linewidth=1)
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
        save_figure(delay_figure(found), options.figure)
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
