"""A results store -> a folder with tables and one page, without any network."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from offaxis.errors import EvaluationError
from offaxis.evaluation.results import NetworkRecord, Result
from offaxis.evaluation.store import Store
from offaxis.evaluation.summary import Summary, View, largest, summarise, views_in
from offaxis.files import write_text
from offaxis.reports.result_tables import (
    METRIC_TITLES,
    networks_table,
    pairs_table,
    ranking_table,
    results_table,
    set_title,
    sets_table,
)
from offaxis.reports.tables import Table, comma_separated, latex, markdown
from offaxis.reproduce.tables import beside_view

SHOWN_METRICS = ("auroc", "accuracy_at_tpr95", "aupr_in")
"""Those that the paper reports; the first is what detectors are ranked by."""


@dataclass(frozen=True)
class ProtocolSection:
    """One protocol (or view of it) for one ID set.

    Attributes:
        view: which.
        summaries: by the metric that ranks, the best first.
        ranking: of all detectors on all networks; None where another view has the same one.
        sets: a table for each metric that is shown.
        differences: to the reference, where there is something to compare that another view has not.
        paper: our numbers beside the paper's, where that was asked for and there are some.
    """

    view: View
    summaries: Sequence[Summary]
    ranking: Table | None
    sets: Sequence[Table]
    differences: Table | None
    paper: Table | None = None


@dataclass(frozen=True)
class IDSection:
    """Everything for one ID set."""

    id: str
    networks: Table
    chapters: Sequence[ProtocolSection]
    results: Sequence[Result]


def sections_of(
    results: Sequence[Result],
    records: Sequence[NetworkRecord],
    metrics: Sequence[str] = SHOWN_METRICS,
    paper: bool = False,
) -> list[IDSection]:
    """The report's contents, an ID set after the other.

    Raises:
        EvaluationError: there is no result.
    """
    if not results:
        raise EvaluationError("Expected results to report but the store has none yet: run offaxis evaluate first.")
    results = largest(results)
    parts = []
    for id_name in dict.fromkeys(r.id for r in results):
        own = [r for r in results if r.id == id_name]
        parts.append(
            IDSection(
                id_name,
                networks_table(records, id_name),
                [_chapter(own, v, metrics, paper) for v in views_in(own)],
                own,
            )
        )
    return parts


def _chapter(results: Sequence[Result], view: View, metrics: Sequence[str], paper: bool) -> ProtocolSection:
    by_metric = {metric: summarise(results, view, metric) for metric in metrics}
    first = metrics[0]
    summaries = by_metric[first]
    order = {(s.network, s.method): place for place, s in enumerate(summaries)}
    tables = [
        sets_table(sorted(found, key=lambda s: order.get((s.network, s.method), len(order))), view, metric)
        for metric, found in by_metric.items()
    ]
    if view == "less-biased by assumed set":  # means over the same pairs in another order
        return ProtocolSection(view, summaries, None, tables, None)
    differences = pairs_table(summaries, view, first) if len(summaries) > 1 else None
    theirs = next(iter(beside_view(by_metric, view)), None) if paper else None
    return ProtocolSection(view, summaries, ranking_table(summaries, view, first), tables, differences, theirs)


def tables_of(parts: Sequence[IDSection]) -> list[Table]:
    """Every table that is read by people, in order."""
    found = []
    for part in parts:
        found.append(part.networks)
        for chapter in part.chapters:
            found += [table for table in (chapter.ranking, *chapter.sets, chapter.differences, chapter.paper) if table]
    return found


def write_tables(
    store: Store, out: Path, metrics: Sequence[str] = SHOWN_METRICS, paper: bool = False
) -> list[IDSection]:
    """Write ``report.md`` and, for each table, CSV and LaTeX; returns what the page is made from.

    Args:
        store: the results.
        out: the folder to write into.
        metrics: which are shown; the first is what detectors are ranked by.
        paper: put the paper's numbers beside ours.
    """
    results = store.results()
    parts = sections_of(results, store.networks(), metrics, paper)
    lines = ["# Results\n"]
    for part in parts:
        lines.append(f"## {set_title(part.id)} in distribution\n")
        lines += [markdown(table) for table in tables_of([part])]
    lines.append(f"Metrics: {', '.join(METRIC_TITLES[m] for m in metrics)}; ID is the positive class.\n")
    write_text(out / "report.md", "\n".join(lines))
    for table in tables_of(parts):
        write_text(out / "tables" / f"{table.name}.csv", comma_separated(table))
        write_text(out / "tables" / f"{table.name}.tex", latex(table))
    every = [
        pairs_table(c.summaries, c.view, metrics[0], every=True) for p in parts for c in p.chapters if c.differences
    ]
    for table in (results_table(results), *every):
        write_text(out / "tables" / f"{table.name}.csv", comma_separated(table))
    return parts
