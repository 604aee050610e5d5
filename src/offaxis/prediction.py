"""The prediction for one image: class, probability, score, p-value and verdict."""

from dataclasses import dataclass
from enum import StrEnum
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offaxis.errors import BadOutputsError
from offaxis.progress import html_bar, html_card

Floats = NDArray[np.floating[Any]]
Scores = NDArray[np.float64]


class Verdict(StrEnum):
    """The decision whether an image is in-distribution for the classifier."""

    IN = "in-distribution"
    OUT = "out-of-distribution"
    TOO_FEW = "not enough calibration images"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction for one image.

    Attributes:
        class_name: the most probable class.
        class_index: its number, in the order of the logits.
        probability: the softmax probability of that class, in (0, 1].
        cosine: the largest cosine with a class axis, in [-1, 1]; None where the network has none.
        score: the detection score; larger = more out-of-distribution.
        p_value: the conformal p-value of the score among the ID calibration images, in (0, 1]; small = out-of-distribution.
        class_p_value: the same among ID images of this predicted class; None where there are too few.
        verdict: ``p_value <= alpha`` is out-of-distribution, with a confidence at most k / (n + 1); where verdicts are per
            class, ``class_p_value`` decides.
        nearest: the classes with the largest cosines, with these (probabilities where there is no cosine).
    """

    class_name: str
    class_index: int
    probability: float
    cosine: float | None
    score: float
    p_value: float
    class_p_value: float | None
    verdict: Verdict
    nearest: tuple[tuple[str, float], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the prediction in types that JSON has."""
        return {
            "class": self.class_name,
            "class_index": self.class_index,
            "probability": self.probability,
            "cosine": self.cosine,
            "score": self.score,
            "p_value": self.p_value,
            "class_p_value": self.class_p_value,
            "verdict": self.verdict.value,
            "nearest": [{"class": name, "value": value} for name, value in self.nearest],
        }

    def __str__(self) -> str:
        return in_words(self.class_name, self.probability, self.verdict, self.p_value)

    def _repr_html_(self) -> str:
        colour = {Verdict.IN: "#2e7d32", Verdict.OUT: "#c62828"}.get(self.verdict, "#616161")
        badge = f'<span style="background:{colour};color:#fff;border-radius:3px;padding:.1em .5em">{self.verdict.value}</span>'
        nearest = ", ".join(f"{escape(name)} {value:.2f}" for name, value in self.nearest)
        rows = {
            "probability": html_bar(self.probability),
            "p-value": f"{html_bar(self.p_value, colour)} of ID images look as unusual",
            "p-value within the class": "" if self.class_p_value is None else f"{self.class_p_value:.3g}",
            "score (larger = more OOD)": f"{self.score:.4g}",
            "largest cosine": "" if self.cosine is None else f"{self.cosine:.3f}",
            "nearest classes": nearest,
        }
        return html_card(f"{escape(self.class_name)} {badge}", rows)


def in_words(class_name: str, probability: float, verdict: Verdict, p_value: float) -> str:
    """Return a prediction as one line: ``apple (97 %), like the training images (p = 0.62)``."""
    said = {Verdict.IN: "like the training images", Verdict.OUT: "unlike the training images"}.get(verdict, verdict)
    return f"{class_name} ({100 * probability:.0f} %), {said} (p = {p_value:.2g})"


def verdict(p_value: float, class_p_value: float | None, level: float, per_class: bool) -> Verdict:
    """Return the verdict: out-of-distribution up to this p-value, over all images or within the predicted class."""
    deciding = class_p_value if per_class else p_value
    if deciding is None:
        return Verdict.TOO_FEW
    return Verdict.OUT if deciding <= level else Verdict.IN


def class_probabilities(logits: Floats, cosine: Floats | None) -> Floats:
    """Compute class probabilities (N, C) from logits (N, C) and cosines (N, C), if any; all of them are finite.

    A predicted scale can be too large for its type, which makes logits infinite and their softmax NaN. The class with the
    largest cosine then has all of the probability, as it has in the limit of a growing scale.

    Raises:
        BadOutputsError: there is no cosine either, or it is not finite.
    """
    probabilities = _softmax(logits)
    lost = np.isnan(probabilities[:, 0])  # then all of the row are
    if not lost.any():
        return probabilities
    if cosine is not None:
        probabilities[lost] = _softmax(cosine[lost] * np.finfo(np.float32).max)
    if np.isnan(probabilities[:, 0]).any():
        raise BadOutputsError(
            "Expected finite numbers but there is NaN or infinity in the class probabilities. Check images and training."
        )
    return probabilities


def _softmax(logits: Floats) -> Floats:
    """Compute the softmax of rows (N, C), NaN in rows whose largest value is not finite."""
    most = logits.max(1, keepdims=True)
    if not np.isfinite(most).all():
        most = np.where(np.isfinite(most), most, np.nan)
    raised: Floats = np.exp(logits - most)
    raised /= raised.sum(1, keepdims=True)
    return raised


def largest(values: Floats, count: int) -> tuple[list[list[int]], list[list[float]]]:
    """Return the places and the values of the ``count`` largest in each row (N, C), largest first."""
    rows = np.arange(len(values))[:, None]
    if values.shape[1] <= 64:
        places = (-values).argsort(1, kind="stable")[:, :count]
    else:  # sorting all of them would take longer
        places = np.argpartition(-values, count - 1, axis=1)[:, :count]
        places = places[rows, (-values[rows, places]).argsort(1, kind="stable")]
    return places.tolist(), values[rows, places].tolist()
