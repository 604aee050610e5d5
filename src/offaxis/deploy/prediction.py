"""What is said of one image."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """Whether an image is one that the classifier was trained for."""

    IN = "in-distribution"
    OUT = "out-of-distribution"
    TOO_FEW = "not enough calibration images"


@dataclass(frozen=True)
class Prediction:
    """What a model says of one image.

    Attributes:
        class_name: the most probable class.
        class_index: its number, in the order of the logits.
        probability: the softmax probability of that class, in (0, 1].
        cosine: the largest cosine with a class axis, in [-1, 1]; None where the network has none.
        score: the detector's; larger = more out-of-distribution.
        p_value: the share of ID images that look at least as strange, in (0, 1]; small = out-of-distribution.
        class_p_value: the same among ID images of this predicted class; None where there are too few.
        verdict: ``p_value <= alpha`` is out-of-distribution; where verdicts are per class, ``class_p_value`` decides.
        nearest: the classes whose axes are nearest, with their cosines (probabilities where there is no cosine).
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
        """As JSON can hold it."""
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


def verdict(p_value: float, class_p_value: float | None, alpha: float, per_class: bool) -> Verdict:
    """The verdict at level alpha, over all images or within the predicted class."""
    deciding = class_p_value if per_class else p_value
    if deciding is None:
        return Verdict.TOO_FEW
    return Verdict.OUT if deciding <= alpha else Verdict.IN
