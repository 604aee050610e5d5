"""Detectors x sets on one network -> Results in a store: nothing is computed twice."""

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offaxis import __version__
from offaxis.data import ImageSet, relation
from offaxis.data.splits import VALIDATION_IMAGES, ValidationSplit, split_validation
from offaxis.data.transforms import Batches
from offaxis.deploy.open import EvaluatedNetwork
from offaxis.detectors import Detector, compatible_detectors, fit_all
from offaxis.errors import ArgumentError, EvaluationError, NotFittedError
from offaxis.evaluation.detector_runs import DetectorRun, detector_run
from offaxis.evaluation.grid_scores import CONFIDENCE, ScoreRequest, gather, score_requests
from offaxis.evaluation.protocols import PROTOCOLS, Protocol
from offaxis.evaluation.results import NetworkRecord, Result, result_key
from offaxis.evaluation.store import Store
from offaxis.files import digest
from offaxis.metrics import all_metrics, area_under_risk_coverage, expected_calibration_error

VERSIONS = {
    "offaxis": __version__,
    "torch": torch.__version__,
    "numpy": np.__version__,
    "python": platform.python_version(),
}


def evaluate(
    subject: EvaluatedNetwork,
    id_images: ImageSet,
    ood_sets: Sequence[ImageSet],
    detectors: Iterable[Detector],
    store: Store,
    *,
    training_images: Callable[[], ImageSet],
    fitted_on: str = "all training images",
    protocols: Sequence[Protocol] = ("one-vs-one",),
    tune: bool = True,
    validation: int = VALIDATION_IMAGES,
    batch_size: int = 256,
    quiet: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Evaluate detectors on one network, going on where an earlier call stopped.

    Args:
        subject: the network.
        id_images: the ID set's test images, with labels.
        ood_sets: the OOD sets' test images.
        detectors: those that the network cannot feed are left out with a note.
        store: where everything is kept as it comes.
        training_images: gives the ID set's training images; called only if a detector has to be fitted.
        fitted_on: what these are, in words: results that were fitted on something else are others.
        protocols: which pairs of assumed and tested sets a tuned detector is evaluated on.
        tune: report detectors that have a grid tuned on OOD images too, beside their published values.
        validation: how many images of each set tuning may see; never more than a fifth.
        batch_size: images at a time.
        quiet: show no progress.
        note: is told what is left out.

    Returns:
        The results of these sets and detectors, old and new.

    Raises:
        EvaluationError: no detector fits, two sets have one name, or another network has this one's label and seed.
    """
    job = _Job(subject, id_images, ood_sets, store, training_images, validation, batch_size, quiet, note)
    able, unable = compatible_detectors(detectors, subject.network, job.sample())
    for name, reason in unable.items():
        note(f"{subject.label}: {name} is left out: {reason}.")
    if not able:
        raise EvaluationError(f"No detector fits {subject.label}: {'; '.join(f'{n}: {r}' for n, r in unable.items())}.")
    pairs = [pair for protocol in protocols for pair in PROTOCOLS[protocol](job.names)]
    job.run([detector_run(detector, tune, fitted_on) for detector in able], pairs)
    wanted = job.wanted
    return [result for result in store.results() if result.key in wanted]


class _Job:
    """One network's evaluation."""

    def __init__(
        self,
        subject: EvaluatedNetwork,
        id_images: ImageSet,
        ood_sets: Sequence[ImageSet],
        store: Store,
        training_images: Callable[[], ImageSet],
        validation: int,
        batch_size: int,
        quiet: bool,
        note: Callable[[str], None],
    ) -> None:
        if id_images.labels is None:
            raise ArgumentError(f"Expected ID test images with labels but {id_images.name} has none.")
        self.subject, self.store, self.note = subject, store, note
        self.training_images, self.batch_size, self.quiet = training_images, batch_size, quiet
        self.id = split_validation(id_images, validation)
        self.sets = {images.name: split_validation(images, validation) for images in ood_sets}
        self.names = list(self.sets)
        if len(self.names) < len(ood_sets) or not ood_sets:
            raise EvaluationError("Expected at least one OOD set, each with a name of its own.")
        if subject.normalise is None:
            raise ArgumentError(f"Expected to know how images are normalised for {subject.label}: see normalised().")
        self.normalise = subject.normalise
        self.wanted: set[str] = set()
        self._chosen: dict[tuple[str, str], Detector] = {}
        self._held: dict[
            tuple[str, str], Tensor
        ] = {}  # grid_scores that is read again and again, forgotten after each add
        _check_label(subject, id_images.name, store)

    def sample(self) -> Tensor:
        """Two normalised ID images."""
        return self.normalise(self.id.images.batch(torch.arange(min(2, len(self.id.images)))))

    def run(self, candidates: Sequence[DetectorRun], pairs: Sequence[tuple[str, str]]) -> None:
        """Make the results that are not there yet."""
        done = {result.key for result in self.store.results()}
        todo: list[tuple[DetectorRun, str | None, str]] = [
            (c, None, tested) for c in candidates for tested in self.names
        ]
        todo += [(c, assumed, tested) for c in candidates if c.tuned for assumed, tested in pairs]
        self.wanted = {self._key(*item) for item in todo}
        todo = [item for item in todo if self._key(*item) not in done]
        if not todo and self.store.has_network(self.subject.key, self.id.key):
            return
        for divided in (self.id, *self.sets.values()):
            self.store.add_set(divided.key, divided.about(), divided.validation.numpy(), divided.test.numpy())
        tuned = {c.name for c, assumed, _ in todo if assumed}
        unique = self._fitted({c.name: c for c, _, _ in todo})
        todo = [item for item in todo if item[0].name in unique]
        asked = [q for c in unique.values() for q in score_requests(c, c.name in tuned)]
        self._send(self.id, asked, with_confidence=True)
        self._keep_network()
        for name in dict.fromkeys(tested for _, _, tested in todo):
            self._send(self.sets[name], asked)
            # what can be known once this set has been seen: as given, and tuned on the set itself
            self._add([(c, a, t) for c, a, t in todo if t == name and a in (None, name)])
        for c in unique.values():  # tuned on one set and tested on another: no pass through the network is left to make
            later = [(d, assumed, tested) for d, assumed, tested in todo if d is c and assumed not in (None, tested)]
            for name in {assumed for _, assumed, _ in later if assumed}:
                self._send(self.sets[name], [q for q in asked if q.candidate is c])
            self._add(later)

    def _key(self, c: DetectorRun, assumed: str | None, tested: str) -> str:
        assumed_data = self.sets[assumed].key if assumed else None
        return result_key(self.subject.key, self.id.key, self.sets[tested].key, assumed_data, c.detector.name, c.setup)

    def _fitted(self, candidates: Mapping[str, DetectorRun]) -> dict[str, DetectorRun]:
        """The candidates, fitted; those that cannot score even so (too few training images) are left out with a note."""
        detectors = [c.detector for c in candidates.values() if c.detector.needs_fit]
        if detectors:
            fit_all(self.subject.network, Batches(self.training_images(), self.normalise, self.batch_size), detectors)
        able = {}
        for name, c in candidates.items():
            try:
                c.detector.check_fitted()
                able[name] = c
            except NotFittedError as error:
                self.note(f"{self.subject.label}: {c.detector.name} is left out: {error}")
        return able

    def _add(self, items: Sequence[tuple[DetectorRun, str | None, str]]) -> None:
        """Make results and keep them together; where scores are not numbers, there is a note and no result."""
        results = []
        for c, assumed, tested in items:
            try:
                results.append(self._result(c, assumed, tested))
            except ArgumentError as error:
                self.note(f"{self.subject.label}: {c.detector.name} has no result on {tested}: {error}")
        self.store.add(results)
        self._held.clear()

    def _send(self, divided: ValidationSplit, asked: Sequence[ScoreRequest], with_confidence: bool = False) -> None:
        gather(
            self.subject.network,
            self.subject.key,
            divided,
            Batches(divided.images, self.normalise, self.batch_size),
            asked,
            self.store,
            f"{self.subject.label} seed {self.subject.seed}, {divided.name}",
            with_confidence,
            self.quiet,
        )

    def _keep_network(self) -> None:
        found = self.store.grid_scores(self.subject.key, self.id.key, CONFIDENCE)
        sure, right = found["confidence"], found["correct"]
        self.store.add_network(
            NetworkRecord(
                self.subject.label,
                self.subject.seed,
                self.subject.weights,
                self.id.name,
                self.id.key,
                float(right.mean()),
                expected_calibration_error(sure, right),
                area_under_risk_coverage(sure, right),
                self.subject.origin,
                self.subject.settings,
            )
        )

    # from grid_scores to results, without the network ------------------------------------------------------------------------

    def _evidence(self, c: DetectorRun, divided: ValidationSplit, grid: bool) -> Tensor:
        place = (divided.key, ScoreRequest(c, grid).name)
        if place not in self._held:
            self._held[place] = torch.from_numpy(self.store.grid_scores(self.subject.key, *place)["grid_scores"])
        return self._held[place]

    def _scores(self, c: DetectorRun, detector: Detector, divided: ValidationSplit) -> NDArray[Any]:
        """The scores (T,) of a set's test images."""
        given = ScoreRequest(c, False).name
        if detector is c.detector and self.store.has_grid_scores(self.subject.key, divided.key, given):
            return self._evidence(c, divided, grid=False)[divided.test, 0].numpy()
        return detector.score_from_grid(self._evidence(c, divided, grid=True)[divided.test]).numpy()

    def _tuned(self, c: DetectorRun, assumed: str) -> Detector:
        """The detector with hyperparameters chosen on validation images alone, of the ID set and the assumed set."""
        if (c.name, assumed) not in self._chosen:
            id_grid = self._evidence(c, self.id, grid=True)[self.id.validation]
            ood = self.sets[assumed]
            chosen = c.detector.choose(id_grid, self._evidence(c, ood, grid=True)[ood.validation], on=assumed)
            self._chosen[c.name, assumed] = chosen
        return self._chosen[c.name, assumed]

    def _result(self, c: DetectorRun, assumed: str | None, tested: str) -> Result:
        detector = self._tuned(c, assumed) if assumed else c.detector
        hyperparameters = {**detector.hyperparameters, **_learned(detector, c.detector)}
        variant = f"{detector.name}-{digest([c.setup, hyperparameters])}"
        references, arrays = [], []
        for divided in (self.id, self.sets[tested]):
            reference = f"scores/{self.subject.key}/{divided.key}/{variant}.npz#scores"
            if not self.store.has_scores(reference):
                self.store.add_scores(reference, self._scores(c, detector, divided))
            references.append(reference)
            arrays.append(self.store.scores(reference))
        forward, backward = detector.passes
        return Result(
            network=self.subject.label,
            seed=self.subject.seed,
            weights=self.subject.key,
            id=self.id.name,
            ood=tested,
            assumed=assumed,
            id_data=self.id.key,
            ood_data=self.sets[tested].key,
            assumed_data=self.sets[assumed].key if assumed else None,
            group=relation(self.id.name, tested).group,
            detector=detector.name,
            setup=c.setup,
            hyperparameters=hyperparameters,
            state=str(detector.state),
            passes=(forward, backward),
            metrics=all_metrics(*arrays),
            images=(len(arrays[0]), len(arrays[1])),
            scores=(references[0], references[1]),
            versions=VERSIONS,
            fitted_on=c.fitted_on,
        )


def _learned(chosen: Detector, given: Detector) -> dict[str, Any]:
    """Small buffers that tuning changed, such as the weights of Mahalanobis's layers."""
    if chosen is given:
        return {}
    before: Mapping[str, Tensor] = given.state_dict()
    changed = {n: t for n, t in chosen.state_dict().items() if n in before and t.numel() <= 64}
    return {n: t.tolist() for n, t in changed.items() if not torch.equal(t, before[n])}


def _check_label(subject: EvaluatedNetwork, id_name: str, store: Store) -> None:
    for other in store.networks():
        same = (other.label, other.seed, other.id) == (subject.label, subject.seed, id_name)
        if same and other.weights != subject.weights:
            raise EvaluationError(
                f"Another network in {store.path} is called {subject.label!r} with seed {subject.seed} ({other.origin}): name "
                "this one with --label, or evaluate it into another store."
            )
