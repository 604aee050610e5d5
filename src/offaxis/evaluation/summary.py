"""Results -> means and standard deviations over seeds and over sets, and the differences between two detectors."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from offaxis.data import CATALOGUE, relation
from offaxis.data.catalogue import Group
from offaxis.errors import ArgumentError
from offaxis.evaluation.records import NetworkFields, NetworkRecord, Result, argument_text, predictions_reference
from offaxis.evaluation.store import Store
from offaxis.metrics import auroc, higher_is_better

View = Literal["one-vs-one", "less-biased by tested set", "less-biased by assumed set", "openood"]
VIEWS: tuple[View, ...] = ("one-vs-one", "less-biased by tested set", "less-biased by assumed set")
GROUPS = ("all", "near", "far", "noise")
RowKey = tuple[str, str, str, str, str]
"""What the results of a row have in common: ID set, network, detector, its arguments, whether it was tuned."""


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
    return summarise_metrics(results, view, (metric,))[metric]


def summarise_metrics(results: Iterable[Result], view: View, metrics: Sequence[str]) -> dict[str, list[Summary]]:
    """Summarise as ``summarise`` does by each of several metrics, which share the grouping of the results."""
    results = distinguish_networks(results)
    names = method_names(results)
    members: dict[RowKey, list[tuple[str, Result]]] = {}
    for row, result in view_rows(results, view):
        members.setdefault(row_key(result), []).append((row, result))
    found = {}
    for metric in metrics:
        held = "fpr_at_tpr95" if metric == FOUND else metric
        own = {key: [(row, r) for row, r in some if held in r.metrics] for key, some in members.items()}
        summaries = [_summary(some, names[key], metric) for key, some in own.items() if some]
        sign = -1 if higher_is_better(metric) else 1
        found[metric] = sorted(summaries, key=lambda s: (s.id, sign * s.groups["all"].mean))
    return found


def _summary(members: Sequence[tuple[str, Result]], method: str, metric: str) -> Summary:
    """Summarise the results of one row of the ranking, each with the set that its column is named by."""
    first = members[0][1]
    known = {row: result.group for row, result in members if row == result.ood}
    values: dict[str, dict[int, list[float]]] = {}
    for row, result in members:
        values.setdefault(row, {}).setdefault(result.seed, []).append(_value_of(result, metric))
    rows = sorted(values, key=lambda row: _place(known.get(row) or relation(first.id, row).group, row))
    cells = {(seed, row): _mean_std(own).mean for row in rows for seed, own in values[row].items()}
    groups = {group: [row for row in rows if group in ("all", known.get(row))] for group in GROUPS}
    return Summary(
        id=first.id,
        network=first.network,
        fields=first,
        detector=first.detector,
        state=first.state,
        method=method,
        passes=(max(r.passes[0] for _, r in members), max(r.passes[1] for _, r in members)),
        groups={group: _spread_over(cells, own) for group, own in groups.items() if own},
        rows={row: _mean_std([value for own in values[row].values() for value in own]) for row in rows},
        cells=cells,
        metric=metric,
    )


FOUND = "found_at_fpr5"
"""The share of OOD images that are flagged where 5 % of ID images are: 1 - ``fpr_at_tpr95``."""


def _value_of(result: Result, metric: str) -> float:
    return 1 - result.metrics["fpr_at_tpr95"] if metric == FOUND else result.metrics[metric]


def _place(group: Group, row: str) -> tuple[int, int, str]:
    """Return the place of a set in every table: near before far before noise, then as in the catalogue."""
    names = list(CATALOGUE)
    return GROUPS.index(group), names.index(row) if row in CATALOGUE else len(names), row


def _mean_std(values: Sequence[float]) -> MeanStd:
    if len(values) == 1:  # most often
        return MeanStd(values[0], None, 1)
    return MeanStd(float(np.mean(values)), float(np.std(values, ddof=1)), len(values))


def _spread_over(cells: Mapping[tuple[int, str], float], rows: Sequence[str]) -> Spread:
    """Compute the spread over the sets that every seed has; where no set is shared by all seeds, over all sets."""
    values = _shared_cells(cells, rows)
    if not values.size:
        values = np.array([[np.mean([v for (_, r), v in cells.items() if r == row]) for row in rows]])
    seeds, sets = values.shape
    return Spread(
        mean=float(values.mean()),
        seed_std=float(values.mean(1).std(ddof=1)) if seeds > 1 else None,
        set_std=float(values.mean(0).std(ddof=1)) if sets > 1 else None,
        seeds=seeds,
        sets=sets,
    )


def _shared_cells(cells: Mapping[tuple[int, str], float], rows: Iterable[str]) -> NDArray[np.float64]:
    """Return the values (seeds, sets) of the sets that every seed has."""
    seeds = sorted({seed for seed, _ in cells})
    shared = [row for row in rows if all((seed, row) in cells for seed in seeds)]
    return np.array([[cells[seed, row] for row in shared] for seed in seeds], np.float64)


def row_key(result: Result) -> RowKey:
    """Return the row that a result belongs to."""
    return result.id, result.network, result.detector, result.setup, "tuned" if result.state == "tuned" else ""


def method_names(results: Iterable[Result]) -> dict[RowKey, str]:
    """Return what every table and figure calls a row: its method, and where several are called so what distinguishes them.

    That is the values that tuning tries, what they were fitted on or, in records of earlier versions, their hyperparameters;
    else a number.
    """
    first: dict[RowKey, Result] = {}
    for r in results:
        first.setdefault(row_key(r), r)
    alike: dict[tuple[str, str, str], list[RowKey]] = {}
    for key, r in first.items():
        alike.setdefault((r.id, r.network, r.method), []).append(key)
    return {
        key: name
        for (_, _, method), keys in alike.items()
        for key, name in zip(keys, _distinguished(method, [first[key] for key in keys]), strict=True)
    }


def _distinguished(method: str, rows: Sequence[Result]) -> list[str]:
    """Return names for rows of one method."""
    if len(rows) == 1:
        return [method]
    values = [{**({} if r.state == "tuned" else r.hyperparameters), **r.given} for r in rows]
    every = dict.fromkeys(name for own in values for name in own)
    differ = [name for name in every if any(own.get(name) != values[0].get(name) for own in values)]
    names = [r.named({n: own[n] for n in differ if n in own}) for r, own in zip(rows, values, strict=True)]
    if len({r.fitted_on for r in rows}) > 1:
        names = [f"{name}, fitted on {r.fitted_on}" for name, r in zip(names, rows, strict=True)]
    counts: dict[str, int] = {}
    for place, name in enumerate(names):
        counts[name] = counts.get(name, 0) + 1
        names[place] = name if counts[name] == 1 else f"{name} #{counts[name]}"
    return names


Network = TypeVar("Network", Result, NetworkRecord)


def distinguish_networks(networks: Iterable[Network]) -> list[Network]:
    """Return results or records in which networks that differ by more than their seed have labels of their own.

    Where networks of one label were trained otherwise, the label says what differs, as far as it is recorded:
    ``wrn-10-2 cosine (6 epochs)``. All others stay as they are.
    """
    networks = list(networks)
    facts: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for one in networks:
        by_weights = facts.setdefault((one.id, _label(one)), {})
        if one.weights not in by_weights:
            by_weights[one.weights] = one.facts
    words = {
        (id_name, label, weights): text
        for (id_name, label), by_weights in facts.items()
        for weights, text in zip(by_weights, differences_in_words(list(by_weights.values())), strict=True)
    }
    return [_with_words(one, words[one.id, _label(one), one.weights]) for one in networks]


def _label(one: Result | NetworkRecord) -> str:
    return one.network if isinstance(one, Result) else one.label


def _with_words(one: Network, words: str) -> Network:
    label: dict[str, Any] = {"network" if isinstance(one, Result) else "label": f"{_label(one)} ({words})"}
    return replace(one, **label) if words else one


def differences_in_words(networks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return, for each network by its facts, what distinguishes it from the others but for the seed; empty where nothing does.

    A fact that is not recorded differs from no other, but for those of recipes and heads: earlier versions left out what
    was not used.

    Examples:
        >>> differences_in_words([{"recipe.epochs": 6, "recipe.flip": True}, {"recipe.epochs": 30, "recipe.flip": True}])
        ['6 epochs', '30 epochs']
    """
    known = dict.fromkeys(name for facts in networks for name in facts)
    differ = [name for name in known if _differs(name, networks)]
    for part, short in (("recipe", "recipe.name"), ("data", "data.images")):
        own = [name for name in differ if name.startswith(f"{part}.")]
        if short in own and len({facts.get(short) for facts in networks}) == len(
            {tuple(facts.get(name) for name in own) for facts in networks}
        ):
            differ = [name for name in differ if name not in own or name == short]
    return [", ".join(_in_words(name, facts.get(name)) for name in differ) for facts in networks]


