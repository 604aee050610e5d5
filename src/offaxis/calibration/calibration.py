"""ID images -> a p-value for each new image, and a threshold that flags at most alpha of new ID images.

The guarantee is marginal (over all ID images) or per predicted class (Mondrian: each class is compared with its own
calibration images alone); with a confidence it holds for this one calibration set with that probability. It requires that
the calibration images come from the same source as the images to be scored, and that nothing was trained, fitted or selected
on them.
"""

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offaxis.calibration import conformal
from offaxis.calibration.classes import SURE, Alone, ClassCalibration
from offaxis.calibration.conformal import Floats
from offaxis.calibration.doubts import changes, doubt_of_features, doubts_of_accuracy
from offaxis.data import ImageSet, Normalise
from offaxis.data.adapt import as_batches, as_image_set, is_loader
from offaxis.data.images import hash_batch, image_hashes, shared
from offaxis.data.transforms import NO_LABELS, match
from offaxis.detectors.base import Detector, score_batches
from offaxis.detectors.registry import default_detector
from offaxis.errors import ArgumentError, CalibrationError, OverlapError
from offaxis.networks.run import Network, takes_vectors, to_network
from offaxis.progress import html_card, html_histogram

Labels = NDArray[np.int64]
MOSTLY_DISTINCT = 0.9  # a smaller share of distinct calibration images is worth a warning
BATCH, ROWS = 256, 4096  # images, and feature vectors, that go through the network at once


