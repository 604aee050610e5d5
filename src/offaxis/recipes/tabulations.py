"""Results -> the paper's tables with our numbers, and the paper's beside them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from offaxis.atomic import write_text
from offaxis.detectors.cost import measure
from offaxis.paper import Key, compare
from offaxis.protocols import Store
from offaxis.protocols.summary import Summary, View, summarise
from offaxis.recipes.chain import Chain, Run
from offaxis.recipes.found import results_of
from offaxis.reports.contents import METRIC_TITLES, set_title, sets_table
from offaxis.reports.tables import Entry, Table, Value, comma_separated, latex, markdown, percent

PAPERS_METRICS = {"accuracy_at_tpr95": "accuracy_at_tpr", "auroc": "auroc", "aupr_in": "aupr_in"}


def write(tables: Sequence[Table], out: Path) -> list[Path]:
    """Write tables as Markdown (all in one file), CSV and LaTeX."""
    write_text(out / "tables.md", "\n".join(markdown(table) for table in tables))
    files = [out / "tables.md"]
    for table in tables:
        for ending, text in ((".csv", comma_separated(table)), (".tex", latex(table))):
            write_text(out / f"{table.name}{ending}", text)
            files.append(out / f"{table.name}{ending}")
    return files


def classification(chain: Chain, pairs: Sequence[tuple[Run, Run]], out: Path) -> list[Path]:
    """Accuracy of both networks, mean (standard deviation over seeds)."""
    accuracy = {record.origin: record.accuracy for record in Store.existing(chain.store).networks()}
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for standard, cosine in pairs:
        place = (standard.trained.network, standard.id)
        groups.setdefault(place, []).append((accuracy[standard.name], accuracy[cosine.name]))
    rows: list[list[Entry]] = []
    ours: dict[Key, float] = {}
    for (network, id_name), values in groups.items():
        array = np.array(values)
        row: list[Entry] = [network, set_title(id_name)]
        for column, head in enumerate(("linear", "cosine")):
            row.append(_mean(array[:, column]))
            ours[network, id_name, "", head, "accuracy"] = 100 * float(array[:, column].mean())
        rows.append([*row, Value(len(values), str(len(values)))])
    columns = ("network", "ID", "standard %", "cosine %", "seeds")
    table = Table(
        "classification", "Classification accuracy", columns, rows, "Mean (standard deviation over seeds).", 2
    )
    return write([table, *_beside(ours, "classification")], out)


def detection(chain: Chain, pairs: Sequence[tuple[Run, Run]], ood: Sequence[str], name: str, out: Path) -> list[Path]:
    """The four methods of the paper on every set, three metrics, and the paper's numbers."""
    results = results_of(chain, [run for pair in pairs for run in pair], ood)
    view: View = "one-vs-one" if name == "one-vs-one" else "less-biased by tested set"
    tables = []
    ours: dict[Key, float] = {}
    for metric, papers in PAPERS_METRICS.items():
        chosen = [s for s in summarise(results, view, metric) if _in_paper(s)]
        for id_name in dict.fromkeys(s.id for s in chosen):
            tables.append(sets_table([s for s in chosen if s.id == id_name], view, metric))
        ours |= _numbers(chosen, papers)
    return write([*tables, *_beside(ours, name)], out)


def ablation(chain: Chain, rows_of: Callable[..., dict[str, Run]], out: Path) -> list[Path]:
    """AUROC of the ten variants."""
    trained = chain.scale.networks[-1]
    ours: dict[Key, float] = {}
    rows: list[list[Entry]] = []
    every = {n: [rows_of(trained, n, seed, chain.scale.hidden) for seed in chain.scale.seeds] for n in chain.scale.ids}
    for name, run in every[chain.scale.ids[0]][0].items():
        row: list[Entry] = [
            name.removeprefix("row-"),
            run.head,
            " ".join(w.lstrip("-") for w in run.variant) or "as it is",
        ]
        for id_name, seeds in every.items():
            found = results_of(chain, [variants[name] for variants in seeds], [chain.scale.near])
            score = "max-softmax" if run.head == "linear" else "cosine"
            values = np.array([r.metrics["auroc"] for r in found if r.detector == score])
            row.append(_mean(values))
            ours[trained.network, id_name, chain.scale.near, name, "auroc"] = 100 * float(values.mean())
        rows.append(row)
    columns = ("row", "head", "variant", *(f"{set_title(n)} %" for n in chain.scale.ids))
    title = f"Ablation: AUROC on {set_title(chain.scale.near)}"
    note = "Mean (standard deviation over seeds). decay-head: weight decay on the last layer too."
    return write([Table("ablation", title, columns, rows, note, 3), *_beside(ours, "ablation")], out)


