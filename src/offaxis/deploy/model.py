"""A classifier that knows what it was trained for: network, preprocessing, detector and calibration in one object."""

import math
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from offaxis import __version__
from offaxis.calibration.calibrate import Calibration, calibrate
from offaxis.data import ImageSet, image_hashes, match
from offaxis.deploy.open import Together, together
from offaxis.deploy.preprocessing import ImageLike, Preprocessing
from offaxis.detectors import Detector, Reads
from offaxis.detectors.registry import default_detector
from offaxis.errors import ArgumentError
from offaxis.heads import Outputs
from offaxis.networks.ensemble import AnyNetwork
from offaxis.networks.inference import check_finite, eval_mode, to_network
from offaxis.training import Trained


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


NEAREST = 5


@dataclass(frozen=True, eq=False)
class Model:
    """What ``offaxis.load`` gives and a bundle holds.

    Attributes:
        network: a Classifier, a Paired or an Ensemble; the class that an ensemble names is the one with the largest mean
            probability over its members.
        preprocessing: size, colour, mean and standard deviation.
        classes: the classes' names, in the order of the logits.
        detector: fitted where it must be.
        calibration: scores of ID images that the network has not seen, and the level alpha.
        provenance: versions, the ID set, the calibration set, as JSON can hold it.
        used: uint8 (N, 16), hashes of the images that it was trained, fitted or selected on.
    """

    network: AnyNetwork
    preprocessing: Preprocessing
    classes: tuple[str, ...]
    detector: Detector
    calibration: Calibration
    provenance: dict[str, Any] = field(default_factory=dict)
    used: Tensor = field(default_factory=lambda: torch.empty(0, 16, dtype=torch.uint8))

    def __post_init__(self) -> None:
        if len(self.classes) != self.network.num_classes or self.calibration.num_classes != len(self.classes):
            raise ArgumentError(
                f"Expected a name for each of the network's {self.network.num_classes} classes but got {len(self.classes)}."
            )
        self.detector.check_network(self.network)

    @classmethod
    def calibrated(
        cls,
        trained: Trained | Sequence[Trained] | Together | AnyNetwork,
        images: ImageSet,
        *,
        used: Sequence[ImageSet] = (),
        detector: Detector | None = None,
        alpha: float = 0.05,
        per_class: bool = False,
        preprocessing: Preprocessing | None = None,
        classes: Sequence[str] = (),
    ) -> Self:
        """A model from a trained network and ID images that it has not seen.

        Args:
            trained: what ``train`` or ``load_run`` gave; several such, which become an ensemble; what ``together`` made of
                them; or a network with ``preprocessing`` beside it.
            images: ID images to calibrate on, of the size that the network takes unless ``preprocessing`` says it.
            used: the sets that training, fitting and selection saw; calibration images must not be among them.
            detector: if None the cosine; of an ensemble cosine-ensemble or leave-out.
            alpha: the share of new ID images that may be flagged.
            per_class: whether verdicts are to hold for each predicted class.
            preprocessing: what training did; needed where ``trained`` does not know it.
            classes: names; else those of the training, else numbers.

        Raises:
            TooFewImagesError, OverlapError: see :func:`offaxis.calibrate`.
            BundleError: several trainings do not agree in classes or normalisation.
            DetectorError: the detector cannot judge such a network.
        """
        if isinstance(trained, Trained):
            trained = together([trained], "single")
        elif isinstance(trained, Sequence):
            trained = together(trained)
        network = trained.network if isinstance(trained, Together) else trained
        if preprocessing is None:
            if not isinstance(trained, Together):
                raise ArgumentError("Expected `preprocessing` beside a network: its image size, mean and std.")
            preprocessing = Preprocessing(images.shape, trained.normalise)
        names = tuple(classes) or (trained.classes if isinstance(trained, Together) else ())
        names = names or tuple(str(number) for number in range(network.num_classes))
        detector = _laid_out(detector or default_detector(network, preprocessing.normalise.std))
        fitted = match(images, preprocessing.shape)
        hashes = [h for other in used for h in image_hashes(match(other, preprocessing.shape))]
        calibration = calibrate(
            network, fitted, preprocessing.normalise, detector, alpha=alpha, per_class=per_class, used=[hashes]
        )
        provenance = {
            "offaxis": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "id_sets": [_about(other) for other in used],
            "calibration_set": _about(fitted),
        }
        return cls(network, preprocessing, names, detector, calibration, provenance, pack_hashes(hashes))

    def recalibrated(self, images: ImageSet, alpha: float | None = None, per_class: bool | None = None) -> Self:
        """The same model with other calibration images; nothing is trained.

        Raises:
            TooFewImagesError, OverlapError: see :func:`offaxis.calibrate`.
        """
        fitted = match(images, self.preprocessing.shape)
        calibration = calibrate(
            self.network,
            fitted,
            self.preprocessing.normalise,
            self.detector,
            alpha=self.calibration.alpha if alpha is None else alpha,
            per_class=self.calibration.per_class if per_class is None else per_class,
            used=[unpack_hashes(self.used)],
        )
        provenance = {**self.provenance, "calibration_set": _about(fitted)}
        return replace(self, calibration=calibration, provenance=provenance)

    def predict(self, images: ImageLike | Sequence[ImageLike] | ImageSet | Tensor) -> list[Prediction]:
        """Class, probability, cosine, score, p-value and verdict for each image.

        Args:
            images: files, bytes, Pillow images or pixels, one or a list; a uint8 tensor (N, c, h, w); or an ImageSet.
                They are made to fit and normalised here.

        Raises:
            DataError: an image cannot be read.
        """
        return [p for pixels in self.preprocessing.batch(images) for p in self.judge(pixels)]

    def judge(self, pixels: Tensor) -> list[Prediction]:
        """Pixels uint8 (N, c, h, w) of the network's size -> N predictions.

        Raises:
            BadOutputsError: the network gives NaN or infinity for an image.
        """
        if not len(pixels):
            return []
        images = to_network(self.network, self.preprocessing.normalise(pixels))
        with eval_mode(self.network), torch.no_grad():
            outputs = self.network.outputs(images, self.detector.layers)
        if self.detector.reads is Reads.IMAGES:
            scores = self.detector.score_images(self.network, images)
        else:
            scores = self.detector.score(outputs)
        probabilities = class_probabilities(outputs)
        probability, predicted = probabilities.max(1)
        closeness = probabilities if outputs.cosine is None else outputs.cosine
        nearest = closeness.topk(min(NEAREST, closeness.shape[1]), dim=1)
        return list(
            self._predictions(
                scores.double().cpu().numpy(),
                predicted.cpu().numpy(),
                probability.tolist(),
                None if outputs.cosine is None else outputs.cosine.amax(1).tolist(),
                nearest.indices.tolist(),
                nearest.values.tolist(),
            )
        )

    def _predictions(
        self,
        scores: np.ndarray[Any, np.dtype[np.float64]],
        predicted: np.ndarray[Any, np.dtype[np.int64]],
        probability: list[float],
        cosine: list[float] | None,
        nearest: list[list[int]],
        values: list[list[float]],
    ) -> Iterator[Prediction]:
        p_values = self.calibration.p_values(scores).tolist()
        class_p_values = self.calibration.class_p_values(scores, predicted).tolist()
        for i, index in enumerate(predicted.tolist()):
            within = None if math.isnan(class_p_values[i]) else class_p_values[i]
            yield Prediction(
                self.classes[index],
                index,
                probability[i],
                None if cosine is None else cosine[i],
                float(scores[i]),
                p_values[i],
                within,
                verdict(p_values[i], within, self.calibration.alpha, self.calibration.per_class),
                tuple((self.classes[c], value) for c, value in zip(nearest[i], values[i], strict=True)),
            )

    def save(self, path: str | Path, *, folder: bool = False, builder: dict[str, Any] | None = None) -> None:
        """Write the model as one file (or a folder); see :func:`offaxis.deploy.bundle.save`."""
        from offaxis.deploy.bundle import save_bundle  # the bundle knows the model, so the model asks for it late

        save_bundle(self, path, folder=folder, builder=builder)


