"""Training runs and a set of ID images -> a model: what the shell does to make a bundle."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from offaxis.data import CATALOGUE, ImageSet, TensorSet, load_images, match
from offaxis.data.transforms import Batches, Shape
from offaxis.deploy.model import Model
from offaxis.deploy.open import Together, together
from offaxis.deploy.preprocessing import Preprocessing
from offaxis.detectors import Detector, default_detector, make_detector
from offaxis.detectors.registry import find_detector
from offaxis.errors import ArgumentError, BundleError, DataError
from offaxis.training import load_run
from offaxis.training.run import read_run


@dataclass(frozen=True)
class Wanted:
    """What a bundle is made of.

    Attributes:
        runs: the folders of the trainings; those of leave-out networks in the order of their folds.
        calibrate: ID images that no network has seen: a name of the catalogue, a folder or an archive.
        kind: what the networks are as one: ``"single"``, ``"ensemble"``, ``"paired"`` (the first names the class, the
            second judges familiarity) or ``"leave-out"``.
        detector: a name out of DETECTORS; None for the one that is usual for such networks.
        alpha: the share of new ID images that may be flagged.
        per_class: whether verdicts are to hold for each predicted class.
        trained_on: the training images, where the runs do not name a set of the catalogue.
        unchecked: go on without the training images; that nothing overlaps is then the caller's word.
        size: height and width, needed where ``unchecked``.
        data: where the catalogue's sets are kept.
    """

    runs: tuple[Path, ...]
    calibrate: str
    kind: str = "single"
    detector: str | None = None
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
    if wanted.detector is not None:
        find_detector(wanted.detector.partition(":")[0])
    team = together([load_run(run) for run in wanted.runs], wanted.kind)
    detector = _detector(wanted.detector, team)
    detector.check_network(team.network)
    _check_same_images(wanted.runs)
    training = None if wanted.unchecked else training_images(wanted)
    if training is None and wanted.size is None:
        raise ArgumentError("Expected --size, height and width of the training images, beside --unchecked.")
    side = wanted.size or 0
    shape = (len(team.normalise.mean), side, side) if training is None else training.shape
    if detector.needs_fit:
        if training is None:
            raise ArgumentError(f"The detector {detector.name} is fitted on training images: leave out --unchecked.")
        detector.fit(team.network, Batches(training, team.normalise, 256))
    return Model.calibrated(
        team,
        images_like(wanted.calibrate, shape, wanted.data),
        used=[] if training is None else [training],
        detector=detector,
        alpha=wanted.alpha,
        per_class=wanted.per_class,
        preprocessing=Preprocessing(shape, team.normalise),
    )


def _detector(name: str | None, team: Together) -> Detector:
    """The detector of that name, told what it has to know of the networks and of their images."""
    if name is None:
        return default_detector(team.network, team.normalise.std)
    return make_detector(name, team.network, team.normalise.std)


def _check_same_images(runs: Sequence[Path]) -> None:
    """Refuse runs on other images: only one set is looked for among the calibration images."""
    sets = {run: read_run(run)["settings"]["data"] for run in runs}
    if len({data["fingerprint"] for data in sets.values()}) > 1:
        shown = ", ".join(f"{run} ({data['name']}, {data['images']} images)" for run, data in sets.items())
        raise BundleError(
            f"Expected runs that were trained on the same images but got {shown}: train the networks of one bundle on one set."
        )


def images_like(name: str, shape: Shape, data: Path | None = None) -> ImageSet:
    """The test images of a set, a folder or an archive, matched to the shape that a network takes."""
    if name in CATALOGUE:
        return match(load_images(name, "test", root=data), shape)
    if not Path(name).expanduser().exists():
        raise DataError(f"Expected a name of `offaxis data list`, a folder or an archive but there is no {name}.")
    return load_images(name, "test", root=data, like=TensorSet("like", torch.zeros(1, *shape, dtype=torch.uint8)))


def training_images(wanted: Wanted) -> ImageSet:
    """The images that the runs were trained on, known again by their checksum.

    Raises:
        DataError: they cannot be found, or are not those.
    """
    about = read_run(wanted.runs[0])["settings"]["data"]
    name = wanted.trained_on or about["name"]
    if name not in CATALOGUE and not Path(name).expanduser().exists():
        raise DataError(
            f"It was trained on {about['name']}, which is neither in the catalogue nor a folder here. Say where its images "
            "are (--trained-on), so that none of them is used for calibration; or vouch for it yourself (--unchecked)."
        )
    images = load_images(name, "train", root=wanted.data)
    if images.fingerprint != about["fingerprint"]:
        raise DataError(
            f"The images of {name} are not those that the run was trained on (their checksums differ): name the right ones "
            "with --trained-on."
        )
    return images
