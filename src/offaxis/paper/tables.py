"""Results -> the paper's tables with our numbers, and the paper's beside them."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from offaxis.data import CATALOGUE
from offaxis.detectors.base import Detector
from offaxis.detectors.cosine import Cosine
from offaxis.detectors.mahalanobis import Mahalanobis
from offaxis.detectors.odin import ODIN
from offaxis.errors import EvaluationError, at_least_one
from offaxis.evaluation import NetworkRecord, Result, Store
from offaxis.evaluation.protocols import FRAMED, POOLS
from offaxis.evaluation.records import NetworkFields
from offaxis.evaluation.summary import Summary, View, largest_tests, summarise
from offaxis.files import write_text
from offaxis.networks import by_name
from offaxis.networks.classifier import Classifier
from offaxis.networks.run import resolve_device, to_network
from offaxis.options import TrainOptions
from offaxis.paper.commands import Reproduction, variant_of
from offaxis.paper.published import Key, compare_with_paper
from offaxis.paper.settings import ablation_rows, native_score, pairs_of, runs_of, teams
from offaxis.reports.result_tables import METRIC_TITLES, mean_value, set_title, sets_table, slug
from offaxis.reports.tables import Entry, Table, Value, comma_separated, latex, markdown


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds per batch, the median over rounds.

    Attributes:
        network: its name, such as ``wrn-28-10``.
        batch: images in a batch.
        rounds: over how many batches the median goes.
        forward: the plain forward pass with a linear layer.
        mahalanobis: with the input perturbation of each of four layers.
        odin: with its perturbation.
        cosine: of the same network with a cosine head.
    """

    network: str
    batch: int
    rounds: int
    forward: float
    mahalanobis: float
    odin: float
    cosine: float


def measure_cost(
    name: str,
    batch: int = 128,
    rounds: int = 5,
    device: str = "cpu",
    progress: Callable[[str], object] = lambda _: None,
) -> Cost:
    """Time the three methods on noise images of 32 x 32 pixels, with random weights: the time does not depend on them.

    Args:
        name: of the network.
        batch: images in a batch; 128 in the paper.
        rounds: the methods are run in turn this often, after one run that does not count.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ... or ``mps``.
        progress: called with what is being timed.
    """
    at_least_one("batch", batch)
    at_least_one("rounds", rounds)
    where = resolve_device(device)
    make = by_name(name)
    linear, cosine = (make(num_classes=10, head=head).eval().to(where) for head in ("linear", "cosine"))
    images = to_network(linear, torch.randn(batch, 3, 32, 32))  # the layout that detectors use, for the plain pass too
    few = images[:20] if batch >= 20 else images.repeat(20, 1, 1, 1)[:20]
    progress(f"{name}: fitting")
    mahalanobis = Mahalanobis(eps=0.001).fit(linear, [(few, torch.arange(20) % 10)])

    @torch.no_grad()
    def forward() -> Tensor:
        logits: Tensor = linear(images)
        return logits

    def scoring(detector: Detector, network: Classifier) -> Callable[[], Tensor]:
        return lambda: detector.score_images(network, images)

    runs = {
        "forward": forward,
        "mahalanobis": scoring(mahalanobis, linear),
        "odin": scoring(ODIN(), linear),
        "cosine": scoring(Cosine(), cosine),
    }
    times: dict[str, list[float]] = {what: [] for what in runs}
    for _ in range(rounds + 1):
        for what, run in runs.items():
            progress(f"{name}: {what}")
            start = time.perf_counter()
            run().cpu()  # with the device's work at an end
            times[what].append(time.perf_counter() - start)
    medians = {what: statistics.median(values[1:]) for what, values in times.items()}
    return Cost(network=name, batch=batch, rounds=rounds, **medians)


def write_paper_tables(tables: Sequence[Table], out: Path) -> list[Path]:
    """Write tables as Markdown (all in one file), CSV and LaTeX."""
    write_text(out / "tables.md", "\n".join(markdown(table) for table in tables))
    files = [out / "tables.md"]
    for table in tables:
        for ending, text in ((".csv", comma_separated(table)), (".tex", latex(table))):
            write_text(out / f"{table.name}{ending}", text)
            files.append(out / f"{table.name}{ending}")
    return files


