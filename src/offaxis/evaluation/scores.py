"""Scores of images by detectors, at the given hyperparameters and over a detector's grid, from few passes over a set."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offaxis.detectors import Detector, Reads
from offaxis.detectors.base import layers_of
from offaxis.evaluation.own_code import code_digest
from offaxis.evaluation.records import with_arguments
from offaxis.evaluation.sets import EvaluationSet
from offaxis.evaluation.store import Store, narrow
from offaxis.files import digest
from offaxis.heads import Outputs
from offaxis.networks.run import Network, prepared_batches, run, widest
from offaxis.progress import Progress

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class DetectorRun:
    """A detector that takes part in an evaluation.

    Attributes:
        detector: fitted or not; the evaluation fits what needs it.
        setup: a digest of the arguments that it was made with, of what it is fitted on and, of one's own, of its code.
        tuned: whether it is evaluated with tuned hyperparameters too, beside the given ones.
        fitted_on: the training images that it is fitted on; empty where it needs none.
        given: its arguments that are not the defaults, which tables show.
    """

    detector: Detector
    setup: str
    tuned: bool
    fitted_on: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the name of its files in a store."""
        return f"{self.detector.name}-{self.setup[:8]}"

    @property
    def title(self) -> str:
        """Return what notes call it: "knn, k=10"."""
        return with_arguments(self.detector.name, self.given)


def detector_run(
    detector: Detector, tune: bool = True, fitted_on: str = "", given: Mapping[str, Any] | None = None
) -> DetectorRun:
    """Describe a detector before it is fitted, its arguments that are not the defaults, and what it will be fitted on."""
    learned = fitted_on if detector.needs_fit else ""
    code = code_digest(detector)
    setup = digest([detector.name, detector.arguments, learned, *([code] if code else [])])
    tuned = tune and bool(detector.grid)
    return DetectorRun(detector=detector, setup=setup, tuned=tuned, fitted_on=learned, given=given or {})


@dataclass(frozen=True)
class ScoreRequest:
    """Scores to compute: of a detector at its given hyperparameters, or at every setting of its grid."""

    run: DetectorRun
    grid: bool

    @property
    def name(self) -> str:
        """Return the name of the values in memory and in a store."""
        return f"{self.run.name}-{'grid' if self.grid else 'given'}"

    @property
    def reads_images(self) -> bool:
        """Return whether outputs are not enough, so that the detector makes its own passes."""
        detector = self.run.detector
        return (detector.grid_reads if self.grid else detector.reads) is Reads.IMAGES

    @property
    def after_pass(self) -> bool:
        """Return whether its own passes can begin with the shared one."""
        return self.reads_images and self.run.detector.shares_pass


def score_requests(run: DetectorRun, tuning: bool) -> list[ScoreRequest]:
    """Return the requests that score a detector as given and, with ``tuning``, at every setting.

    Scores over the grid contain the given setting, unless a detector that perturbs images has another.
    """
    if not (tuning and run.tuned):
        return [ScoreRequest(run, False)]
    return (
        [ScoreRequest(run, True)]
        if _grid_has_given(run.detector)
        else [ScoreRequest(run, True), ScoreRequest(run, False)]
    )


def _grid_has_given(detector: Detector) -> bool:
    present = {name: getattr(detector, name) for name in detector.grid}
    held = all(value in detector.grid[name] for name, value in present.items())
    return held or Reads.IMAGES not in (detector.reads, detector.grid_reads)


class ScoreCache:
    """Scores of one network: kept in memory, and in a store where there is one.

    What was computed in this process is never read from the disk again.

    Args:
        network: the network's key.
        store: where scores are written, and those of earlier processes read; None keeps them in memory alone.
    """

    def __init__(self, network: str, store: Store | None) -> None:
        self.network, self.store = network, store
        self.arrays: dict[str, Array] = {}
        self._grids: dict[tuple[str, str], Array] = {}

    def has_grid(self, set_key: str, name: str) -> bool:
        """Return whether grid scores are there."""
        stored = self.store is not None and self.store.has_grid_scores(self.network, set_key, name)
        return (set_key, name) in self._grids or stored

    def grid(self, set_key: str, name: str) -> Tensor:
        """Return grid scores (N, S, ...) over all images of a set."""
        if (set_key, name) not in self._grids:
            assert self.store is not None
            self._grids[set_key, name] = self.store.grid_scores(self.network, set_key, name)["grid_scores"]
        return torch.from_numpy(self._grids[set_key, name])

    def add_grid(self, set_key: str, name: str, values: Array) -> None:
        """Add grid scores (N, S, ...) over all images of a set."""
        self._grids[set_key, name] = values
        if self.store is not None:
            self.store.add_grid_scores(self.network, set_key, name, {"grid_scores": values})

    def reference(self, set_key: str, run: DetectorRun, hyperparameters: dict[str, Any]) -> str:
        """Return the reference of a set's scores by a detector at some hyperparameters."""
        variant = f"{run.detector.name}-{digest([run.setup, hyperparameters])}"
        return f"scores/{self.network}/{set_key}/{variant}.npz#scores"

    def has_scores(self, reference: str) -> bool:
        """Return whether scores are there."""
        return reference in self.arrays or (self.store is not None and self.store.has_scores(reference))

    def scores(self, reference: str) -> Array:
        """Return the scores (T,) of a set's test images."""
        if reference not in self.arrays:
            assert self.store is not None
            self.arrays[reference] = self.store.scores(reference)
        return self.arrays[reference]

    def add_scores(self, reference: str, values: Array) -> None:
        """Add the scores (T,) of a set's test images."""
        self.arrays[reference] = narrow(values)
        if self.store is not None:
            self.store.add_scores({reference: self.arrays[reference]})


