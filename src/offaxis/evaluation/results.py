"""``Results``: what ``evaluate`` returns, as rows, as a table and as a store."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from offaxis.errors import ArgumentError, EvaluationError, MissingPackageError
from offaxis.evaluation.records import NetworkRecord, Result, SetRecord
from offaxis.evaluation.store import Store
from offaxis.evaluation.summary import is_oracle, summarise, views_in
from offaxis.metrics import HIGHER_IS_BETTER
from offaxis.progress import html_card, html_table

if TYPE_CHECKING:
    import pandas as pd

_POSITIVE = {
    "fpr_at_tpr95": "ID positive",
    "fpr_at_tpr95_ood": "OOD positive, interpolated",
    "fpr_at_tpr95_openood": "OOD positive (as OpenOOD)",
}
"""False positive rates -> the class that is positive."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """What ``offaxis.evaluate`` returns.

    Attributes:
        results: one for each detector and pair of sets.
        networks: the networks that were evaluated.
        sets: the image sets by key.
        notes: which detectors were left out, and why.
        arrays: scores that were computed in this process, by reference.
        store: where scores of earlier calls are kept; None where everything is in memory.
    """

    results: tuple[Result, ...]
    networks: tuple[NetworkRecord, ...]
    sets: Mapping[str, SetRecord]
    notes: tuple[str, ...] = ()
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    store: Store | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        lines = [f"{len(self)} results, AUROC in percent", self.table()] if self.results else ["no results"]
        return "\n".join([*lines, *self.notes])

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def scores(self, reference: str) -> NDArray[Any]:
        """Return the scores (T,) that a Result refers to, larger = more out-of-distribution.

        Args:
            reference: one of ``Result.scores``: of the ID test images, or of the OOD test images.
        """
        if reference in self.arrays:
            return self.arrays[reference]
        if self.store is None:
            raise ArgumentError(f"Expected a reference out of a Result of this evaluation but got {reference!r}.")
        return self.store.scores(reference)

    def to_frame(self) -> "pd.DataFrame":
        """Return a pandas DataFrame with a row for each result and a column for each metric.

        Raises:
            MissingPackageError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingPackageError("to_frame() needs pandas: pip install 'offaxis[frames]'.") from error
        return pd.DataFrame([result.to_row() for result in self.results])

    def table(self, metric: str = "auroc") -> str:
        """Return a Markdown table: a row for each detector, a column for each OOD set, and the mean, in percent.

        Rows are sorted, best first. Detectors that were tuned on the tested set itself (oracle) come last, apart from the
        ranking. A false positive rate says which class is positive, and has OpenOOD's and pytorch-ood's, with OOD positive,
        beside it. OpenOOD's benchmarks have the means of near and far sets; several seeds have the standard deviation
        over seeds of the mean over sets.

        Args:
            metric: a name that ``offaxis.metrics.all_metrics`` gives.
        """
        if metric not in HIGHER_IS_BETTER:
            raise ArgumentError(f"Expected a metric out of {', '.join(HIGHER_IS_BETTER)} but got {metric!r}.")
        view = views_in(self.results)[0]
        summaries = sorted(summarise(self.results, view, metric), key=lambda s: is_oracle(s, view))
        if not summaries:
            raise EvaluationError("Expected results to show but there are none of one-vs-one evaluation.")
        theirs: dict[tuple[str, str, str], float] = {}
        if metric == "fpr_at_tpr95":
            other = summarise(self.results, view, "fpr_at_tpr95_openood")
            theirs = {(s.id, s.network, s.method): s.groups["all"].mean for s in other}
        several = len({(s.id, s.network) for s in summaries}) > 1
        seeded = any(s.groups["all"].seed_std is not None for s in summaries)
        sets = list(dict.fromkeys(name for s in summaries for name in s.rows))
        groups = ["near", "far"] if view == "openood" else []
        positive = _POSITIVE.get(metric)
        means = ["mean, OOD positive (as OpenOOD)"] if theirs else []
        means += ["mean" if positive is None else f"mean, {positive}", *(["seed sd", "seeds"] if seeded else [])]
        head = "detector" if positive is None else f"detector (FPR, {positive})"
        lines = [[head, *(["network"] if several else []), *sets, *groups, *means]]
        lines.append(["---", *(["---"] if several else []), *["---:"] * (len(sets) + len(groups) + len(means))])
        for s in summaries:
            whole = s.groups["all"]
            values = [s.rows[name].mean if name in s.rows else None for name in sets]
            values += [s.groups[name].mean if name in s.groups else None for name in groups]
            values += [theirs.get((s.id, s.network, s.method))] if theirs else []
            values += [whole.mean, *([whole.seed_std] if seeded else [])]
            texts = ["-" if value is None else f"{100 * value:.2f}" for value in values]
            method = s.method.replace("(tuned", "(oracle") if is_oracle(s, view) else s.method
            count = [str(whole.seeds)] if seeded else []
            lines.append([method, *([s.network] if several else []), *texts, *count])
        widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
        return "\n".join(f"| {' | '.join(map(str.ljust, line, widths))} |" for line in lines)

    def _repr_html_(self) -> str:
        if not self.results:
            return html_card("No results", {})
        head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in self.table().splitlines()]
        networks = [f"{n.label} {n.accuracy:.1%}" for n in self.networks]
        below = html_table(head, [[escape(cell) for cell in row] for row in rows], best=(0,))
        notes = "".join(f"<div>{escape(note)}</div>" for note in self.notes)
        facts = {"accuracy on ID images": escape(", ".join(networks)), "left out": notes}
        return html_card("AUROC in percent, best first; 50 is guessing", facts, below)

    def save(self, path: str | Path) -> Store:
        """Write the results with their scores into a store, a folder that ``offaxis report`` reads.

        Args:
            path: the folder: a new one, or a store, to which what it lacks is added.
        """
        store = Store(path)
        for key, record in self.sets.items():
            store.add_set(key, record)
        for network in self.networks:
            store.add_network(network)
        references = dict.fromkeys(reference for result in self.results for reference in result.scores)
        store.add_scores({reference: self.scores(reference) for reference in references})
        present = {result.key for result in store.results()}
        store.add(result for result in self.results if result.key not in present)
        return store


def join_results(several: Sequence[Results]) -> Results:
    """Return the results of several networks as one."""
    return Results(
        results=tuple(result for one in several for result in one),
        networks=tuple(network for one in several for network in one.networks),
        sets={key: record for one in several for key, record in one.sets.items()},
        notes=tuple(dict.fromkeys(note for one in several for note in one.notes)),
        arrays={key: array for one in several for key, array in one.arrays.items()},
        store=several[0].store,
    )