def classification(chain: Reproduction, out: Path) -> list[Path]:
    """Write the accuracy of both networks, mean (standard deviation over seeds)."""
    records = Store.existing(chain.store).networks()
    accuracy = {record.origin: record.accuracy for record in records if record.kind == "single"}
    groups: dict[tuple[str, str], list[list[float]]] = {}
    for pair in pairs_of(chain.scale):
        groups.setdefault((pair[0].architecture, pair[0].id), []).append([accuracy[chain.name(run)] for run in pair])
    rows: list[list[Entry]] = []
    ours: dict[Key, float] = {}
    for (network, id_name), values in groups.items():
        row: list[Entry] = [network, set_title(id_name)]
        for head, column in zip(("linear", "cosine"), zip(*values, strict=True), strict=True):
            row.append(mean_value(column))
            ours[network, id_name, "", head, "accuracy"] = 100 * float(np.mean(column))
        rows.append([*row, Value(len(values), str(len(values)))])
    columns = ("network", "ID", "standard %", "cosine %", "seeds")
    title, note = "Classification accuracy", "Mean (standard deviation over seeds)."
    table = Table(name="classification", title=title, columns=columns, rows=rows, note=note, heads=2)
    return write_paper_tables([table, *beside(ours, "classification")], out)


def detection_one_vs_one(chain: Reproduction, out: Path) -> list[Path]:
    """Write the four methods of the paper, tuned on the tested set: every set, three metrics, and the paper's numbers."""
    return _detection(chain, chain.scale.one_vs_one, "one-vs-one", out)


def detection_less_biased(chain: Reproduction, out: Path) -> list[Path]:
    """Write the same, tuned on another set, of crops without frames."""
    return _detection(chain, chain.scale.frame_free, "less-biased", out)


def detection_framed(chain: Reproduction, out: Path) -> list[Path]:
    """Write the same, tuned on another set, of crops with their frames."""
    return _detection(chain, chain.scale.framed, "less-biased-framed", out)


def _detection(chain: Reproduction, ood: Sequence[str], name: str, out: Path) -> list[Path]:
    results = results_of(chain, runs_of(pairs_of(chain.scale)), ood)
    view: View = "one-vs-one" if name == "one-vs-one" else "less-biased by tested set"
    return _three_metrics(name, out, lambda metric: paper_rows(summarise(results, view, metric)), view)


def ensembles(chain: Reproduction, out: Path) -> list[Path]:
    """Write the ensemble of cosine networks beside leave-out networks."""
    sets = chain.scale.one_vs_one
    results = [r for team in teams(chain.scale) for runs in team for r in results_of(chain, runs, sets, combined=True)]
    return _three_metrics("ensembles", out, lambda metric: summarise(results, "one-vs-one", metric), "one-vs-one")


def _three_metrics(name: str, out: Path, rows_by: Callable[[str], list[Summary]], view: View) -> list[Path]:
    """Write a table for each metric of the paper and ID set, and the paper's numbers."""
    tables: list[Table] = []
    ours: dict[Key, float] = {}
    for metric, papers in PAPERS_METRICS.items():
        rows = rows_by(metric)
        tables += [sets_table([s for s in rows if s.id == n], view, metric) for n in dict.fromkeys(s.id for s in rows)]
        ours |= paper_numbers(rows, papers)
    return write_paper_tables([*tables, *beside(ours, name)], out)


