"""One self-contained HTML page of results: it needs no network, no server and no other file."""

import base64
import io
import math
import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from offaxis import __version__, data
from offaxis.data import CATALOGUE, relation
from offaxis.data.catalogue import data_root
from offaxis.errors import OffaxisError
from offaxis.evaluation.records import NetworkRecord, Result
from offaxis.evaluation.store import Store
from offaxis.evaluation.summary import RowKey, Summary, distinguish_networks, method_names, one_vs_one_results, row_key
from offaxis.files import write_text
from offaxis.metrics import higher_is_better, roc_curve
from offaxis.reports import figures
from offaxis.reports.report import IDSection
from offaxis.reports.result_tables import METRIC_TITLES, dependency_tables, set_title, slug
from offaxis.reports.tables import html, templates

MOST_RANKED = 24
FREE_BARS, TUNED_BARS = 2, 3
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
    thumbnails: int = 0,
    root: Path | None = None,
) -> None:
    """Write the page.

    Args:
        store: where the scores are.
        sections: what ``write_tables`` returned.
        path: of the page.
        title: its title.
        thumbnails: how many images of each kind are shown; 0 for none.
        root: where the catalogue's sets are kept.
    """
    records = distinguish_networks(store.networks())
    images = Thumbnails(store, root) if thumbnails else None
    page = templates().get_template("report.html.j2")
    contents = [_section(store, section, records, images, thumbnails) for section in sections]
    text = page.render(title=title, version=__version__, sections=contents, states=DETECTOR_NOTES, table=html)
    write_text(path, text)


def _section(
    store: Store, section: IDSection, records: Sequence[NetworkRecord], images: "Thumbnails | None", count: int
) -> dict[str, Any]:
    results = section.results
    strips, notes, pictures = ({}, {}, {}) if images is None else extreme_images(store, results, images, count)
    own = [record for record in records if record.id == section.id]
    about, tested = store.sets(), {r.ood_data: r for r in results}
    sets = [about[results[0].id_data] | {"group": "in distribution", "note": ""}]
    sets += [about[key] | {"group": r.group, "note": relation(r.id, r.ood).note} for key, r in tested.items()]
    for each in sets:
        each["licence"] = CATALOGUE[each["name"]].licence if each["name"] in CATALOGUE else "your own"
        each["name"] = set_title(each["name"])
    return {
        "title": set_title(section.id),
        "networks": section.networks,
        "chosen": section.chosen,
        "sets": sets,
        "protocols": [
            {
                **vars(p),
                "dependency": [] if p.ranking else dependency_tables(results, section.id),
                "best": ranking_figure(p.summaries) if p.ranking else None,
                "bars": None if p.ranking else bars_figure(p.summaries),
            }
            for p in section.protocols
        ],
        "methods": len({row_key(r) for r in results}),
        "results": len(results),
        "plots": score_plots(store, results),
        "first": _first_shown(results, own),
        "strips": strips,
        "pictures": pictures,
        "notes": notes,
        "commands": recorded_commands(results, own, store),
        "records": own,
        "versions": results[0].versions,
    }


def recorded_commands(results: Sequence[Result], records: Iterable[NetworkRecord], store: Store) -> list[str]:
    """Return the recorded commands that trained, evaluated and report; a comment stands where none was recorded."""
    lines: list[str] = []
    for record in records:
        lines += map(shlex.join, record.commands)
        if not record.commands:
            origins = ", ".join(filter(None, record.origins)) or "a network in memory"
            lines.append(f"# {record.label} seed {record.seed} ({origins}): the training command was not recorded")
    lines += [shlex.join(r.command) for r in results if r.command]
    count = sum(not r.command for r in results)
    if count:
        lines.append(f"# {count} of {len(results)} results were made in Python: no evaluation command was recorded")
    lines.append(f"offaxis report {shlex.quote(store.path.name)} --out report")
    return list(dict.fromkeys(lines))


# drawings that the template makes --------------------------------------------------------------------------------------


