"""A calibrated classifier in one object: network, preprocessing, detector and calibration -> predictions with verdicts."""

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from offaxis import __version__
from offaxis.calibration.calibrate import Calibration, calibrate, check_copies, score_batches
from offaxis.data import ImageSet, image_hashes, match
from offaxis.data.image_set import hash_batch
from offaxis.data.sources import LoaderBatches, as_batches, as_image_set, is_loader
from offaxis.data.transforms import Shape
from offaxis.deploy.open import EvaluatedNetwork, NetworkSource, combine, open_network
from offaxis.deploy.prediction import Prediction, Verdict, class_probabilities, verdict
from offaxis.deploy.preprocessing import ImageLike, Preprocessing, VectorInput
from offaxis.detectors import Detector, Reads
from offaxis.detectors.registry import default_detector, make_detector
from offaxis.errors import ArgumentError, BadOutputsError, CalibrationError, DataError
from offaxis.heads import Outputs
from offaxis.networks.ensemble import AnyNetwork
from offaxis.networks.inference import resolve_device, run_batch, to_network

if TYPE_CHECKING:
    from offaxis.deploy.engine import OnnxEngine  # which imports this module

__all__ = ["Model", "Prediction", "Verdict"]

NEAREST = 5  # classes that a prediction lists
NOT_FINITE = "Expected finite outputs of the network but for this image it gives no finite numbers."


