"""What a model can be expected to find, estimated before it is deployed and without any OOD image.

*New classes like yours*: classes of the training images are left out, a head of the same kind is trained on the features of the
others, the detector is fitted to them, and the images of the classes left out are its OOD images. Where the backbone was
trained on these classes too, it tells them apart better than new ones: that is a bound, not an estimate. *Nothing like yours*:
noise, blank images, letters, photographs, and the user's own images with their patches shuffled or their colours inverted.

It is rough, and it chooses nothing: what is best for classes left out need not be best for those to come.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offaxis.calibration.drift import noticed
from offaxis.data import ImageSet, TensorSet, embedded, match
from offaxis.data.adapt import as_batches
from offaxis.data.catalogue import cache_folder
from offaxis.data.transforms import Preprocessing
from offaxis.detectors import Detector
from offaxis.detectors.base import score_batches
from offaxis.detectors.registry import DETECTORS
from offaxis.errors import MissingPackageError, OffaxisError
from offaxis.heads import Head, describe_head, head_maker
from offaxis.metrics import auroc
from offaxis.model import Model
from offaxis.networks.classifier import Classifier, FeatureInput
from offaxis.networks.run import one_thread, run
from offaxis.prediction import Verdict
from offaxis.training.features import extract_features, train_head

FOLDS = 5  # of classes, each left out once
MOST_ROWS = 4000  # training images whose features are used
MOST_IMAGES = 600  # of them where they must pass through the network for it
STEPS, BATCH = 300, 256  # of the training of each head
PROBES = 40  # images of each kind
POOR = 0.6  # AUROC up to which a score is warned of


def expect(model: Model, training: ImageSet, calibrating: ImageSet) -> dict[str, Any]:
    """Estimate what a calibrated model finds, from its training and calibration images of the network's size.

    Returns:
        ``new_classes``, None where it cannot be estimated, ``nothing_like``, ``drift``, which share of OOD images a stream's
        monitor notices, and ``sentences`` that say it all, the last of them what to do where a score is poor; in types that
        JSON has.
    """
    assert isinstance(model.preprocessing, Preprocessing)
    network, detector, new = model.network, model.detector, None
    if isinstance(network, Classifier) and training.labels is not None and not detector.needs_images:
        frozen = network.frozen and network.unfrozen_from is None
        features, labels = _training_features(network, training, model.preprocessing, frozen)
        new = new_classes(features, labels, network.head, detector, model.calibration.alpha)
        new = None if new is None else {**new, "optimistic": not frozen}
    nothing = _nothing_like(model, calibrating)
    advice = [
        f"{model.detector.name} hardly tells {what} from your images (AUROC {100 * found['auroc']:.0f}, where 50 is guessing): "
        "compare detectors (offaxis evaluate --detectors native), or train longer, before you rely on it."
        for what, found in (("new classes like yours", new), ("images that are nothing like yours", nothing))
        if found is not None and found["auroc"] <= POOR
    ]
    aurocs = [found["auroc"] for found in (new, nothing) if found is not None and not found.get("optimistic")]
    drift = noticed(len(model.calibration.scores), min(aurocs))
    said = [*_sentences(new, nothing, model.calibration.alpha), drift, *advice]
    found = {"new_classes": new, "nothing_like": nothing, "alpha": model.calibration.alpha}
    return {**found, "drift": drift, "sentences": said}


def new_classes(
    features: Tensor, labels: Tensor, head: Head, detector: Detector, alpha: float
) -> dict[str, Any] | None:
    """Estimate how well new classes are found, by leaving out classes of features (N, d) with labels (N,).

    Args:
        features: on the CPU.
        labels: from 0 to C - 1.
        head: whose kind is trained; a linear one in place of a head of one's own.
        detector: whose kind is fitted; it stays as it is.
        alpha: the share of false alarms at which it is told how many are found.

    Returns:
        ``auroc`` with ``low`` and ``high`` over the folds, ``found``, ``folds``; None where there are fewer than three classes
        or the detector cannot score such features.
    """
    random = np.random.default_rng(0)
    present = labels.unique()
    order = present[torch.from_numpy(random.permutation(len(present)))]
    make = head_maker(describe_head(head) or {"name": "linear"})
    found: list[tuple[float, float]] = []
    for start in range(min(FOLDS, len(order)) if len(order) > 2 else 0):
        out = order[start :: min(FOLDS, len(order))]
        is_new = torch.isin(labels, out)
        kept, shuffled = (~is_new).nonzero().flatten(), random.permutation(int((~is_new).sum()))
        fit, held_out = kept[shuffled[len(shuffled) // 3 :]], kept[shuffled[: len(shuffled) // 3]]
        numbers = torch.searchsorted(order[~torch.isin(order, out)].sort().values, labels)
        try:
            with one_thread(0):
                epochs = max(1, round(STEPS * min(BATCH, len(fit)) / len(fit)))
                trained = train_head(features[fit], numbers[fit], head=make, epochs=epochs, batch_size=BATCH)
                network = Classifier(FeatureInput(), trained).double().eval()
                fitted = DETECTORS.get(detector.name, type(detector))(**detector.arguments)
                fitted.fit(network, [(features[fit], numbers[fit])])
                known, new = (score_batches(network, [features[rows]], fitted).scores for rows in (held_out, is_new))
        except OffaxisError:
            return None
        found.append((auroc(known, new), float((new > np.quantile(known, 1 - alpha)).mean())))
    if not found:
        return None
    aurocs, shares = zip(*found, strict=True)
    return {
        "auroc": float(np.mean(aurocs)),
        "low": min(aurocs),
        "high": max(aurocs),
        "found": float(np.mean(shares)),
        "folds": len(found),
    }


def _sentences(new: Mapping[str, Any] | None, nothing: Mapping[str, Any], alpha: float) -> list[str]:
    lines = []
    if new is not None:
        hope = "at best, as the network was trained on them all" if new["optimistic"] else "rough"
        lines.append(
            f"New classes like yours ({hope}): AUROC {100 * new['auroc']:.0f} ({100 * new['low']:.0f} to "
            f"{100 * new['high']:.0f}), {new['found']:.0%} found at {100 * alpha:.3g} % false alarms."
        )
    worst = min(nothing["kinds"], key=lambda kind: nothing["kinds"][kind])
    return [
        *lines,
        f"Nothing like yours: {nothing['found']:.0%} found; fewest of {worst} ({nothing['kinds'][worst]:.0%}).",
    ]


def _training_features(
    network: Classifier, images: ImageSet, preprocessing: Preprocessing, frozen: bool
) -> tuple[Tensor, Tensor]:
    """Return features (N, d) and labels (N,) of training images: those that a frozen training has kept, or of a sample."""
    random = torch.Generator().manual_seed(0)
    most = MOST_ROWS if frozen else MOST_IMAGES
    places = torch.randperm(len(images), generator=random)[:most].sort().values
    assert images.labels is not None
    if frozen:
        kept: Path = cache_folder() / "features"
        return extract_features(network, images, preprocessing.normalise, cache=kept)[places], images.labels[places]
    sample = images.subset(places)
    parts = [
        o.features.flatten(1).float().cpu() for o, *_ in run(network, as_batches(sample, preprocessing.normalise, 64))
    ]
    return torch.cat(parts), images.labels[places]


def _nothing_like(model: Model, calibrating: ImageSet) -> dict[str, Any]:
    """Measure which share of each kind of probe is flagged, and the mean AUROC over them."""
    shares, aurocs = dict[str, float](), []
    for kind, pixels in _probes(model.preprocessing.shape, calibrating):
        said = [prediction for prediction in model.predict_each(pixels) if not isinstance(prediction, str)]
        if said:
            shares[kind] = sum(prediction.verdict is Verdict.OUT for prediction in said) / len(said)
            aurocs.append(auroc(model.calibration.scores, np.array([prediction.score for prediction in said])))
    return {"found": float(np.mean(list(shares.values()))), "auroc": float(np.mean(aurocs)), "kinds": shares}


def _probes(shape: tuple[int, ...], own: ImageSet) -> Iterator[tuple[str, Tensor]]:
    """Yield kinds of images that are nothing like the user's, uint8 (n, c, h, w) of this shape."""
    channels, height, width = shape
    random = torch.Generator().manual_seed(0)
    yield "noise", torch.randint(0, 256, (PROBES, *shape), dtype=torch.uint8, generator=random)
    colours = torch.randint(0, 256, (PROBES, channels, 1, 1), dtype=torch.uint8, generator=random)
    yield "blank images", colours.expand(-1, -1, height, width).contiguous()
    for name, make in (("letters", embedded.letters), ("photographs", embedded.photographs)):
        try:
            made: TensorSet = make(PROBES, max(height, width), channels)
        except MissingPackageError:
            continue
        yield name, match(made, (channels, height, width)).batch(torch.arange(PROBES))
    step = max(1, len(own) // PROBES)
    pixels = own.batch(torch.arange(0, len(own), step)[:PROBES])
    yield "your images, their patches shuffled", _shuffled(pixels, random)
    yield "your images, their colours inverted", 255 - pixels


def _shuffled(pixels: Tensor, random: torch.Generator) -> Tensor:
    """Return images (n, c, h, w) whose sixteen patches are in another order, one for each image."""
    height, width = (size // 4 for size in pixels.shape[2:])
    mixed = pixels.clone()
    for old, new in zip(pixels, mixed, strict=True):
        for place, other in enumerate(torch.randperm(16, generator=random).tolist()):
            (top, left), (row, column) = divmod(place, 4), divmod(other, 4)
            patch = old[:, row * height : (row + 1) * height, column * width : (column + 1) * width]
            new[:, top * height : (top + 1) * height, left * width : (left + 1) * width] = patch
    return mixed
