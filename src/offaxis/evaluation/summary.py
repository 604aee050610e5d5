"""Results -> means and standard deviations over seeds and over sets, and the differences between two detectors."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from offaxis.data import CATALOGUE, relation
from offaxis.data.catalogue import Group
from offaxis.errors import ArgumentError
from offaxis.evaluation.protocols import less_biased_rows, one_vs_one_results
from offaxis.evaluation.results import NetworkFields, Result
from offaxis.metrics import HIGHER_IS_BETTER

View = Literal["one-vs-one", "less-biased by tested set", "less-biased by assumed set", "openood"]
VIEWS: tuple[View, ...] = ("one-vs-one", "less-biased by tested set", "less-biased by assumed set")
GROUPS = ("all", "near", "far", "noise")
RowKey = tuple[str, str, str, str, str]
"""What the results of a row have in common: ID set, network, detector, its arguments, state of its hyperparameters."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A mean over sets and seeds, with the standard deviations over each of them.

    Attributes:
        mean: over sets of the mean over seeds, each set counting the same.
        seed_std: standard deviation over seeds of the mean over sets; None with one seed.
        set_std: standard deviation over sets of the mean over seeds; None with one set.
        seeds: how many seeds.
        sets: how many sets.
    """

    mean: float
    seed_std: float | None
    set_std: float | None
    seeds: int
    sets: int


@dataclass(frozen=True)
class MeanStd:
    """One row of a table for one detector: mean and standard deviation over seeds (and, less-biased, over the other sets).

    Attributes:
        mean: of all values.
        std: of all values, with n - 1; None with one value.
        count: how many values.
    """

    mean: float
    std: float | None
    count: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One detector on one network (of several seeds) under one protocol, by one metric.

    Attributes:
        id: the ID set.
        network: the network's label.
        fields: the network's recorded fields, those of its first seed: architecture, head, recipe, kind.
        detector: the detector's name.
        state: where its hyperparameters come from.
        method: both as tables show them, with a number where several settings of a detector would be called the same.
        passes: the most forward and backward passes that scoring an image takes.
        groups: "all", "near", "far", "noise" -> Spread, as far as there are such sets.
        rows: OOD set -> MeanStd.
        cells: (seed, OOD set) -> mean value, from which pairs are compared.
        metric: what the values are.
    """

    id: str
    network: str
    fields: NetworkFields
    detector: str
    state: str
    method: str
    passes: tuple[float, float]
    groups: Mapping[str, Spread]
    rows: Mapping[str, MeanStd]
    cells: Mapping[tuple[int, str], float]
    metric: str = "auroc"

    @property
    def title(self) -> str:
        """Return network and detector."""
        return f"{self.network}: {self.method}"


def summarise(results: Iterable[Result], view: View = "one-vs-one", metric: str = "auroc") -> list[Summary]:
    """Summarise every detector on every network, the best first.

    Args:
        results: of any protocol; those that the view does not take, and those of earlier versions that do not have the
            metric, are left out. Where the same was tested on several numbers of images, pass them through
            ``largest_tests`` first.
        view: the protocol, and for less-biased which set names a row.
        metric: a name that ``all_metrics`` gives.
    """
    results = [result for result in results if metric in result.metrics]
    names = method_names(results)
    rows: dict[RowKey, list[tuple[str, Result]]] = {}
    for row, result in view_rows(results, view):
        rows.setdefault(row_key(result), []).append((row, result))
    summaries = [_summary(members, names[key], metric) for key, members in rows.items()]
    sign = -1 if HIGHER_IS_BETTER[metric] else 1
    return sorted(summaries, key=lambda s: (s.id, sign * s.groups["all"].mean))


def row_key(result: Result) -> RowKey:
    """Return the row that a result belongs to."""
    return result.id, result.network, result.detector, result.setup, result.state


def method_names(results: Iterable[Result]) -> dict[RowKey, str]:
    """Return what every table and figure calls a row: its method, numbered where several differ by their arguments."""
    names: dict[RowKey, str] = {}
    seen: dict[tuple[str, str, str], int] = {}
    for r in results:
        if row_key(r) not in names:
            place = (r.id, r.network, r.method)
            seen[place] = seen.get(place, 0) + 1
            names[row_key(r)] = r.method if seen[place] == 1 else f"{r.method} #{seen[place]}"
    return names