@dataclass(frozen=True, eq=False, kw_only=True)
class Examples:
    """Calibration images that are kept with a model; see :func:`offaxis.deploy.explain.with_examples`.

    Attributes:
        pixels: uint8 (K, c, h, w), as the network takes them.
        features: float32 (K, d), of unit length.
        predicted: int64 (K,), the predicted classes.
    """

    pixels: Tensor
    features: Tensor
    predicted: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class Model:
    """A calibrated classifier, as ``offaxis.load`` reads it from a bundle.

    Attributes:
        network: a Classifier, a Paired or an Ensemble; the class that an ensemble predicts is the one with the largest mean
            probability over its members.
        preprocessing: size, colour, mean and standard deviation; a VectorInput where the model scores feature vectors.
        classes: the classes' names, in the order of the logits.
        detector: fitted where it must be.
        calibration: scores of ID images that the network has not seen, and the level alpha.
        provenance: how the model was made, in types that JSON has: ``versions``, ``command``, ``architecture``, ``head``,
            ``recipe``, ``seed``, ``kind``, ``members``, ``training_command``, ``id_sets``, ``calibration_set``.
        used: uint8 (N, 16), hashes of the images that it was trained, fitted or selected on.
        examples: some calibration images to show beside an image, where the operator keeps them in the bundle.
        engine: runs the network instead of PyTorch; see :func:`offaxis.deploy.engine.with_engine`.
    """

    network: AnyNetwork
    preprocessing: Preprocessing | VectorInput
    classes: tuple[str, ...]
    detector: Detector
    calibration: Calibration
    provenance: dict[str, Any] = field(default_factory=dict)
    used: Tensor = field(default_factory=lambda: torch.empty(0, 16, dtype=torch.uint8))
    examples: "Examples | None" = None
    engine: "OnnxEngine | None" = None

    def __post_init__(self) -> None:
        if len(self.classes) != self.network.num_classes or self.calibration.num_classes != len(self.classes):
            raise ArgumentError(
                f"Expected a name for each of the network's {self.network.num_classes} classes but got {len(self.classes)}."
            )
        self.detector.check_network(self.network)

    @classmethod
    def calibrated(
        cls,
        network: "NetworkSource | Model | Sequence[NetworkSource | Model]",
        images: Any,
        *,
        used: Sequence[Any] = (),
        detector: Detector | str | None = None,
        alpha: float = 0.05,
        per_class: bool = False,
        confidence: float | None = None,
        preprocessing: Preprocessing | VectorInput | None = None,
        classes: Sequence[str] = (),
        command: Sequence[str] | None = None,
    ) -> Self:
        """Calibrate a trained network on ID images that it has not seen.

        Args:
            network: whatever ``open_network`` takes, such as the result of ``train`` or the folder of a run; a list of
                these becomes an ensemble.
            images: ID images to calibrate on: an ImageSet, a Dataset of torch or Hugging Face, or a DataLoader, whose
                batches are used unchanged. They have the size that the network takes unless ``preprocessing`` says it.
            used: the sets that training, fitting and selection saw; calibration images must not be among them.
            detector: fitted where it must be, or a name such as ``"energy"``; if None the cosine, of an ensemble
                cosine-ensemble or leave-out.
            alpha: the share of new ID images that may be flagged.
            per_class: whether verdicts are to hold for each predicted class.
            confidence: see :func:`offaxis.calibrate`.
            preprocessing: size, mean and standard deviation of training; needed where the network does not know them.
            classes: names; else those of the training, else numbers.
            command: the command that makes the model, for the record.

        Raises:
            TooFewImagesError, OverlapError: see :func:`offaxis.calibrate`.
            ArgumentError: several networks do not agree in classes or normalisation, or preprocessing is not known.
            DataError: the images cannot be used.
            DetectorError: the detector cannot score such a network.
        """
        if isinstance(preprocessing, VectorInput):
            raise ArgumentError(
                "Expected the preprocessing of images but got that of feature vectors: offaxis.EmbeddingDetector calibrates "
                "these, and Model.recalibrated."
            )
        several = isinstance(network, Sequence) and not isinstance(network, str)
        opened = combine(network) if several else open_network(network)  # type: ignore[arg-type]
        images = images if is_loader(images) else as_image_set(images)
        if preprocessing is None:
            if opened.normalise is None:
                raise ArgumentError(
                    "Expected `preprocessing` beside a network: its image size, mean and std, as in "
                    "offaxis.deploy.Preprocessing((3, 32, 32), offaxis.data.Normalise(mean, std))."
                )
            preprocessing = Preprocessing(_shape(images), opened.normalise, opened.resize)
        std = preprocessing.normalise.std
        if isinstance(detector, str):
            detector = make_detector(detector, opened.network, std)
        detector = _with_contiguous_buffers(detector or default_detector(opened.network, std))
        _move(detector, _device_of(opened.network))
        used_sets = [as_image_set(other) for other in used]
        hashes = [
            h for other in used_sets for h in image_hashes(match(other, preprocessing.shape, preprocessing.resize))
        ]
        calibration, calibration_set = _calibrate(
            opened.network,
            images,
            preprocessing,
            detector,
            hashes,
            alpha=alpha,
            per_class=per_class,
            confidence=confidence,
        )
        names = tuple(classes) or opened.classes or tuple(str(number) for number in range(opened.network.num_classes))
        return cls(
            network=opened.network,
            preprocessing=preprocessing,
            classes=names,
            detector=detector,
            calibration=calibration,
            provenance={
                **_provenance(opened, command),
                "id_sets": [other.describe() for other in used_sets],
                "calibration_set": calibration_set,
            },
            used=pack_hashes(hashes),
        )

    def recalibrated(
        self,
        images: Any,
        alpha: float | None = None,
        per_class: bool | None = None,
        *,
        confidence: float | None = None,
    ) -> Self:
        """Return the same model calibrated on other images; nothing is trained.

        Args:
            images: ID images, as in ``calibrated``.
            alpha: another level; None keeps it.
            per_class: whether verdicts hold for each predicted class; None keeps it.
            confidence: another one; 0 for none, None keeps it.

        Raises:
            TooFewImagesError, OverlapError: see :func:`offaxis.calibrate`.
        """
        calibration, calibration_set = _calibrate(
            self.network,
            images,
            self.preprocessing,
            self.detector,
            unpack_hashes(self.used),
            alpha=self.calibration.alpha if alpha is None else alpha,
            per_class=self.calibration.per_class if per_class is None else per_class,
            confidence=self.calibration.confidence if confidence is None else confidence,
        )
        provenance = {**self.provenance, "calibration_set": calibration_set}
        return replace(self, calibration=calibration, provenance=provenance)

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return _device_of(self.network)

    def to(self, device: str | torch.device) -> Self:
        """Move network and detector to a device (``"auto"``, ``"cpu"``, ``"cuda"``, ``"mps"``), in place.

        Raises:
            ArgumentError: this machine does not have it.
        """
        target = resolve_device(device)
        if self.engine is not None and target.type != "cpu":
            raise ArgumentError(
                f"Expected the CPU for onnxruntime but got {target}: load the model with engine='torch' to move it."
            )
        self.network.to(target)
        _move(self.detector, target)
        return self

    def predict(self, images: "ImageLike | Sequence[ImageLike] | Dataset[Any] | DataLoader[Any]") -> list[Prediction]:
        """Predict class, probability, cosine, score, p-value and verdict for each image.

        Args:
            images: files, bytes, Pillow images or pixels, one or a list; a uint8 tensor (N, c, h, w); an ImageSet, a
                Dataset of torch or Hugging Face: resized and normalised here. Or a DataLoader, whose batches are
                normalised already and used unchanged. For a model of feature vectors: rows of numbers (N, d).

        Raises:
            DataError: an image cannot be read.
            BadOutputsError: the network gives NaN or infinity for an image.
        """
        if isinstance(self.preprocessing, VectorInput):
            return [p for rows in self.preprocessing.batch(images) for p in self.predict_batch(rows)]
        if is_loader(images):
            batches = (self._checked(batch) for batch, _ in as_batches(images, None, 256))
            return [p for batch in batches for p in self._predict(batch)]
        pixels = self.preprocessing.batch(as_image_set(images) if _is_dataset(images) else images)  # type: ignore[arg-type]
        return [p for batch in pixels for p in self.predict_batch(batch)]

    def predict_batch(self, pixels: Tensor) -> list[Prediction]:
        """Predict one batch of pixels uint8 (N, c, h, w), of the network's size, or of rows (N, d), in one pass.

        Raises:
            BadOutputsError: the network gives NaN or infinity for an image.
        """
        if self.engine is not None and len(pixels):
            return self._predictions(*self.engine(pixels))
        return self._predict(self.preprocessing.normalise(pixels)) if len(pixels) else []

    def predict_each(self, pixels: Tensor) -> list[Prediction | str]:
        """Predict as ``predict_batch`` does; an image without finite outputs gets a message and does not affect the others."""
        try:
            return list(self.predict_batch(pixels))
        except (BadOutputsError, CalibrationError):
            if len(pixels) == 1:
                return [NOT_FINITE]
            return [prediction for half in pixels.chunk(2) for prediction in self.predict_each(half)]

    def _predict(self, images: Tensor) -> list[Prediction]:
        """Predict normalised images (N, c, h, w): the only place where a model runs its network."""
        batch = to_network(self.network, images)
        outputs = run_batch(self.network, batch, self.detector.layers)
        if self.detector.reads is Reads.IMAGES:
            scores = self.detector.score_images(self.network, batch)
        else:
            scores = self.detector.score(outputs)
        return self._predictions(scores.double().cpu().numpy(), outputs)

    def _checked(self, batch: Tensor) -> Tensor:
        shape = self.preprocessing.shape
        if tuple(batch.shape[1:]) != shape:
            raise DataError(
                f"Expected batches of images {shape} from the DataLoader but got {tuple(batch.shape[1:])}: resize them in its "
                "transform, or pass the data set, which is resized here."
            )
        return batch

    def _predictions(self, scores: np.ndarray[Any, np.dtype[np.float64]], outputs: Outputs) -> list[Prediction]:
        probabilities = class_probabilities(outputs)
        probability, predicted = probabilities.max(1)
        chances = probability.tolist()
        closeness = probabilities if outputs.cosine is None else outputs.cosine
        nearest = closeness.topk(min(NEAREST, closeness.shape[1]), dim=1)
        indices, values = nearest.indices.tolist(), nearest.values.tolist()
        cosines = [None if outputs.cosine is None else row[0] for row in values]
        classes = predicted.cpu().numpy()
        p_values = self.calibration.p_values(scores).tolist()
        class_p_values = [
            None if math.isnan(p) else p for p in self.calibration.class_p_values(scores, classes).tolist()
        ]
        levels, per_class = self.calibration.levels, self.calibration.per_class
        return [
            Prediction(
                class_name=self.classes[index],
                class_index=index,
                probability=chances[i],
                cosine=cosines[i],
                score=float(scores[i]),
                p_value=p_values[i],
                class_p_value=class_p_values[i],
                verdict=verdict(p_values[i], class_p_values[i], levels[index], per_class),
                nearest=tuple((self.classes[c], value) for c, value in zip(indices[i], values[i], strict=True)),
            )
            for i, index in enumerate(classes.tolist())
        ]

    def save(self, path: str | Path, *, folder: bool = False, builder: dict[str, Any] | None = None) -> None:
        """Write the model as one file or as a folder; see :func:`offaxis.deploy.bundle.save_bundle`."""
        from offaxis.deploy.bundle import save_bundle  # which imports this module

        save_bundle(self, path, folder=folder, builder=builder)