@dataclass(frozen=True, eq=False, kw_only=True)
class Calibration:
    """The scores of held-out ID images, from which p-values and thresholds follow.

    Attributes:
        scores: (n,) float64, ascending; larger = more out-of-distribution.
        predicted: (n,) int64, the predicted class of each of them.
        num_classes: C.
        alpha: the share of new ID images that may be flagged.
        per_class: whether verdicts compare an image with those of its predicted class alone.
        confidence: None where at most alpha is flagged on average over calibration sets; else the probability, over
            calibration sets, that at most alpha is flagged in the long run (of each class, where verdicts are per class).
        cosine: (n,) float64, the largest cosine of each; None where the network has none.
        accuracy: the share of them whose class is predicted, where they have labels; a low one tells that the classes are in
            another order, or the images normalised otherwise, than in training.
        classes: what labelled images tell of class probabilities; None without labels.
        max_error: the share of the images that are decided alone that may be wrong, with a confidence of 95 % over calibration
            sets; the others are unsure. None where that is not asked for.
    """

    scores: Floats
    predicted: Labels
    num_classes: int
    alpha: float = 0.05
    per_class: bool = False
    confidence: float | None = None
    cosine: Floats | None = None
    accuracy: float | None = None
    classes: ClassCalibration | None = None
    max_error: float | None = None

    @classmethod
    def from_scores(
        cls,
        scores: Floats,
        predicted: Labels,
        num_classes: int,
        alpha: float = 0.05,
        *,
        cosine: Floats | None = None,
        accuracy: float | None = None,
        classes: ClassCalibration | None = None,
        **promise: Unpack["OtherPromises"],
    ) -> Self:
        """Return a calibration from scores (n,) and predicted classes (n,) of ID images, in any order.

        Raises:
            TooFewImagesError: n is too small for alpha; with ``per_class``, no class has enough.
            CalibrationError: scores are not finite or all alike, or the classes do not fit.
        """
        values, numbers = conformal.check_scores(scores), np.asarray(predicted, np.int64)
        if numbers.shape != values.shape or (len(numbers) and not 0 <= numbers.min() <= numbers.max() < num_classes):
            raise CalibrationError(f"Expected a class from 0 to {num_classes - 1} for each of {len(values)} scores.")
        if len(values) > 1 and values.min() == values.max():
            raise CalibrationError(
                f"Expected scores that differ from image to image but all {len(values)} calibration images have the score "
                f"{values[0]:g}: the network gives the same for every image, or the images are copies of one. Look at its "
                "training and at the images."
            )
        order = np.argsort(values, kind="stable")
        return cls(
            scores=values[order],
            predicted=numbers[order],
            num_classes=num_classes,
            alpha=alpha,
            cosine=None if cosine is None else np.asarray(cosine, np.float64)[order],
            accuracy=accuracy,
            classes=classes,
            **promise,
        )

    def __post_init__(self) -> None:
        object.__setattr__(self, "confidence", conformal.check_confidence(self.confidence))
        object.__setattr__(self, "max_error", self.max_error or None)
        if self.max_error is not None and self.alone is None:
            conformal.check_alpha(self.max_error, "max_error")
            known = "have no labels" if self.classes is None else f"are {len(self.classes.mass)} with labels"
            least = 2 * math.ceil(math.log(1 - SURE) / math.log1p(-self.max_error))
            raise CalibrationError(
                f"Expected labelled calibration images that show from which probability on at most {self.max_error:.3g} are "
                f"wrong, with a confidence of {SURE:.0%}, but these {known}: give more (at least "
                f"{least:,}, and more where some are wrong) or a larger max_error; 0 asks for none."
            )
        conformal.check_count(len(self.scores), self.alpha, "", self.confidence)
        if self.per_class:
            largest = max(self.class_counts())
            conformal.check_count(largest, self.alpha, " of one class (the class with the most)", self.confidence)

    def with_alpha(self, alpha: float) -> Self:
        """Return the calibration at another level, with the same images."""
        return replace(self, alpha=alpha)

    @cached_property
    def alone(self) -> Alone | None:
        """The images that are decided alone under ``max_error``; None without one, or where none can be told."""
        return None if self.classes is None or not self.max_error else self.classes.alone(self.max_error)

    @cached_property
    def most_mass(self) -> float | None:
        """The mass of the classes that an image could be of, see ``classes``; None where it is not known."""
        return None if self.classes is None else self.classes.most_mass(self.alpha, self.confidence)

    @cached_property
    def by_cosine(self) -> bool:
        """Return whether the scores are the largest cosines, with the other sign."""
        return self.cosine is not None and np.allclose(self.scores, -self.cosine, atol=1e-6)

    def class_counts(self) -> list[int]:
        """Count the calibration images that were predicted as each class."""
        return [int(count) for count in np.bincount(self.predicted, minlength=self.num_classes)]

    def enough(self) -> list[bool]:
        """Return, for each class, whether it has enough calibration images for a verdict of its own at this alpha."""
        return [bool(each) for each in self._enough]

    @cached_property
    def _enough(self) -> NDArray[np.bool_]:
        return np.array(self.class_counts()) >= conformal.smallest_count(self.alpha, self.confidence)

    @cached_property
    def levels(self) -> list[float]:
        """For each predicted class, the p-value up to which an image is flagged: alpha, or k / (n + 1) with a confidence."""
        if self.confidence is None:
            return [self.alpha] * self.num_classes
        counts = self.class_counts() if self.per_class else [len(self.scores)] * self.num_classes
        level = {n: conformal.allowed(n, self.alpha, self.confidence) / (n + 1) for n in set(counts)}
        return [level[n] for n in counts]

    def threshold(self) -> float:
        """Return the score above which an image is flagged, over all classes."""
        return conformal.threshold(self.scores, self.alpha, self.confidence)

    def class_thresholds(self) -> list[float | None]:
        """Return, for each predicted class, the score above which an image is flagged; None where images are too few."""
        return [
            conformal.threshold(self.scores[self.predicted == c], self.alpha, self.confidence) if enough else None
            for c, enough in enumerate(self.enough())
        ]

    def p_values(self, scores: Floats) -> Floats:
        """Compute marginal p-values (N,) in (0, 1] of scores (N,): small = out-of-distribution."""
        return conformal.p_values(calibration_scores=self.scores, scores=conformal.check_scores(scores))

    def control_fdr(self, p_values: Floats | Sequence[float], fdr: float) -> conformal.BatchFlags:
        """Flag images of a batch together by their marginal p-values (m,); see :func:`conformal.control_fdr`."""
        return conformal.control_fdr(np.asarray(p_values, np.float64), fdr, calibration_images=len(self.scores))

    def class_p_values(self, scores: Floats, predicted: Labels) -> Floats:
        """Compute Mondrian p-values (N,) of scores (N,) and predicted classes (N,); NaN where a class has too few images."""
        values = self._by_class.p_values(conformal.check_scores(scores), np.asarray(predicted, np.int64))
        return np.where(self._enough[predicted], values, math.nan)

    @cached_property
    def _by_class(self) -> conformal.Grouped:
        return conformal.Grouped(self.scores, self.predicted, self.num_classes)

    def flag_rate(self) -> conformal.FlagRate:
        """Compute the share of new ID images that is flagged in the long run, with its range over calibration sets."""
        return conformal.flag_rate(len(self.scores), self.alpha, self.confidence)

    def class_flag_rates(self) -> list[conformal.FlagRate | None]:
        """Compute the same for each predicted class with its own calibration images; None where they are too few."""
        return [
            conformal.flag_rate(count, self.alpha, self.confidence) if enough else None
            for count, enough in zip(self.class_counts(), self.enough(), strict=True)
        ]

    def _repr_html_(self) -> str:
        threshold = self.threshold()
        return html_card(
            f"Calibration on {len(self.scores):,} ID images",
            {
                **self.facts(),
                "scores": f"{self.scores.min():.4g} to {self.scores.max():.4g}, flagged above {threshold:.4g}",
            },
            html_histogram(self.scores.tolist(), threshold),
        )

    def facts(self) -> dict[str, str]:
        """Return what a card or a page shows of the calibration: level, long-run share of flagged ID images, accuracy."""
        rate = self.flag_rate()
        sure = "" if self.confidence is None else f", with probability {self.confidence:.0%}"
        return {
            "flags of new ID images": f"at most {self.alpha:.3g}{sure}",
            "in the long run": f"{rate.mean:.1%} (nine of ten calibration sets: {rate.low:.1%} to {rate.high:.1%})",
            "verdicts": "for each predicted class" if self.per_class else "over all classes",
            "accuracy": "" if self.accuracy is None else f"{self.accuracy:.1%}",
            "calibration error": "not known without labels"
            if self.classes is None
            else f"{self.classes.ece[1]:.1%} (softmax alone: {self.classes.ece[0]:.1%}; temperature "
            f"{self.classes.temperature:.3g})",
            "decided alone": ""
            if self.alone is None
            else f"{self.alone.share:.1%} of ID images (from a probability of {self.alone.probability:.3g} on), at most "
            f"{self.max_error:.3g} of them wrong with a confidence of {SURE:.0%}",
        }


