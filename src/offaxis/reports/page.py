"""One self-contained HTML page of results: it needs no network, no server and no other file."""

import math
import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offaxis import __version__
from offaxis.data import CATALOGUE, relation
from offaxis.evaluation.protocols import one_vs_one_results
from offaxis.evaluation.records import NetworkRecord, Result
from offaxis.evaluation.store import Store
from offaxis.evaluation.summary import RowKey, Summary, distinguish_networks, method_names, row_key
from offaxis.files import write_text
from offaxis.metrics import HIGHER_IS_BETTER, roc_curve
from offaxis.reports.report import IDSection
from offaxis.reports.result_tables import METRIC_TITLES, set_title, slug
from offaxis.reports.tables import Entry, Table, Value, in_percent, templates
from offaxis.reports.thumbnails import Loader, Thumbnails, extreme_images

if TYPE_CHECKING:
    from offaxis.data import ImageSet

MOST_RANKED = 24
FREE_BARS, TUNED_BARS = 2, 3
DEPENDENT = ("odin", "mahalanobis")
DETECTOR_NOTES = {
    "none": "nothing to tune",
    "published default": "published values, possibly tuned on OOD data",
    "given": "values that were given",
    "tuned": "chosen on validation images of an OOD set",
}


def write_page(
    store: Store,
    sections: Sequence[IDSection],
    path: Path,
    *,
    title: str,
    thumbnails: int = 6,
    load: Loader | None = None,
) -> None:
    """Write the page.

    Args:
        store: where the scores are.
        sections: what ``write_tables`` returned.
        path: of the page.
        title: its title.
        thumbnails: how many images of each kind are shown; 0 for none.
        load: reads image sets for the thumbnails; None for none.
    """
    page = templates().get_template("report.html.j2")
    records = distinguish_networks(store.networks())
    read: dict[str, ImageSet | str] = {}  # ID sets of one size share their OOD sets
    contents = []
    for section in sections:
        kept = Thumbnails(store, load, read) if load is not None and thumbnails else None
        contents.append(_section(store, section, records, thumbnails, kept))
    write_text(path, page.render(title=title, version=__version__, sections=contents, states=DETECTOR_NOTES))


def _section(
    store: Store, section: IDSection, records: Sequence[NetworkRecord], count: int, thumbnails: Thumbnails | None
) -> dict[str, Any]:
    strips = {} if thumbnails is None else extreme_images(store, section.results, thumbnails, count)
    pictures, notes = ({}, {}) if thumbnails is None else (thumbnails.pictures, thumbnails.notes)
    own = [record for record in records if record.id == section.id]
    return {
        "title": set_title(section.id),
        "networks": section.networks,
        "sets": _sets(store, section),
        "protocols": [
            {
                "view": p.view,
                "ranking": p.ranking,
                "sets": p.sets,
                "differences": p.differences,
                "oracle": p.oracle,
                "published": p.published,
                "dependency": [] if p.ranking else _dependency(section.results, section.id),
                "best": _ranking(p.summaries) if p.ranking else None,
                "bars": None if p.ranking else _bars(p.summaries),
            }
            for p in section.protocols
        ],
        "methods": len({row_key(r) for r in section.results}),
        "results": len(section.results),
        "plots": score_plots(store, section.results),
        "strips": strips,
        "pictures": pictures,
        "notes": notes,
        "commands": recorded_commands(section.results, own, store),
        "checksums": [
            {"what": f"{r.label} seed {r.seed}", "sum": r.weights, "origin": ", ".join(r.origins)} for r in own
        ],
        "versions": section.results[0].versions,
    }


def recorded_commands(results: Iterable[Result], records: Iterable[NetworkRecord], store: Store) -> list[str]:
    """Return the recorded commands that trained, evaluated and report; a comment stands where none was recorded."""
    lines = []
    for record in records:
        if record.commands:
            lines += [shlex.join(words) for words in record.commands]
        else:
            origins = ", ".join(filter(None, record.origins)) or "a network in memory"
            lines.append(f"# {record.label} seed {record.seed} ({origins}): the training command was not recorded")
    results = list(results)
    evaluations = dict.fromkeys(r.command for r in results)
    lines += [shlex.join(words) for words in evaluations if words]
    if () in evaluations:
        count = sum(not r.command for r in results)
        lines.append(f"# {count} of {len(results)} results were made in Python: no evaluation command was recorded")
    lines.append(f"offaxis report {shlex.quote(store.path.name)} --out report")
    return list(dict.fromkeys(lines))