def ranking_figure(summaries: Sequence[Summary]) -> dict[str, Any] | None:
    """Return what the page draws of the best detectors: their means, and the range over sets."""
    best = summaries[:MOST_RANKED]
    if len(best) < 2:
        return None
    names = _names_with_networks(best)
    rows: list[dict[str, Any]] = []
    for s, name in zip(best, names, strict=True):
        values = [100 * cell.mean for cell in s.rows.values()]
        mean = 100 * s.groups["all"].mean  # of equal values it may be a last bit away from them
        rows.append(
            {"name": name, "mean": mean, "low": min(mean, *values), "high": max(mean, *values), "kind": s.state}
        )
    title, higher = METRIC_TITLES[best[0].metric], higher_is_better(best[0].metric)
    ends = "worst set to the best" if higher else "best set to the worst"
    low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)
    room = max(0.04 * (high - low), 0.25)
    span = (max(low - room, 0.0), min(high + room, 100.0) if high <= 100 else high + room)
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if s >= (span[1] - span[0]) / 8 or s == 50)
    return {
        "description": f"Detectors by mean {title}",
        "label": f"mean {title} (%); the line goes from the {ends}",
        "rows": rows,
        "kinds": sorted({s.state for s in best}),
        "span": span,
        "ticks": [step * n for n in range(math.ceil(span[0] / step), math.floor(span[1] / step) + 1)],
        "letters": max(map(len, names)),
    }


def bars_figure(summaries: Sequence[Summary]) -> dict[str, Any] | None:
    """Return what the page draws of detectors without hyperparameters and the best tuned ones, over the assumed sets."""
    plain = [s for s in summaries if s.state == "none"]
    free = sorted(plain, key=lambda s: not s.detector.startswith("cosine"))[:FREE_BARS]
    tuned = [s for s in summaries if s.state == "tuned"][:TUNED_BARS]
    if not free or not tuned:
        return None
    shown = [*free, *tuned]
    bars = [{name: (100 * cell.mean, 100 * (cell.std or 0.0)) for name, cell in s.rows.items()} for s in shown]
    title = METRIC_TITLES[free[0].metric]
    return {
        "description": f"Less-biased {title} by assumed set",
        "label": f"{title} (%), mean over all other sets, by the set that was assumed; lines are standard deviations",
        "methods": _names_with_networks(shown),
        "bars": bars,
        "sets": {name: set_title(name) for row in bars for name in row},
    }


def _names_with_networks(summaries: Sequence[Summary]) -> list[str]:
    """Return what drawings call detectors: with their network where there are several, by its head where that tells them."""
    labels = {s.network for s in summaries}
    heads = {s.network: str(s.fields.head.get("name", "")) for s in summaries}
    alike = len({(s.fields.architecture, s.fields.kind) for s in summaries}) == 1
    if alike and all(heads.values()) and len(set(heads.values())) == len(labels):
        return [s.method if len(labels) == 1 else f"{s.method}, {heads[s.network]}" for s in summaries]
    return [s.method if len(labels) == 1 else f"{s.method}, {s.network}" for s in summaries]


def write_figures(sections: Sequence[IDSection], folder: Path) -> list[Path]:
    """Write what the page draws as PDF and SVG: rankings, critical differences and bars over assumed sets."""
    found: dict[str, Any] = {}
    for section in sections:
        for part in section.protocols:
            words, shown = f"{section.id}-{part.view}", part.summaries[:MOST_RANKED]
            drawn = ranking_figure(shown) if part.ranking else None
            higher = higher_is_better(shown[0].metric)
            label = f"{METRIC_TITLES[shown[0].metric]} (%)"
            if drawn:
                means = {row["name"]: (row["mean"], row["low"], row["high"]) for row in drawn["rows"]}
                states = {row["name"]: row["kind"] for row in drawn["rows"]}
                found[f"ranking-{words}"] = figures.ranking(means, states, label, higher_is_better=higher)
                names = zip(_names_with_networks(shown), shown, strict=True)
                values = {name: {n: cell.mean for n, cell in s.rows.items()} for name, s in names}
                if set.intersection(*(set(row) for row in values.values())):
                    found[f"critical-difference-{words}"] = figures.critical_difference(values, higher)
            bars = bars_figure(shown) if part.ranking is None else None
            if bars:
                rows = [{set_title(n): value for n, value in row.items()} for row in bars["bars"]]
                panel = dict(zip(bars["methods"], rows, strict=True))
                found[f"bars-{words}"] = figures.less_biased_bars({set_title(section.id): panel}, label)
    stems = {folder / slug(name): figure for name, figure in found.items()}
    return [
        path for stem, figure in stems.items() for path in figures.save_figure(figure, stem, formats=("pdf", "svg"))
    ]