class OtherPromises(TypedDict, total=False):
    """What verdicts promise beside alpha, see ``calibrate``."""

    per_class: bool
    confidence: float | None
    max_error: float | None


class Promise(OtherPromises, total=False):
    """What verdicts promise, see ``calibrate``."""

    alpha: float


def calibrate(
    network: Network,
    images: Any,
    normalise: Normalise | None = None,
    detector: Detector | None = None,
    *,
    used: Sequence[Any] = (),
    **promise: Unpack[Promise],
) -> Calibration:
    """Calibrate a detector on ID images that nothing was trained, fitted or selected on.

    Args:
        network: a Classifier, a Paired or an Ensemble, trained.
        images: ID images; labels tell the accuracy and how far probabilities hold. An ImageSet, a torch or Hugging Face
            dataset, or a tensor; or a DataLoader, whose batches are used unchanged. For a network of feature vectors: rows
            (n, d), or a pair of rows and labels (n,).
        normalise: as in training; None for a DataLoader, whose images are already normalised.
        detector: any that takes such a network, fitted where it must be; if None the network's default
            (:func:`offaxis.detectors.default_detector`), where that need not be fitted.
        used: image sets or datasets (or their ``image_hashes``) that training, fitting or selection saw. Beside a DataLoader,
            DataLoaders: their images are compared as they leave them, after the same transforms.
        promise: ``alpha``, the share of new ID images that may be flagged (0.05). ``per_class``, whether verdicts are to hold
            for each predicted class. ``confidence``: None for at most alpha on average over calibration sets; such as 0.95 for
            at most alpha with that probability over calibration sets, which flags a little less. ``max_error``: such as 0.01
            for at most 1 % of wrong classes, with a confidence of 95 %, among the images that are not called unsure.

    Raises:
        TooFewImagesError: fewer than ceil(1 / alpha) - 1 images; with a confidence more (59 for 5 % at 95 %).
        OverlapError: some of them are among ``used``.
        CalibrationError: no probability is known that keeps ``max_error``.
        DataError: the images cannot be used.
        DetectorError: the detector cannot be used with such a network.
    """
    conformal.check_alpha(promise.get("alpha", 0.05))
    conformal.check_confidence(promise.get("confidence"))
    detector = detector or default_detector(network, None if normalise is None else normalise.std)
    detector.check_network(network)
    batches: Any
    if takes_vectors(network):
        batches = _row_batches(images)
        _check_copies([h for rows, _ in batches for h in hash_batch(rows)], [h for hashes in used for h in hashes])
    else:
        images = images if is_loader(images) else as_image_set(images)
        if is_loader(images):
            _check_loaders(images, used)
        else:
            check_overlap(images, used)
        batches = as_batches(images, normalise, BATCH, num_classes=network.num_classes)
    scored = score_batches(network, batches, detector)
    doubts = []
    if is_loader(images) and used and any(map(changes, (images, *used))):
        doubts = [
            "It was not checked whether calibration images were used for training: a DataLoader gives other images each time. "
            "Give loaders without augmentation, or the data sets with `normalise`.",
            *doubt_of_features(network, images, used),
        ]
    elif is_loader(images):
        for other in used:
            seen = as_batches(other, None, BATCH)
            hashes = [h for x, _ in seen for h in hash_batch(to_network(network, x).float().cpu())]
            _refuse_shared(hashes, scored.hashes)
    distinct, count = len(set(scored.hashes)), len(scored.hashes)
    if not takes_vectors(network) and distinct < MOSTLY_DISTINCT * count:
        warnings.warn(
            f"Only {distinct} of the {count} calibration images are distinct, the others are copies of these: the share of "
            "flagged ID images can be far from alpha. Calibrate on images that were taken one by one.",
            stacklevel=2,
        )
    labels, logits = scored.labels, scored.logits
    accuracy = None if labels is None else float((scored.predicted == labels).mean())
    for doubt in [*doubts, *doubts_of_accuracy(accuracy, network.num_classes)]:
        warnings.warn(doubt, stacklevel=2)
    return Calibration.from_scores(
        scored.scores,
        scored.predicted,
        network.num_classes,
        cosine=scored.cosine,
        accuracy=accuracy,
        classes=None if labels is None or logits is None else ClassCalibration.fitted(logits, labels),
        **promise,
    )


