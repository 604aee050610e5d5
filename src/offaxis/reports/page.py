"""Results -> one HTML page that needs nothing else: no network, no server, no other file."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from offaxis import __version__
from offaxis.data import CATALOGUE, relation
from offaxis.evaluation.protocols import one_vs_one_results
from offaxis.evaluation.results import NetworkRecord, Result
from offaxis.evaluation.store import Store
from offaxis.evaluation.summary import Kind, Summary, kind_of, method_names
from offaxis.files import write_text
from offaxis.metrics import HIGHER_IS_BETTER, roc_curve
from offaxis.reports.figures import as_svg, dependency_matrix, less_biased_bars, ranking
from offaxis.reports.provenance import commands
from offaxis.reports.report import IDSection
from offaxis.reports.result_tables import METRIC_TITLES, set_title, slug
from offaxis.reports.thumbnails import Loader, Thumbnails, strangest

MOST_RANKED = 24
FREE_BARS, TUNED_BARS = 2, 3
DEPENDENT = ("odin", "mahalanobis")
DETECTOR_NOTES = {
    "none": "nothing to tune",
    "published default": "values that somebody chose, perhaps on OOD images",
    "tuned": "chosen on validation images of an OOD set",
}


def write_page(
    store: Store, parts: Sequence[IDSection], path: Path, title: str, thumbnails: int = 6, load: Loader | None = None
) -> None:
    """Write the page.

    Args:
        store: where the scores are.
        parts: what ``write_tables`` returned.
        path: of the page.
        title: its title.
        thumbnails: how many images of each kind are shown; 0 for none.
        load: reads image sets for the thumbnails; None for none.
    """
    page = _environment().get_template("report.html.j2")
    records = store.networks()
    contents = [_part(store, part, records, thumbnails if load else 0, load) for part in parts]
    text = page.render(title=title, version=__version__, parts=contents, states=DETECTOR_NOTES, metrics=METRIC_TITLES)
    write_text(path, text)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("offaxis.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data"] = _data
    return environment


def _data(value: Any) -> Markup:
    """JSON inside a script element: no sign of it can end the element."""
    text = (
        json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    )
    return Markup(text)


def _part(
    store: Store, part: IDSection, records: Sequence[NetworkRecord], count: int, load: Loader | None
) -> dict[str, Any]:
    pictures: dict[str, str] = {}
    strips: dict[str, Any] = {}
    notes: dict[str, str] = {}
    if count and load is not None:
        kept = Thumbnails(store, load)
        strips = strangest(store, part.results, kept, count)
        pictures, notes = kept.pictures, kept.notes
    own = [record for record in records if record.id == part.id]
    return {
        "id": part.id,
        "title": set_title(part.id),
        "networks": part.networks,
        "sets": _sets(store, part),
        "chapters": [
            {
                "view": c.view,
                "ranking": c.ranking,
                "sets": c.sets,
                "differences": c.differences,
                "paper": c.paper,
                "dependency": None if c.ranking else _dependency(part.results, slug(part.id, c.view)),
                "figure": (_ranking if c.ranking else _bars)(c.summaries, slug(part.id, c.view)),
            }
            for c in part.chapters
        ],
        "methods": len({kind_of(r) for r in part.results}),
        "results": len(part.results),
        "plots": drawn(store, part.results),
        "strips": strips,
        "pictures": pictures,
        "notes": notes,
        "commands": commands(part.results, own, store),
        "checksums": [{"what": f"{r.label} seed {r.seed}", "sum": r.weights, "origin": r.origin} for r in own],
        "versions": part.results[0].versions,
    }


def _sets(store: Store, part: IDSection) -> list[dict[str, Any]]:
    about = store.sets()
    rows = {r.ood_data: r for r in part.results}
    first = part.results[0]
    found = [_set(about[first.id_data], part.id, "in distribution", "")]
    for key, r in rows.items():
        found.append(_set(about[key], part.id, r.group, relation(r.id, r.ood).note))
    return found


def _set(about: dict[str, Any], id_name: str, group: str, note: str) -> dict[str, Any]:
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
        "id": name == id_name,
    }


def _ranking(summaries: Sequence[Summary], prefix: str) -> Markup | None:
    """The best detectors with the range of their means over sets."""
    best = summaries[:MOST_RANKED]
    if len(best) < 2:
        return None
    short = _short({s.network for s in best})
    means, states = {}, {}
    for s in best:
        values = [100 * cell.mean for cell in s.rows.values()]
        name = ", ".join(word for word in (s.method, short[s.network]) if word)
        mean = 100 * s.groups["all"].mean  # of equal values it may be a last bit away from them
        means[name], states[name] = (mean, min(mean, *values), max(mean, *values)), s.state
    title, higher = METRIC_TITLES[best[0].metric], HIGHER_IS_BETTER[best[0].metric]
    ends = "worst set to the best" if higher else "best set to the worst"
    label = f"mean {title} (%); the line goes from the {ends}"
    figure = ranking(means, states, label, higher_is_better=higher)
    return Markup(as_svg(figure, f"Detectors by mean {title}", f"{prefix}-"))


def _bars(summaries: Sequence[Summary], prefix: str) -> Markup | None:
    """What needs no tuning, and the best of what was tuned, over the assumed sets."""
    plain = [s for s in summaries if s.state == "none"]
    free = sorted(plain, key=lambda s: not s.detector.startswith("cosine"))[:FREE_BARS]
    tuned = [s for s in summaries if s.state == "tuned"][:TUNED_BARS]
    if not free or not tuned:
        return None
    short = _short({s.network for s in (*free, *tuned)})
    panel = {
        ", ".join(word for word in (s.method, short[s.network]) if word): {
            set_title(name): (100 * cell.mean, 100 * (cell.std or 0.0)) for name, cell in s.rows.items()
        }
        for s in (*free, *tuned)
    }
    title = METRIC_TITLES[free[0].metric]
    figure = less_biased_bars({"mean over all other sets, by the set that was assumed": panel}, f"{title} (%)")
    return Markup(as_svg(figure, f"Less-biased {title} by assumed set", f"{prefix}-"))


def _dependency(results: Sequence[Result], prefix: str) -> Markup | None:
    """How much it matters which set was assumed: the mean over seeds, on the first network that has tuned results."""
    tuned = [r for r in results if r.assumed is not None and r.assumed != r.ood and r.detector in DEPENDENT]
    if not tuned:
        return None
    names = method_names(results)
    gathered: dict[str, dict[str, dict[str, list[float]]]] = {}
    for r in tuned:
        if r.network == tuned[0].network and r.assumed:
            detector = names[kind_of(r)].replace(" (tuned)", "")
            row = gathered.setdefault(detector, {}).setdefault(set_title(r.assumed), {})
            row.setdefault(set_title(r.ood), []).append(100 * r.metrics["auroc"])
    means = {
        d: {a: {t: sum(v) / len(v) for t, v in row.items()} for a, row in rows.items()} for d, rows in gathered.items()
    }
    figure = dependency_matrix({f"{detector}, {tuned[0].network}": rows for detector, rows in means.items()})
    return Markup(as_svg(figure, "AUROC by assumed and tested set", f"{prefix}-d-"))


def _short(labels: set[str]) -> dict[str, str]:
    """The networks' labels without the words that all of them have."""
    shared = set.intersection(*(set(label.split()) for label in labels))
    return {label: " ".join(word for word in label.split() if word not in shared) for label in labels}


