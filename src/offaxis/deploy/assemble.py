"""Make a calibrated model of trained networks and ID images, as ``offaxis bundle`` does."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from offaxis.data import CATALOGUE, ImageSet, TensorSet, load_images, match
from offaxis.data.transforms import Batches, Shape
from offaxis.deploy.explain import with_examples
from offaxis.deploy.model import Model
from offaxis.deploy.open import EvaluatedNetwork, combine, normalised, open_network
from offaxis.deploy.preprocessing import Preprocessing
from offaxis.detectors import Detector, default_detector, make_detector
from offaxis.detectors.registry import find_detector, parse_detector
from offaxis.errors import ArgumentError, BundleError, DataError

if TYPE_CHECKING:
    from offaxis.deploy.open import NetworkSource


def make_model(
    networks: "Sequence[NetworkSource | Model]",
    calibrate: str,
    *,
    kind: str = "single",
    detector: str | None = None,
    alpha: float = 0.05,
    per_class: bool = False,
    confidence: float | None = None,
    trained_on: str | None = None,
    unchecked: bool = False,
    size: int | None = None,
    device: str = "auto",
    data: Path | None = None,
    command: Sequence[str] | None = None,
    keep_examples: int = 0,
) -> Model:
    """Make a calibrated model.

    Args:
        networks: whatever ``open_network`` takes, such as folders of training runs; leave-out networks in the order of
            their folds.
        calibrate: ID images that no network has seen: a name of the catalogue (its test images), a folder or an archive.
        kind: how the networks are combined: ``"single"``, ``"ensemble"``, ``"paired"`` (the first predicts the class, the
            second gives the detection score) or ``"leave-out"``.
        detector: a name, perhaps with arguments as in ``knn:k=10``, or ``file.py:Class``; None for the
            default of such networks.
        alpha: the share of new ID images that may be flagged.
        per_class: whether verdicts are to hold for each predicted class.
        confidence: see :func:`offaxis.calibrate`.
        trained_on: the training images, where the networks do not name a set of the catalogue.
        unchecked: do not look for calibration images among the training images.
        size: height and width of the images, needed where ``unchecked``.
        device: where networks run: ``auto``, ``cpu``, ``cuda``, ``mps``.
        data: where the catalogue's sets are kept.
        command: the command that makes the model, for the record.
        keep_examples: how many calibration images are kept with the model, to be shown beside images that are near to them.

    Raises:
        ArgumentError, BundleError, RunError, DataError, CalibrationError, DetectorError: the parts do not fit together.
    """
    if detector is not None:
        find_detector(parse_detector(detector)[0])  # before anything is read
    members = [open_network(network, device=device) for network in networks]
    network = combine(members, kind)
    _chosen(detector, network).check_network(network.network)
    _check_same_images(members)
    images = None if unchecked else training_images(network, trained_on, data)
    if images is not None:
        network = normalised(network, trained_on or network.id or "", lambda: images)
    if network.normalise is None or (images is None and size is None and network.size is None):
        raise ArgumentError(
            "Expected --size, height and width of the training images, beside --unchecked, and a network that knows its mean "
            "and std."
        )
    chosen = _chosen(detector, network)
    side = size or 0
    shape = (len(network.normalise.std), *(network.size or (side, side))) if images is None else images.shape
    options = dict(images.options) if images is not None else {"resize": network.resize}
    if chosen.needs_fit:
        if images is None:
            raise ArgumentError(f"The detector {chosen.name} is fitted on training images: leave out --unchecked.")
        chosen.fit(network.network, Batches(images, network.normalise, 256))
    held_out = images_like(calibrate, shape, data, **_rules(options, network, calibrate))
    model = Model.calibrated(
        network,
        held_out,
        used=[] if images is None else [images],
        detector=chosen,
        alpha=alpha,
        per_class=per_class,
        confidence=confidence,
        preprocessing=Preprocessing(shape, network.normalise, options.get("resize")),
        command=command,
    )
    return with_examples(model, held_out, keep_examples) if keep_examples else model


def _chosen(detector: str | None, network: EvaluatedNetwork) -> Detector:
    std = None if network.normalise is None else network.normalise.std
    return default_detector(network.network, std) if detector is None else make_detector(detector, network.network, std)


def images_like(
    name: str,
    shape: Shape,
    data: Path | None = None,
    *,
    resize: str | None = None,
    holdout: float | None = None,
    skip_bad: bool = False,
) -> ImageSet:
    """Load the test images of a set, a folder or an archive, matched to the shape that a network takes."""
    if name in CATALOGUE:
        return match(load_images(name, "test", root=data), shape, resize)
    if not Path(name).expanduser().exists():
        raise DataError(f"Expected a name of `offaxis data list`, a folder or an archive but there is no {name}.")
    like = TensorSet("like", torch.zeros(1, *shape, dtype=torch.uint8))
    return load_images(name, "test", root=data, like=like, resize=resize, holdout=holdout, skip_bad=skip_bad)


def _rules(options: dict[str, Any], network: EvaluatedNetwork, name: str) -> dict[str, Any]:
    """Return how the images of a name are read: as the training images were, where they lie in the same folder."""
    same = (network.data or {}).get("path") == str(Path(name).expanduser().resolve())
    kept = ("resize", "holdout", "skip_bad") if same else ("resize",)
    return {key: value for key, value in options.items() if key in kept}


def training_images(network: EvaluatedNetwork, trained_on: str | None = None, data: Path | None = None) -> ImageSet:
    """Load the images that a network was trained on, and check them by their fingerprint where it is known.

    Args:
        network: the network.
        trained_on: a name of the catalogue, a folder or an archive; None for the set that the network names.
        data: where the catalogue's sets are kept.

    Raises:
        DataError: they cannot be found, or are not those.
    """
    known = network.data or {}
    name = trained_on or known.get("path") or network.id
    if name is None or (name not in CATALOGUE and not Path(name).expanduser().exists()):
        raise DataError(
            f"The network was trained on {name or 'images that it does not name'}, which "
            f"{'are' if name is None else 'is'} neither in the catalogue nor a folder here. Name the training images "
            "(--trained-on), so that none of them is used for calibration; or vouch for it yourself (--unchecked)."
        )
    images = load_images(name, "train", root=data, **known.get("options", {}))
    if known.get("fingerprint") not in (None, images.fingerprint):
        raise DataError(
            f"The images of {name} are not those that the network was trained on (their checksums differ): name the right "
            "ones with --trained-on."
        )
    return images


def _check_same_images(members: Sequence[EvaluatedNetwork]) -> None:
    """Refuse networks that were trained on other images: only one set is looked for among the calibration images."""
    sets = [(member.origin, member.data) for member in members if member.data and member.data.get("fingerprint")]
    if len({data["fingerprint"] for _, data in sets}) > 1:
        shown = ", ".join(f"{origin} ({data['name']}, {data['images']} images)" for origin, data in sets)
        raise BundleError(
            f"Expected networks that were trained on the same images but got {shown}: train the networks of one bundle on one "
            "set."
        )
