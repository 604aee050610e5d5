"""Results -> the paper's tables with our numbers, and the paper's beside them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from offaxis.evaluation import Store
from offaxis.evaluation.summary import Summary, View, summarise
from offaxis.files import write_text
from offaxis.reports.result_tables import set_title, sets_table
from offaxis.reports.tables import Entry, Table, Value, comma_separated, latex, markdown, percent
from offaxis.reproduce.beside_paper import PAPERS_METRICS, beside, numbers, paper_rows
from offaxis.reproduce.commands import Chain, Run
from offaxis.reproduce.cost import measure
from offaxis.reproduce.paper_init import Key
from offaxis.reproduce.query import results_of


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
    return write([table, *beside(ours, "classification")], out)


def detection(chain: Chain, pairs: Sequence[tuple[Run, Run]], ood: Sequence[str], name: str, out: Path) -> list[Path]:
    """The four methods of the paper on every set, three metrics, and the paper's numbers."""
    results = results_of(chain, [run for pair in pairs for run in pair], ood)
    view: View = "one-vs-one" if name == "one-vs-one" else "less-biased by tested set"
    tables: list[Table] = []
    ours: dict[Key, float] = {}
    for metric, papers in PAPERS_METRICS.items():
        chosen = paper_rows(summarise(results, view, metric))
        tables += _by_id(chosen, view, metric)
        ours |= numbers(chosen, papers)
    return write([*tables, *beside(ours, name)], out)


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
    return write([Table("ablation", title, columns, rows, note, 3), *beside(ours, "ablation")], out)


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
    return write([Table("time", title, columns, rows), *beside(ours, "time")], out)


def ensembles(chain: Chain, teams: Sequence[tuple[list[Run], list[Run]]], out: Path) -> list[Path]:
    """The ensemble of cosines beside leave-out networks."""
    tables: list[Table] = []
    ours: dict[Key, float] = {}
    results = [
        r for team in teams for runs in team for r in results_of(chain, runs, chain.scale.one_vs_one, together=True)
    ]
    for metric, papers in PAPERS_METRICS.items():
        chosen = summarise(results, "one-vs-one", metric)
        tables += _by_id(chosen, "one-vs-one", metric)
        ours |= numbers(chosen, papers)
    return write([*tables, *beside(ours, "ensembles")], out)


def _by_id(summaries: Sequence[Summary], view: View, metric: str) -> list[Table]:
    names = dict.fromkeys(s.id for s in summaries)
    return [sets_table([s for s in summaries if s.id == name], view, metric) for name in names]


def _mean(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> Value:
    std = float(values.std(ddof=1)) if len(values) > 1 else None
    return Value(float(values.mean()), percent(float(values.mean()), std))