def ablation(chain: Reproduction, out: Path) -> list[Path]:
    """Write the AUROC of the ten variants."""
    scale, network = chain.scale, chain.scale.networks[-1]
    ours: dict[Key, float] = {}
    rows: list[list[Entry]] = []
    every = {n: [ablation_rows(network, n, seed, scale.hidden) for seed in scale.seeds] for n in scale.ids}
    for name, run in every[scale.ids[0]][0].items():
        row: list[Entry] = [name.removeprefix("row-"), run.head, variant_of(run) or "default"]
        for id_name, seeds in every.items():
            results = results_of(chain, [variants[name] for variants in seeds], [scale.near])
            values = [r.metrics["auroc"] for r in results if r.detector == native_score(run)]
            row.append(mean_value(values))
            ours[network.architecture, id_name, scale.near, name, "auroc"] = 100 * float(np.mean(values))
        rows.append(row)
    columns = ("row", "head", "variant", *(f"{set_title(n)} %" for n in scale.ids))
    title = f"Ablation: AUROC on {set_title(scale.near)}"
    note = "Mean (standard deviation over seeds). decay-head: weight decay on the last layer too."
    table = Table(name="ablation", title=title, columns=columns, rows=rows, note=note, heads=3)
    return write_paper_tables([table, *beside(ours, "ablation")], out)


def computing_time(chain: Reproduction, out: Path) -> list[Path]:
    """Write the seconds for a batch of images on this machine."""
    rows: list[list[Entry]] = []
    ours: dict[Key, float] = {}
    batch = chain.scale.batch
    for name in chain.scale.timed:
        cost = measure_cost(name, batch, chain.scale.rounds, chain.device)
        row: list[Entry] = [name]
        for method, seconds in (("mahalanobis", cost.mahalanobis), ("odin", cost.odin), ("cosine", cost.cosine)):
            row += [Value(seconds, f"{seconds:.3g}"), Value(seconds / cost.forward, f"{seconds / cost.forward:.2f}")]
            ours[name, "", "", method, "seconds"] = seconds
        rows.append(row)
    columns = ("network", "Mahalanobis s", "x forward", "ODIN s", "x forward", "cosine s", "x forward")
    title = f"Seconds for a batch of {batch} images on this machine, and times a plain forward pass"
    table = Table(name="time", title=title, columns=columns, rows=rows)
    return write_paper_tables([table, *beside(ours, "time")], out)


def results_of(
    chain: Reproduction, runs: Sequence[TrainOptions], ood: Sequence[str] | None = None, combined: bool = False
) -> list[Result]:
    """Return the results of some networks on some sets, assumed sets included.

    Args:
        chain: whose store it is.
        runs: the networks; with ``combined`` one network made of all.
        ood: names of sets or pools; None for all.
        combined: whether the runs are the members of one network.

    Raises:
        EvaluationError: there are none.
    """
    store = Store.existing(chain.store)
    keys = {record.key for record in records_of(chain, runs, combined)}
    named = (name for entry in ood for name in POOLS.get(entry, (entry,))) if ood is not None else CATALOGUE
    sets = {None, *named}
    results = [r for r in store.results() if r.weights in keys and r.ood in sets and r.assumed in sets]
    if not results:
        names = ", ".join(map(chain.name, runs))
        raise EvaluationError(f"There are no results of {names} in {chain.store} yet: run the steps first.")
    return largest_tests(results)


def records_of(chain: Reproduction, runs: Sequence[TrainOptions], combined: bool = False) -> list[NetworkRecord]:
    """Return the records of some networks; with ``combined``, of the one network that they were combined into."""
    names = tuple(map(chain.name, runs))
    records = Store.existing(chain.store).networks()
    if combined:
        return [record for record in records if record.members == names]
    return [record for record in records if record.kind == "single" and record.origin in names]


PAPERS_METRICS = {"accuracy_at_tpr95": "accuracy_at_tpr", "auroc": "auroc", "aupr_in": "aupr_in"}
"""Our names of the metrics that the paper reports -> its tables' names."""

_TITLES = {papers: METRIC_TITLES[metric] for metric, papers in PAPERS_METRICS.items()}


_RELATIVES = {"wrn-": "wrn-28-10", "densenet-": "densenet-100-12"}
"""Beginning of an architecture's name -> the paper's network of that kind."""


