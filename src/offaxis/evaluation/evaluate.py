"""``evaluate``: detectors x OOD sets on one network -> Results, in memory or in a store."""

import builtins
import copy
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offaxis import __version__
from offaxis.data import PUBLISHED, ImageSet, Normalise, relation
from offaxis.data.sources import as_batches, is_loader
from offaxis.data.splits import VALIDATION_IMAGES
from offaxis.deploy.open import EvaluatedNetwork, checksum, open_network
from offaxis.detectors import Detector, compatible_detectors, fit_all, make_detectors
from offaxis.detectors.registry import FAMILIES
from offaxis.errors import ArgumentError, EvaluationError, NotFittedError
from offaxis.evaluation.grid_scores import (
    Array,
    Confidence,
    DetectorRun,
    ScoreCache,
    ScoreRequest,
    compute_scores,
    detector_run,
    score_requests,
)
from offaxis.evaluation.protocols import PROTOCOLS, Protocol
from offaxis.evaluation.results import NetworkRecord, Result, Results, result_key
from offaxis.evaluation.sets import EvaluationSet, from_images, from_loader, named_sets, open_images
from offaxis.evaluation.store import Store
from offaxis.metrics import all_metrics, area_under_risk_coverage, expected_calibration_error
from offaxis.networks.inference import resolve_device

VERSIONS = {
    "offaxis": __version__,
    "torch": torch.__version__,
    "numpy": np.__version__,
    "python": platform.python_version(),
}
Todo = tuple[DetectorRun, str | None, str]
"""A detector, the OOD set that it is tuned on or None, and the OOD set that it is tested on."""


def evaluate(
    network: Any,
    id: Any,
    ood: Any,
    detectors: str | Detector | Iterable[str | Detector] = ("native",),
    *,
    train: Any = None,
    normalise: Normalise | None = None,
    tune: bool = False,
    protocols: Sequence[Protocol] = ("one-vs-one",),
    store: Store | str | Path | None = None,
    validation: int = VALIDATION_IMAGES,
    batch_size: int = 256,
    device: str | torch.device = "auto",
    label: str | None = None,
    fitted_on: str | None = None,
    command: Sequence[str] = (),
    quiet: bool = True,
    note: Callable[[str], None] | None = None,
) -> Results:
    """Evaluate how well detectors tell a network's ID images from OOD images.

    Every detector is tested on the same images; tuning sees validation images alone.

    Args:
        network: a Classifier, or whatever else ``open_network`` takes. It is moved to ``device``.
        id: the ID test images, with labels: an ImageSet, a torch or Hugging Face dataset, (images, labels) arrays, a
            name of the catalogue, a folder, or a DataLoader of (normalised images, labels), used unchanged.
        ood: the OOD test images: a dict name -> set, or a list of sets, each as ``id`` but without need of labels; names
            of ``POOLS`` too. Images of another size are matched to the ID images.
        detectors: Detector objects, names with or without arguments (``"knn:k=10"``), or ``"native"``, ``"pytorch-ood"``,
            ``"all"``. Those of the last three that cannot be used here are left out with a note.
        train: the ID training images, with labels, for detectors that must be fitted; as ``id``, or a function that
            returns them, called only if they are needed. Detectors that are fitted already stay as they are without it.
        normalise: mean and standard deviation that the network was trained with; None takes the network's own, those
            published for the ID set, or those of the training images.
        tune: evaluate detectors that have a grid with tuned hyperparameters too, beside their given ones.
        protocols: which pairs of assumed and tested sets tuned detectors are evaluated on.
        store: a folder where results and scores are kept; nothing in it is computed again, and an interrupted evaluation
            is resumed. None keeps everything in memory.
        validation: how many images of each set tuning may see; never more than a fifth.
        batch_size: images at a time.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"mps"``.
        label: what tables call the network; None takes its own label.
        fitted_on: a description of the training images, by which a store tells results apart; None makes one.
        command: the words of the command line that this is part of, for the records.
        quiet: show no progress.
        note: is called with a sentence for each detector that is left out; ``Results.notes`` has them too.

    Returns:
        One Result for each detector and pair of sets, computed now or found in the store.

    Raises:
        ArgumentError: no labels, no normalisation, or no training images for a detector that was named.
        EvaluationError: no detector fits, two sets have one name, or another network in the store has this one's label
            and seed.
    """
    evaluation = _Evaluation(
        open_network(network, label=label),
        store=Store(store) if isinstance(store, (str, Path)) else store,
        train=train,
        command=tuple(command),
        quiet=quiet,
        note=note,
    )
    evaluation.open_sets(id, ood, normalise, validation=validation, batch_size=batch_size)
    evaluation.subject.network.to(resolve_device(device))
    runs = evaluation.choose_detectors(detectors, tune=tune, fitted_on=fitted_on)
    names = list(evaluation.sets)
    evaluation.compute(runs, [pair for protocol in protocols for pair in PROTOCOLS[protocol](names)])
    return evaluation.results()