def _differs(name: str, networks: Sequence[Mapping[str, Any]]) -> bool:
    part = name.partition(".")[0]
    if part in ("recipe", "head"):
        recorded = [facts for facts in networks if any(other.startswith(f"{part}.") for other in facts)]
        values = [facts.get(name) or None for facts in recorded]
    else:
        values = [facts[name] for facts in networks if name in facts]
    return any(value != values[0] for value in values)


def _in_words(name: str, value: Any) -> str:
    words = name.rpartition(".")[2].replace("_", " ")
    if value is None or value is False:
        return f"no {words}"
    said = {
        "recipe.epochs": f"{value} epochs",
        "recipe.name": f"recipe {value}",
        "head.name": f"head {value}",
        "data.name": f"trained on {value}",
        "data.images": f"{value} training images",
        "data.fingerprint": f"training images {str(value)[:8]}",
        "members": f"{value} members",
    }
    return words if value is True else said.get(name, f"{words} {argument_text(value)}")


def largest_tests(results: Iterable[Result]) -> list[Result]:
    """Keep one result for each network, detector and pair of sets, also of parts of one: that with the most test images."""
    largest: dict[tuple[object, ...], Result] = {}
    for r in results:
        ood = r.ood.removesuffix(" (partial)") if r.benchmark else r.ood
        test = (r.network, r.seed, r.weights, r.id, ood, r.assumed, r.detector, r.setup, r.state)
        if test not in largest or _extent(r) >= _extent(largest[test]):
            largest[test] = r
    return list(largest.values())


