"""Many detectors on one network: which of them can be used, and one forward pass to fit or to score all of them."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from offaxis.detectors.base import Detector, Reads
from offaxis.errors import ArgumentError, DetectorError
from offaxis.networks.inference import (
    Batches,
    ImageBatches,
    Network,
    prepared_batches,
    run_batch,
    stream,
    to_network,
)


def compatible_detectors(
    detectors: Iterable[Detector], network: Network, sample: Tensor
) -> tuple[list[Detector], dict[str, str]]:
    """Return the detectors that can score a network's images and, by name, the reasons why the others cannot.

    Args:
        detectors: to be checked; ``begin`` is called on those that must be fitted.
        network: the network.
        sample: some normalised images (n, c, h, w), on any device.
    """
    outputs = run_batch(network, to_network(network, sample))
    able, unable = [], {}
    for detector in detectors:
        missing = [name for name in detector.uses if name != "layers" and getattr(outputs, name) is None]
        if missing:
            unable[detector.name] = f"the network gives no {' and no '.join(missing)}"
            continue
        try:
            detector.check_network(network)
            if detector.needs_fit and not detector.fits_on_images:
                detector.begin(network)
        except (DetectorError, ArgumentError) as error:
            unable[detector.name] = str(error).split(": ")[0]
            continue
        able.append(detector)
    return able, unable


def fit_all(network: Network, batches: Batches, detectors: Sequence[Detector]) -> None:
    """Fit every detector that needs it in one pass over (images, labels).

    Detectors whose fitting needs the images themselves (``fits_on_images``) come after, each with its own pass; for
    these ``batches`` must be something that can be iterated again, such as a list or a DataLoader.
    """
    shared = [d for d in detectors if d.needs_fit and not d.fits_on_images]
    for detector in shared:
        detector.begin(network)
    if shared:
        for outputs, labels in stream(network, batches, layers_of(shared)):
            for detector in shared:
                detector.update(outputs, labels)
        for detector in shared:
            detector.finish()
    for detector in detectors:
        if detector.needs_fit and detector.fits_on_images:
            detector.fit(network, batches)


def score_all(network: Network, batches: ImageBatches, detectors: Sequence[Detector]) -> list[Tensor]:
    """Compute the scores (N,) of every detector, in their order: larger = more out-of-distribution.

    All that read outputs or layers share one forward pass; detectors that read images (ODIN, Mahalanobis with a
    perturbation) make their own passes over the same batches.
    """
    for detector in detectors:
        detector.check_fitted()
    shared = [detector for detector in detectors if detector.reads is not Reads.IMAGES]
    layers = layers_of(shared)
    parts: list[list[Tensor]] = [[] for _ in detectors]
    for images, _ in prepared_batches(network, batches):
        outputs = run_batch(network, images, layers) if shared else None
        for detector, scores in zip(detectors, parts, strict=True):
            if outputs is None or detector.reads is Reads.IMAGES:
                scores.append(detector.score_images(network, images))
            else:
                scores.append(detector.score(outputs))
    return [torch.cat(scores).cpu() for scores in parts]


def layers_of(detectors: Iterable[Detector]) -> tuple[str, ...]:
    """Return every layer that some detector reads, once."""
    return tuple(dict.fromkeys(layer for detector in detectors for layer in detector.layers))
