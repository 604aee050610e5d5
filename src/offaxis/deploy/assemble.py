"""A training run and a set of ID images -> a model: what the shell does to make a bundle."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from offaxis.classifier import Classifier, Paired
from offaxis.datasets import CATALOGUE, ImageSet, Normalise, TensorSet, load, match
from offaxis.datasets.match import Shape
from offaxis.deploy.model import Model
from offaxis.deploy.preprocessing import Preprocessing
from offaxis.detectors import DETECTORS
from offaxis.errors import ArgumentError, BundleError, DataError
from offaxis.training import load_run
from offaxis.training.run import read_about


@dataclass(frozen=True)
class Wanted:
    """What a bundle is made of.

    Attributes:
        run: the folder of the training; its network names the class and, alone, judges familiarity.
        calibrate: ID images that the network has not seen: a name of the catalogue, a folder or an archive.
        detector_run: a second training, whose network judges familiarity; None for one network.
        detector: a name out of DETECTORS.
        alpha: the share of new ID images that may be flagged.
        per_class: whether verdicts are to hold for each predicted class.
        trained_on: the training images, where the run does not name a set of the catalogue.
        unchecked: go on without the training images; that nothing overlaps is then the caller's word.
        size: height and width, needed where ``unchecked``.
        data: where the catalogue's sets are kept.
    """

    run: Path
    calibrate: str
    detector_run: Path | None = None
    detector: str = "cosine"
    alpha: float = 0.05
    per_class: bool = False
    trained_on: str | None = None
    unchecked: bool = False
    size: int | None = None
    data: Path | None = None


def assemble(wanted: Wanted) -> Model:
    """The model that ``offaxis bundle`` writes.

    Raises:
        RunError, DataError, CalibrationError, ArgumentError: what is asked for does not fit together.
    """
    if wanted.detector not in DETECTORS:
        raise ArgumentError(f"Expected a detector out of {', '.join(DETECTORS)} but got {wanted.detector!r}.")
    trained = load_run(wanted.run)
    network: Classifier | Paired = trained.classifier
    if wanted.detector_run is not None:
        other = load_run(wanted.detector_run)
        if (other.normalise, other.classes) != (trained.normalise, trained.classes):
            raise BundleError(
                f"Expected two runs on the same images but {wanted.run} and {wanted.detector_run} have other classes or "
                "another mean and std: a pair takes one and the same picture."
            )
        network = Paired(trained.classifier, other.classifier)
    training = None if wanted.unchecked else training_images(wanted)
    if training is None and wanted.size is None:
        raise ArgumentError("Expected --size, height and width of the training images, beside --unchecked.")
    side = wanted.size or 0
    shape = (len(trained.normalise.mean), side, side) if training is None else training.shape
    detector = DETECTORS[wanted.detector]()
    if detector.needs_fit:
        if training is None:
            raise ArgumentError(f"The detector {detector.name} is fitted on training images: leave out --unchecked.")
        detector.fit(network, list(_batches(training, trained.normalise)))
    return Model.calibrated(
        network,
        images_like(wanted.calibrate, shape, wanted.data),
        used=[] if training is None else [training],
        detector=detector,
        alpha=wanted.alpha,
        per_class=wanted.per_class,
        preprocessing=Preprocessing(shape, trained.normalise),
        classes=trained.classes,
    )


def images_like(name: str, shape: Shape, data: Path | None = None) -> ImageSet:
    """The test images of a set, a folder or an archive, matched to the shape that a network takes."""
    if name in CATALOGUE:
        return match(load(name, "test", root=data), shape)
    if not Path(name).expanduser().exists():
        raise DataError(f"Expected a name of `offaxis data list`, a folder or an archive but there is no {name}.")
    return load(name, "test", root=data, like=TensorSet("like", torch.zeros(1, *shape, dtype=torch.uint8)))


def training_images(wanted: Wanted) -> ImageSet:
    """The images that a run was trained on, known again by their checksum.

    Raises:
        DataError: they cannot be found, or are not those.
    """
    about = read_about(wanted.run)["settings"]["data"]
    name = wanted.trained_on or about["name"]
    if name not in CATALOGUE and not Path(name).expanduser().exists():
        raise DataError(
            f"It was trained on {about['name']}, which is neither in the catalogue nor a folder here. Say where its images "
            "are (--trained-on), so that none of them is used for calibration; or vouch for it yourself (--unchecked)."
        )
    images = load(name, "train", root=wanted.data)
    if images.fingerprint != about["fingerprint"]:
        raise DataError(
            f"The images of {name} are not those that the run was trained on (their checksums differ): name the right ones "
            "with --trained-on."
        )
    return images


def _batches(images: ImageSet, normalise: Normalise) -> Iterator[tuple[Tensor, Tensor]]:
    assert images.labels is not None  # nothing is trained without labels
    for pixels, labels in zip(images.batches(256), images.labels.split(256), strict=True):
        yield normalise(pixels), labels
