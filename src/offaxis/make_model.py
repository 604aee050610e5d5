"""Make a calibrated model of trained networks and ID images, as ``offaxis bundle`` does."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from offaxis.calibration.calibration import check_overlap
from offaxis.calibration.conformal import smallest_count
from offaxis.calibration.doubts import doubts_of_scores
from offaxis.data import CATALOGUE, ImageSet, Normalise, load_images, match
from offaxis.data.adapt import as_batches
from offaxis.data.catalogue import Split, cache_folder
from offaxis.data.images import drop_copies, hold_out, image_hashes, list_skipped, unpack_hashes
from offaxis.data.load import own_splits
from offaxis.data.transforms import Preprocessing, Shape
from offaxis.detectors.base import score_batches
from offaxis.detectors.registry import as_detector, find_detector, parse_detector
from offaxis.errors import ArgumentError, BundleError, DataError, OffaxisError
from offaxis.expectation import expect
from offaxis.explain import with_examples
from offaxis.model import Model
from offaxis.networks.open import NetworkSource, combine, open_network, open_runs
from offaxis.networks.opened import OpenedNetwork, normalised
from offaxis.networks.run import resolve_device
from offaxis.options import BundleOptions
from offaxis.prediction import Verdict
from offaxis.progress import counting
from offaxis.training.features import on_features
from offaxis.training.labels import Doubt, confusion_counts, confusion_lines, doubt_lines, few_images

FIT_BATCH = 256
COMPARED = 500  # held-out images of the training set that calibration images are compared with, about


def make_model(
    options: BundleOptions,
    command: Sequence[str] | None = None,
    note: Callable[[str], None] = lambda _: None,
    networks: Sequence[NetworkSource | Model] | None = None,
) -> Model:
    """Make a calibrated model. Nothing is trained: networks by name keep their trained output layer.

    Features of a frozen backbone that its training has kept are used again.

    Args:
        options: the networks, the ID images and what is made of them.
        command: the command that makes the model, for the record.
        note: called with the files that are left out.
        networks: whatever ``open_network`` takes, leave-out networks in the order of their folds; None for those that the
            options name.

    Raises:
        ArgumentError, BundleError, RunError, DataError, CalibrationError, DetectorError: the parts do not fit together.
    """
    kind = options.kind
    if networks is None:
        named = list(options.networks)
        if options.detector_run is not None:
            if kind not in ("single", "paired"):
                raise ArgumentError(
                    f"Expected --detector-run for a pair but got --as {kind} beside it: name one of them."
                )
            named, kind = [*named, options.detector_run], "paired"
        networks = open_runs(named, options.network)
    if options.detector is not None:
        find_detector(parse_detector(options.detector)[0])  # before anything is read
    if (options.weights is not None or options.pretrained) and len(networks) != 1:
        raise ArgumentError(f"Expected one network beside --weights or --pretrained but got {len(networks)}.")
    members = [
        open_network(each, head="keep", weights=options.weights, pretrained=options.pretrained) for each in networks
    ]
    network = combine(members, kind)
    network.network.to(resolve_device(options.device))
    as_detector(options.detector, network.network).check_network(network.network)
    _check_same_images(members)
    if options.mean is not None and options.std is not None:
        network = replace(network, normalise=Normalise(options.mean, options.std))
    if options.size is not None:
        network = replace(network, size=(options.size, options.size))
    with counting(options.quiet):
        return _calibrated(options, network, command, note)


def _calibrated(
    options: BundleOptions, network: OpenedNetwork, command: Sequence[str] | None, note: Callable[[str], None]
) -> Model:
    """Return the model of an opened network: its detector fitted, and calibrated on images that it has not seen."""
    calibrate, fit, data, skip_bad = options.calibrate, options.fit, options.data, options.skip_bad
    known = options.trained_on or (fit if network.data is None and network.id is None else None)
    images = None if options.unchecked and known is None else training_images(network, known, data, skip_bad)
    if images is not None:
        network = normalised(network, known or network.id or "", lambda: images)
    if network.normalise is None or (images is None and network.size is None):
        raise ArgumentError(
            "Expected --size, height and width of the training images, beside --unchecked, and a network that knows its mean "
            "and std: --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 for those of ImageNet."
        )
    shape = (len(network.normalise.std), *(network.size or ())) if images is None else images.shape
    rules = dict(images.options) if images is not None else {"resize": network.resize}
    resize = rules.get("resize")
    kept = (
        ("resize", "holdout", "seed", "skip_bad", "drop_duplicates")
        if network.was_trained_on(calibrate)
        else ("resize",)
    )
    rules = {name: rules[name] for name in kept if name in rules} | ({"skip_bad": True} if skip_bad else {})
    drop = rules.pop("drop_duplicates", False)
    id_images = images_like(calibrate, shape, data, **rules)
    fitting = _load_named(fit, network, data, skip_bad) if fit is not None and fit != known else None
    used = [part for part in (images, fitting) if part is not None]
    if options.drop_duplicates or drop:
        id_images = drop_copies(id_images, [h for part in used for h in image_hashes(match(part, shape, resize))])
    least = smallest_count(options.alpha, options.confidence)
    least *= network.network.num_classes if options.per_class else 1
    calibrating, rest = _divide(id_images, options.calibrate_share, least)
    bad = {Path(each.path).resolve(): each for part in (id_images, *used) for each in part.skipped}
    if bad:
        note("\n".join(list_skipped(list(bad.values()))))
    chosen = as_detector(options.detector, network.network, network.normalise.std)
    if images is not None and chosen.needs_fit and not chosen.needs_images:
        seen = images if fitting is None else fitting
        count = network.network.num_classes
        batches = as_batches(seen, network.normalise, FIT_BATCH, labels=True, num_classes=count)
        chosen.fit(*on_features(network.network, batches, cache_folder() / "features"))
    model = Model.calibrated(
        network,
        calibrating,
        fit=fitting,
        used=[] if images is None else [images],
        detector=chosen,
        alpha=options.alpha,
        per_class=options.per_class,
        confidence=options.confidence,
        max_error=options.max_error,
        preprocessing=Preprocessing(shape, network.normalise, resize),
    )
    doubts = [] if images is None else _compare_held_out(model, network, images, data)
    model.provenance["doubts"] = doubts
    if images is not None:
        model.provenance["expectation"] = expect(model, images, match(calibrating, shape, resize))
    for doubt in doubts:
        warnings.warn(doubt, stacklevel=2)
    if rest is not None and len(model.used):
        check_overlap(rest, [unpack_hashes(model.used)])
    model.provenance["command"] = None if command is None else list(command)
    if options.keep_examples:
        model = with_examples(model, calibrating, options.keep_examples)
    if images is not None and (lines := few_images(images)):
        note(lines[0])
    if rest is None:
        return model
    return replace(model, provenance={**model.provenance, "held_out": _measure(model, rest, note)})


def _compare_held_out(model: Model, network: OpenedNetwork, trained_on: ImageSet, data: Path | None) -> list[str]:
    """Compare the calibration with images that were held out of the training set, where there are any that it has not seen."""
    known = network.data or {}
    name = known.get("path") or (trained_on.name if trained_on.name in CATALOGUE else None)
    wanted = model.preprocessing
    assert isinstance(wanted, Preprocessing)
    if name is None:
        return []
    try:
        held_out = load_images(name, "test", root=data, **known.get("options", {}))
    except OffaxisError:
        return []  # the set has none
    step = max(1, len(held_out) // COMPARED)
    held_out = match(held_out.subset(torch.arange(0, len(held_out), step)), wanted.shape, wanted.resize)
    seen = {*unpack_hashes(model.used), *unpack_hashes(model.calibrated_on)}
    new = [place for place, value in enumerate(image_hashes(held_out)) if value not in seen]
    if len(new) < len(held_out) / 2:  # the calibration images are from there
        return []
    held_out = held_out.subset(torch.tensor(new))
    batches = as_batches(held_out, wanted.normalise, FIT_BATCH)
    scored = score_batches(model.network, batches, model.detector)
    right = None if scored.labels is None else float((scored.predicted == scored.labels).mean())
    own, whose = model.calibration, f"held-out images of the training set {name}"
    return doubts_of_scores(own.scores, own.accuracy, scored.scores, right, whose)


def _divide(images: ImageSet, share: float, least: int) -> tuple[ImageSet, ImageSet | None]:
    """Divide ID images into those that calibrate and those that tell how well; all calibrate where they are too few."""
    if not 0 < share <= 1:
        raise ArgumentError(f"Expected --calibrate-share to be above 0 and at most 1 but got {share:g}.")
    if share == 1 or share * len(images) < least or (1 - share) * len(images) < 1:
        return images, None
    try:
        calibrating, rest = hold_out(images, 1 - share)
        return (images, None) if len(calibrating) < least else (calibrating, rest)
    except DataError:  # a class has a single image
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        cut = round(share * len(images))
        return images.subset(order[:cut].sort().values), images.subset(order[cut:].sort().values)


def _measure(model: Model, images: ImageSet, note: Callable[[str], None]) -> dict[str, Any]:
    """Measure a model on ID images that it was not calibrated on: accuracy (None without labels) and share flagged.

    Of images with labels it notes what is taken for what, and those that are another class with the probability that images
    of that class have on average: their folder is doubtful.
    """
    predictions = model.predict(images)
    flagged = sum(prediction.verdict is Verdict.OUT for prediction in predictions)
    count, accuracy = len(predictions), None
    if images.labels is not None and images.classes == model.classes:
        labels, chance = images.labels, torch.tensor([prediction.probability for prediction in predictions])
        predicted = torch.tensor([prediction.class_index for prediction in predictions])
        right = predicted == labels
        accuracy = int(right.sum()) / count
        sums = torch.zeros(2, len(model.classes)).index_add_(
            1, labels[right], torch.stack([chance, chance * 0 + 1])[:, right]
        )
        wrong = (~right & (chance >= (sums[0] / sums[1])[predicted])).nonzero().flatten()
        wrong = wrong[chance[wrong].argsort(descending=True, stable=True)]
        doubts = [
            Doubt(images.called(i), model.classes[labels[i]], model.classes[predicted[i]], float(chance[i]))
            for i in wrong.tolist()
        ]
        lines = confusion_lines(confusion_counts(labels, predicted, len(model.classes)), model.classes)
        note("\n".join([*lines, *(doubt_lines(doubts, count) if doubts else ())]))
    return {"images": count, "accuracy": accuracy, "flagged": flagged / count}


def images_like(name: str, shape: Shape, data: Path | None = None, **rules: Any) -> ImageSet:
    """Load the test images of a set, a folder or an archive, matched to the shape that a network takes.

    Args:
        name: of the set, or a path.
        shape: (channels, height, width).
        data: where the catalogue's sets are kept.
        rules: how the images of a path are read, see ``load_images``; ``resize`` alone counts for a set of the catalogue.
    """
    if name in CATALOGUE:
        return match(load_images(name, "test", root=data), shape, rules.get("resize"))
    if not Path(name).expanduser().exists():
        raise DataError(f"Expected a name of `offaxis data list`, a folder or an archive but there is no {name}.")
    return load_images(name, "test", root=data, like=shape, **rules)


def training_images(
    network: OpenedNetwork, trained_on: str | None = None, data: Path | None = None, skip_bad: bool = False
) -> ImageSet:
    """Load the images that a network was trained on, and check them by their fingerprint where it is known.

    Args:
        network: the network.
        trained_on: a name of the catalogue, a folder or an archive; None for the set that the network names.
        data: where the catalogue's sets are kept.
        skip_bad: leave out files that cannot be read, where the network does not say how its images were read.

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
    if known:
        images = load_images(name, "train", root=data, **known.get("options", {}))
    else:
        images = _load_named(name, network, data, skip_bad)
    if known.get("fingerprint") not in (None, images.fingerprint):
        raise DataError(
            f"The images of {name} are not those that the network was trained on (their checksums differ): name the right "
            "ones with --trained-on."
        )
    return images