def _extent(result: Result) -> tuple[int, int]:
    return sum(result.images), len(result.shifted)


def one_vs_one_results(results: Iterable[Result]) -> list[Result]:
    """Select the results of one-vs-one evaluation: nothing assumed, or the tested set itself."""
    return [r for r in results if r.assumed is None or r.assumed_data == r.ood_data]


def less_biased_results(results: Iterable[Result]) -> list[Result]:
    """Select the results of less-biased evaluation: nothing assumed, or another set than the tested one."""
    return [r for r in results if r.assumed is None or r.assumed_data != r.ood_data]


def less_biased_rows(
    results: Iterable[Result], view: Literal["tested", "assumed"] = "tested"
) -> list[tuple[str, Result]]:
    """Return (row, result) for each result of this protocol; a row is averaged over the results in it.

    Args:
        results: any; those of other protocols are left out.
        view: "tested": a row is a tested set. "assumed": a row is an assumed set; results without an assumed set count in
            every row but that of their own tested set, of the sets that their network and ID set were tested on.
    """
    chosen = less_biased_results(results)
    if view == "tested":
        return [(r.ood, r) for r in chosen]
    names: dict[tuple[str, str], dict[str, None]] = {}
    for r in chosen:
        names.setdefault((r.id, r.network), {})[r.ood] = None
    rows = [(r.assumed, r) for r in chosen if r.assumed is not None]
    rows += [(name, r) for r in chosen if r.assumed is None for name in names[r.id, r.network] if name != r.ood]
    return rows


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


