"""Compute the golden metrics."""

from typing import Any

import numpy as np

from offaxis import metrics

from .subjects import Json, plain


def score_sets() -> dict[str, tuple[Any, Any]]:
    """Return pairs of ID and OOD scores: without ties, with many, with nothing else, apart, in float32, few."""
    random = np.random.Generator(np.random.Philox(7))
    known, strange = random.normal(0, 1, 300), random.normal(1, 1.5, 211)
    return {
        "without ties": (known, strange),
        "with ties": (known.round(), strange.round()),
        "some ties": (known.round(1), strange.round(1)),
        "all equal": (np.zeros(20), np.zeros(30)),
        "apart": (known - 10, strange + 10),
        "turned": (strange, known),
        "float32": (known.astype(np.float32), strange.astype(np.float32)),
        "few": ([0.1, 0.2, 0.3], [0.3, 0.4]),
        "whole numbers": ([1, 2, 2, 5], [2, 3, 5, 8, 9]),
    }


def detection_metrics() -> Json:
    """Compute every metric of ID and OOD scores."""
    found: dict[str, Json] = {}
    for name, (known, strange) in score_sets().items():
        found[name] = {
            "auroc": metrics.auroc(known, strange),
            "aupr_in": metrics.aupr_in(known, strange),
            "aupr_out": metrics.aupr_out(known, strange),
            "accuracy_at_tpr": metrics.accuracy_at_tpr(known, strange),
            "accuracy_at_tpr 0.8": metrics.accuracy_at_tpr(known, strange, 0.8),
            "fpr_at_tpr": metrics.fpr_at_tpr(known, strange),
            "fpr_at_tpr 0.8": metrics.fpr_at_tpr(known, strange, 0.8),
            "fpr_at_tpr, ood": metrics.fpr_at_tpr(known, strange, positive="ood"),
            "detection_error": metrics.detection_error(known, strange),
            "all_metrics": metrics.all_metrics(known, strange),
            "roc_curve of 20 points": metrics.roc_curve(known, strange, 20),
            "bootstrap of auroc": metrics.bootstrap_interval(metrics.auroc, known, strange, 100, 0.9, 3),
            "bootstrap of aupr_in": metrics.bootstrap_interval(metrics.aupr_in, known, strange, 20),
        }
    found["some ties"]["roc_curve"] = metrics.roc_curve(*score_sets()["some ties"])
    found["higher is better"] = metrics.HIGHER_IS_BETTER
    return plain(found)


def confidence_metrics() -> Json:
    """Compute every metric of confidence, without and with ties."""
    random = np.random.Generator(np.random.Philox(11))
    sure = random.beta(4, 1, 300)
    right = random.uniform(size=300) < 0.9 * sure
    found = {}
    for name, values in {"without ties": sure, "with ties": sure.round(1)}.items():
        coverage, risk = metrics.risk_coverage(values, right)
        found[name] = {
            "ece": metrics.expected_calibration_error(values, right),
            "ece of 5 bins": metrics.expected_calibration_error(values, right, 5),
            "aurc": metrics.area_under_risk_coverage(values, right),
            "coverage": coverage[::10],
            "risk": risk[::10],
        }
    return plain(found)