def _load_named(name: str, network: OpenedNetwork, data: Path | None, skip_bad: bool) -> ImageSet:
    """Load training images that the user names: as many channels as the network takes and, of a folder, its size."""
    first = next((part for part in network.network.modules() if isinstance(part, nn.Conv2d)), None)
    channels = 1 if first is not None and first.in_channels == 1 else 3
    if network.normalise is not None:
        channels = len(network.normalise.mean)
    if name in CATALOGUE:
        return load_images(name, "train", root=data)
    split: Split = "train" if "train" in own_splits(Path(name).expanduser()) else "test"  # the whole folder
    like = None if network.size is None else (channels, *network.size)
    images = load_images(name, split, root=data, like=like, resize=network.resize, skip_bad=skip_bad)
    return match(images, (channels, *images.shape[1:]), network.resize)


def _check_same_images(members: Sequence[OpenedNetwork]) -> None:
    """Refuse networks that were trained on other images: only one set is looked for among the calibration images."""
    sets = [(member.origin, member.data) for member in members if member.data and member.data.get("fingerprint")]
    if len({data["fingerprint"] for _, data in sets}) > 1:
        shown = ", ".join(f"{origin} ({data['name']}, {data['images']} images)" for origin, data in sets)
        raise BundleError(
            f"Expected networks that were trained on the same images but got {shown}: train the networks of one bundle on one "
            "set."
        )