def time(chain: Chain, out: Path) -> list[Path]:
    """Seconds for a batch of 128 images on this machine."""
    rows: list[list[Entry]] = []
    ours: dict[Key, float] = {}
    batch = 128 if chain.scale.name != "tiny" else 4
    for name in chain.scale.timed:
        cost = measure(name, batch, chain.scale.rounds)
        row: list[Entry] = [name]
        for method, seconds in (("mahalanobis", cost.mahalanobis), ("odin", cost.odin), ("cosine", cost.cosine)):
            row += [Value(seconds, f"{seconds:.3g}"), Value(seconds / cost.forward, f"{seconds / cost.forward:.2f}")]
            ours[name, "", "", method, "seconds"] = seconds
        rows.append(row)
    columns = ("network", "Mahalanobis s", "x forward", "ODIN s", "x forward", "cosine s", "x forward")
    title = f"Seconds for a batch of {batch} images on this machine, and times a plain forward pass"
    return write([Table("time", title, columns, rows), *_beside(ours, "time")], out)


def ensembles(chain: Chain, teams: Sequence[tuple[list[Run], list[Run]]], out: Path) -> list[Path]:
    """The ensemble of cosines beside leave-out networks."""
    tables = []
    ours: dict[Key, float] = {}
    results = [
        r for team in teams for runs in team for r in results_of(chain, runs, chain.scale.one_vs_one, together=True)
    ]
    for metric, papers in PAPERS_METRICS.items():
        chosen = summarise(results, "one-vs-one", metric)
        for id_name in dict.fromkeys(s.id for s in chosen):
            tables.append(sets_table([s for s in chosen if s.id == id_name], "one-vs-one", metric))
        ours |= _numbers(chosen, papers)
    return write([*tables, *_beside(ours, "ensembles")], out)


def _in_paper(s: Summary) -> bool:
    """The paper's rows: the baseline and the cosine as they are, ODIN and Mahalanobis tuned."""
    return s.detector in ("max-softmax", "cosine") or s.state == "tuned"


def _numbers(summaries: Sequence[Summary], metric: str) -> dict[Key, float]:
    return {
        (s.network.split()[0], s.id, ood, s.detector, metric): 100 * cell.mean
        for s in summaries for ood, cell in s.rows.items()
    }  # fmt: skip


def _beside(ours: dict[Key, float], name: str) -> list[Table]:
    """Our numbers, the paper's and the difference, where the paper has the same sets; else nothing."""
    found = []
    for network in dict.fromkeys(key[0] for key in ours):
        theirs = "wrn-28-10" if network.startswith("wrn") else "densenet-100-12"
        found += compare({key: value for key, value in ours.items() if key[0] == network}, name, theirs)
    if not found:
        return []
    rows: list[list[Entry]] = [
        [d.network, set_title(d.id), set_title(d.ood), d.method, _TITLES.get(d.metric, d.metric)]
        + [Value(v, f"{v:.2f}") for v in (d.ours, d.paper)]
        + [Value(d.std, "-" if d.std is None else f"{d.std:.2f}"), Value(d.difference, f"{d.difference:+.2f}")]
        for d in found
    ]
    columns = ("network", "ID", "OOD", "method", "metric", "ours", "paper", "paper's sd", "difference")
    note = "The paper's network is WRN-28-10 or DenseNet-BC-100-12; a smaller one is set beside its large relative."
    return [Table(f"{name}-beside-the-paper", "Ours beside the paper's", columns, rows, note, 5)]


_TITLES = {papers: METRIC_TITLES[metric] for metric, papers in PAPERS_METRICS.items()}


def _mean(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> Value:
    std = float(values.std(ddof=1)) if len(values) > 1 else None
    return Value(float(values.mean()), percent(float(values.mean()), std))
