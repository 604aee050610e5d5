"""Every group of golden values by name."""

from collections.abc import Callable

from .calibrations import bundles, calibrated, conformal_values
from .metrics import confidence_metrics, detection_metrics
from .scores import detectors, tuning
from .subjects import Arrays, Json
from .texts import paper, reproduce, study, text_numbers
from .trainings import first_weights, recipes, trainings

JSON_GROUPS: dict[str, Callable[[], Json]] = {
    "tuning": tuning, "detection-metrics": detection_metrics, "confidence-metrics": confidence_metrics,
    "conformal": conformal_values, "calibrated": calibrated, "bundles": bundles, "trainings": trainings,
    "recipes": recipes, "first-weights": first_weights, "text-numbers": text_numbers,
}  # fmt: skip
ARRAY_GROUPS: dict[str, Callable[[], Arrays]] = {"detectors": detectors}
TEXT_GROUPS: dict[str, Callable[[], dict[str, str]]] = {"study": study, "paper": paper, "reproduce": reproduce}