def paper_rows(summaries: Sequence[Summary]) -> list[Summary]:
    """Select the paper's methods: the baseline, tuned ODIN and tuned Mahalanobis on a standard network, and the cosine.

    Variants of a network (another scale, dropout, several combined) are left out. Where several labels remain for one
    architecture and head, only the default label counts; where none has it, since trainings of that label differ, the
    longest training does.
    """
    chosen: list[Summary] = []
    labels: dict[tuple[str, str, str], dict[str, int]] = {}
    for s in summaries:
        head = s.fields.head.get("name", "")
        baseline = s.detector == "max-softmax" or (s.detector in ("odin", "mahalanobis") and s.state == "tuned")
        if _is_default(s.fields) and ((head == "cosine" and s.detector == "cosine") or (head == "linear" and baseline)):
            chosen.append(s)
            labels.setdefault((s.id, s.fields.architecture, head), {})[s.network] = s.fields.recipe.get("epochs") or 0
    kept = {}
    for key, epochs in labels.items():
        default = [label for label in epochs if label.removesuffix(" start=paper") == f"{key[1]} {key[2]}"]
        kept[key] = default or [max(epochs, key=lambda label: epochs[label])]
    return [s for s in chosen if s.network in kept[s.id, s.fields.architecture, s.fields.head["name"]]]


def _is_default(network: NetworkFields) -> bool:
    """Return whether this is one network of a named architecture, with the default head and loss and without dropout."""
    scale, hidden = network.head.get("scale"), network.head.get("hidden")
    default_head = (
        scale in ((None, "predicted") if network.head.get("name") == "cosine" else (None,)) and hidden is None
    )
    loss = network.settings.get("loss")
    loss_name = loss.get("name") if isinstance(loss, Mapping) else loss
    dropout = (network.settings.get("network") or {}).get("dropout")
    changed = network.recipe.get("decay_head") or dropout or loss_name not in (None, "cross_entropy")
    return bool(network.architecture) and network.kind == "single" and default_head and not changed


def paper_numbers(summaries: Sequence[Summary], metric: str) -> dict[Key, float]:
    """Return our means in percent, under the paper's keys."""
    return {
        (s.fields.architecture, s.id, ood, s.detector, metric): 100 * cell.mean
        for s in summaries
        for ood, cell in s.rows.items()
    }


def beside(ours: Mapping[Key, float], name: str, id_name: str = "") -> list[Table]:
    """Return a table of differences to a table of the paper; none where they share no cell or no kind of network."""
    differences = []
    for network in dict.fromkeys(key[0] for key in ours):
        theirs = next((paper for start, paper in _RELATIVES.items() if network.startswith(start)), None)
        if theirs is None:
            continue
        differences += compare_with_paper(
            {key: value for key, value in ours.items() if key[0] == network}, name, theirs
        )
    if not differences:
        return []
    rows: list[list[Entry]] = [
        [d.method, d.network, set_title(d.id), set_title(d.ood), _TITLES.get(d.metric, d.metric)]
        + [Value(v, f"{v:.2f}") for v in (d.ours, d.paper)]
        + [Value(d.std, "-" if d.std is None else f"{d.std:.2f}"), Value(d.difference, f"{d.difference:+.2f}")]
        for d in differences
    ]
    columns = ("method", "network", "ID", "OOD", "metric", "ours", "paper", "paper's sd", "difference")
    note = "The paper's network is WRN-28-10 or DenseNet-BC-100-12; a smaller one is set beside its large relative."
    title, name = "Ours beside the paper's", slug(name, id_name, "beside-the-paper")
    return [Table(name=name, title=title, columns=columns, rows=rows, note=note, heads=5)]


def beside_view(by_metric: Mapping[str, Sequence[Summary]], view: View) -> Table | None:
    """Return the paper's numbers beside ours, for one protocol of a report; None where the paper has none."""
    ours: dict[Key, float] = {}
    for metric, summaries in by_metric.items():
        if metric in PAPERS_METRICS:
            ours |= paper_numbers(paper_rows(summaries), PAPERS_METRICS[metric])
    if view == "less-biased by assumed set" or not ours:
        return None
    framed = {key[2] for key in ours} & (set(FRAMED[:1]) | set(FRAMED[2:3]))
    name = "one-vs-one" if view == "one-vs-one" else "less-biased-framed" if framed else "less-biased"
    return next(iter(beside(ours, name, next(iter(ours))[1])), None)
