"""A results store -> a folder with tables and one page, without any network."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from offaxis.errors import EvaluationError
from offaxis.evaluation.records import NetworkRecord, Result
from offaxis.evaluation.store import Store
from offaxis.evaluation.summary import (
    FOUND,
    Summary,
    View,
    distinguish_networks,
    is_oracle,
    largest_tests,
    summarise_metrics,
    views_in,
)
from offaxis.files import write_text
from offaxis.reports.result_tables import (
    METRIC_TITLES,
    hyperparameters_table,
    leaderboard_table,
    networks_table,
    openood_table,
    pairs_table,
    ranking_table,
    results_csv,
    set_title,
    sets_table,
)
from offaxis.reports.tables import Table, comma_separated, latex, markdown

SHOWN_METRICS = ("auroc", "accuracy_at_tpr95", "aupr_in")
"""Those that the paper reports; the first is what detectors are ranked by."""

PublishedTable = Callable[[Mapping[str, Sequence[Summary]], View], Table | None]
"""(metric -> summaries, view) -> a table of published numbers beside these; None where none were published."""


@dataclass(frozen=True, kw_only=True)
class ProtocolSection:
    """One protocol (or view of it) for one ID set.

    Attributes:
        view: which.
        found: the share of OOD images that are found at 5 % false alarms, by set; None where another view has the same one.
        summaries: by the metric that ranks, the best first; those tuned on the tested set itself only where asked for.
        sets: a table for each metric that is shown.
        ranking: of all detectors on all networks; None where another view has the same one.
        differences: to the reference, where there is something to compare that another view has not.
        oracle: detectors tuned on the tested set itself, apart from the ranking; None where there are none.
        published: our numbers beside published ones, where that was asked for and there are some.
    """

    view: View
    summaries: Sequence[Summary]
    sets: Sequence[Table]
    found: Table | None = None
    ranking: Table | None = None
    differences: Table | None = None
    oracle: Table | None = None
    published: Table | None = None

    def tables(self) -> list[Table]:
        """Return the tables of the section, in order."""
        return [
            t
            for t in (self.found, self.ranking, *self.sets, self.differences, self.oracle, self.published)
            if t is not None
        ]


@dataclass(frozen=True, kw_only=True)
class IDSection:
    """All results for one ID set.

    Attributes:
        id: the ID set's name.
        networks: a table of the networks.
        protocols: a section for each protocol.
        chosen: what tuning chose; None where nothing was tuned.
        results: those that the tables are made from.
    """

    id: str
    networks: Table
    protocols: Sequence[ProtocolSection]
    chosen: Table | None
    results: Sequence[Result]

    def tables(self) -> list[Table]:
        """Return the tables of the section, in order."""
        tables = [self.networks, *(table for section in self.protocols for table in section.tables())]
        return tables if self.chosen is None else [*tables, self.chosen]


def build_sections(
    results: Sequence[Result],
    records: Sequence[NetworkRecord],
    metrics: Sequence[str] = SHOWN_METRICS,
    published: PublishedTable | None = None,
    *,
    oracle: bool = False,
) -> list[IDSection]:
    """Build the sections of a report, one for each ID set.

    Args:
        results: of any protocols.
        records: the networks.
        metrics: which are shown; the first is what detectors are ranked by.
        published: makes a table of published numbers beside these; None for none.
        oracle: rank detectors that were tuned on the tested set itself among the others.

    Raises:
        EvaluationError: there is no result.
    """
    if not results:
        raise EvaluationError("Expected results to report but the store has none yet: run offaxis evaluate first.")
    results, records = largest_tests(distinguish_networks(results)), distinguish_networks(records)
    sections = []
    for id_name in dict.fromkeys(r.id for r in results):
        own = [r for r in results if r.id == id_name]
        protocols = [_protocol_section(own, view, metrics, published, oracle) for view in views_in(own)]
        networks = networks_table(records, id_name)
        chosen = hyperparameters_table(own, id_name)
        sections.append(IDSection(id=id_name, networks=networks, protocols=protocols, chosen=chosen, results=own))
    return sections


def _protocol_section(
    results: Sequence[Result], view: View, metrics: Sequence[str], published: PublishedTable | None, oracle: bool
) -> ProtocolSection:
    first = metrics[0]
    wanted = (FOUND, *metrics)
    every = {m: found for m, found in summarise_metrics(results, view, wanted).items() if found or m == first}
    ranked = {m: [s for s in found if oracle or not is_oracle(s, view)] for m, found in every.items()}
    apart = [s for s in every[first] if not oracle and is_oracle(s, view)]
    if not ranked[first]:  # nothing else was evaluated
        ranked, apart = every, []
    summaries = ranked[first]
    order = {(s.network, s.method): place for place, s in enumerate(summaries)}
    for found in ranked.values():
        found.sort(key=lambda s: order.get((s.network, s.method), len(order)))
    tables = {metric: sets_table(found, view, metric) for metric, found in ranked.items() if found}
    share = tables.pop(FOUND, None)
    if view == "less-biased by assumed set":  # means over the same pairs in another order
        return ProtocolSection(view=view, summaries=summaries, sets=list(tables.values()))
    return ProtocolSection(
        view=view,
        summaries=summaries,
        sets=list(tables.values()),
        found=share,
        ranking=ranking_table(summaries, view, first),
        differences=pairs_table(summaries, view, first) if len(summaries) > 1 else None,
        oracle=ranking_table(apart, view, first, oracle=True) if apart else None,
        published=None if published is None else published({m: every[m] for m in metrics if m in every}, view),
    )


def write_tables(
    store: Store,
    out: Path,
    metrics: Sequence[str] = SHOWN_METRICS,
    published: PublishedTable | None = None,
    *,
    oracle: bool = False,
) -> list[IDSection]:
    """Write ``report.md`` and, for each table, CSV and LaTeX; return the sections that the page is made from.

    Args:
        store: the results.
        out: the folder to write into.
        metrics: which are shown; the first is what detectors are ranked by.
        published: makes a table of published numbers beside these; None for none.
        oracle: rank detectors that were tuned on the tested set itself among the others.
    """
    results = store.results()
    store.check_complete(results)
    if "fpr_at_tpr95" in metrics:  # OpenOOD's stands beside it
        place = metrics.index("fpr_at_tpr95") + 1
        metrics = list(dict.fromkeys([*metrics[:place], "fpr_at_tpr95_openood", *metrics[place:]]))
    sections = build_sections(results, store.networks(), metrics, published, oracle=oracle)
    lines = ["# Results\n"]
    for section in sections:
        lines += [f"## {set_title(section.id)} in distribution\n", *map(markdown, section.tables())]
    names = ", ".join(METRIC_TITLES[m] for m in metrics)
    lines.append(f"Metrics: {names}; ID is the positive class unless a name says otherwise.\n")
    write_text(out / "report.md", "\n".join(lines))
    files = {"results.csv": results_csv(results)}
    for section in sections:
        for table in section.tables():
            files |= {f"{table.name}.csv": comma_separated(table), f"{table.name}.tex": latex(table)}
        for protocol in section.protocols:
            if protocol.differences:
                pairs = pairs_table(protocol.summaries, protocol.view, metrics[0], every=True)
                files[f"{pairs.name}.csv"] = comma_separated(pairs)
    for name, text in files.items():
        write_text(out / "tables" / name, text, durable=False)
    return sections


def write_openood(store: Store, path: Path) -> tuple[Path, Path]:
    """Write the results of OpenOOD's benchmarks as its table and, beside it, as lines of its leaderboard.

    Args:
        store: the results.
        path: the CSV file of the table; the leaderboard's lines go to ``NAME-leaderboard.csv``.

    Returns:
        Both files.

    Raises:
        EvaluationError: there is no result of such a benchmark.
    """
    results = largest_tests(distinguish_networks(result for result in store.results() if result.benchmark))
    if not results:
        raise EvaluationError(
            f"Expected results of OpenOOD's benchmarks in {store.path} but there are none: run offaxis evaluate with "
            "--benchmark openood-cifar10."
        )
    leaderboard = path.with_name(f"{path.stem}-leaderboard{path.suffix or '.csv'}")
    write_text(path, comma_separated(openood_table(results, store.networks())))
    write_text(leaderboard, comma_separated(leaderboard_table(results, store.networks())))
    return path, leaderboard
