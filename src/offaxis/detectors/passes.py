"""One forward pass for all: fitting and scoring many detectors with one trip of the images through the network."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from offaxis.detectors.base import Detector, Reads
from offaxis.heads import Outputs
from offaxis.networks.inference import Batches, ImageBatches, Network, eval_mode, images_of, stream, to_network


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
    """Scores (N,) of every detector, in their order: one forward pass for all that read outputs or layers.

    Detectors that read images (ODIN, Mahalanobis with a perturbation) make their own passes over the same batches.
    """
    sharing = [detector.reads is not Reads.IMAGES for detector in detectors]
    return _gather(
        network, batches, detectors, sharing, lambda d, o: d.score(o), lambda d, x: d.score_images(network, x)
    )


def grid_scores_all(network: Network, batches: ImageBatches, detectors: Sequence[Detector]) -> list[Tensor]:
    """Evidence (N, S, ...) of every detector over its whole grid: all that tuning and every tuned score need.

    Once this has run for the validation and test images of each set, ``choose`` and ``score_from_grid`` tune on any set
    and score any other without the network.
    """
    sharing = [detector.grid_reads is not Reads.IMAGES for detector in detectors]
    return _gather(
        network,
        batches,
        detectors,
        sharing,
        lambda d, o: d.grid_scores(o),
        lambda d, x: d.grid_scores_images(network, x),
    )


def layers_of(detectors: Iterable[Detector]) -> tuple[str, ...]:
    """Every layer that some detector reads, once."""
    return tuple(dict.fromkeys(layer for detector in detectors for layer in detector.layers))


def _gather(
    network: Network,
    batches: ImageBatches,
    detectors: Sequence[Detector],
    sharing: Sequence[bool],
    from_outputs: Callable[[Detector, Outputs], Tensor],
    from_images: Callable[[Detector, Tensor], Tensor],
) -> list[Tensor]:
    for detector in detectors:
        detector.check_fitted()
    names = layers_of(d for d, shares in zip(detectors, sharing, strict=True) if shares)
    found: list[list[Tensor]] = [[] for _ in detectors]
    for images in images_of(batches):
        on_device = to_network(network, images)
        outputs = None
        if any(sharing):
            with eval_mode(network), torch.no_grad():
                outputs = network.outputs(on_device, names)
        for detector, shares, parts in zip(detectors, sharing, found, strict=True):
            share = outputs if shares else None
            parts.append(from_images(detector, on_device) if share is None else from_outputs(detector, share))
    return [torch.cat(parts).cpu() for parts in found]
