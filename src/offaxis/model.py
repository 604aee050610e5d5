"""A calibrated classifier in one object: network, preprocessing, detector and calibration -> predictions with verdicts."""

import platform
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, Self, Unpack

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from offaxis import __version__
from offaxis.calibration import conformal
from offaxis.calibration.calibration import Calibration, Promise, calibrate
from offaxis.calibration.classes import class_probabilities, class_sets
from offaxis.calibration.doubts import changes, check_normalised, doubts_of_scores
from offaxis.calibration.drift import appearances, usual_appearance
from offaxis.data import ImageSet, TensorSet, image_hashes
from offaxis.data.adapt import LoaderBatches, as_batches, as_image_set, is_loader
from offaxis.data.images import pack_hashes, unpack_hashes
from offaxis.data.transforms import ImageLike, Preprocessing, VectorInput
from offaxis.detectors import Detector, Reads
from offaxis.detectors.registry import as_detector
from offaxis.errors import ArgumentError, BadOutputsError, CalibrationError, DataError, NotFittedError
from offaxis.hub import push_to_hub
from offaxis.networks.combine import AnyNetwork
from offaxis.networks.open import NetworkSource, combine, open_network
from offaxis.networks.opened import OpenedNetwork
from offaxis.networks.run import (
    PASSED,
    device_of,
    memory_parts,
    resolve_device,
    run_batch,
    running,
    threads_for,
    to_network,
)
from offaxis.prediction import Floats, Prediction, Scores, Verdict, largest, verdict
from offaxis.progress import count, html_card

__all__ = ["Model", "Prediction", "Verdict"]

Engine = Callable[[Tensor], tuple[Scores, Floats, Floats | None]]
"""Computes scores (N,), logits (N, C) and cosines (N, C), if any, of pixels uint8 (N, c, h, w)."""
NEAREST = 5  # classes that a prediction lists
NOT_FINITE = "Expected finite outputs of the network but for this image it gives no finite numbers."


@dataclass(frozen=True, eq=False, kw_only=True)
class Examples:
    """Calibration images that are kept with a model; see :func:`offaxis.explain.with_examples`.

    Attributes:
        pixels: uint8 (K, c, h, w), as the network takes them.
        features: float32 (K, d), of unit length.
        predicted: int64 (K,), the predicted classes.
    """

    pixels: Tensor
    features: Tensor
    predicted: Tensor

    def among(self, hashes: Tensor) -> "Examples | None":
        """Return those whose hashes are among these (n, 16); None for none."""
        known = set(unpack_hashes(hashes))
        kept = torch.tensor([each in known for each in image_hashes(TensorSet("examples", self.pixels))])
        chosen = Examples(pixels=self.pixels[kept], features=self.features[kept], predicted=self.predicted[kept])
        return chosen if len(chosen.predicted) else None