@dataclass(frozen=True)
class Confidence:
    """How sure a network was of each image of the ID set, and whether it was right.

    Attributes:
        probability: (N,) of the predicted class.
        correct: (N,), whether the prediction was correct.
    """

    probability: Array
    correct: Array


def compute_scores(
    network: Network,
    images: EvaluationSet,
    requests: Sequence[ScoreRequest],
    keep: Callable[[ScoreRequest, Array], None],
    *,
    keep_confidence: Callable[[Confidence], None] | None = None,
    title: str = "",
    quiet: bool = True,
) -> None:
    """Send a set through a network and compute what is requested.

    All requests that read outputs or layers share one forward pass, and so do those whose own passes begin with it (ODIN).
    The others that read images make their own passes, one after the other; each is handed over as soon as it is complete.

    Args:
        network: the network, in the place where it shall run.
        images: the set.
        requests: the scores to compute.
        keep: takes a request and its values over all images: (N,) as given, (N, S, ...) over a grid.
        keep_confidence: takes the confidences, for ID images with labels; None where they are not needed.
        title: of the progress bar.
        quiet: show no progress.
    """
    sharing = [request for request in requests if not request.reads_images or request.after_pass]
    if len(sharing) == 1 and keep_confidence is None and sharing[0].after_pass:
        sharing = []  # nobody to share with
    if sharing or keep_confidence is not None:
        _shared_pass(network, images, sharing, keep, keep_confidence, title, quiet)
    for request in requests:
        if request not in sharing:
            keep(request, _own_pass(network, images, request, title, quiet))


def _shared_pass(
    network: Network,
    images: EvaluationSet,
    requests: Sequence[ScoreRequest],
    keep: Callable[[ScoreRequest, Array], None],
    keep_confidence: Callable[[Confidence], None] | None,
    title: str,
    quiet: bool,
) -> None:
    score = [None if request.after_pass else _scoring(request) for request in requests]
    gradients = None in score
    parts: list[list[Array]] = [[] for _ in requests]
    probabilities: list[Array] = []
    correct: list[Array] = []
    several = f"{len(requests)} detectors that share a pass"
    what = several if len(requests) > 1 else "".join(request.name for request in requests) or "accuracy"
    layers = layers_of(request.run.detector for request in requests)
    with Progress(f"{title}: {what}", images.batch_count, quiet) as progress:
        batches = run(
            network,
            images.batches,
            layers=layers,
            progress=progress,
            labels=keep_confidence is not None,
            gradients=gradients,
        )
        for begun, leaf, labels in batches:
            outputs = begun.detached() if gradients else begun
            for request, one, values in zip(requests, score, parts, strict=True):
                if one is None:
                    detector = request.run.detector
                    values.append(_array(detector.scores_after(network, leaf, begun, grid=request.grid)))
                else:
                    values.append(_array(one(outputs)))
            if keep_confidence is not None:
                assert labels is not None
                best = widest(outputs.logits).softmax(1).max(1)
                probabilities.append(_array(best.values))
                correct.append(_array(best.indices.eq(labels)))
    if keep_confidence is not None:
        keep_confidence(Confidence(np.concatenate(probabilities), np.concatenate(correct)))
    for request, values in zip(requests, parts, strict=True):
        keep(request, np.concatenate(values))


def _own_pass(network: Network, images: EvaluationSet, request: ScoreRequest, title: str, quiet: bool) -> Array:
    detector = request.run.detector
    parts = []
    over = " over its grid" if request.grid else ""
    with Progress(f"{title}: {detector.name}{over}", images.batch_count, quiet) as progress:
        for batch, _ in prepared_batches(network, images.batches, progress=progress):
            score = detector.grid_scores_images if request.grid else detector.score_images
            parts.append(_array(score(network, batch)))
    return np.concatenate(parts)


def _scoring(request: ScoreRequest) -> Callable[[Outputs], Tensor]:
    """Return a function Outputs -> scores (N,) or grid scores (N, S, ...) of one batch."""
    detector = request.run.detector
    detector.check_fitted()
    if not request.grid:
        return detector.score
    if type(detector).grid_scores is Detector.grid_scores:  # make each setting's detector once, not once a batch
        every = [detector.with_hyperparameters(**setting) for setting in detector.settings]
        settings = [one for one in every if one.reads is not Reads.IMAGES]  # the given one may, and has its own request

        def each(outputs: Outputs) -> Tensor:
            return torch.stack([one.score(outputs) for one in settings], 1)

        return each
    return detector.grid_scores


def _array(values: Tensor) -> Array:
    values = values.detach().cpu()
    return (values.float() if values.dtype in (torch.bfloat16, torch.float16) else values).numpy()