def pack_hashes(hashes: Sequence[bytes], *, distinct: bool = True) -> Tensor:
    """Pack hashes of 16 bytes into uint8 (N, 16), sorted, each once unless copies are to be counted."""
    packed = b"".join(sorted(set(hashes) if distinct else hashes))
    return torch.from_numpy(np.frombuffer(packed, np.uint8).reshape(-1, 16).copy())


def unpack_hashes(packed: Tensor) -> list[bytes]:
    """Return the hashes that ``pack_hashes`` packed."""
    return [row.tobytes() for row in packed.numpy()]


def _calibrate(
    network: AnyNetwork,
    images: Any,
    preprocessing: Preprocessing | VectorInput,
    detector: Detector,
    hashes: Sequence[bytes],
    *,
    alpha: float,
    per_class: bool,
    confidence: float | None,
) -> tuple[Calibration, dict[str, Any]]:
    """Return the calibration and what it was made on; images that were used before (``hashes``) are refused."""
    promise: dict[str, Any] = {"alpha": alpha, "per_class": per_class, "confidence": confidence}
    if isinstance(preprocessing, VectorInput):
        rows = torch.cat(list(preprocessing.batch(images)))
        check_copies(hash_batch(rows), hashes)
        scored = score_batches(network, rows.split(4096), detector)
        calibration = Calibration.from_scores(
            scored.scores, scored.predicted, network.num_classes, cosine=scored.cosine, **promise
        )
        return calibration, {"name": "feature vectors", "images": len(rows), "fingerprint": None}
    used = [hashes] if hashes else []
    if is_loader(images):
        calibration = calibrate(network, images, None, detector, used=used, **promise)
        name = LoaderBatches(images).name
        return calibration, {"name": name, "images": len(calibration.scores), "fingerprint": None}
    fitted = match(as_image_set(images), preprocessing.shape, preprocessing.resize)
    calibration = calibrate(network, fitted, preprocessing.normalise, detector, used=used, **promise)
    return calibration, fitted.describe()