def class_probabilities(outputs: Outputs) -> Tensor:
    """Outputs of N images -> probabilities (N, C), all of them finite.

    A predicted scale can be too large for its type, which makes logits infinite and their softmax NaN. The class with the
    largest cosine then has all of the probability, as it has in the limit of a growing scale.

    Raises:
        BadOutputsError: there is no cosine to go by, or it is not finite either.
    """
    found = outputs.logits.float().softmax(1)
    lost = found.isnan().any(1)
    if outputs.cosine is not None and lost.any():
        found[lost] = (outputs.cosine[lost].float() * torch.finfo(torch.float32).max).softmax(1)
    check_finite("the class probabilities", found)
    return found


def pack_hashes(hashes: Sequence[bytes]) -> Tensor:
    """Hashes of 16 bytes -> uint8 (N, 16), each once and in order of their value."""
    distinct = b"".join(sorted(set(hashes)))
    return torch.from_numpy(np.frombuffer(distinct, np.uint8).reshape(-1, 16).copy())


def unpack_hashes(packed: Tensor) -> list[bytes]:
    """What ``pack_hashes`` packed."""
    return [row.tobytes() for row in packed.numpy()]


def _laid_out(detector: Detector) -> Detector:
    """The detector with its buffers in plain order, as a file gives them back: order decides how sums are rounded."""
    for part in detector.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = buffer.contiguous()
    return detector


def _about(images: ImageSet) -> dict[str, Any]:
    return {"name": images.name, "images": len(images), "fingerprint": images.fingerprint}