def ranked_rows(results: Iterable[Result], metric: str = "auroc") -> list[tuple[str, Summary]]:
    """Return (what it was tuned on, summary) of every row of a ranking, the best first.

    Beside the rows without tuning are those tuned on another set than the tested one (the mean over the tested sets), or on
    a benchmark's validation list. Those tuned on the tested set itself come last, which nobody has in use.
    """
    results = list(results)
    first, *others = views_in(results)
    every = summarise(results, first, metric)
    rows = [("validation list" if s.state == "tuned" else "", s) for s in every if not is_oracle(s, first)]
    if others:
        rows += [("another set", s) for s in summarise(results, others[0], metric) if s.state == "tuned"]
    sign = -1 if higher_is_better(metric) else 1
    rows.sort(key=lambda row: (row[1].id, sign * row[1].groups["all"].mean))
    return rows + [(TESTED_SET, s) for s in every if is_oracle(s, first)]


TESTED_SET = "the tested set"
"""What ``ranked_rows`` says of an oracle."""


def to_rows(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return each result as a flat row, with network and ``method`` as tables call them: what differs is told apart."""
    results = distinguish_networks(results)
    names = method_names(results)
    return [
        result.to_row() | {"method": oracle_name(names[row_key(result)], result.assumed_data == result.ood_data)}
        for result in results
    ]


class Predictions(NamedTuple):
    """What a network predicts for the ID test images, in the order of their scores.

    Attributes:
        labels: int64 (T,), the classes that they are of.
        predicted: int64 (T,), the classes that they are taken for.
        probability: (T,) of these, in [0, 1].
    """

    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    probability: NDArray[np.float64]


def read_predictions(store: Store, result: Result) -> Predictions:
    """Return the predictions for the ID test images of a result."""
    labels, predicted, probability = store.scores(predictions_reference(result.weights, result.id_data)).T
    return Predictions(labels.astype(np.int64), predicted.astype(np.int64), probability)


def per_class_rows(store: Store, results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return a row for each result and ID class: accuracy, and AUROC of its images against all OOD images."""
    rows = []
    for result, named in zip(results, to_rows(results), strict=True):
        predictions, (id_scores, ood_scores) = read_predictions(store, result), map(store.scores, result.scores)
        for label in np.unique(predictions.labels).tolist():
            own = predictions.labels == label
            rows.append(
                {name: named[name] for name in ("id", "ood", "assumed", "network", "seed", "method")}
                | {
                    "class": label,
                    "images": int(own.sum()),
                    "accuracy": float((predictions.predicted[own] == label).mean()),
                    "auroc": auroc(id_scores[own], ood_scores),
                }
            )
    return rows


def oracle_name(method: str, oracle: bool) -> str:
    """Return what a detector is called that was tuned on the tested set itself: odin (oracle) in place of odin (tuned)."""
    return method.replace("(tuned", "(oracle") if oracle else method


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """The difference between two detectors, taken pair by pair: same seed, same set.

    Intervals are percentile bootstraps: ``interval`` resamples sets *and* seeds, so it covers other sets like these and other
    trainings, as far as a handful of each can. With fewer than about five of them an interval is too narrow.

    Attributes:
        first: network and detector.
        second: network and detector.
        metric: what is compared.
        differences: (seeds, sets), first minus second, of the seeds and sets that both have.
        level: of the intervals, in (0, 1).
        resamples: of the bootstrap.
        seed: of its drawing.
    """

    first: str
    second: str
    metric: str
    differences: NDArray[np.float64]
    level: float = 0.95
    resamples: int = 2000
    seed: int = 0

    def __str__(self) -> str:
        parts = [f"{self.first} minus {self.second}: {100 * self.difference:+.2f} points of {self.metric}"]
        ends = {"seeds and sets": self.interval, "seeds": self.over_seeds, "sets": self.over_sets}
        parts += [f"{100 * e[0]:+.2f} to {100 * e[1]:+.2f} over {over}" for over, e in ends.items() if e is not None]
        counts = f"better in {self.wins} of {self.pairs} pairs ({self.seeds} seeds, {self.sets} sets)"
        return "; ".join([*parts, counts, f"Wilcoxon p = {self.p_value:.3g} over sets"])

    @property
    def difference(self) -> float:
        """Return the mean of first minus second over all shared seeds and sets."""
        return float(self.differences.mean())

    @property
    def pairs(self) -> int:
        """Return how many pairs of the same seed and set there are."""
        return int(self.differences.size)

    @property
    def seeds(self) -> int:
        """Return how many seeds both have."""
        return len(self.differences)

    @property
    def sets(self) -> int:
        """Return how many sets both have."""
        return int(self.differences.shape[1])

    @property
    def wins(self) -> int:
        """Return in how many pairs the first is better: its value is larger, or smaller where the metric is an error."""
        return int(((self.differences if higher_is_better(self.metric) else -self.differences) > 0).sum())

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """Return the interval of the difference over seeds and sets; None where there is only one pair."""
        return self._interval(self.differences)

    @cached_property
    def over_seeds(self) -> tuple[float, float] | None:
        """Return the interval over seeds for these sets; None with one seed."""
        return self._interval(self.differences.mean(1, keepdims=True))

    @cached_property
    def over_sets(self) -> tuple[float, float] | None:
        """Return the interval over sets for these seeds; None with one set."""
        return self._interval(self.differences.mean(0, keepdims=True))

    def _interval(self, differences: NDArray[np.float64]) -> tuple[float, float] | None:
        if differences.size == 1:
            return None
        of_seeds, of_sets = _draws(*differences.shape, self.resamples, self.seed)
        means = ((of_seeds @ differences) * of_sets).sum(1)
        low, high = np.quantile(means, [(1 - self.level) / 2, (1 + self.level) / 2]).tolist()
        return low, high

    @cached_property
    def p_value(self) -> float:
        """Return Wilcoxon's two-sided signed-rank p-value over sets, of means over seeds; with n sets at least 2 / 2^n."""
        from scipy.stats import wilcoxon  # takes a second to import, and tables do not need it

        means = self.differences.mean(0)
        return float(wilcoxon(means).pvalue) if means.any() else 1.0

    @property
    def clear(self) -> bool:
        """Return whether the interval over seeds and sets leaves out zero."""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)


