"""Scores -> the few numbers that the page draws histograms and ROC curves from."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offaxis.evaluation import protocols as one_vs_one
from offaxis.evaluation.results import Result
from offaxis.evaluation.store import Store
from offaxis.evaluation.summary import Kind, kind_of, method_names
from offaxis.metrics import roc_curve
from offaxis.reports.result_tables import set_title

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
    chosen = one_vs_one.select(known)
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
