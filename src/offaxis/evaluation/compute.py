"""The evaluation of one network: scores are computed, detectors tuned, and results made from them."""

import copy
import platform
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from offaxis import __version__
from offaxis.data import relation
from offaxis.data.catalogue import Group
from offaxis.detectors import Detector
from offaxis.detectors.base import try_fit_all
from offaxis.errors import ArgumentError, DetectorError, EvaluationError, NotFittedError, OffaxisError, StoreError
from offaxis.evaluation.records import NetworkFields, NetworkRecord, Result, result_key
from offaxis.evaluation.results import Results
from offaxis.evaluation.scores import (
    Array,
    Confidence,
    DetectorRun,
    ScoreCache,
    ScoreRequest,
    compute_scores,
    score_requests,
)
from offaxis.evaluation.sets import EvaluationSet, LabelledBatches, TrainingImages
from offaxis.evaluation.store import Store
from offaxis.evaluation.summary import differences_in_words
from offaxis.metrics import (
    all_metrics,
    area_under_generalized_risk_coverage,
    area_under_risk_coverage,
    expected_calibration_error,
)
from offaxis.networks.opened import OpenedNetwork
from offaxis.networks.run import Network
from offaxis.training.features import on_features

VERSIONS = {
    "offaxis": __version__,
    "torch": torch.__version__,
    "numpy": np.__version__,
    "python": platform.python_version(),
}
Todo = tuple[DetectorRun, str | None, str]
"""A detector, the OOD set that it is tuned on or None, and the OOD set that it is tested on."""


class Remark(NamedTuple):
    """What there is to say of a detector.

    Attributes:
        detector: its name.
        text: a sentence.
        wrong_sign: whether it is that its sign seems wrong.
    """

    detector: str
    text: str
    wrong_sign: bool = False


