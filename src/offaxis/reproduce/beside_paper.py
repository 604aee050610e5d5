"""Our numbers, the paper's and the difference, where the paper has the same sets."""

from collections.abc import Mapping, Sequence

from offaxis.evaluation.pools import FRAMED
from offaxis.evaluation.summary import Summary, View
from offaxis.reports.result_tables import METRIC_TITLES, set_title, slug
from offaxis.reports.tables import Entry, Table, Value
from offaxis.reproduce.paper_init import Key, compare

PAPERS_METRICS = {"accuracy_at_tpr95": "accuracy_at_tpr", "auroc": "auroc", "aupr_in": "aupr_in"}
"""Our names of the metrics that the paper reports -> its tables' names."""

_TITLES = {papers: METRIC_TITLES[metric] for metric, papers in PAPERS_METRICS.items()}


_RELATIVES = {"wrn": "wrn-28-10", "densenet": "densenet-100-12"}
"""How our networks' names begin -> the paper's network of that kind."""


def paper_rows(summaries: Sequence[Summary]) -> list[Summary]:
    """The paper's methods: the baseline on a standard network, ODIN and Mahalanobis tuned there, the cosine on its own.

    Only networks as they are count, "wrn-10-4 linear" and "wrn-10-4 cosine": a variant is another network than the paper's.
    """
    found = []
    for s in summaries:
        head = s.network.split()[1:]
        baseline = s.detector == "max-softmax" or (s.detector in ("odin", "mahalanobis") and s.state == "tuned")
        if (head == ["cosine"] and s.detector == "cosine") or (head == ["linear"] and baseline):
            found.append(s)
    return found


def numbers(summaries: Sequence[Summary], metric: str) -> dict[Key, float]:
    """Our means in percent, under the paper's keys; the first word of a network's label names it."""
    return {
        (s.network.split()[0], s.id, ood, s.detector, metric): 100 * cell.mean
        for s in summaries for ood, cell in s.rows.items()
    }  # fmt: skip


def beside(ours: Mapping[Key, float], name: str, id_name: str = "") -> list[Table]:
    """A table of differences to a table of the paper; none where they share no cell or no kind of network."""
    found = []
    for network in dict.fromkeys(key[0] for key in ours):
        theirs = _RELATIVES.get(network.split("-")[0])
        if theirs is None:
            continue
        found += compare({key: value for key, value in ours.items() if key[0] == network}, name, theirs)
    if not found:
        return []
    rows: list[list[Entry]] = [
        [d.method, d.network, set_title(d.id), set_title(d.ood), _TITLES.get(d.metric, d.metric)]
        + [Value(v, f"{v:.2f}") for v in (d.ours, d.paper)]
        + [Value(d.std, "-" if d.std is None else f"{d.std:.2f}"), Value(d.difference, f"{d.difference:+.2f}")]
        for d in found
    ]
    columns = ("method", "network", "ID", "OOD", "metric", "ours", "paper", "paper's sd", "difference")
    note = "The paper's network is WRN-28-10 or DenseNet-BC-100-12; a smaller one is set beside its large relative."
    return [Table(slug(name, id_name, "beside-the-paper"), "Ours beside the paper's", columns, rows, note, 5)]


def beside_view(by_metric: Mapping[str, Sequence[Summary]], view: View) -> list[Table]:
    """The paper's numbers for one protocol of a report."""
    ours: dict[Key, float] = {}
    for metric, summaries in by_metric.items():
        if metric in PAPERS_METRICS:
            ours |= numbers(paper_rows(summaries), PAPERS_METRICS[metric])
    if view == "less-biased by assumed set" or not ours:
        return []
    framed = {key[2] for key in ours} & (set(FRAMED[:1]) | set(FRAMED[2:3]))
    name = "one-vs-one" if view == "one-vs-one" else "less-biased-framed" if framed else "less-biased"
    return beside(ours, name, next(iter(ours))[1])