def _provenance(opened: EvaluatedNetwork, command: Sequence[str] | None) -> dict[str, Any]:
    return {
        "versions": {"offaxis": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "command": None if command is None else list(command),
        "architecture": opened.architecture,
        "head": opened.head,
        "recipe": opened.recipe,
        "seed": opened.seed,
        "kind": opened.kind,
        "members": list(opened.members),
        "training_command": opened.command,
    }


def _device_of(network: AnyNetwork) -> torch.device:
    parameter = next(network.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _move(detector: Detector, device: torch.device) -> None:
    if any(tensor.device != device for tensor in detector.state_dict().values()):
        detector.to(device, torch.float32 if device.type == "mps" else None)  # which has no float64


def _is_dataset(images: Any) -> bool:
    """Return whether these are images of a data set, of torch or of Hugging Face, that is not an ImageSet."""
    hugging_face = hasattr(images, "features") and hasattr(images, "column_names")
    return hugging_face or (isinstance(images, Dataset) and not isinstance(images, ImageSet))


def _shape(images: Any) -> Shape:
    """Return (channels, height, width) of images."""
    if not is_loader(images):
        return as_image_set(images).shape
    for batch, _ in as_batches(images, None, 256):
        channels, height, width = batch.shape[1:]
        return channels, height, width
    raise DataError("Expected calibration images but the DataLoader gives no batch.")


def _with_contiguous_buffers(detector: Detector) -> Detector:
    """Lay the detector's buffers out as a file gives them back: the layout decides how sums are rounded."""
    for part in detector.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = buffer.contiguous()
    return detector