class Evaluation:
    """The evaluation of one network.

    Args:
        subject: the network, in the place where it shall run.
        id: the ID set.
        sets: the OOD sets by name.
        training: the training images; None where no detector needs them.
        store: where results and scores are kept; None keeps them in memory.
        near: the OOD sets that count as near-OOD whatever the catalogue says.
        named: the detectors that were asked for one by one, and are missed where they cannot be fitted.
        batch_size: images at a time.
        command: the words of the command line, for the records.
        benchmark: the name of the benchmark whose lists these sets are; empty for none.
        features: a folder of features, which the backbone of a frozen network computes once; None for none.
        quiet: show no progress.
        note: is told of each detector without a result.

    Raises:
        EvaluationError: another network in the store has this one's label and seed, and was trained alike.
    """

    def __init__(
        self,
        subject: OpenedNetwork,
        id: EvaluationSet,
        sets: Mapping[str, EvaluationSet],
        *,
        training: TrainingImages | None,
        store: Store | None,
        near: frozenset[str],
        named: Set[str],
        batch_size: int,
        command: tuple[str, ...],
        benchmark: str,
        features: Path | None,
        quiet: bool,
        note: Callable[[Remark], object],
    ) -> None:
        self.subject, self.id, self.sets, self.training, self.near = subject, id, sets, training, near
        self.named = named
        self.store, self.batch_size, self.command, self.quiet, self.note = store, batch_size, command, quiet, note
        self.benchmark, self.features = benchmark, features
        self.record: NetworkRecord | None = None
        self.requested: list[str] = []
        self.done = {} if store is None else {result.key: result for result in store.results()}
        self.scores = ScoreCache(subject.key, store)
        self._tuned: dict[tuple[str, str], Detector] = {}
        if store is not None:
            _check_label(subject, id.name, store)

    def compute(self, runs: Sequence[DetectorRun], pairs: Sequence[tuple[str, str]]) -> None:
        """Compute the results that are not there yet."""
        tests = [name for name, images in self.sets.items() if len(images.test)]
        todo: list[Todo] = [(run, None, tested) for run in runs for tested in tests]
        todo += [(run, assumed, tested) for run in runs if run.tuned for assumed, tested in pairs]
        self.requested = [self._key(*item) for item in todo]
        self._regroup()
        todo = [item for item in todo if self._key(*item) not in self.done]
        if self.store is not None:
            recorded = [n for n in self.store.networks() if (n.key, n.id) == (self.subject.key, self.id.name)]
            self.record = next((n for n in recorded if self.store.has_network(n.key, self.id.key)), None)
        if not todo and self.record is not None:
            return
        if self.store is not None:
            if any("scores_kept" in about for about in self.store.sets().values()):
                raise StoreError(
                    f"Expected a store that holds the scores of all images but {self.store.path} is a small copy: evaluate "
                    "into the store that it was made from, or into another folder."
                )
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
        for name in dict.fromkeys(assumed for _, assumed, _ in todo if assumed and not len(self.sets[assumed].test)):
            self._send(self.sets[name], [request for request in requests if request.grid])  # validation images alone
        for run in able.values():  # tuned on one set and tested on another: no pass through the network is left to make
            later = [item for item in todo if item[0] is run and item[1] not in (None, item[2])]
            for name in {assumed for _, assumed, _ in later if assumed}:
                self._send(self.sets[name], [request for request in requests if request.run is run])
            self._add(later)

    def _group(self, tested: str) -> Group:
        return "near" if tested in self.near else self.sets[tested].group or relation(self.id.name, tested).group

    def _regroup(self) -> None:
        """Move results that are there already to the group that their set is called now."""
        found = [self.done[key] for key in self.requested if key in self.done]
        moved = [replace(r, group=self._group(r.ood)) for r in found if r.group != self._group(r.ood)]
        self.done.update((result.key, result) for result in moved)
        if self.store is not None:
            self.store.add(moved)

    def results(self) -> Results:
        """Return what was requested."""
        sets = {images.key: images.record() for images in (self.id, *self.sets.values())}
        return Results(
            results=tuple(self.done[key] for key in self.requested if key in self.done),
            networks=() if self.record is None else (self.record,),
            sets=sets,
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
        """Fit the detectors that need it; those that cannot be, or cannot score even so (too few images), are left out.

        Raises:
            DetectorError: one that was named cannot be fitted.
        """
        detectors = [run.detector for run in runs.values() if run.detector.needs_fit]
        reasons: dict[str, OffaxisError] = {}
        if detectors and self.training is not None:
            batches = self.training.batches(self.subject.normalise, self.batch_size, self.subject.network.num_classes)
            reasons = try_fit_all(*self._run_on(batches, detectors, "training images"), detectors)
        able = {}
        for name, run in runs.items():
            reason = reasons.get(run.detector.name)
            if reason is not None and run.detector.name in self.named:
                raise DetectorError(f"{run.title} cannot be fitted: {reason}") from reason
            try:
                if reason is not None:
                    raise NotFittedError(str(reason))
                run.detector.check_fitted()
                able[name] = run
            except NotFittedError as error:
                self.note(Remark(run.detector.name, f"{run.title} is left out: {error}"))
        return able

    def _run_on(
        self, batches: LabelledBatches, detectors: Sequence[Detector], title: str
    ) -> tuple[Network, LabelledBatches]:
        """Return the network and batches of images; of a frozen one its head and batches of features, where these suffice."""
        if self.features is None or any(detector.needs_images for detector in detectors):
            return self.subject.network, batches
        title = f"{self.subject.label}, {title}"
        return on_features(self.subject.network, batches, self.features, title=title, quiet=self.quiet)

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
        if not missing and not accuracy:
            return
        network, batches = self._run_on(images.batches, [request.run.detector for request in missing], images.name)
        compute_scores(
            network,
            replace(images, batches=batches),
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
        if self.benchmark:  # its lists tell validation from test images; elsewhere accuracy is that of the whole set
            probability, correct = probability[self.id.test.numpy()], correct[self.id.test.numpy()]
        self.record = NetworkRecord(
            label=self.subject.label,
            seed=self.subject.seed,
            weights=self.subject.weights,
            id=self.id.name,
            id_data=self.id.key,
            accuracy=float(correct.mean()),
            ece=expected_calibration_error(probability, correct),
            aurc=area_under_risk_coverage(probability, correct),
            augrc=area_under_generalized_risk_coverage(probability, correct),
            origin=self.subject.origin,
            commands=(tuple(self.subject.command),) if self.subject.command else self.subject.member_commands,
            **self._network_fields,
        )
        if self.store is not None:
            self.store.add_network(self.record)

    @cached_property
    def _network_fields(self) -> dict[str, Any]:
        return network_fields(self.subject)

    # from scores to results, without the network -----------------------------------------------------------------------

    def _add(self, items: Sequence[Todo]) -> None:
        """Add results, all together; where scores are not finite, there is a note and no result."""
        results = []
        for run, assumed, tested in items:
            try:
                results.append(self._result(run, assumed, tested))
            except ArgumentError as error:
                self.note(Remark(run.detector.name, f"{run.title} has no result on {tested}: {error}"))
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
            detector = run.detector
            if self.benchmark:  # as OpenOOD tunes; on a copy, as the detector may be the user's
                detector = copy.copy(detector)
                detector.tuning_metric = "auroc"
            self._tuned[run.name, assumed] = detector.choose(id_grid, ood_grid, on=assumed)
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
            group=self._group(tested),
            detector=detector.name,
            setup=run.setup,
            given=run.given,
            hyperparameters=hyperparameters,
            state=str(detector.state),
            passes=(forward, backward),
            metrics=all_metrics(id_scores, ood_scores),
            images=(len(id_scores), len(ood_scores)),
            scores=(references[0], references[1]),
            fitted_on=run.fitted_on,
            command=self.command,
            benchmark=self.benchmark,
            **self._network_fields,
        )


def _learned(chosen: Detector, given: Detector) -> dict[str, Any]:
    """Return small buffers that tuning changed, such as the weights of Mahalanobis's layers."""
    if chosen is given:
        return {}
    before = given.state_dict()
    changed = {name: t for name, t in chosen.state_dict().items() if name in before and t.numel() <= 64}
    return {name: t.tolist() for name, t in changed.items() if not torch.equal(t, before[name])}


def network_fields(subject: OpenedNetwork) -> dict[str, Any]:
    """Return the fields by which records describe a network."""
    settings = {key: value for key, value in subject.settings.items() if key not in ("recipe", "head", "data")}
    return {
        "architecture": subject.architecture or "",
        "head": subject.head or {},
        "recipe": subject.recipe or {},
        "data": subject.data or {},
        "kind": subject.kind,
        "members": subject.members,
        "settings": settings,
        "versions": VERSIONS,
    }


def _check_label(subject: OpenedNetwork, id_name: str, store: Store) -> None:
    own = NetworkFields(**network_fields(subject))
    for other in store.networks():
        same = (other.label, other.seed, other.id) == (subject.label, subject.seed, id_name)
        if same and other.weights != subject.weights and not any(differences_in_words([own.facts, other.facts])):
            raise EvaluationError(
                f"Another network in {store.path} is called {subject.label!r} with seed {subject.seed} "
                f"({', '.join(other.origins)}): give this one a label of its own (--label), or evaluate it into another store."
            )
