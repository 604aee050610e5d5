"""``Results``: what ``evaluate`` returns, as rows, as a table and as a store."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from offaxis.errors import ArgumentError, EvaluationError, MissingPackageError
from offaxis.evaluation.records import NetworkRecord, Result, SetRecord, predictions_reference
from offaxis.evaluation.store import Store
from offaxis.evaluation.summary import (
    TESTED_SET,
    Comparison,
    Predictions,
    Summary,
    compare_pair,
    oracle_name,
    per_class_rows,
    ranked_rows,
    read_predictions,
    to_rows,
)
from offaxis.names import RESULT_METRICS
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
        store: the scores, in memory or, with those of earlier calls, in a folder.
    """

    results: tuple[Result, ...]
    networks: tuple[NetworkRecord, ...]
    sets: Mapping[str, SetRecord]
    notes: tuple[str, ...] = ()
    store: Store = field(default_factory=Store, repr=False, compare=False)

    def __repr__(self) -> str:
        lines = [f"{len(self)} results, AUROC in percent", self.table()] if self.results else ["no results"]
        return "\n".join([*lines, *self.notes])

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return the scores that were computed in this process, by reference."""
        return self.store.arrays

    def scores(self, reference: str) -> NDArray[Any]:
        """Return the scores (T,) that a Result refers to, larger = more out-of-distribution.

        Args:
            reference: one of ``Result.scores``: of the ID test images, or of the OOD test images.
        """
        if not any(reference in result.every_score for result in self.results):
            raise ArgumentError(f"Expected a reference out of a Result of this evaluation but got {reference!r}.")
        return self.store.scores(reference)

    def to_frame(self) -> "pd.DataFrame":
        """Return a pandas DataFrame with a row for each result and a column for each metric.

        ``network`` and ``method`` are what ``table`` calls them.

        Raises:
            MissingPackageError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingPackageError("to_frame() needs pandas: pip install 'offaxis[frames]'.") from error
        return pd.DataFrame(to_rows(self.results))

    def table(self, metric: str = "auroc") -> str:
        """Return a Markdown table: a row for each detector, a column for each OOD set, and the mean, in percent.

        Rows are sorted, best first. Detectors that were tuned on other sets than the tested one (tuned) have the mean over
        these; those that were tuned on the tested set itself (oracle) come last, apart from the ranking. A false positive
        rate says which class is positive, and has OpenOOD's and pytorch-ood's, with OOD positive, beside it. OpenOOD's
        benchmarks have the means of near and far sets; several seeds have the standard deviation over seeds of the mean
        over sets.

        Args:
            metric: a name that ``offaxis.metrics.all_metrics`` gives.
        """
        head, rows = self._percentages(metric)
        names = head.index("network") + 1 if "network" in head else 1
        lines = [head, ["---" if place < names else "---:" for place in range(len(head))], *rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(f"| {' | '.join(map(str.ljust, line, widths))} |" for line in lines)

    def predictions(self, result: Result) -> Predictions:
        """Return labels and predictions of the ID test images of a result, in the order of its scores.

        Raises:
            StoreError: the results are of an earlier version that kept none.
        """
        return read_predictions(self.store, result)

    def per_class(self) -> list[dict[str, Any]]:
        """Return a row for each result and ID class: the accuracy, and the AUROC of its images against all OOD images.

        ``pandas.DataFrame(results.per_class())`` makes a table of it.
        """
        return per_class_rows(self.store, self.results)

    def compare(self, first: str, second: str, metric: str = "auroc") -> Comparison:
        """Compare two detectors on the seeds and sets that both have: first minus second, with intervals and Wilcoxon's test.

        Args:
            first: a detector as ``table`` calls it, such as ``"cosine"``; with several networks ``"NETWORK: cosine"``.
            second: another.
            metric: a name that ``table`` takes.

        Raises:
            ArgumentError: there is no such detector, it is one of several networks, or they share no set.
        """
        rows = [(oracle_name(s.method, where == TESTED_SET), s) for where, s in self._ranked(metric)]
        names = {f"{s.network}: {name}": s for name, s in rows}
        found = []
        for word in (first, second):
            fitting = [s for title, s in names.items() if word in (title, title.removeprefix(f"{s.network}: "))]
            if len(fitting) != 1:
                raise ArgumentError(
                    f"Expected one of {'; '.join(names)} but got {word!r}, which {len(fitting)} are called."
                )
            found += fitting
        return compare_pair(*found)

    def to_latex(self, metric: str = "auroc") -> str:
        r"""Return ``table`` in LaTeX, centred, for ``\usepackage{booktabs}``; the best mean is bold."""
        from offaxis.reports.tables import Table, Value, latex  # reports are made of results

        head, rows = self._percentages(metric)
        heads = head.index("network") + 1 if "network" in head else 1
        ranked = [row for row in rows if "(oracle" not in row[0]] or rows
        best = head.index(next(name for name in head if name.startswith("mean") and "OpenOOD" not in name))
        cells = [[Value(None, cell, best=row is ranked[0] and n == best) for n, cell in enumerate(row)] for row in rows]
        title = f"{metric} in percent"
        return latex(Table(name=metric, title=title, columns=head, rows=cells, heads=heads))

    def _repr_html_(self) -> str:
        if not self.results:
            return html_card("No results", {})
        head, rows = self._percentages("auroc")
        below = html_table(head, [[escape(cell) for cell in row] for row in rows], best=(0,))
        networks = ", ".join(f"{n.label} {n.accuracy:.1%}" for n in self.networks)
        notes = "".join(f"<div>{escape(note)}</div>" for note in self.notes)
        facts = {"accuracy on ID images": escape(networks), "left out": notes}
        return html_card("AUROC in percent, best first; 50 is guessing", facts, below)

    def _ranked(self, metric: str) -> list[tuple[str, Summary]]:
        if metric not in RESULT_METRICS:
            raise ArgumentError(f"Expected a metric out of {', '.join(RESULT_METRICS)} but got {metric!r}.")
        ranked = ranked_rows(self.results, metric)
        if not ranked:
            raise EvaluationError(f"Expected results with {metric} but there are none.")
        return ranked

    def _percentages(self, metric: str) -> tuple[list[str], list[list[str]]]:
        """Return the head and the rows of the table."""
        ranked = self._ranked(metric)
        summaries = [s for _, s in ranked]
        several = len({(s.id, s.network) for s in summaries}) > 1
        seeded = any(s.groups["all"].seed_std is not None for s in summaries)
        sets = list(dict.fromkeys(name for s in summaries for name in s.rows))
        groups = ["near", "far"] if all(result.benchmark for result in self.results) else []
        theirs: dict[tuple[str, str], float] = {}
        if metric == "fpr_at_tpr95":
            openood = ranked_rows(self.results, "fpr_at_tpr95_openood")
            theirs = {(tuned_on, s.title): s.groups["all"].mean for tuned_on, s in openood}
        positive = _POSITIVE.get(metric)
        head = ["detector" if positive is None else f"detector (FPR, {positive})"]
        head += ["network"] * several + sets + groups + ["mean, OOD positive (as OpenOOD)"] * bool(theirs)
        head += ["mean" if positive is None else f"mean, {positive}", *(["seed sd", "seeds"] * seeded)]
        rows = []
        for tuned_on, s in ranked:
            whole = s.groups["all"]
            row = [oracle_name(s.method, tuned_on == TESTED_SET)]
            row += [s.network] * several
            row += [_percent(s.rows[name].mean if name in s.rows else None) for name in sets]
            row += [_percent(s.groups[name].mean if name in s.groups else None) for name in groups]
            row += [_percent(theirs.get((tuned_on, s.title)))] * bool(theirs)
            row += [_percent(whole.mean), *([_percent(whole.seed_std), str(whole.seeds)] * seeded)]
            rows.append(row)
        return head, rows

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
        references = {reference: None for result in self.results for reference in result.every_score}
        for r in self.results:
            references |= {predictions_reference(r.weights, key): None for key in (r.id_data, *r.shifted_data)}
        for reference in references:
            if self.store.has_scores(reference):
                store.add_scores(reference, self.store.scores(reference))
        present = {result.key for result in store.results()}
        store.add(result for result in self.results if result.key not in present)
        return store


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"