BINS = 36
POINTS = 48


def score_plots(store: Store, results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return a histogram and a ROC curve for each network (its first seed), detector and OOD set.

    Tuned detectors are shown as tuned on the tested set itself.
    """
    results = list(results)
    names = method_names(results)
    plots: dict[RowKey, dict[str, Any]] = {}

    @cache  # ID scores belong to every OOD set, and what is ordered already is ordered again in no time
    def ordered(reference: str) -> NDArray[Any]:
        return np.sort(store.scores(reference))

    for r in _of_first_seeds(one_vs_one_results(results)):
        entry = plots.setdefault(row_key(r), {"network": r.network, "method": names[row_key(r)], "sets": []})
        id_scores, ood_scores = map(ordered, r.scores)
        entry["sets"].append(
            {
                "name": set_title(r.ood),
                "group": r.group,
                "auroc": round(100 * r.metrics["auroc"], 2),
                "fpr": round(100 * r.metrics["fpr_at_tpr95"], 1),
                "histogram": histogram(id_scores, ood_scores),
                "roc": np.rint(1000 * np.stack(roc_curve(id_scores, ood_scores, POINTS), 1)).astype(int).tolist(),
            }
        )
    return list(plots.values())


def _first_shown(results: Sequence[Result], records: Sequence[NetworkRecord]) -> list[str]:
    """Return the network and detector that the page begins with: what a bundle of the network would use, where evaluated."""
    names, default = method_names(results), {record.label: record.default_detector or "cosine" for record in records}
    wanted = [r for r in results if r.assumed is None and r.detector == default.get(r.network)]
    first = (wanted or [r for r in results if r.assumed is None] or results)[0]
    return [first.network, names[row_key(first)]]


def _of_first_seeds(results: Sequence[Result]) -> list[Result]:
    first = {label: min(r.seed for r in results if r.network == label) for label in {r.network for r in results}}
    return [r for r in results if r.seed == first[r.network]]


def histogram(id_scores: NDArray[Any], ood_scores: NDArray[Any]) -> dict[str, Any]:
    """Count both sets in the same bins, in thousandths of each set; the outermost half percent is in the last bins.

    Returns:
        ``from`` and ``to``, the range of the scores, and ``id`` and ``ood``, a whole number for each bin.
    """
    low, high = np.quantile(np.concatenate([id_scores, ood_scores]).astype(np.float64), (0.005, 0.995))
    if high <= low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1)
    found: dict[str, Any] = {"from": float(f"{low:.4g}"), "to": float(f"{high:.4g}")}
    for name, scores in (("id", id_scores), ("ood", ood_scores)):
        counts, _ = np.histogram(np.clip(scores.astype(np.float64), low, high), edges)
        found[name] = np.rint(1000 * counts / len(scores)).astype(int).tolist()
    return found


# images ----------------------------------------------------------------------------------------------------------------

SIDE = 96
"""Photographs are shrunk to so many pixels; smaller images stay as they are."""
Strips = dict[str, dict[str, list[dict[str, Any]]]]


class Thumbnails:
    """The images of a store's sets, where they can be read; each set is read once.

    Args:
        store: whose sets they are.
        root: where the catalogue's sets are kept.
    """

    def __init__(self, store: Store, root: Path | None = None) -> None:
        self.store, self.root, self.about = store, root, store.sets()
        self._sets: dict[str, data.ImageSet | str] = {}

    def images(self, id_key: str, set_key: str) -> "data.ImageSet | str":
        """Return a set, matched to an ID set, or the reason why it cannot be shown."""
        if set_key not in self._sets:
            like = None if set_key == id_key else self.images(id_key, id_key)
            if isinstance(like, str):  # there is nothing that its images could be matched to
                self._sets[set_key] = "not shown without the ID images"
            else:
                self._sets[set_key] = self._read(set_key, like)
        return self._sets[set_key]

    def _read(self, set_key: str, like: "data.ImageSet | None") -> "data.ImageSet | str":
        about = self.about[set_key]
        name, options = about.get("path", about["name"]), about.get("options", {})
        if name in CATALOGUE and "test" not in CATALOGUE[name].available(data_root(self.root)):
            return "not on this machine"  # said without torch, which takes seconds to import
        try:  # decoded when they are read: a page shows a few images of a part of a set
            shape = None if like is None else like.shape  # a pair that is refused can be shown
            found = data.load_images(name, root=self.root, like=shape, in_memory=False, **options)
            images = data.limit_images(found, about["images"])
        except (OffaxisError, OSError):
            return "not on this machine"
        return images if images.fingerprint == about["fingerprint"] else "not the images that were evaluated"


def extreme_images(
    store: Store, results: Iterable[Result], thumbnails: Thumbnails, count: int = 6
) -> tuple[Strips, dict[str, str], dict[str, str]]:
    """Find the ID and OOD images with the lowest and highest scores, for each network and detector.

    Only untuned detectors are shown, on the first seed of each network, so that scores of all sets can be compared.

    Returns:
        Four strips of images for each ``network|method``; why sets are left out, by title; the pictures, by name.
    """
    results = list(results)
    names = method_names(results)
    members: dict[RowKey, list[Result]] = {}
    for r in _of_first_seeds([r for r in results if r.assumed is None]):
        members.setdefault(row_key(r), []).append(r)
    strips: Strips = {}
    notes, pictures = dict[str, str](), dict[str, str]()
    for key, rows in members.items():
        first = rows[0]
        sides = {
            "ID": [(first.id, first.id_data, first.scores[0])],
            "OOD": [(r.ood, r.ood_data, r.scores[1]) for r in rows],
        }
        own = strips[f"{first.network}|{names[key]}"] = {}
        for side, parts in sides.items():
            sets = [thumbnails.images(first.id_data, set_key) for _, set_key, _ in parts]
            notes |= {
                set_title(part[0]): found for part, found in zip(parts, sets, strict=True) if isinstance(found, str)
            }
            scores = [store.scores(reference) for *_, reference in parts]
            together, ends = np.concatenate(scores), np.cumsum([len(values) for values in scores])
            order = np.argsort(together, kind="stable")
            for which, chosen in (("lowest", order[:count]), ("highest", order[::-1][:count])):
                strip = own[f"{side}, {which} scores"] = []
                for at in chosen.tolist():
                    part = int(np.searchsorted(ends, at, "right"))
                    (name, set_key, _), images = parts[part], sets[part]
                    if isinstance(images, str):
                        continue
                    index = int(store.indices(set_key)[at - ends[part]])  # counted from the end of its part
                    picture = f"{set_key[:6]}-{index}"
                    if picture not in pictures:
                        pictures[picture] = _data_uri(images, index)
                    strip.append({"picture": picture, "set": set_title(name), "score": float(f"{together[at]:.4g}")})
    return strips, notes, pictures


def _data_uri(images: "data.ImageSet", index: int) -> str:
    import torch

    array = images.batch(torch.tensor([index]))[0].permute(1, 2, 0).numpy()
    array = array if array.dtype == np.uint8 else (array * 255).round().astype(np.uint8)
    picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    out, kind = io.BytesIO(), "PNG"
    if max(picture.size) > SIDE:
        picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)  # keeps its shape
        kind = "JPEG"
    picture.save(out, kind, optimize=True, quality=85)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(out.getvalue()).decode()}"
