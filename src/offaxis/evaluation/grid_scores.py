"""Images through a network, once: what all scores are made from, kept as it comes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offaxis.data.splits import ValidationSplit
from offaxis.data.transforms import Batches
from offaxis.detectors import Detector, Reads
from offaxis.detectors.passes import layers_of
from offaxis.evaluation.detector_runs import DetectorRun
from offaxis.evaluation.store import Store
from offaxis.heads import Outputs
from offaxis.networks.ensemble import AnyNetwork
from offaxis.networks.inference import eval_mode
from offaxis.progress import Progress

CONFIDENCE = "confidence"


@dataclass(frozen=True)
class ScoreRequest:
    """What is asked of a candidate: scores as it was given, or grid_scores over its whole grid."""

    candidate: DetectorRun
    grid: bool

    @property
    def name(self) -> str:
        """Names the grid_scores in a store."""
        return f"{self.candidate.name}-{'grid' if self.grid else 'given'}"

    @property
    def reads_images(self) -> bool:
        """Whether outputs are not enough."""
        detector = self.candidate.detector
        return (detector.grid_reads if self.grid else detector.reads) is Reads.IMAGES


def score_requests(candidate: DetectorRun, tuning: bool) -> list[ScoreRequest]:
    """What must be asked to score a candidate as given and, with ``tuning``, at every setting.

    Evidence over the grid holds the given setting too, unless a detector that perturbs images has another.
    """
    if not (tuning and candidate.tuned):
        return [ScoreRequest(candidate, False)]
    detector = candidate.detector
    present = {name: getattr(detector, name) for name in detector.grid}
    held = all(value in detector.grid[name] for name, value in present.items())
    shared = held or Reads.IMAGES not in (detector.reads, detector.grid_reads)
    return (
        [ScoreRequest(candidate, True)] if shared else [ScoreRequest(candidate, True), ScoreRequest(candidate, False)]
    )


def gather(
    network: AnyNetwork,
    network_key: str,
    divided: ValidationSplit,
    batches: Batches,
    asked: Sequence[ScoreRequest],
    store: Store,
    title: str,
    with_confidence: bool = False,
    quiet: bool = False,
) -> None:
    """Send a set through a network and keep what was asked for; what is in the store already is not asked again.

    Everything that reads outputs or layers shares one forward pass. Those that read images make their own passes, one
    after the other, and each is kept as soon as it is there.

    Args:
        network: the network.
        network_key: its name in the store.
        divided: the set.
        batches: the same images, normalised.
        asked: what is wanted.
        store: where it is kept.
        title: what the progress bar says.
        with_confidence: keep, too, how sure the network was of each image and whether it was right.
        quiet: show no progress.
    """
    missing = [q for q in asked if not store.has_grid_scores(network_key, divided.key, q.name)]
    sharing = [q for q in missing if not q.reads_images]
    confidence = with_confidence and not store.has_grid_scores(network_key, divided.key, CONFIDENCE)
    if sharing or confidence:
        found = _shared_pass(network, batches, sharing, confidence, title, quiet)
        for name, arrays in found.items():
            store.add_grid_scores(network_key, divided.key, name, arrays)
    for question in missing:
        if question.reads_images:
            values = _own_pass(network, batches, question, title, quiet)
            store.add_grid_scores(network_key, divided.key, question.name, {"grid_scores": values})


def _shared_pass(
    network: AnyNetwork, batches: Batches, asked: Sequence[ScoreRequest], confidence: bool, title: str, quiet: bool
) -> dict[str, dict[str, NDArray[Any]]]:
    layers = layers_of(q.candidate.detector for q in asked)
    answers = [_answering(q) for q in asked]
    parts: list[list[NDArray[Any]]] = [[] for _ in asked]
    sure: list[NDArray[Any]] = []
    right: list[NDArray[Any]] = []
    detectors = f"{len(asked)} detectors that share a pass" if len(asked) > 1 else "".join(q.name for q in asked)
    with Progress(f"{title}: {detectors or 'accuracy'}", len(batches), quiet) as progress:
        for done, (images, labels) in enumerate(batches, 1):
            with eval_mode(network), torch.no_grad():
                outputs = network.outputs(_to(network, images), layers)
            for answer, kept in zip(answers, parts, strict=True):
                kept.append(answer(outputs).cpu().numpy())
            if confidence:
                best = outputs.logits.double().softmax(1).max(1)
                sure.append(best.values.cpu().numpy())
                right.append((best.indices.cpu() == labels).numpy())
            progress.to(done)
    found = {q.name: {"grid_scores": np.concatenate(kept)} for q, kept in zip(asked, parts, strict=True)}
    if confidence:
        found[CONFIDENCE] = {"confidence": np.concatenate(sure), "correct": np.concatenate(right)}
    return found


def _own_pass(network: AnyNetwork, batches: Batches, question: ScoreRequest, title: str, quiet: bool) -> NDArray[Any]:
    detector, kept = question.candidate.detector, []
    with Progress(
        f"{title}: {detector.name}{' over its grid' if question.grid else ''}", len(batches), quiet
    ) as progress:
        for done, (images, _) in enumerate(batches, 1):
            on_device = _to(network, images)
            if question.grid:
                values = detector.grid_scores_images(network, on_device)
            else:
                values = detector.score_images(network, on_device).unsqueeze(1)
            kept.append(values.detach().cpu().numpy())
            progress.to(done)
    return np.concatenate(kept)


def _answering(question: ScoreRequest) -> Any:
    """A function Outputs -> grid_scores (N, S, ...) of one batch."""
    detector = question.candidate.detector
    detector.check_fitted()
    if not question.grid:
        return lambda outputs: detector.score(outputs).unsqueeze(1)
    if type(detector).grid_scores is Detector.grid_scores:  # make each setting's detector once, not once a batch
        every = [detector.with_hyperparameters(**setting) for setting in detector.settings]
        settings = [one for one in every if one.reads is not Reads.IMAGES]  # the given one may, and is asked by itself

        def each(outputs: Outputs) -> Tensor:
            return torch.stack([one.score(outputs) for one in settings], 1)

        return each
    return detector.grid_scores


def _to(network: AnyNetwork, images: Tensor) -> Tensor:
    parameter = next(network.parameters(), None)
    return images if parameter is None else images.to(parameter.device)