class Source(NamedTuple):
    """The bundle that a model was read from.

    Attributes:
        name: of the file or folder, without those around it; of the hub, ``hf:name/repo``.
        sha256: the checksum that stands for everything in it.
    """

    name: str
    sha256: str


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
            ``recipe``, ``seed``, ``kind``, ``members``, ``training_command``, ``id_sets``, ``calibration_set``,
            ``calibration_date``, ``overlap_checked``.
        used: uint8 (N, 16), hashes of the images that it was trained, fitted or selected on.
        calibrated_on: uint8 (n, 16), hashes of the calibration images, as far as they are known.
        examples: some calibration images to show beside an image, where the operator keeps them in the bundle.
        engine: runs the network instead of PyTorch; see :func:`offaxis.onnx.with_engine`.
        source: the bundle that it was read from; None once it was calibrated again.
    """

    network: AnyNetwork
    preprocessing: Preprocessing | VectorInput
    classes: tuple[str, ...]
    detector: Detector
    calibration: Calibration
    provenance: dict[str, Any] = field(default_factory=dict)
    used: Tensor = field(default_factory=lambda: torch.empty(0, 16, dtype=torch.uint8))
    calibrated_on: Tensor = field(default_factory=lambda: torch.empty(0, 16, dtype=torch.uint8))
    examples: "Examples | None" = None
    engine: Engine | None = None
    source: "Source | None" = None

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
        fit: Any = None,
        used: Sequence[Any] = (),
        detector: Detector | str | None = None,
        preprocessing: Preprocessing | VectorInput | None = None,
        classes: Sequence[str] = (),
        **promise: Unpack[Promise],
    ) -> Self:
        """Calibrate a trained network on ID images that it has not seen.

        Args:
            network: whatever ``open_network`` takes, such as the result of ``train`` or the folder of a run; any other
                trained module, whose output layer is kept (``attach(module, head="keep")``); a list becomes an ensemble.
            images: ID images to calibrate on: an ImageSet, a Dataset of torch or Hugging Face, or a DataLoader, whose
                batches are used unchanged. They have the size that the network takes unless ``preprocessing`` says it.
            fit: labelled training images for a detector that must be fitted and is not yet: as ``images``. None for the
                set of ``used``, where that is one.
            used: the sets that training, fitting and selection saw, ``fit`` aside; calibration images must not be among
                them. A DataLoader can be compared with a DataLoader alone, image by image as they leave it. Where there are
                none, the model says that this was not checked (``overlap_checked``).
            detector: a name such as ``"energy"``, or a detector, fitted or not; if None the default of such a network, see
                :func:`offaxis.detectors.default_detector`.
            preprocessing: size, mean and standard deviation of training; needed where the network does not know them.
            classes: names; else those of the training, else those of the labelled images, else numbers.
            promise: ``alpha``, the share of new ID images that may be flagged (0.05); ``per_class``, whether verdicts are to
                hold for each predicted class; ``confidence`` and ``max_error``: see :func:`offaxis.calibrate`.

        Raises:
            TooFewImagesError, OverlapError: see :func:`offaxis.calibrate`.
            ArgumentError: several networks do not agree in classes or normalisation, or preprocessing is not known.
            DataError: the images cannot be used.
            DetectorError: the detector cannot score such a network.
        """
        if isinstance(preprocessing, VectorInput):
            raise ArgumentError("Expected images but got feature vectors: offaxis.EmbeddingDetector calibrates these.")
        several = isinstance(network, Sequence) and not isinstance(network, str)
        opened = combine(network) if several else open_network(network, head="keep")  # type: ignore[arg-type]
        # several passes follow
        images, fit, *used = (list(x) if isinstance(x, Iterator) else x for x in (images, fit, *used))
        loader = is_loader(images)
        images = images if loader else as_image_set(images)
        wanted = preprocessing or _preprocessing_of(opened, images)
        detector = as_detector(detector, opened.network, wanted.normalise.std)
        detector.check_expects()
        if detector.needs_fit and not detector.fitted:
            training = _fitting_images(detector, fit, used)
            normalise = None if is_loader(training) else wanted.normalise
            detector.fit(
                opened.network, training if normalise is None else wanted.match(as_image_set(training)), normalise
            )
        for part in detector.modules():  # laid out as a file gives them back: it decides how sums are rounded
            part._buffers.update({name: None if b is None else b.contiguous() for name, b in part._buffers.items()})
        detector.move_to(device_of(opened.network))
        alone = [] if fit is None or any(fit is other for other in used) else [fit]
        loaders = [*(used if loader else ()), *filter(is_loader, alone)]
        sets = [as_image_set(each) for each in (*used, *alone) if not any(each is other for other in loaders)]
        hashes = [h for other in sets for h in image_hashes(wanted.match(other))]
        compared = loaders if loader else [hashes] if hashes else []
        labelled = [each for each in (*sets, images) if isinstance(each, ImageSet)]
        named = [each.classes for each in labelled if len(each.classes) == opened.network.num_classes]
        numbers = tuple(map(str, range(opened.network.num_classes)))
        names = tuple(classes) or opened.classes or tuple(named[0] if named else numbers)
        calibration, about, calibrated_on = _calibrate(
            opened.network, images, wanted, detector, compared, names, promise
        )
        return cls(
            network=opened.network,
            preprocessing=wanted,
            classes=names,
            detector=detector,
            calibration=calibration,
            provenance={
                "versions": versions(),
                "command": None,
                "architecture": opened.architecture,
                "head": opened.head,
                "recipe": opened.recipe,
                "seed": opened.seed,
                "kind": opened.kind,
                "members": list(opened.members),
                "training_command": opened.command,
                "id_sets": [other.describe() for other in sets],
                "calibration_set": about,
                "calibration_date": today(),
                "overlap_checked": bool(compared) and not (loader and any(map(changes, (images, *loaders)))),
            },
            used=pack_hashes(hashes),
            calibrated_on=calibrated_on,
        )

    @property
    def overlap_checked(self) -> bool:
        """Whether the calibration images were compared with those of training: none of them is among those then."""
        return bool(self.provenance.get("overlap_checked", len(self.used) > 0))

    @property
    def expectation(self) -> dict[str, Any] | None:
        """What it can be expected to find, as ``offaxis bundle`` estimated it; None where nothing was estimated."""
        found = self.provenance.get("expectation")
        return found if isinstance(found, dict) else None

    def recalibrated(
        self,
        images: Any = None,
        alpha: float | None = None,
        per_class: bool | None = None,
        *,
        confidence: float | None = None,
        max_error: float | None = None,
    ) -> Self:
        """Return the same model calibrated on other images, or for another level on the same; nothing is trained.

        Of its examples those among them are kept; none beside a DataLoader, whose images are not compared with files.

        Args:
            images: ID images, as in ``calibrated``; None for the scores that are calibrated on already.
            alpha: another level; None keeps it.
            per_class: whether verdicts hold for each predicted class; None keeps it.
            confidence: another one; 0 for none, None keeps it.
            max_error: likewise.

        Raises:
            TooFewImagesError, OverlapError: see :func:`offaxis.calibrate`.
        """
        own = self.calibration
        promise: Promise = {
            "alpha": own.alpha if alpha is None else alpha,
            "per_class": own.per_class if per_class is None else per_class,
            "confidence": own.confidence if confidence is None else confidence,
            "max_error": own.max_error if max_error is None else max_error,
        }
        if images is None:
            conformal.check_alpha(promise["alpha"])
            provenance = {name: value for name, value in self.provenance.items() if name != "held_out"}
            return replace(self, calibration=replace(own, **promise), provenance=provenance)
        used = [unpack_hashes(self.used)] if len(self.used) and not is_loader(images) else []
        calibration, about, hashes = _calibrate(
            self.network, images, self.preprocessing, self.detector, used, self.classes, promise
        )
        whose = "images of the calibration before"
        doubts = doubts_of_scores(calibration.scores, calibration.accuracy, own.scores, own.accuracy, whose)
        for doubt in doubts:
            warnings.warn(doubt, stacklevel=2)
        about = {"calibration_set": about, "calibration_date": today(), "overlap_checked": bool(used), "doubts": doubts}
        provenance = {**self.provenance, **about}
        provenance.pop("held_out", None)  # what was held out may be calibrated on now
        examples = None if self.examples is None else self.examples.among(hashes)
        changed: dict[str, Any] = {"calibration": calibration, "calibrated_on": hashes, "examples": examples}
        return replace(self, **changed, provenance=provenance, source=None)

    def public_provenance(self) -> dict[str, Any]:
        """Return how the model was made without commands and folders, for those who use it elsewhere."""
        return {
            name: _without_folders(value) for name, value in self.provenance.items() if not name.endswith("command")
        }

    def opened(self) -> OpenedNetwork:
        """Return the network with what the model knows of it, as ``open_network`` does."""
        known = self.provenance
        id_sets: list[dict[str, Any]] = known.get("id_sets", [])
        images = self.preprocessing if isinstance(self.preprocessing, Preprocessing) else None
        return OpenedNetwork(
            network=self.network,
            normalise=images.normalise if images else None,
            size=images.shape[1:] if images else None,
            resize=images.resize if images else None,
            classes=self.classes,
            seed=known.get("seed", 0),
            id=id_sets[0].get("name") if id_sets else None,
            architecture=known.get("architecture"),
            head=known.get("head"),
            recipe=known.get("recipe"),
            data=id_sets[0] if id_sets else None,
            members=tuple(known.get("members", ())),
            command=known.get("training_command"),
        )

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return device_of(self.network)

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
        double = any(tensor.dtype == torch.float64 for tensor in self.network.state_dict().values())
        self.network.to(target, torch.float32 if target.type == "mps" and double else None)  # which has no float64
        self.detector.move_to(target)
        return self

    def predict(
        self, images: "ImageLike | Sequence[ImageLike] | Dataset[Any] | DataLoader[Any] | Iterator[Any]"
    ) -> list[Prediction]:
        """Predict class, probability, cosine, score, p-value and verdict for each image.

        Args:
            images: files, bytes, Pillow images or pixels, one or a list; a uint8 tensor (N, c, h, w); an ImageSet, a
                Dataset of torch or Hugging Face: resized and normalised here. Or a DataLoader, a list of batches or a
                generator, whose batches are normalised already and used unchanged. For a model of feature
                vectors: rows of numbers (N, d).

        Raises:
            DataError: an image cannot be read.
            BadOutputsError: the network gives NaN or infinity for an image.
        """
        predictions: list[Prediction] = []
        if not is_loader(images):
            wanted: Any = as_image_set(images) if _is_dataset(images) else images
            for batch in self.preprocessing.batch(wanted):
                predictions += self.predict_batch(batch)
            return predictions
        for batch, _ in as_batches(images, None, 256):
            if tuple(batch.shape[1:]) != self.preprocessing.shape:
                raise DataError(
                    f"Expected batches of images {self.preprocessing.shape} from the DataLoader but got "
                    f"{tuple(batch.shape[1:])}: resize them in its transform, or pass the data set, which is resized here."
                )
            predictions += self._predict(batch)
        return predictions

    def predict_batch(self, pixels: Tensor) -> list[Prediction]:
        """Predict one batch of pixels uint8 (N, c, h, w), of the network's size, or of rows (N, d), in one pass.

        Raises:
            BadOutputsError: the network gives NaN or infinity for an image.
        """
        if self.engine is not None and len(pixels):
            return self._predictions(*self.engine(pixels))
        return self._predict(self.preprocessing.normalise(pixels)) if len(pixels) else []

    def predict_each(self, pixels: Tensor) -> list[Prediction | str]:
        """Predict as ``predict_batch`` does; an image with outputs that are not finite has a message in its place.

        Such a batch is halved until the image is alone, so that it costs no other one its prediction.
        """
        try:
            return list(self.predict_batch(pixels))
        except (BadOutputsError, CalibrationError):
            if len(pixels) == 1:
                return [NOT_FINITE]
            return [prediction for half in pixels.chunk(2) for prediction in self.predict_each(half)]

    def _predict(self, images: Tensor) -> list[Prediction]:
        """Predict normalised images (N, c, h, w): the only place where a model runs its network."""
        predictions: list[Prediction] = []
        with running(), threads_for(self.network, images):
            for batch in memory_parts(to_network(self.network, images)):
                outputs = run_batch(self.network, batch, self.detector.layers)
                if self.detector.reads is Reads.IMAGES:
                    scores = self.detector.score_images(self.network, batch)
                else:
                    scores = self.detector.score(outputs)
                count(len(batch), PASSED)
                cosine = None if outputs.cosine is None else outputs.cosine.float().cpu().numpy()
                logits = outputs.logits.float().cpu().numpy()
                predictions += self._predictions(scores.cpu().double().numpy(), logits, cosine)
        return predictions

    def _predictions(self, scores: Scores, logits: Floats, cosine: Floats | None) -> list[Prediction]:
        """Return the predictions from scores (N,), logits (N, C) and cosines (N, C)."""
        calibration, names = self.calibration, self.classes
        about = calibration.classes
        probabilities = class_probabilities(logits, cosine, 1.0 if about is None else about.temperature)
        closeness = probabilities if cosine is None else cosine
        indices, values = largest(closeness, min(NEAREST, closeness.shape[1]))
        predicted = probabilities.argmax(1)
        p_values = calibration.p_values(scores).tolist()
        of_classes = calibration.class_p_values(scores, predicted).tolist()
        class_p_values = [None if p != p else p for p in of_classes]  # NaN: too few calibration images
        chances, numbers = probabilities.max(1).tolist(), scores.tolist()
        sets = None if calibration.most_mass is None else class_sets(probabilities, calibration.most_mass)
        least = 0.0 if calibration.alone is None else calibration.alone.probability
        deciding = class_p_values if calibration.per_class else p_values
        return [
            Prediction(
                class_name=names[index],
                class_index=index,
                probability=chances[i],
                cosine=None if cosine is None else values[i][0],
                score=numbers[i],
                p_value=p_values[i],
                class_p_value=class_p_values[i],
                verdict=verdict(deciding[i], calibration.levels[index], chances[i] < least),
                nearest=tuple([(names[c], value) for c, value in zip(indices[i], values[i], strict=True)]),
                classes=None if sets is None else tuple([names[c] for c in sets[i]]),
            )
            for i, index in enumerate(predicted.tolist())
        ]

    @property
    def _architecture(self) -> str:
        return self.provenance.get("architecture") or type(self.network).__name__

    def __repr__(self) -> str:
        return (
            f"Model({self._architecture}, {len(self.classes)} classes, detector {self.detector.name}, "
            f"alpha {self.calibration.alpha:g}, calibrated on {len(self.calibration.scores):,})"
        )

    def _repr_html_(self) -> str:
        names, shape = ", ".join(self.classes[:8]) + (", …" if len(self.classes) > 8 else ""), self.preprocessing.shape
        weights = sum(p.numel() for p in self.network.parameters())
        images = f"images of {shape[1]}x{shape[2]}, {'grey' if shape[0] == 1 else 'RGB'}" if len(shape) == 3 else ""
        rows = {
            "classes": escape(f"{len(self.classes)}: {names}"),
            "network": escape(f"{self._architecture}, {weights:,} parameters"),
            "input": images or f"vectors of {shape[0]} numbers",
            "detector": escape(self.detector.name),
            "calibrated on": f"{len(self.calibration.scores):,} ID images",
            **self.calibration.facts(),
            "device": str(self.device),
        }
        return html_card("A calibrated classifier", rows)

    def save(self, path: str | Path, *, folder: bool = False, builder: dict[str, Any] | None = None) -> None:
        """Write the model as one file or as a folder; see :func:`offaxis.bundle.save_bundle`."""
        from offaxis.bundle import save_bundle  # which imports this module

        save_bundle(self, path, folder=folder, builder=builder)

    push_to_hub = push_to_hub


def _calibrate(
    network: AnyNetwork,
    images: Any,
    wanted: Preprocessing | VectorInput,
    detector: Detector,
    used: Sequence[Any],
    classes: tuple[str, ...],
    promise: Promise,
) -> tuple[Calibration, dict[str, Any], Tensor]:
    """Calibrate on images, on a DataLoader or on feature vectors; those that were ``used`` before are refused.

    Returns:
        The calibration, what is recorded of its images, and their hashes (n, 16); none of a DataLoader's and of vectors.
    """
    if isinstance(wanted, VectorInput):
        images = torch.cat([torch.empty(0, *wanted.shape), *wanted.batch(images)])
    elif not is_loader(images):
        images = wanted.match(as_image_set(images))
    of_images = isinstance(images, ImageSet)
    normalise = wanted.normalise if of_images and isinstance(wanted, Preprocessing) else None
    if isinstance(wanted, Preprocessing) and not of_images:
        check_normalised(images, wanted.normalise)
    calibration = calibrate(network, images, normalise, detector, used=used, **promise)
    if not of_images:
        name = LoaderBatches(images).name if is_loader(images) else "feature vectors"
        about = {"name": name, "images": len(calibration.scores), "fingerprint": None}
        return calibration, about, pack_hashes([])
    if images.classes and tuple(images.classes) != classes:  # its labels are numbers of other classes
        calibration = replace(calibration, accuracy=None, classes=None)
    looks = [each for pixels in images.batches(256) for each in appearances(pixels.numpy())]
    about = {**images.describe(), "appearance": usual_appearance(looks)}
    return calibration, about, pack_hashes(image_hashes(images))


def _preprocessing_of(opened: OpenedNetwork, images: Any) -> Preprocessing:
    """Return the preprocessing that a network knows, of the size of these images."""
    if opened.normalise is None:
        raise ArgumentError(
            "Expected `preprocessing` beside a network: its image size, mean and std, as in "
            "offaxis.data.Preprocessing((3, 32, 32), offaxis.data.Normalise(mean, std))."
        )
    if is_loader(images):
        batch = next((batch for batch, _ in as_batches(images, None, 256)), None)
        if batch is None:
            raise DataError("Expected calibration images but the DataLoader gives no batch.")
        channels, height, width = batch.shape[1:]
        return Preprocessing((channels, height, width), opened.normalise, opened.resize)
    return Preprocessing(as_image_set(images).shape, opened.normalise, opened.resize)


def _fitting_images(detector: Detector, fit: Any, used: Sequence[Any]) -> Any:
    """Return the images to fit a detector on: those that were given for it, or the only set of training images."""
    if fit is not None:
        return fit
    if len(used) == 1:
        return used[0]
    alternative = "cosine" if "cosine" in detector.uses else "energy"
    raise NotFittedError(
        f"Expected training images for {detector.name}, which must be fitted, but got "
        f"{f'{len(used)} sets in `used`' if used else 'none'}: Model.calibrated(..., fit=training_images) in Python, --fit "
        f"FOLDER in the shell; labelled, and not those to calibrate on. The detector {alternative} needs none."
    )


def today() -> str:
    """Return the date, in UTC, as 2026-11-19."""
    return datetime.now(UTC).date().isoformat()


_FOLDERS = re.compile(r"^(?:(?:\.{0,2}/|~[^/]*/|[A-Za-z]:[/\\])(?:.*[/\\])?|.*[/\\](?=[^/\\]*\.py:))")
"""What comes before the name of a file: of a path that begins with /, ~, ./, ../ or C:, and of ``file.py:function``."""


def _without_folders(value: Any) -> Any:
    """Return a value of a record without paths: of a file its name is left."""
    if isinstance(value, dict):
        return {name: _without_folders(part) for name, part in value.items() if name != "path"}
    if isinstance(value, list):
        return list(map(_without_folders, value))
    return _FOLDERS.sub("", value) if isinstance(value, str) else value


def versions() -> dict[str, str]:
    """Return the versions that a model's provenance holds."""
    return {"offaxis": __version__, "torch": torch.__version__, "python": platform.python_version()}


def _is_dataset(images: Any) -> bool:
    """Return whether these are images of a data set, of torch or of Hugging Face, that is not an ImageSet."""
    hugging_face = hasattr(images, "features") and hasattr(images, "column_names")
    return hugging_face or (isinstance(images, Dataset) and not isinstance(images, ImageSet))