BINS = 36
POINTS = 48


def histogram(id_scores: NDArray[Any], ood_scores: NDArray[Any], bins: int = BINS) -> dict[str, Any]:
    """Both sets in the same bins, as thousandths of each set; the outermost half per cent is in the last bins.

    Returns:
        ``from`` and ``to``, the range of the scores, and ``id`` and ``ood``, a whole number for each bin.
    """
    both = np.concatenate([id_scores, ood_scores]).astype(np.float64)
    low, high = (float(v) for v in np.quantile(both, [0.005, 0.995]))
    if high <= low:
        low, high = low - 0.5, high + 0.5
    counts = [
        np.histogram(np.clip(s.astype(np.float64), low, high), bins, (low, high))[0] for s in (id_scores, ood_scores)
    ]
    return {
        "from": float(f"{low:.4g}"),
        "to": float(f"{high:.4g}"),
        **{
            name: np.rint(1000 * c / c.sum()).astype(int).tolist()
            for name, c in zip(("id", "ood"), counts, strict=True)
        },
    }


def curve(id_scores: NDArray[Any], ood_scores: NDArray[Any], points: int = POINTS) -> list[list[int]]:
    """The ROC curve as [OOD accepted, ID accepted] in thousandths."""
    x, y = roc_curve(id_scores, ood_scores, points)
    return np.rint(1000 * np.stack([x, y], 1)).astype(int).tolist()  # type: ignore[no-any-return]


def drawn(store: Store, results: Iterable[Result]) -> list[dict[str, Any]]:
    """For each network (its first seed) and detector: a histogram and a curve for each OOD set.

    Tuned detectors are shown as tuned on the tested set itself.
    """
    known = list(results)
    names = method_names(known)
    chosen = one_vs_one_results(known)
    first = {label: min(r.seed for r in chosen if r.network == label) for label in {r.network for r in chosen}}
    found: dict[Kind, dict[str, Any]] = {}
    for r in chosen:
        if r.seed != first[r.network]:
            continue
        kind = kind_of(r)
        entry = found.setdefault(kind, {"network": r.network, "method": names[kind], "sets": []})
        id_scores, ood_scores = (store.scores(reference) for reference in r.scores)
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
    return list(found.values())