def compare_pair(first: Summary, second: Summary, **options: Any) -> Comparison:
    """Compare two detectors, of one call of ``summarise``, on the seeds and sets that they share.

    Args:
        first: the first.
        second: the second, which is subtracted.
        options: level, resamples and seed of the intervals.

    Raises:
        ArgumentError: they have no set in common that they have for every seed in common.
    """
    shared = {cell: value - second.cells[cell] for cell, value in first.cells.items() if cell in second.cells}
    matrix = _shared_cells(shared, dict.fromkeys(row for _, row in shared))
    if not matrix.size:
        raise ArgumentError(f"{first.title} and {second.title} have no set in common for all seeds that they share.")
    return Comparison(first=first.title, second=second.title, metric=first.metric, differences=matrix, **options)


@lru_cache(maxsize=16)  # all pairs of a table share the resamples
def _draws(seeds: int, sets: int, resamples: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw the weights of each seed (resamples, seeds) and each set (resamples, sets) in every resample."""
    draw = np.random.default_rng(seed)
    of_seeds = draw.multinomial(seeds, np.full(seeds, 1 / seeds), resamples) / seeds
    return of_seeds, draw.multinomial(sets, np.full(sets, 1 / sets), resamples) / sets


def reference_of(summaries: list[Summary]) -> Summary:
    """Return the detector that others are compared with: the best cosine score, or the best of all where there is none."""
    return next((s for s in summaries if s.detector in ("cosine", "cosine-ensemble")), summaries[0])