def largest_tests(results: Iterable[Result]) -> list[Result]:
    """Keep one result for each network, detector and pair of sets: the one with the most test images."""
    largest: dict[tuple[object, ...], Result] = {}
    for r in results:
        test = (r.network, r.seed, r.id, r.ood, r.assumed, r.detector, r.setup, r.state)
        if test not in largest or sum(r.images) >= sum(largest[test].images):
            largest[test] = r
    return list(largest.values())


def view_rows(results: Iterable[Result], view: View) -> list[tuple[str, Result]]:
    """Return (row of the table, result) for the results that belong to a view."""
    if view == "openood":  # given, or tuned on the benchmark's validation lists
        return [(r.ood, r) for r in results if r.benchmark]
    if view == "one-vs-one":
        return [(r.ood, r) for r in one_vs_one_results(results)]
    return less_biased_rows(results, "tested" if view == "less-biased by tested set" else "assumed")


def views_in(results: Iterable[Result]) -> list[View]:
    """Return the views that there are results for; less-biased only where a detector was tuned on another set."""
    results = list(results)
    if results and all(r.benchmark for r in results):
        return ["openood"]
    tuned = {r.assumed_data == r.ood_data for r in results if r.assumed is not None}
    return [view for view in VIEWS if view == "one-vs-one" or False in tuned]


def is_oracle(summary: Summary, view: View) -> bool:
    """Return whether a detector was tuned on the tested set itself, which nobody has in use."""
    return view == "one-vs-one" and summary.state == "tuned"


def spread_of(values: NDArray[np.float64]) -> Spread:
    """Compute the mean and both standard deviations of values (seeds, sets)."""
    seeds, sets = values.shape
    return Spread(
        mean=float(values.mean()),
        seed_std=float(values.mean(1).std(ddof=1)) if seeds > 1 else None,
        set_std=float(values.mean(0).std(ddof=1)) if sets > 1 else None,
        seeds=seeds,
        sets=sets,
    )


def _summary(members: list[tuple[str, Result]], method: str, metric: str) -> Summary:
    first = members[0][1]
    values: dict[str, dict[int, list[float]]] = {}
    groups: dict[str, Group] = {}
    for row, result in members:
        values.setdefault(row, {}).setdefault(result.seed, []).append(result.metrics[metric])
        if row == result.ood:
            groups[row] = result.group
    order = sorted(values, key=lambda row: _place(groups.get(row) or relation(first.id, row).group, row))
    values = {row: values[row] for row in order}
    cells = {(seed, row): _mean(v) for row, by_seed in values.items() for seed, v in by_seed.items()}
    return Summary(
        id=first.id,
        network=first.network,
        fields=first,
        detector=first.detector,
        state=first.state,
        method=method,
        passes=(max(r.passes[0] for _, r in members), max(r.passes[1] for _, r in members)),
        groups=_spreads(cells, groups),
        rows={row: _mean_std([v for one in by_seed.values() for v in one]) for row, by_seed in values.items()},
        cells=cells,
        metric=metric,
    )


def _place(group: Group, row: str) -> tuple[int, int, str]:
    """Return the place of a set in every table: near before far before noise, then as in the catalogue."""
    places = _places()
    return GROUPS.index(group), places.get(row, len(places)), row


@cache
def _places() -> dict[str, int]:
    return {name: place for place, name in enumerate(CATALOGUE)}


def _mean(values: list[float]) -> float:
    """Compute what NumPy does, without an array for the few values that there usually are (it adds fewer than 8 in order)."""
    return sum(values) / len(values) if len(values) < 8 else float(np.mean(values))


def _mean_std(values: list[float]) -> MeanStd:
    count = len(values)
    if count == 1:
        return MeanStd(values[0], None, 1)
    if count >= 8:
        return MeanStd(float(np.mean(values)), float(np.std(values, ddof=1)), count)
    mean = _mean(values)
    return MeanStd(mean, math.sqrt(sum((v - mean) * (v - mean) for v in values) / (count - 1)), count)


