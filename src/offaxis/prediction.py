"""The prediction for one image: class, probability, score, p-value and verdict."""

from dataclasses import dataclass
from enum import StrEnum
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offaxis.progress import html_bar, html_card

Floats = NDArray[np.floating[Any]]
Scores = NDArray[np.float64]


class Verdict(StrEnum):
    """The decision whether an image is in-distribution for the classifier."""

    IN = "in-distribution"
    OUT = "out-of-distribution"
    UNSURE = "unsure"
    TOO_FEW = "not enough calibration images"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction for one image.

    Attributes:
        class_name: the most probable class.
        class_index: its number, in the order of the logits.
        probability: of that class, in (0, 1]: the softmax, at the temperature of labelled calibration images where there were
            any.
        cosine: the largest cosine with a class axis, in [-1, 1]; None where the network has none.
        score: the detection score; larger = more out-of-distribution.
        p_value: the conformal p-value of the score among the ID calibration images, in (0, 1]; small = out-of-distribution.
        class_p_value: the same among ID images of this predicted class; None where there are too few.
        verdict: ``p_value <= alpha`` is out-of-distribution, with a confidence at most k / (n + 1); where verdicts are per
            class, ``class_p_value`` decides. Unsure is an image that is not, where a ``max_error`` is promised and the
            probability is too small for it.
        nearest: the classes with the largest cosines, with these (probabilities where there is no cosine).
        classes: those that it could be, most probable first: the right one is among them for a share of 1 - alpha of ID images.
            None where that is not known: the calibration images were too few or without labels.
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
    classes: tuple[str, ...] | None = None

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
            "could_be": None if self.classes is None else list(self.classes),
            "nearest": [{"class": name, "value": value} for name, value in self.nearest],
        }

    def __str__(self) -> str:
        return in_words(self.class_name, self.probability, self.verdict, self.p_value)

    def _repr_html_(self) -> str:
        colour = {Verdict.IN: "#2e7d32", Verdict.OUT: "#c62828", Verdict.UNSURE: "#b26a00"}.get(self.verdict, "#616161")
        badge = f'<span style="background:{colour};color:#fff;border-radius:3px;padding:.1em .5em">{self.verdict.value}</span>'
        nearest = ", ".join(f"{escape(name)} {value:.2f}" for name, value in self.nearest)
        rows = {
            "probability": html_bar(self.probability),
            "could be": "" if self.classes is None else escape(", ".join(self.classes)),
            "p-value": f"{html_bar(self.p_value, colour)} of ID images look as unusual",
            "p-value within the class": "" if self.class_p_value is None else f"{self.class_p_value:.3g}",
            "score (larger = more OOD)": f"{self.score:.4g}",
            "largest cosine": "" if self.cosine is None else f"{self.cosine:.3f}",
            "nearest classes": nearest,
        }
        return html_card(f"{escape(self.class_name)} {badge}", rows)


def in_words(class_name: str, probability: float, verdict: Verdict, p_value: float) -> str:
    """Return a prediction as one line: ``apple (97 %), like the training images (p = 0.62)``."""
    return f"{class_name} ({100 * probability:.0f} %), {verdict_in_words(verdict)} (p = {p_value:.2g})"


def verdict_in_words(verdict: Verdict) -> str:
    """Return a verdict as people read it."""
    like = "like the training images"
    said = {Verdict.IN: like, Verdict.OUT: f"un{like}", Verdict.UNSURE: f"{like}, but the class is unsure"}
    return said.get(verdict, verdict)


def verdict(deciding: float | None, level: float, unsure: bool = False) -> Verdict:
    """Return the verdict: out-of-distribution up to this p-value, over all images or within the predicted class."""
    if deciding is None:
        return Verdict.TOO_FEW
    return Verdict.OUT if deciding <= level else Verdict.UNSURE if unsure else Verdict.IN


def largest(values: Floats, count: int) -> tuple[list[list[int]], list[list[float]]]:
    """Return the places and the values of the ``count`` largest in each row (N, C), largest first."""
    rows = np.arange(len(values))[:, None]
    if values.shape[1] <= 64:
        places = (-values).argsort(1, kind="stable")[:, :count]
    else:  # sorting all of them would take longer
        places = np.argpartition(-values, count - 1, axis=1)[:, :count]
        places = places[rows, (-values[rows, places]).argsort(1, kind="stable")]
    return places.tolist(), values[rows, places].tolist()