def _sets(store: Store, section: IDSection) -> list[dict[str, Any]]:
    about = store.sets()
    tested = {r.ood_data: r for r in section.results}
    rows = [_set(about[section.results[0].id_data], "in distribution", "")]
    rows += [_set(about[key], r.group, relation(r.id, r.ood).note) for key, r in tested.items()]
    return rows


def _set(about: dict[str, Any], group: str, note: str) -> dict[str, Any]:
    name = about["name"]
    tested = about["images"] - about["validation"]
    licence = CATALOGUE[name].licence if name in CATALOGUE else "your own"
    return {
        "name": set_title(name),
        "group": group,
        "note": note,
        "tested": tested,
        "validation": about["validation"],
        "rule": about["rule"],
        "shape": "x".join(map(str, about["shape"])),
        "licence": licence,
        "fingerprint": about["fingerprint"],
    }


def _ranking(summaries: Sequence[Summary]) -> dict[str, Any] | None:
    """Return what the page draws of the best detectors: their means, and the range over sets."""
    best = summaries[:MOST_RANKED]
    if len(best) < 2:
        return None
    short = _short_names(best)
    kinds = sorted({s.state for s in best})
    rows: list[dict[str, Any]] = []
    for s in best:
        values = [100 * cell.mean for cell in s.rows.values()]
        name = ", ".join(word for word in (s.method, short[s.network]) if word)
        mean = 100 * s.groups["all"].mean  # of equal values it may be a last bit away from them
        rows.append(
            {"name": name, "mean": mean, "low": min(mean, *values), "high": max(mean, *values), "kind": s.state}
        )
    title, higher = METRIC_TITLES[best[0].metric], HIGHER_IS_BETTER[best[0].metric]
    ends = "worst set to the best" if higher else "best set to the worst"
    low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)
    room = max(0.04 * (high - low), 0.25)
    span = (max(low - room, 0.0), min(high + room, 100.0) if high <= 100 else high + room)
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if s >= (span[1] - span[0]) / 8 or s == 50)
    ticks = [step * n for n in range(math.ceil(span[0] / step), math.floor(span[1] / step) + 1)]
    return {
        "description": f"Detectors by mean {title}",
        "label": f"mean {title} (%); the line goes from the {ends}",
        "rows": rows,
        "kinds": kinds,
        "span": span,
        "ticks": ticks,
        "letters": max(len(row["name"]) for row in rows),
    }


def _bars(summaries: Sequence[Summary]) -> dict[str, Any] | None:
    """Return what the page draws of detectors without hyperparameters and the best tuned ones, over the assumed sets."""
    plain = [s for s in summaries if s.state == "none"]
    free = sorted(plain, key=lambda s: not s.detector.startswith("cosine"))[:FREE_BARS]
    tuned = [s for s in summaries if s.state == "tuned"][:TUNED_BARS]
    if not free or not tuned:
        return None
    shown = [*free, *tuned]
    short = _short_names(shown)
    bars = [{name: (100 * cell.mean, 100 * (cell.std or 0.0)) for name, cell in s.rows.items()} for s in shown]
    sets = list(dict.fromkeys(name for row in bars for name in row))
    low = min(mean - std for row in bars for mean, std in row.values())
    title = METRIC_TITLES[free[0].metric]
    return {
        "description": f"Less-biased {title} by assumed set",
        "label": f"{title} (%), mean over all other sets, by the set that was assumed; lines are standard deviations",
        "methods": [", ".join(word for word in (s.method, short[s.network]) if word) for s in shown],
        "bars": bars,
        "sets": {name: set_title(name) for name in sets},
        "start": max(min(50, 10 * math.floor(low / 10)), 0),
    }


