"""Several detectors for one network: by their names, which of them can be used, and one pass to fit or score them all."""

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from offaxis.data.transforms import Normalise
from offaxis.detectors.base import Detector, Reads, TrainingImages, concatenated, training_batches
from offaxis.detectors.registry import DETECTORS, FAMILIES, NATIVE, is_pytorch_ood, make_detector
from offaxis.errors import ArgumentError, DetectorError, OffaxisError
from offaxis.heads import DeConfHead, IsoMaxHead
from offaxis.heads.base import at_least_float32
from offaxis.networks.combine import Ensemble
from offaxis.networks.run import (
    Batches,
    ImageBatches,
    Network,
    device_of,
    prepared_batches,
    run_batch,
    stream,
    to_network,
)

_MADE_FOR = {"isomax": IsoMaxHead, "generalized-odin": DeConfHead}  # a family names them for these heads alone


def make_detectors(
    texts: Iterable[str | Detector], network: Network, std: Sequence[float] | None = None
) -> list[Detector]:
    """Construct the detectors that texts name, each once, for a network.

    Args:
        texts: as in ``make_detector``; or ``"native"`` (the package's own that are meant for such a network),
            ``"pytorch-ood"`` (all of pytorch-ood's) or ``"all"`` (both, and those that were registered). A Detector is
            taken unchanged.
        network: the network whose images they will score.
        std: what each channel is divided by in normalisation; None where unknown.
    """
    names: list[str | Detector] = []
    for text in texts:
        names += _family(text, network) if isinstance(text, str) and text in FAMILIES else [text]
    return [make_detector(one, network, std) if isinstance(one, str) else one for one in dict.fromkeys(names)]


def _family(name: str, network: Network) -> list[str]:
    native = [kind for kind in NATIVE if _meant_for(kind, network)]
    theirs = [kind for kind in DETECTORS if is_pytorch_ood(kind)]
    own = [kind for kind in DETECTORS if kind not in NATIVE and kind not in theirs]
    return {"native": native, "pytorch-ood": theirs, "all": [*native, *own, *theirs]}[name]


def _meant_for(name: str, network: Network) -> bool:
    if isinstance(network, Ensemble):  # its cosine is that of cosine-ensemble
        return name != "cosine" and _takes(NATIVE[name](), network)
    if name in _MADE_FOR:
        return isinstance(network.head, _MADE_FOR[name])
    return name not in ("cosine-ensemble", "leave-out")


def _takes(detector: Detector, network: Network) -> bool:
    try:
        detector.check_network(network)
    except DetectorError:
        return False
    return True


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


def fit_all(
    network: Network,
    images: TrainingImages,
    detectors: Sequence[Detector],
    normalise: Normalise | None = None,
    *,
    batch_size: int = 256,
) -> None:
    """Fit every detector that needs it in one pass over training images.

    Detectors whose fitting needs the images themselves (``fits_on_images``) come after, each with its own pass; for
    these ``images`` must be something that can be iterated again, such as a list or a DataLoader.

    Args:
        network: the network whose outputs are scored later.
        images: batches of (images, labels), normalised as in training, such as a DataLoader or a list; or, with
            ``normalise``, an ImageSet or a dataset of (image, label).
        detectors: those that need no fitting are left as they are.
        normalise: as in training, for images that are not normalised yet.
        batch_size: images per batch, for images that are not in batches yet.

    Raises:
        DetectorError: some cannot be fitted with such a network, and the message says which and why; all others are.
    """
    if not any(detector.needs_fit for detector in detectors):
        return
    reasons = try_fit_all(network, training_batches(network, images, normalise, batch_size), detectors)
    if reasons:
        fitted = [d.name for d in detectors if d.name not in reasons]
        if not fitted and len(reasons) == 1:
            raise next(iter(reasons.values()))
        raise DetectorError(
            f"{'; '.join(f'{name} cannot be fitted: {reason}' for name, reason in reasons.items())} "
            + (f"All others are fitted ({', '.join(fitted)}): leave {', '.join(reasons)} out." if fitted else "")
        )


def try_fit_all(network: Network, batches: Batches, detectors: Sequence[Detector]) -> dict[str, OffaxisError]:
    """Fit every detector that can be, as ``fit_all`` does; return, by name, the reasons why the others cannot."""
    reasons: dict[str, OffaxisError] = {}

    def attempt(step: Callable[[Detector], None], those: Iterable[Detector]) -> list[Detector]:
        """Take a step with each detector; return those that could."""
        able = []
        for detector in those:
            try:
                step(detector)
            except (DetectorError, ArgumentError) as error:
                reasons[detector.name] = error
            else:
                able.append(detector)
        return able

    for detector in detectors:
        if detector.needs_fit:
            detector.clear()
    shared = attempt(lambda d: d.begin(network), [d for d in detectors if d.needs_fit and not d.fits_on_images])
    if shared:
        for outputs, labels in stream(network, batches, layers_of(shared)):
            shared = attempt(lambda d: d.update(outputs, labels), shared)  # noqa: B023 - called at once
    for detector in attempt(lambda d: d.finish(), shared):
        detector.move_to(device_of(network))
    attempt(lambda d: d.fit_batches(network, batches), [d for d in detectors if d.needs_fit and d.fits_on_images])
    return reasons


def score_all(network: Network, batches: ImageBatches, detectors: Sequence[Detector]) -> list[Tensor]:
    """Compute the scores (N,) of every detector, in their order: larger = more out-of-distribution.

    All that read outputs or layers share one forward pass; detectors that read images (ODIN, Mahalanobis with a
    perturbation) make their own passes over the same batches. They are on the CPU, in float32 or float64.

    Raises:
        ArgumentError: there is no batch.
        NotFittedError: a detector is not fitted.
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
    return [at_least_float32(concatenated(scores, "images to score")).cpu() for scores in parts]


def layers_of(detectors: Iterable[Detector]) -> tuple[str, ...]:
    """Return every layer that some detector reads, once."""
    return tuple(dict.fromkeys(layer for detector in detectors for layer in detector.layers))
