"""Scores of images by detectors, at the given hyperparameters and over a detector's grid, from few passes over a set."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offaxis.detectors import Detector, Reads
from offaxis.detectors.base import layers_of
from offaxis.evaluation.protocols import LabelledBatches
from offaxis.evaluation.records import with_arguments
from offaxis.files import digest
from offaxis.heads import Outputs
from offaxis.networks.run import Network, prepared_batches, run, widest
from offaxis.progress import Progress

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class DetectorRun:
    """A detector that takes part in an evaluation.

    Attributes:
        detector: fitted or not; the evaluation fits what needs it.
        tuned: whether it is evaluated with tuned hyperparameters too, beside the given ones.
        fitted_on: the training images that it is fitted on; empty where it needs none.
        given: its arguments that are not the defaults, which tables show.
    """

    detector: Detector
    tuned: bool = False
    fitted_on: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def setup(self) -> str:
        """Return a digest of the detector's arguments, of what it is fitted on and, of one's own, of its file."""
        return digest([self.detector.name, self.detector.arguments, self.fitted_on, *_own_file(self.detector)])

    @property
    def name(self) -> str:
        """Return the name of its files in a store."""
        return f"{self.detector.name}-{self.setup[:8]}"

    @property
    def title(self) -> str:
        """Return what notes call it: "knn, k=10"."""
        return with_arguments(self.detector.name, self.given)

    def reference(self, network: str, images: str, hyperparameters: Mapping[str, Any] | None = None) -> str:
        """Return the reference of a set's scores at some hyperparameters; at the given ones without."""
        values = self.detector.hyperparameters if hyperparameters is None else hyperparameters
        return f"scores/{network}/{images}/{self.detector.name}-{digest([self.setup, values])}.npz#scores"

    def grid_reference(self, network: str, images: str) -> str:
        """Return the reference of the values over its grid, of all images of a set."""
        return f"grid_scores/{network}/{images}/{self.name}-grid.npz#grid_scores"


def is_own(detector: Detector) -> bool:
    """Return whether a detector is not of this package."""
    return not type(detector).__module__.startswith("offaxis.")


def _own_file(detector: Detector) -> list[str]:
    """Return a checksum of the file that defines a detector of one's own, where there is one; nothing for ours."""
    try:
        file = inspect.getsourcefile(type(detector)) if is_own(detector) else None
        return [] if file is None else [digest(Path(file).read_text("utf-8"))]
    except (OSError, TypeError):  # a class of a notebook or of an interpreter
        return []


class ScoreRequest(NamedTuple):
    """Scores to compute: of a detector at its given hyperparameters, or at every setting of its grid."""

    run: DetectorRun
    grid: bool

    @property
    def reads_images(self) -> bool:
        """Return whether outputs are not enough, so that the detector makes its own passes."""
        detector = self.run.detector
        return (detector.grid_reads if self.grid else detector.reads) is Reads.IMAGES


def score_requests(run: DetectorRun, tuning: bool) -> list[ScoreRequest]:
    """Return the requests that score a detector as given and, with ``tuning``, at every setting.

    Scores over the grid contain the given setting, unless a detector that perturbs images has another.
    """
    if not (tuning and run.tuned):
        return [ScoreRequest(run, False)]
    detector = run.detector
    held = all(getattr(detector, name) in values for name, values in detector.grid.items())
    contained = held or Reads.IMAGES not in (detector.reads, detector.grid_reads)
    return [ScoreRequest(run, True), *([] if contained else [ScoreRequest(run, False)])]


Scored = tuple[ScoreRequest | None, Array]
"""A request, with its values over all images: (N,) as given, (N, S, ...) over a grid. None: the (N, C + 1) of ``labels``."""


def compute_scores(
    network: Network,
    batches: LabelledBatches,
    requests: Sequence[ScoreRequest],
    *,
    labels: bool = False,
    title: str = "",
    quiet: bool = True,
) -> Iterator[Scored]:
    """Send a set through a network and yield what is requested, each as soon as it is complete.

    All requests that read outputs or layers share one forward pass, and so do those whose own passes begin with it (ODIN).
    The others that read images make their own passes, one after the other.

    Args:
        network: the network, in the place where it shall run.
        batches: of the set.
        requests: the scores to compute.
        labels: yield the probabilities of the classes, followed by the label, too, for images with labels.
        title: of the progress bar.
        quiet: show no progress.
    """
    count: int = len(batches)  # type: ignore[arg-type]
    sharing = [request for request in requests if not request.reads_images or request.run.detector.shares_pass]
    if len(sharing) == 1 and not labels and sharing[0].reads_images:
        sharing = []  # nobody to share with
    if sharing or labels:
        several = f"{len(sharing)} detectors that share a pass"
        what = several if len(sharing) > 1 else "".join(r.run.detector.name for r in sharing) or "accuracy"
        with Progress(f"{title}: {what}", count, quiet) as progress:
            found = _shared_pass(network, batches, sharing, labels, progress)
        yield from found
    for request in requests:
        if request not in sharing:
            detector = request.run.detector
            over = " over its grid" if request.grid else ""
            score = detector.grid_scores_images if request.grid else detector.score_images
            with Progress(f"{title}: {detector.name}{over}", count, quiet) as progress:
                passes = prepared_batches(network, batches, progress=progress)
                parts = [_array(score(network, images)) for images, _ in passes]
            yield request, np.concatenate(parts)


def _shared_pass(
    network: Network, batches: LabelledBatches, requests: Sequence[ScoreRequest], labels: bool, progress: Progress
) -> list[Scored]:
    scorers = [None if request.reads_images else _scorer(request) for request in requests]
    gradients = None in scorers
    layers = layers_of(request.run.detector for request in requests)
    parts: list[list[Array]] = [[] for _ in requests]
    sure: list[Array] = []
    for begun, leaf, own in run(network, batches, layers=layers, progress=progress, labels=labels, gradients=gradients):
        outputs = begun.detached() if gradients else begun
        for request, scorer, values in zip(requests, scorers, parts, strict=True):
            if scorer is None:
                values.append(_array(request.run.detector.scores_after(network, leaf, begun, grid=request.grid)))
            else:
                values.append(_array(scorer(outputs)))
        if labels:
            assert own is not None
            shares = widest(outputs.logits).softmax(1)
            sure.append(_array(torch.cat([shares, own.to(shares).unsqueeze(1)], 1)))
    found: list[Scored] = [(None, np.concatenate(sure))] if labels else []
    return found + [(request, np.concatenate(values)) for request, values in zip(requests, parts, strict=True)]


def _scorer(request: ScoreRequest) -> Callable[[Outputs], Tensor]:
    """Return a function Outputs -> scores (N,) or grid scores (N, S, ...) of one batch."""
    detector = request.run.detector
    detector.check_fitted()
    if not request.grid:
        return detector.score
    if type(detector).grid_scores is Detector.grid_scores:  # make each setting's detector once, not once a batch
        every = [detector.with_hyperparameters(**setting) for setting in detector.settings]
        settings = [one for one in every if one.reads is not Reads.IMAGES]  # the given one may, and has its own request
        return lambda outputs: torch.stack([one.score(outputs) for one in settings], 1)
    return detector.grid_scores


def _array(values: Tensor) -> Array:
    values = values.detach().cpu()
    return (values.float() if values.dtype in (torch.bfloat16, torch.float16) else values).numpy()