def _spreads(cells: Mapping[tuple[int, str], float], groups: Mapping[str, Group]) -> dict[str, Spread]:
    """Compute spreads over the sets that every seed has; where no set is shared by all seeds, over all sets."""
    spreads = {}
    for group in GROUPS:
        rows = list(dict.fromkeys(row for _, row in cells if group in ("all", groups.get(row))))
        matrix = complete(cells, rows)
        if matrix.size:
            spreads[group] = spread_of(matrix)
        elif rows:
            each = [np.mean([v for (_, r), v in cells.items() if r == row]) for row in rows]
            spreads[group] = spread_of(np.array([each], np.float64))
    return spreads


def complete(cells: Mapping[tuple[int, str], float], rows: Iterable[str]) -> NDArray[np.float64]:
    """Return values (seeds, sets) of the sets that every seed has a value for."""
    seeds = sorted({seed for seed, _ in cells})
    kept = [row for row in rows if all((seed, row) in cells for seed in seeds)]
    return np.array([[cells[seed, row] for row in kept] for seed in seeds], np.float64).reshape(len(seeds), len(kept))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The difference between two detectors, taken pair by pair: same seed, same set.

    Attributes:
        first: network and detector.
        second: network and detector.
        difference: mean of first minus second over all shared seeds and sets.
        low: lower end of its interval; None where there is only one pair.
        high: upper end.
        wins: pairs in which the first is better: its value is larger, or smaller where the metric is an error.
        pairs: how many there are.
        seeds: shared seeds.
        sets: shared sets.
    """

    first: str
    second: str
    difference: float
    low: float | None
    high: float | None
    wins: int
    pairs: int
    seeds: int
    sets: int

    @property
    def clear(self) -> bool:
        """Return whether the interval leaves out zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def compare_detectors(
    first: Summary, second: Summary, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Comparison:
    """Compare two detectors on the seeds and sets that they share.

    The interval is a percentile bootstrap that resamples sets *and* seeds, so it covers other sets like these and other
    trainings, as far as a handful of each can. With fewer than about five sets it is too narrow.

    Args:
        first: of ``summarise``.
        second: of the same call.
        level: of the interval, in (0, 1).
        resamples: of the bootstrap.
        seed: of the drawing.

    Raises:
        ArgumentError: they have no seed and set in common.
    """
    shared = {key: first.cells[key] - second.cells[key] for key in first.cells if key in second.cells}
    matrix = complete(shared, dict.fromkeys(row for _, row in shared))
    if not matrix.size:
        raise ArgumentError(
            f"{first.title} and {second.title} have no seed and set in common, so they cannot be compared."
        )
    seeds, sets = matrix.shape
    low = high = None
    if matrix.size > 1:
        of_seeds, of_sets = _draws(seeds, sets, resamples, seed)
        means = ((of_seeds @ matrix) * of_sets).sum(1)
        low, high = (float(v) for v in np.quantile(means, [(1 - level) / 2, (1 + level) / 2]))
    wins = int(((matrix if HIGHER_IS_BETTER[first.metric] else -matrix) > 0).sum())
    return Comparison(
        first=first.title,
        second=second.title,
        difference=float(matrix.mean()),
        low=low,
        high=high,
        wins=wins,
        pairs=matrix.size,
        seeds=seeds,
        sets=sets,
    )


@lru_cache(maxsize=16)  # all pairs of a table share the resamples
def _draws(seeds: int, sets: int, resamples: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw the weights of each seed (resamples, seeds) and each set (resamples, sets) in every resample."""
    draw = np.random.default_rng(seed)
    of_seeds = draw.multinomial(seeds, np.full(seeds, 1 / seeds), resamples) / seeds
    return of_seeds, draw.multinomial(sets, np.full(sets, 1 / sets), resamples) / sets


def reference_of(summaries: list[Summary]) -> Summary:
    """Return the detector that others are compared with: the best cosine score, or the best of all where there is none."""
    return next((s for s in summaries if s.detector in ("cosine", "cosine-ensemble")), summaries[0])