class _Evaluation:
    """The evaluation of one network.

    Attributes:
        subject: the network.
        id: the ID set.
        sets: the OOD sets by name.
        scores: the scores in memory and in the store.
        done: results by key, of the store and of this call.
    """

    id: EvaluationSet

    def __init__(
        self,
        subject: EvaluatedNetwork,
        *,
        store: Store | None,
        train: Any,
        command: tuple[str, ...],
        quiet: bool,
        note: Callable[[str], None] | None,
    ) -> None:
        self.subject, self.store, self.train = subject, store, train
        self.command, self.quiet, self.tell = command, quiet, note
        self.sets: dict[str, EvaluationSet] = {}
        self.notes: list[str] = []
        self.record: NetworkRecord | None = None
        self.requested: list[str] = []
        self.done = {} if store is None else {result.key: result for result in store.results()}
        self._tuned: dict[tuple[str, str], Detector] = {}

    # what is evaluated -----------------------------------------------------------------------------------------------

    def open_sets(self, id: Any, ood: Any, normalise: Normalise | None, *, validation: int, batch_size: int) -> None:
        """Open the ID set and the OOD sets, and resolve the normalisation."""
        self.batch_size = batch_size
        if isinstance(id, (str, Path)) and self.train is None:
            self.train = lambda: open_images(id, "id", split="train")
        id_images = None if is_loader(id) else open_images(id, self.subject.id or "id")
        id_name = (self.subject.id or "id") if id_images is None else id_images.name
        normalise = normalise or self.subject.normalise or PUBLISHED.get(id_name)
        if normalise is None and id_images is not None and self.train is not None and not is_loader(self.train):
            normalise = Normalise.from_images(self.training_images)
        self.subject = replace(self.subject, normalise=normalise)

        def opened(
            data: Any, name: str, *, like: tuple[int, int, int] | None = None, num_classes: int | None = None
        ) -> EvaluationSet:
            if is_loader(data):
                return from_loader(data, name, validation=validation, num_classes=num_classes)
            images = open_images(data, name, like=like)
            if normalise is None:
                raise ArgumentError(
                    f"Expected to know how images are normalised for {self.subject.label}: pass normalise=Normalise(mean, "
                    "std), the training images, or DataLoaders of normalised images."
                )
            return from_images(images, normalise, validation=validation, batch_size=batch_size, num_classes=num_classes)

        classes = self.subject.network.num_classes
        self.id = opened(id if id_images is None else id_images, id_name, num_classes=classes)
        for name, data in named_sets(ood, self.id.name).items():
            self.sets[name] = replace(opened(data, name, like=self.id.shape), name=name)
        if self.store is not None:
            _check_label(self.subject, self.id.name, self.store)
        self.scores = ScoreCache(self.subject.key, self.store)

    def choose_detectors(
        self, detectors: str | Detector | Iterable[str | Detector], *, tune: bool, fitted_on: str | None
    ) -> list[DetectorRun]:
        """Make the detectors that were named, and leave out those that cannot be used."""
        texts = [detectors] if isinstance(detectors, (str, Detector)) else list(detectors)
        std = None if self.subject.normalise is None else self.subject.normalise.std
        made = make_detectors(texts, self.subject.network, std)
        named = {text.partition(":")[0] if isinstance(text, str) else text.name for text in texts} - set(FAMILIES)
        usable = []
        for detector in made:
            if self.train is None and detector.needs_fit and not detector.fitted:
                reason = "it must be fitted: pass the training images as `train`"
                if detector.name in named:
                    raise ArgumentError(f"Expected training images for {detector.name}: {reason}.")
                self.note(f"{detector.name} is left out: {reason}.")
            else:
                usable.append(detector)
        # the check clears fitted statistics, so a detector that is not fitted again is checked by a copy
        checked = [copy.deepcopy(d) if self.train is None and d.needs_fit else d for d in usable]
        originals = dict(zip(map(builtins.id, checked), usable, strict=True))
        able, unable = compatible_detectors(checked, self.subject.network, self._sample())
        for name, reason in unable.items():
            self.note(f"{name} is left out: {reason}.")
        if not able:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in unable.items()) or "none is left"
            raise EvaluationError(f"No detector fits {self.subject.label}: {reasons}.")
        runs = [self._run(originals[builtins.id(detector)], tune, fitted_on) for detector in able]
        return list({run.name: run for run in runs}.values())

    def _run(self, detector: Detector, tune: bool, fitted_on: str | None) -> DetectorRun:
        if not detector.needs_fit:
            return detector_run(detector, tune)
        if self.train is None:
            return detector_run(detector, tune, f"before, statistics {checksum(detector, None)[:12]}")
        return detector_run(detector, tune, fitted_on or self._training_name())

    def _training_name(self) -> str:
        if is_loader(self.train):
            return f"a DataLoader of training images of {self.id.name}"
        images = self.training_images
        return f"{len(images)} training images of {images.name} ({images.fingerprint[:12]})"

    @cached_property
    def training_images(self) -> ImageSet:
        """The training images, opened when they are first needed."""
        data = self.train() if callable(self.train) and not isinstance(self.train, ImageSet) else self.train
        return open_images(data, "train", split="train")

    def _sample(self) -> Tensor:
        """Return two normalised ID images."""
        return next(iter(self.id.batches))[0][:2]

    def note(self, text: str) -> None:
        """Keep a note, and tell it."""
        self.notes.append(f"{self.subject.label}: {text}")
        if self.tell is not None:
            self.tell(self.notes[-1])

    # computing -------------------------------------------------------------------------------------------------------

    def compute(self, runs: Sequence[DetectorRun], pairs: Sequence[tuple[str, str]]) -> None:
        """Compute the results that are not there yet."""
        todo: list[Todo] = [(run, None, tested) for run in runs for tested in self.sets]
        todo += [(run, assumed, tested) for run in runs if run.tuned for assumed, tested in pairs]
        self.requested = [self._key(*item) for item in todo]
        todo = [item for item in todo if self._key(*item) not in self.done]
        if self.store is not None:
            recorded = [n for n in self.store.networks() if n.key == self.subject.key]
            self.record = next((n for n in recorded if self.store.has_network(n.key, self.id.key)), None)
        if not todo and self.record is not None:
            return
        if self.store is not None:
            for images in (self.id, *self.sets.values()):
                self.store.add_set(images.key, images.record())
        tuned = {run.name for run, assumed, _ in todo if assumed}
        able = self._fit({run.name: run for run, _, _ in todo})
        todo = [item for item in todo if item[0].name in able]
        requests = [request for run in able.values() for request in score_requests(run, run.name in tuned)]
        self._send(self.id, requests)
        for name in dict.fromkeys(tested for _, _, tested in todo):
            self._send(self.sets[name], requests)
            # what can be computed once this set has been seen: as given, and tuned on the set itself
            self._add([(run, a, t) for run, a, t in todo if t == name and a in (None, name)])
        for run in able.values():  # tuned on one set and tested on another: no pass through the network is left to make
            later = [item for item in todo if item[0] is run and item[1] not in (None, item[2])]
            for name in {assumed for _, assumed, _ in later if assumed}:
                self._send(self.sets[name], [request for request in requests if request.run is run])
            self._add(later)

    def results(self) -> Results:
        """Return what was requested."""
        sets = {images.key: images.record() for images in (self.id, *self.sets.values())}
        return Results(
            results=tuple(self.done[key] for key in self.requested if key in self.done),
            networks=() if self.record is None else (self.record,),
            sets=sets,
            notes=tuple(self.notes),
            arrays=self.scores.arrays,
            store=self.store,
        )

    def _key(self, run: DetectorRun, assumed: str | None, tested: str) -> str:
        return result_key(
            weights=self.subject.key,
            id_data=self.id.key,
            ood_data=self.sets[tested].key,
            assumed_data=self.sets[assumed].key if assumed else None,
            detector=run.detector.name,
            setup=run.setup,
        )

    def _fit(self, runs: dict[str, DetectorRun]) -> dict[str, DetectorRun]:
        """Fit the detectors that need it; those that cannot score even so (too few training images) are left out."""
        detectors = [run.detector for run in runs.values() if run.detector.needs_fit]
        if detectors and self.train is not None:
            if is_loader(self.train):
                batches = as_batches(self.train, None, self.batch_size)
            else:
                assert self.subject.normalise is not None
                batches = as_batches(self.training_images, self.subject.normalise, self.batch_size)
            fit_all(self.subject.network, batches, detectors)
        able = {}
        for name, run in runs.items():
            try:
                run.detector.check_fitted()
                able[name] = run
            except NotFittedError as error:
                self.note(f"{run.detector.name} is left out: {error}")
        return able

    def _send(self, images: EvaluationSet, requests: Sequence[ScoreRequest]) -> None:
        """Compute the scores of a set that are not there yet."""

        def keep(request: ScoreRequest, values: Array) -> None:
            if request.grid:
                self.scores.add_grid(images.key, request.name, values)
            else:
                self.scores.add_scores(self._given(request.run, images), values[images.test.numpy()])

        missing = [
            request
            for request in requests
            if not (
                self.scores.has_grid(images.key, request.name)
                if request.grid
                else self.scores.has_scores(self._given(request.run, images))
            )
        ]
        accuracy = images is self.id and self.record is None
        compute_scores(
            self.subject.network,
            images,
            missing,
            keep,
            keep_confidence=self._keep_network if accuracy else None,
            title=f"{self.subject.label} seed {self.subject.seed}, {images.name}",
            quiet=self.quiet,
        )

    def _given(self, run: DetectorRun, images: EvaluationSet) -> str:
        """Return the reference of a set's scores at a detector's given hyperparameters."""
        return self.scores.reference(images.key, run, run.detector.hyperparameters)

    def _keep_network(self, confidence: Confidence) -> None:
        probability, correct = confidence.probability, confidence.correct
        self.record = NetworkRecord(
            label=self.subject.label,
            seed=self.subject.seed,
            weights=self.subject.weights,
            id=self.id.name,
            id_data=self.id.key,
            accuracy=float(correct.mean()),
            ece=expected_calibration_error(probability, correct),
            aurc=area_under_risk_coverage(probability, correct),
            origin=self.subject.origin,
            commands=(tuple(self.subject.command),) if self.subject.command else (),
            **self._network_fields,
        )
        if self.store is not None:
            self.store.add_network(self.record)

    @cached_property
    def _network_fields(self) -> dict[str, Any]:
        subject = self.subject
        return {
            "architecture": subject.architecture or "",
            "head": subject.head or {},
            "recipe": subject.recipe or {},
            "data": subject.data or {},
            "kind": subject.kind,
            "members": subject.members,
            "settings": {
                key: value for key, value in subject.settings.items() if key not in ("recipe", "head", "data")
            },
            "versions": VERSIONS,
        }

    # from scores to results, without the network -----------------------------------------------------------------------

    def _add(self, items: Sequence[Todo]) -> None:
        """Add results, all together; where scores are not finite, there is a note and no result."""
        results = []
        for run, assumed, tested in items:
            try:
                results.append(self._result(run, assumed, tested))
            except ArgumentError as error:
                self.note(f"{run.detector.name} has no result on {tested}: {error}")
        self.done.update((result.key, result) for result in results)
        if self.store is not None:
            self.store.add(results)

    def _grid(self, run: DetectorRun, images: EvaluationSet, part: Tensor) -> Tensor:
        """Return grid scores (n, S, ...) of some images of a set."""
        return self.scores.grid(images.key, ScoreRequest(run, True).name)[part]

    def _tune(self, run: DetectorRun, assumed: str) -> Detector:
        """Return the detector with hyperparameters chosen on validation images alone, of the ID set and the assumed set."""
        if (run.name, assumed) not in self._tuned:
            ood = self.sets[assumed]
            id_grid, ood_grid = self._grid(run, self.id, self.id.validation), self._grid(run, ood, ood.validation)
            self._tuned[run.name, assumed] = run.detector.choose(id_grid, ood_grid, on=assumed)
        return self._tuned[run.name, assumed]

    def _result(self, run: DetectorRun, assumed: str | None, tested: str) -> Result:
        detector = self._tune(run, assumed) if assumed else run.detector
        hyperparameters = {**detector.hyperparameters, **_learned(detector, run.detector)}
        references = []
        for images in (self.id, self.sets[tested]):
            reference = self.scores.reference(images.key, run, hyperparameters)
            if not self.scores.has_scores(reference):
                values = detector.score_from_grid(self._grid(run, images, images.test))
                self.scores.add_scores(reference, values.numpy())
            references.append(reference)
        id_scores, ood_scores = (self.scores.scores(reference) for reference in references)
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
            setup=run.setup,
            hyperparameters=hyperparameters,
            state=str(detector.state),
            passes=(forward, backward),
            metrics=all_metrics(id_scores, ood_scores),
            images=(len(id_scores), len(ood_scores)),
            scores=(references[0], references[1]),
            fitted_on=run.fitted_on,
            command=self.command,
            **self._network_fields,
        )


def _learned(chosen: Detector, given: Detector) -> dict[str, Any]:
    """Return small buffers that tuning changed, such as the weights of Mahalanobis's layers."""
    if chosen is given:
        return {}
    before = given.state_dict()
    changed = {name: t for name, t in chosen.state_dict().items() if name in before and t.numel() <= 64}
    return {name: t.tolist() for name, t in changed.items() if not torch.equal(t, before[name])}


def _check_label(subject: EvaluatedNetwork, id_name: str, store: Store) -> None:
    for other in store.networks():
        same = (other.label, other.seed, other.id) == (subject.label, subject.seed, id_name)
        if same and other.weights != subject.weights:
            raise EvaluationError(
                f"Another network in {store.path} is called {subject.label!r} with seed {subject.seed} "
                f"({', '.join(other.origins)}): give this one a label of its own (--label), or evaluate it into another store."
            )