def _row_batches(data: Any) -> list[tuple[Tensor, Tensor]]:
    """Return feature vectors (n, d), alone or with labels (n,), as batches."""
    rows, labels = data if isinstance(data, tuple) else (data, None)
    parts = torch.as_tensor(rows).split(ROWS)
    of_labels = [NO_LABELS] * len(parts) if labels is None else torch.as_tensor(labels).split(ROWS)
    return list(zip(parts, of_labels, strict=True))


# images that were used before -----------------------------------------------------------------------------------------


def check_overlap(images: ImageSet, used: Sequence[Any]) -> None:
    """Raise OverlapError where a calibration image is, pixel for pixel, one of the ``used`` ones, which may be hashes."""
    own = image_hashes(images) if used else []
    for other in used:
        are_hashes = isinstance(other, list | tuple | set | frozenset) and all(
            isinstance(value, bytes) for value in other
        )
        hashes = other if are_hashes else image_hashes(match(as_image_set(other), images.shape))
        _refuse_shared(hashes, own, images if images.paths else None)


def _check_loaders(images: Any, used: Sequence[Any]) -> None:
    """Refuse what a DataLoader of calibration images cannot be compared with, and one that reads the training images."""
    if any(not is_loader(other) for other in used):
        raise ArgumentError(
            "Expected DataLoaders in `used` beside a DataLoader, whose images are already normalised and cannot be compared "
            "with others pixel by pixel: give its dataset with `normalise` instead, or leave `used` out."
        )
    dataset = getattr(images, "dataset", images)
    if any(getattr(other, "dataset", other) is dataset for other in used):
        raise _overlap("All", "the DataLoader reads the same dataset")


def _refuse_shared(hashes: Iterable[bytes], own: Sequence[bytes], files: ImageSet | None = None) -> None:
    numbers = shared(hashes, own)
    if numbers:
        shown = ", ".join(str(n) if files is None else files.called(n) for n in numbers[:5])
        what = f"{'numbers ' if files is None else ''}{shown}{', ...' if len(numbers) > 5 else ''}"
        raise _overlap(f"{len(numbers)} of the {len(own)}", what)


def _overlap(count: str, how_known: str, what: str = "images") -> OverlapError:
    return OverlapError(
        f"{count} calibration {what} were used before, for training, fitting or selection ({how_known}). Their scores are "
        f"lower than those of new ID {what}, and the guarantee would not hold: calibrate on other {what}"
        f"{', or leave these out (--drop-duplicates in the shell)' if what == 'images' else ''}."
    )


def _check_copies(hashes: Sequence[bytes], used: Sequence[bytes]) -> None:
    """Raise OverlapError where more calibration rows are copies of training rows than the data's own copies explain.

    Equal rows occur by themselves among feature vectors, as equal texts do. If the rows of both sets come from one source, a
    calibration row has a copy among the training rows about as often as a training row has one among the others.
    """
    from scipy.stats import binomtest  # which takes long to import

    counts = Counter(used)
    copies = sum(value in counts for value in hashes)
    expected = (1 + sum(number for number in counts.values() if number > 1)) / (1 + len(used))
    if copies and binomtest(copies, len(hashes), min(expected, 1.0), "greater").pvalue < 1e-3:
        raise _overlap(f"{copies} of the {len(hashes)}", "there are copies of them", "rows")
