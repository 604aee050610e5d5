"""ID images -> a p-value for one image, and a threshold that flags at most alpha of new ID images.

The guarantee is marginal (over all ID images) or per predicted class (Mondrian: each class is compared with its own
calibration images alone). It asks that the calibration images come from the same source as the images to judge, and that
nothing was trained, fitted or selected on them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from offaxis.calibration import conformal
from offaxis.calibration.conformal import Floats
from offaxis.data import ImageSet, Normalise
from offaxis.data.image_set import hash_batch, image_hashes, shared
from offaxis.data.transforms import match
from offaxis.detectors import Detector, Reads
from offaxis.detectors.registry import default_detector
from offaxis.errors import CalibrationError, DataError, OverlapError
from offaxis.networks.inference import Network, eval_mode, to_network

Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Calibration:
    """What is known of ID images that the network has never seen.

    Attributes:
        scores: (n,) float64, ascending; larger = more out-of-distribution.
        predicted: (n,) int64, the class that the network gave each of them.
        num_classes: C.
        alpha: the share of new ID images that may be flagged.
        per_class: whether verdicts compare an image with those of its predicted class alone.
        cosine: (n,) float64, the largest cosine of each; None where the network has none.
    """

    scores: Floats
    predicted: Labels
    num_classes: int
    alpha: float = 0.05
    per_class: bool = False
    cosine: Floats | None = None

    @classmethod
    def from_scores(
        cls,
        scores: Floats,
        predicted: Labels,
        num_classes: int,
        alpha: float = 0.05,
        per_class: bool = False,
        cosine: Floats | None = None,
    ) -> Self:
        """A calibration from scores (n,) and predicted classes (n,) of ID images, in any order.

        Raises:
            TooFewImagesError: n is too small for alpha; with ``per_class``, no class has enough.
            CalibrationError: scores are not finite, or the classes do not fit.
        """
        values, classes = conformal.check_scores(scores), np.asarray(predicted, np.int64)
        if classes.shape != values.shape or (len(classes) and not 0 <= classes.min() <= classes.max() < num_classes):
            raise CalibrationError(f"Expected a class from 0 to {num_classes - 1} for each of {len(values)} scores.")
        order = np.argsort(values, kind="stable")
        sorted_cosine = None if cosine is None else np.asarray(cosine, np.float64)[order]
        made = cls(values[order], classes[order], num_classes, alpha, per_class, sorted_cosine)
        made.check()
        return made

    def check(self) -> None:
        """Raise TooFewImagesError where nothing could ever be flagged."""
        conformal.check_count(len(self.scores), self.alpha)
        if self.per_class:
            largest = max(self.class_counts())
            conformal.check_count(largest, self.alpha, " of one class (the class with the most)")

    def with_alpha(self, alpha: float) -> Self:
        """The same calibration images with another level."""
        made = replace(self, alpha=conformal.check_alpha(alpha))
        made.check()
        return made

    def class_counts(self) -> list[int]:
        """How many calibration images were given to each class."""
        return [int(count) for count in np.bincount(self.predicted, minlength=self.num_classes)]

    def enough(self) -> list[bool]:
        """For each class, whether it has enough calibration images for a verdict of its own at this alpha."""
        least = conformal.smallest_count(self.alpha)
        return [count >= least for count in self.class_counts()]

    def threshold(self) -> float:
        """The score above which an image is flagged, over all classes."""
        return conformal.threshold(self.scores, self.alpha)

    def class_thresholds(self) -> list[float | None]:
        """The score above which an image of each predicted class is flagged; None where images are too few."""
        return [
            conformal.threshold(self.scores[self.predicted == c], self.alpha) if enough else None
            for c, enough in enumerate(self.enough())
        ]

    def p_values(self, scores: Floats) -> Floats:
        """Scores (N,) -> marginal p-values (N,) in (0, 1]; small = out-of-distribution."""
        return conformal.p_values(conformal.check_scores(scores), self.scores)

    def class_p_values(self, scores: Floats, predicted: Labels) -> Floats:
        """Scores (N,) and predicted classes (N,) -> Mondrian p-values (N,); NaN where a class has too few images."""
        values, enough = conformal.check_scores(scores), self.enough()
        found = np.full(len(values), np.nan)
        for c in np.unique(predicted).tolist():
            if enough[c]:
                chosen = predicted == c
                found[chosen] = conformal.p_values(values[chosen], self.scores[self.predicted == c])
        return found

    def flag_rate(self) -> conformal.FlagRate:
        """What share of new ID images this many calibration images flag in the long run, and how sure that is."""
        return conformal.flag_rate(len(self.scores), self.alpha)

    def class_flag_rates(self) -> list[conformal.FlagRate | None]:
        """The same for each predicted class with its own calibration images; None where they are too few."""
        return [
            conformal.flag_rate(count, self.alpha) if enough else None
            for count, enough in zip(self.class_counts(), self.enough(), strict=True)
        ]


def calibrate(
    network: Network,
    images: ImageSet,
    normalise: Normalise,
    detector: Detector | None = None,
    *,
    alpha: float = 0.05,
    per_class: bool = False,
    used: Sequence[ImageSet | Iterable[bytes]] = (),
    batch: int = 256,
) -> Calibration:
    """Calibrate a detector on ID images that nothing was trained, fitted or selected on.

    Args:
        network: a Classifier, a Paired or an Ensemble, trained.
        images: ID images; labels are not used.
        normalise: as in training.
        detector: any that can judge such a network, fitted where it must be; if None the cosine, of an ensemble
            cosine-ensemble or leave-out.
        alpha: the share of new ID images that may be flagged.
        per_class: whether verdicts are to hold for each predicted class.
        used: image sets (or their ``image_hashes``) that training, fitting or selection saw.
        batch: images a step.

    Raises:
        TooFewImagesError: fewer than ceil(1 / alpha) - 1 images.
        OverlapError: some of them are among ``used``.
        DetectorError: the detector cannot judge such a network.
    """
    detector = detector or default_detector(network, normalise.std)
    detector.check_network(network)
    if len(images) == 0:
        raise DataError(f"Expected calibration images but {images.name} has none.")
    conformal.check_count(len(images), alpha)
    check_overlap(images, used)
    parts: list[tuple[Floats, Labels, Floats | None]] = []
    for pixels in images.batches(batch):
        on_device = to_network(network, normalise(pixels))
        with eval_mode(network), torch.no_grad():
            outputs = network.outputs(on_device, detector.layers)
        reads_images = detector.reads is Reads.IMAGES
        scores = detector.score_images(network, on_device) if reads_images else detector.score(outputs)
        cosine = None if outputs.cosine is None else outputs.cosine.amax(1).double().cpu().numpy()
        parts.append((scores.double().cpu().numpy(), outputs.logits.argmax(1).cpu().numpy(), cosine))
    cosines = [cosine for *_, cosine in parts if cosine is not None]
    return Calibration.from_scores(
        np.concatenate([scores for scores, *_ in parts]),
        np.concatenate([predicted for _, predicted, _ in parts]),
        network.num_classes,
        alpha,
        per_class,
        np.concatenate(cosines) if cosines else None,
    )


def check_overlap(images: ImageSet, used: Sequence[ImageSet | Iterable[bytes]]) -> None:
    """Raise OverlapError where a calibration image is, pixel for pixel, one of the ``used`` ones."""
    if not used:
        return
    own = [value for pixels in images.batches(1024) for value in hash_batch(pixels)]
    for other in used:
        hashes = image_hashes(match(other, images.shape)) if isinstance(other, ImageSet) else other
        found = shared(hashes, own)
        if found:
            shown = ", ".join(map(str, found[:5])) + (", ..." if len(found) > 5 else "")
            raise OverlapError(
                f"{len(found)} of the {len(own)} calibration images were used before, for training, fitting or selection "
                f"(numbers {shown}). Their scores look more familiar than those of new images, and the guarantee would not "
                "hold: calibrate on other images."
            )