def _dependency(results: Sequence[Result], prefix: str) -> list[Table]:
    """Make tables of how results depend on the assumed set: means over seeds, on the first network with tuned results."""
    tuned = [r for r in results if r.assumed is not None and r.assumed != r.ood and r.detector in DEPENDENT]
    names = method_names(results)
    gathered: dict[str, dict[str, dict[str, list[float]]]] = {}
    for r in tuned:
        if r.network == tuned[0].network and r.assumed:
            detector = names[row_key(r)].replace(" (tuned)", "")
            row = gathered.setdefault(detector, {}).setdefault(set_title(r.assumed), {})
            row.setdefault(set_title(r.ood), []).append(r.metrics["auroc"])
    means = {
        d: {a: {t: sum(v) / len(v) for t, v in row.items()} for a, row in rows.items()} for d, rows in gathered.items()
    }
    every = [value for rows in means.values() for row in rows.values() for value in row.values()]
    assumed = [name for rows in means.values() for name in rows]  # in their order, so that the diagonal is empty
    tested = list(
        dict.fromkeys([*assumed, *(name for rows in means.values() for row in rows.values() for name in row)])
    )

    def entry(value: float | None) -> Entry:
        share = 0.0 if value is None else (value - min(every)) / max(max(every) - min(every), 0.01)
        return Value(None, "-") if value is None else in_percent(value, share=share)

    return [
        Table(
            name=slug("dependency", prefix, detector),
            title=f"AUROC (%) of {detector}, {tuned[0].network}, by the set that it was tuned on",
            columns=("tuned on", *tested),
            rows=[[chosen, *(entry(row.get(name)) for name in tested)] for chosen, row in rows.items()],
            note="A column is the tested set.",
        )
        for detector, rows in means.items()
    ]


def _short_names(summaries: Sequence[Summary]) -> dict[str, str]:
    """Return a short name for each network's label: empty for only one, its head where the heads alone differ."""
    labels = dict.fromkeys(s.network for s in summaries)
    if len(labels) == 1:
        return dict.fromkeys(labels, "")
    heads = {s.network: str(s.fields.head.get("name", "")) for s in summaries}
    alike = len({(s.fields.architecture, s.fields.kind) for s in summaries}) == 1
    if alike and all(heads.values()) and len(set(heads.values())) == len(labels):
        return heads
    return {label: label for label in labels}


BINS = 36
POINTS = 48


def histogram(id_scores: NDArray[Any], ood_scores: NDArray[Any], bins: int = BINS) -> dict[str, Any]:
    """Count both sets in the same bins, in thousandths of each set; the outermost half percent is in the last bins.

    Returns:
        ``from`` and ``to``, the range of the scores, and ``id`` and ``ood``, a whole number for each bin.
    """
    sets = [np.sort(scores.astype(np.float64), kind="stable") for scores in (id_scores, ood_scores)]
    both = np.sort(np.concatenate(sets), kind="stable")  # two runs are merged
    low, high = (_quantile(both, share) for share in (0.005, 0.995))
    if high <= low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, bins + 1)[1:-1]
    counts = [np.diff(np.searchsorted(scores, edges), prepend=0, append=len(scores)) for scores in sets]
    return {
        "from": float(f"{low:.4g}"),
        "to": float(f"{high:.4g}"),
        **{
            name: np.rint(1000 * c / c.sum()).astype(int).tolist()
            for name, c in zip(("id", "ood"), counts, strict=True)
        },
    }


def _quantile(ordered: NDArray[np.float64], share: float) -> float:
    """Return a quantile of ordered values, interpolated."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (place - below) * (ordered[above] - ordered[below]))


def curve(id_scores: NDArray[Any], ood_scores: NDArray[Any], points: int = POINTS) -> list[list[int]]:
    """Return the ROC curve as [OOD accepted, ID accepted] in thousandths."""
    x, y = roc_curve(id_scores, ood_scores, points)
    return np.rint(1000 * np.stack([x, y], 1)).astype(int).tolist()  # type: ignore[no-any-return]


def score_plots(store: Store, results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return a histogram and a ROC curve for each network (its first seed), detector and OOD set.

    Tuned detectors are shown as tuned on the tested set itself.
    """
    results = list(results)
    names = method_names(results)
    chosen = one_vs_one_results(results)
    first = {label: min(r.seed for r in chosen if r.network == label) for label in {r.network for r in chosen}}
    plots: dict[RowKey, dict[str, Any]] = {}

    @cache  # ID scores belong to every OOD set, and what is ordered already is ordered again in no time
    def ordered(reference: str) -> NDArray[Any]:
        return np.sort(store.scores(reference))

    for r in chosen:
        if r.seed != first[r.network]:
            continue
        key = row_key(r)
        entry = plots.setdefault(key, {"network": r.network, "method": names[key], "sets": []})
        id_scores, ood_scores = (ordered(reference) for reference in r.scores)
        entry["sets"].append(
            {
                "name": set_title(r.ood),
                "group": r.group,
                "auroc": round(100 * r.metrics["auroc"], 2),
                "fpr": round(100 * r.metrics["fpr_at_tpr95"], 1),
                "histogram": histogram(id_scores, ood_scores),
                "roc": curve(id_scores, ood_scores),
            }
        )
    return list(plots.values())
