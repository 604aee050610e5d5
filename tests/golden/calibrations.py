"""Compute the golden p-values, thresholds, calibrations and answers of bundles."""

import math
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import offaxis
from offaxis import Calibration, Model
from offaxis.calibration import conformal
from offaxis.data import ImageSet, Preprocessing
from offaxis.data.embedded import letters, small_digits
from offaxis.detectors import DETECTORS, Detector

from .subjects import Json, digits_images, digits_normalise, network, plain


def conformal_values() -> Json:
    """Compute p-values, thresholds and flag rates, over all images and per class, with and without ties."""
    random = np.random.Generator(np.random.Philox(13))
    scores, predicted = random.normal(0, 1, 251), random.integers(0, 4, 251)
    predicted[:12] = 4  # a class with too few images at 5 %
    new, of_class = random.normal(1, 2, 40), random.integers(0, 5, 40)
    alphas = (0.01, 0.05, 0.1, 0.5)
    found: dict[str, Json] = {
        "smallest_count": [conformal.smallest_count(a) for a in alphas],
        "allowed": [conformal.allowed(n, a) for a in alphas for n in (99, 100, 199, 1000)],
        "flag_rate": [_rate(conformal.flag_rate(n, a)) for a in alphas for n in (99, 100, 199, 1000)],
    }
    for name, digit in (("without ties", 15), ("with ties", 0)):
        own, other = scores.round(digit), new.round(digit)
        found[f"functions, {name}"] = {
            "p_values": conformal.p_values(calibration_scores=np.sort(own), scores=other),
            "thresholds": [conformal.threshold(np.sort(own), a) for a in alphas],
        }
        for alpha in alphas:
            made = Calibration.from_scores(own, predicted, 5, alpha)
            found[f"calibration, {name}, {alpha}"] = calibration_values(made, other, of_class)
    return plain(found)


def _rate(rate: Any) -> list[float] | None:
    return None if rate is None else [rate.mean, rate.low, rate.high]


def calibration_values(made: Calibration, scores: Any, predicted: Any) -> Json:
    """Compute all that a calibration says of scores and predicted classes."""
    return {
        "threshold": made.threshold(),
        "class_thresholds": made.class_thresholds(),
        "class_counts": made.class_counts(),
        "enough": made.enough(),
        "p_values": made.p_values(scores),
        "class_p_values": [None if math.isnan(p) else p for p in made.class_p_values(scores, predicted).tolist()],
        "flag_rate": _rate(made.flag_rate()),
        "class_flag_rates": [_rate(rate) for rate in made.class_flag_rates()],
    }


def _unseen() -> tuple[ImageSet, ImageSet]:
    """Return digits to calibrate on, and others."""
    rest = small_digits("test")
    return rest.subset(torch.arange(240)), rest.subset(torch.arange(240, len(rest)))


def _fitted(name: str, judged: str) -> Detector:
    return DETECTORS[name]().fit(network(judged), digits_images()[0])


BUNDLES: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "cosine": ("digits-cosine", None, {}),
    "cosine per class": ("digits-cosine", None, {"per_class": True, "alpha": 0.1}),
    "two cosines": ("digits-cosine", "two-cosines", {"alpha": 0.1}),
    "knn": ("digits-cosine", "knn", {}),
    "mahalanobis, standard network": ("digits-linear", "mahalanobis", {}),
    "odin, standard network": ("digits-linear", "odin", {"alpha": 0.2}),
    "max-softmax, standard network": ("digits-linear", "max-softmax", {"per_class": True, "alpha": 0.2}),
    "ensemble": ("digits-ensemble", None, {}),
}
"""Name -> network, detector where it is not the usual one, and how it is calibrated."""
FAR_OFF = "mahalanobis, standard network"
"""The entry whose covariance is nearly singular: off the recorded processor it is left out."""


def calibrated() -> Json:
    """Compute what calibrating on images gives."""
    images, _ = _unseen()
    found = {}
    for name, (judged, detector, how) in BUNDLES.items():
        used = _fitted(detector, judged) if detector else None
        made = offaxis.calibrate(network(judged), images, digits_normalise(), used, **how)
        values = calibration_values(made, made.scores[::8] + 1e-3, made.predicted[::8])
        cosine = None if made.cosine is None else made.cosine[::8]
        found[name] = {"scores": made.scores[::8], "predicted": made.predicted[::8], "cosine": cosine, **values}
    return plain(found)


def bundles() -> Json:
    """Compute the answers of models that were saved and loaded: class, probability, score, p-values, verdict."""
    images, rest = _unseen()
    shown = torch.cat([rest.batch(torch.arange(8)), letters(8, 8).batch(torch.arange(8))])
    large = letters(4, 28).batch(torch.arange(4))  # they are made to fit
    found = {}
    for name, (judged, detector, how) in BUNDLES.items():
        model = Model.calibrated(
            network(judged),
            images,
            used=[small_digits("train")],
            detector=_fitted(detector, judged) if detector else None,
            preprocessing=Preprocessing((1, 8, 8), digits_normalise()),
            classes=list("0123456789"),
            **how,
        )
        with TemporaryDirectory() as folder:
            model.save(Path(folder) / "model.oax")
            again = offaxis.load(Path(folder) / "model.oax")
        again = replace(again, calibration=replace(again.calibration, classes=None))  # the softmax without temperature
        answers = [*again.predict(shown), *again.predict(large)]
        found[name] = {
            "answers": [
                {
                    "class": said.class_name,
                    "index": said.class_index,
                    "probability": said.probability,
                    "cosine": said.cosine,
                    "score": said.score,
                    "p_value": said.p_value,
                    "class_p_value": said.class_p_value,
                    "verdict": said.verdict.value,
                    "nearest": said.nearest,
                }
                for said in answers
            ],
            "threshold": again.calibration.threshold(),
        }
    return plain(found)
