"""Images -> the features of a frozen backbone, kept in a folder so that the backbone sees each image once."""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offaxis.data import ImageSet, Normalise
from offaxis.data.transforms import NO_LABELS, Batches
from offaxis.errors import CheckpointError, StorageError
from offaxis.networks.classifier import Classifier, FeatureInput
from offaxis.networks.run import Network, check_finite, eval_mode, prepared_batches
from offaxis.networks.weights import checksum, read_tensors, write_tensors
from offaxis.progress import Progress
from offaxis.training.batches import ImageSetBatches, Share

PART = 2048
"""Images whose features are kept in one file."""


def extract_features(
    classifier: Classifier,
    images: ImageSet,
    normalise: Normalise,
    *,
    cache: Path | None = None,
    batch_size: int = 32,
    title: str = "features",
    quiet: bool = True,
) -> Tensor:
    """Compute the features (N, d) that the head of a classifier gets, on the CPU, in one pass over the images.

    Args:
        classifier: the network; it runs where it is, in eval mode.
        images: N images.
        normalise: mean and std, as in training.
        cache: a folder of safetensors files, each named by the checksums of weights and images; None for no cache.
        batch_size: images a step.
        title: the title of the progress bar.
        quiet: show no progress.

    With a cache, more than ``PART`` images are kept part by part: a pass that is stopped is resumed.
    """
    if cache is None:
        return _run(classifier, Batches(images, normalise, batch_size), title, quiet)
    store = _FeatureStore(cache, classifier)
    key = {"images": images.fingerprint, "normalise": [list(normalise.mean), list(normalise.std)]}
    if len(images) <= PART:
        return store.get(key, lambda: _run(classifier, Batches(images, normalise, batch_size), title, quiet))
    found = []
    parts = torch.arange(len(images)).split(PART)
    for number, part in enumerate(parts):
        batches = Batches(images.subset(part), normalise, batch_size)
        name = f"{title}, part {number + 1} of {len(parts)}"
        found.append(store.get({**key, "part": number, "of": PART}, partial(_run, classifier, batches, name, quiet)))
    return torch.cat(found)


def on_features(
    network: Network,
    batches: Iterable[tuple[Tensor, Tensor]],
    cache: Path,
    *,
    title: str = "training images",
    quiet: bool = True,
) -> tuple[Network, Iterable[tuple[Tensor, Tensor]]]:
    """Return the head of a frozen network as a classifier of features, and batches of its features in place of images.

    Their outputs are those of the network on the images, without its layers. A network whose backbone was trained with its
    head is returned as it is, with the images; so is any network with batches that are not of an image set.
    """
    frozen = isinstance(network, Classifier) and network.frozen and network.unfrozen_from is None
    if not frozen or not isinstance(batches, Batches):
        return network, batches
    assert isinstance(network, Classifier)
    parameter = next(network.parameters())
    head = Classifier(FeatureInput(), network.head).to(parameter.device, parameter.dtype)
    images = batches.images
    rows = extract_features(network, images, batches.normalise, cache=cache, title=f"{title}: features", quiet=quiet)
    parts = rows.split(batches.size)
    labels = [NO_LABELS] * len(parts) if images.labels is None else images.labels.split(batches.size)
    return head, list(zip(parts, labels, strict=True))


def extract_view(
    classifier: Classifier, batches: ImageSetBatches, number: int, *, cache: Path | None = None, quiet: bool = True
) -> Tensor:
    """Compute the features of all images in order, each cropped and flipped at random as in a step of a training."""
    assert batches.normalise is not None
    indices = torch.arange(len(batches.data)).split(32)

    def prepared() -> Iterator[Tensor]:
        for place, (chosen, pixels) in enumerate(zip(indices, batches.data.stream(indices), strict=True)):
            share = Share(pixels, batches.labels[chosen], 0, len(chosen))
            yield batches.prepare(number * len(indices) + place, share, next(classifier.parameters()).device)[0]

    compute = partial(_run, classifier, _Sized(prepared, len(indices)), f"features of view {number + 1}", quiet)
    if cache is None:
        return compute()
    recipe = batches.plan.recipe
    key = {
        "images": batches.data.fingerprint,
        "normalise": [list(batches.normalise.mean), list(batches.normalise.std)],
        "view": number,
        "seed": batches.plan.seed,
        "augmentation": [recipe.crop, recipe.flip, recipe.min_area, recipe.jitter],
    }
    return _FeatureStore(cache, classifier).get(key, compute)


class _Sized:
    """Batches of a generator with a length."""

    def __init__(self, make: Callable[[], Iterator[Tensor]], length: int) -> None:
        self.make, self.length = make, length

    def __iter__(self) -> Iterator[Tensor]:
        return self.make()

    def __len__(self) -> int:
        return self.length


def _run(classifier: Classifier, batches: "Batches | _Sized", title: str, quiet: bool) -> Tensor:
    rows = []
    with Progress(title, len(batches), quiet) as progress:
        for images, _ in prepared_batches(classifier, batches, progress=progress):
            with eval_mode(classifier), torch.no_grad():
                rows.append(classifier.features(images).flatten(1).float().cpu())
    features = torch.cat(rows)
    check_finite("the network's features", features)
    return features


class _FeatureStore:
    """A folder of the features of a backbone."""

    def __init__(self, folder: Path, classifier: Classifier) -> None:
        self.folder, backbone = folder, classifier.backbone
        device = next((parameter.device.type for parameter in classifier.parameters()), "cpu")
        self.backbone = {"weights": checksum(backbone, None), "network": repr(backbone), "device": device}

    def get(self, key: dict[str, Any], compute: Callable[[], Tensor]) -> Tensor:
        """Return the features of a key from the folder, or compute and keep them there."""
        whole = json.dumps({**self.backbone, **key}, sort_keys=True)
        path = self.folder / f"{hashlib.sha256(whole.encode()).hexdigest()[:32]}.safetensors"
        with suppress(CheckpointError):  # a damaged file is computed anew
            return read_tensors(path, required=True)[0]["features"]
        features = compute()
        try:
            write_tensors(path, {"features": features}, {"format": "offaxis-features-1"})
        except StorageError as error:
            warnings.warn(f"The features were not kept for the next training. {error}", UserWarning, stacklevel=2)
        return features
