"""The results of one network: its detectors are fitted, images scored, hyperparameters chosen, and results made of scores."""

import copy
import platform
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch

from offaxis import __version__
from offaxis.calibration.doubts import Watched
from offaxis.data import Normalise, relation
from offaxis.data.catalogue import Group
from offaxis.data.images import VALIDATION_IMAGES
from offaxis.detectors import Detector
from offaxis.detectors.base import try_fit_all
from offaxis.detectors.registry import default_detector
from offaxis.errors import ArgumentError, DetectorError, NotFittedError
from offaxis.evaluation.protocols import EvaluationSet, LabelledBatches, Sets, TrainingImages
from offaxis.evaluation.records import NetworkRecord, Result, predictions_reference
from offaxis.evaluation.scores import Array, DetectorRun, ScoreRequest, compute_scores, score_requests
from offaxis.evaluation.store import Store, narrow
from offaxis.files import digest
from offaxis.metrics import (
    all_metrics,
    area_under_generalized_risk_coverage,
    area_under_risk_coverage,
    brier_score,
    classwise_calibration_error,
    expected_calibration_error,
    negative_log_likelihood,
    open_set_metrics,
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


class EvaluateKeywords(TypedDict, total=False):
    """The keywords of ``evaluate`` that say how it runs and what its records say."""

    normalise: Normalise | None
    near: Sequence[str]
    shifted: Any
    validation: int
    batch_size: int
    features: str | Path | None
    device: str | torch.device
    label: str | None
    fitted_on: str | None
    command: Sequence[str]
    quiet: bool
    note: Callable[[str], None] | None


DEFAULTS: EvaluateKeywords = {
    "normalise": None,
    "near": (),
    "shifted": (),
    "validation": VALIDATION_IMAGES,
    "batch_size": 64,
    "features": None,
    "device": "auto",
    "label": None,
    "fitted_on": None,
    "command": (),
    "quiet": True,
    "note": None,
}


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One network on its sets: what every step reads.

    Attributes:
        opened: the network, in the place where it shall run.
        sets: the ID set and the OOD sets.
        training: the training images; None where detectors stay as they are.
        store: where scores are kept, and results in a folder.
        named: the detectors that were asked for one by one, and are missed where they cannot be fitted.
        options: all keywords of ``evaluate`` that it was given or has by default.
        notes: (detector, sentence) for each that was left out or seems wrong.
    """

    opened: OpenedNetwork
    sets: Sets
    training: TrainingImages | None
    store: Store
    named: Set[str]
    options: EvaluateKeywords
    notes: list[tuple[str, str]]

    def note(self, detector: str, text: str) -> None:
        """Note a sentence on a detector of this network."""
        self.notes.append((detector, f"{self.opened.label}: {text}"))
        if self.options["note"] is not None:
            self.options["note"](self.notes[-1][1])

    @cached_property
    def fields(self) -> dict[str, Any]:
        """Return the fields by which records describe the network."""
        return network_fields(self.opened)

    def group_of(self, ood: str) -> Group:
        """Return how an OOD set relates to the ID set."""
        known = "near" if ood in self.options["near"] else self.sets.ood[ood].group
        return known or relation(self.sets.id.name, ood).group

    def run_on(
        self, batches: LabelledBatches, detectors: Iterable[Detector], title: str
    ) -> tuple[Network, LabelledBatches]:
        """Return the network and batches of images; of a frozen one its head and batches of features, where these suffice."""
        network, cache = self.opened.network, self.options["features"]
        if cache is None or any(detector.needs_images for detector in detectors):
            return network, batches
        title, quiet = f"{self.opened.label}, {title}", self.options["quiet"]
        return on_features(network, batches, Path(cache), title=title, quiet=quiet)


class Test(NamedTuple):
    """A detector, the OOD set that it is tuned on or None, and the OOD set that it is tested on."""

    run: DetectorRun
    assumed: EvaluationSet | None
    tested: EvaluationSet


def network_fields(opened: OpenedNetwork) -> dict[str, Any]:
    """Return the fields by which records describe a network."""
    settings = {key: value for key, value in opened.settings.items() if key not in ("recipe", "head", "data")}
    return {
        "architecture": opened.architecture or "",
        "head": opened.head or {},
        "recipe": opened.recipe or {},
        "data": opened.data or {},
        "kind": opened.kind,
        "members": opened.members,
        "settings": settings,
        "versions": VERSIONS,
    }


def compute_results(
    one: Evaluation, runs: Sequence[DetectorRun], pairs: Sequence[tuple[str, str]]
) -> tuple[list[Result], NetworkRecord | None]:
    """Compute the results that the store does not have, and return all, with the network's record.

    A result is made, and kept, as soon as all its sets have been through the network.

    Args:
        one: the network and its sets.
        runs: the detectors.
        pairs: of assumed and tested sets, for those that are tuned.
    """
    ood = one.sets.ood
    tests = [Test(run, None, ood[tested]) for run in runs for tested in one.sets.tested()]
    tests += [Test(run, ood[assumed], ood[tested]) for run in runs if run.tuned for assumed, tested in pairs]
    keys = {_key(one, test): test for test in tests}
    done = _results_in_store(one, keys)
    todo = [test for key, test in keys.items() if key not in done]
    record = one.store.network(one.opened.key, one.sets.id.key)
    for images in one.sets.every():
        one.store.add_set(images.key, images.record)
    if todo or record is None:
        able = _fit(one, {test.run: None for test in todo})
        todo = [test for test in todo if test.run in able]

    tuned = cache(partial(_tune, one))
    tuned_runs = {test.run for test in todo if test.assumed}
    needed: dict[EvaluationSet, dict[ScoreRequest, None]] = {one.sets.id: {}}
    for test in todo:
        requests = dict.fromkeys(score_requests(test.run, test.run in tuned_runs))
        for images in _sets_of(one, test):
            needed.setdefault(images, {}).update(requests)
    scored: set[EvaluationSet] = set()
    for images, requests in needed.items():
        record = _score(one, images, requests, record) or record
        scored.add(images)
        ready = [test for test in todo if scored.issuperset(_sets_of(one, test))]
        todo = [test for test in todo if not scored.issuperset(_sets_of(one, test))]
        made = []
        for test in ready:
            try:
                made.append(_result(one, test, tuned(test.run, test.assumed) if test.assumed else test.run.detector))
            except ArgumentError as error:  # scores that are not finite
                one.note(test.run.detector.name, f"{test.run.title} has no result on {test.tested.name}: {error}")
        one.store.add(made)
        done |= {result.key: result for result in made}
    return [done[key] for key in keys if key in done], record


def _key(one: Evaluation, test: Test) -> str:
    sets = (one.sets.id.key, test.tested.key, test.assumed.key if test.assumed else None)
    shifted = [images.key for images in one.sets.shifted.values()]
    return digest([one.opened.key, *sets, test.run.detector.name, test.run.setup, *shifted])


def _results_in_store(one: Evaluation, keys: Mapping[str, Test]) -> dict[str, Result]:
    """Return the results that are there already, with their scores, in the group that their set is called now."""
    known = (result for result in one.store.results() if result.key in keys)
    found = {result.key: result for result in known if all(map(one.store.has_scores, result.every_score))}
    groups = {key: one.group_of(keys[key].tested.name) for key in found}
    moved = {key: replace(found[key], group=group) for key, group in groups.items() if group != found[key].group}
    one.store.add(moved.values())
    return found | moved


def _sets_of(one: Evaluation, test: Test) -> list[EvaluationSet]:
    return [one.sets.id, *one.sets.shifted.values(), test.tested, *([test.assumed] if test.assumed else [])]


def _fit(one: Evaluation, runs: Iterable[DetectorRun]) -> set[DetectorRun]:
    """Fit the detectors that need it; those that cannot be, or cannot score even so (too few images), are left out.

    Raises:
        DetectorError: one that was named cannot be fitted.
    """
    runs = list(runs)
    detectors = [run.detector for run in runs if run.detector.needs_fit]
    reasons = {}
    if detectors and one.training is not None:
        batches = one.training.batches(one.opened.normalise, one.options["batch_size"], one.opened.network.num_classes)
        network, fitted_to = one.run_on(batches, detectors, "training images")
        _, tested = one.run_on(one.sets.id.batches, detectors, one.sets.id.name)  # both images, or both kept features
        watched = Watched(fitted_to, tested)
        reasons = try_fit_all(network, watched, detectors)
        for text in watched.doubts():
            one.note("", text)
            warnings.warn(text, stacklevel=4)
    able = set()
    for run in runs:
        name, reason = run.detector.name, reasons.get(run.detector.name)
        if reason is not None and name in one.named:
            raise DetectorError(f"{run.title} cannot be fitted: {reason}") from reason
        if reason is None:
            try:
                run.detector.check_fitted()
                able.add(run)
                continue
            except NotFittedError as error:
                reason = error
        one.note(name, f"{run.title} is left out: {reason}")
    return able


def _score(
    one: Evaluation, images: EvaluationSet, requests: Iterable[ScoreRequest], record: NetworkRecord | None
) -> NetworkRecord | None:
    """Compute the scores of a set that are not there yet and, of ID images, the network's record where it has none."""
    references = {request: _score_reference(one, request, images) for request in requests}
    missing = [request for request, name in references.items() if not one.store.has_scores(name)]
    predictions = predictions_reference(one.opened.key, images.key)
    unknown = images is one.sets.id and record is None
    labels = images.labelled and (unknown or not one.store.has_scores(predictions))
    if not missing and not labels:
        return None
    network, batches = one.run_on(images.batches, [request.run.detector for request in missing], images.name)
    title = f"{one.opened.label} seed {one.opened.seed}, {images.name}"
    scores = compute_scores(network, batches, missing, labels=labels, title=title, quiet=one.options["quiet"])
    for request, values in scores:
        if request is None:
            label, predicted = values[:, -1], values[:, :-1].argmax(1)
            table = np.stack([label, predicted, values[:, :-1].max(1)], 1)
            one.store.add_scores(predictions, table[images.record.test])
            if unknown:
                record = _network_record(one, values[:, :-1], label.astype(np.int64))
                one.store.add_network(record)
        else:
            kept = values if request.grid else narrow(values[images.record.test])
            one.store.add_scores(references[request], kept)
    return record


def _score_reference(one: Evaluation, request: ScoreRequest, images: EvaluationSet) -> str:
    make = request.run.grid_reference if request.grid else request.run.reference
    return make(one.opened.key, images.key)


def _network_record(one: Evaluation, probabilities: Array, labels: Array) -> NetworkRecord:
    """Make the record of a network of its probabilities (N, C) of ID images with labels (N,)."""
    opened, sets = one.opened, one.sets
    if sets.benchmark:  # its lists tell validation from test images; elsewhere accuracy is that of the whole set
        probabilities, labels = probabilities[sets.id.record.test], labels[sets.id.record.test]
    probability, correct = probabilities.max(1), probabilities.argmax(1) == labels
    return NetworkRecord(
        label=opened.label,
        seed=opened.seed,
        weights=opened.weights,
        id=sets.id.name,
        id_data=sets.id.key,
        accuracy=float(correct.mean()),
        ece=expected_calibration_error(probability, correct),
        aurc=area_under_risk_coverage(probability, correct),
        augrc=area_under_generalized_risk_coverage(probability, correct),
        nll=negative_log_likelihood(probabilities, labels),
        brier=brier_score(probabilities, labels),
        classwise_ece=classwise_calibration_error(probabilities, labels),
        default_detector=default_detector(opened.network).name,
        origin=opened.origin,
        commands=(tuple(opened.command),) if opened.command else opened.member_commands,
        **one.fields,
    )


# from scores to results, without the network --------------------------------------------------------------------------


def _grid(one: Evaluation, run: DetectorRun, images: EvaluationSet, part: Array) -> torch.Tensor:
    """Return grid scores (n, S, ...) of some images of a set."""
    return torch.from_numpy(one.store.scores(run.grid_reference(one.opened.key, images.key))[part])


def _tune(one: Evaluation, run: DetectorRun, assumed: EvaluationSet) -> Detector:
    """Return the detector with hyperparameters chosen on validation images alone, of the ID set and the assumed set."""
    id_grid, ood_grid = (_grid(one, run, images, images.record.validation) for images in (one.sets.id, assumed))
    detector = run.detector
    if one.sets.benchmark:  # as OpenOOD tunes; on a copy, as the detector may be the user's
        detector = copy.copy(detector)
        detector.tuning_metric = "auroc"
    return detector.choose(id_grid, ood_grid, on=assumed.name)


def _result(one: Evaluation, test: Test, detector: Detector) -> Result:
    run, tested, assumed = test.run, test.tested, test.assumed
    hyperparameters = {**detector.hyperparameters, **_learned(detector, run.detector)}
    references, shifted = [], one.sets.shifted
    for images in (one.sets.id, tested, *shifted.values()):
        reference = run.reference(one.opened.key, images.key, hyperparameters)
        if not one.store.has_scores(reference):
            values = detector.score_from_grid(_grid(one, run, images, images.record.test))
            one.store.add_scores(reference, narrow(values.numpy()))
        references.append(reference)
    id_scores, ood_scores, *more_scores = map(one.store.scores, references)
    correct = [_correct(one, images) for images in (one.sets.id, *shifted.values())]
    metrics = all_metrics(id_scores, ood_scores) | open_set_metrics(id_scores, correct[0], ood_scores)
    if shifted:
        every = np.concatenate([id_scores, *more_scores])
        whole = all_metrics(every, ood_scores) | open_set_metrics(every, np.concatenate(correct), ood_scores)
        metrics |= {f"full_spectrum_{name}": value for name, value in whole.items()}
    forward, backward = detector.passes
    return Result(
        network=one.opened.label,
        seed=one.opened.seed,
        weights=one.opened.key,
        id=one.sets.id.name,
        ood=tested.name,
        assumed=assumed.name if assumed else None,
        id_data=one.sets.id.key,
        ood_data=tested.key,
        assumed_data=assumed.key if assumed else None,
        group=one.group_of(tested.name),
        detector=detector.name,
        setup=run.setup,
        given=run.given,
        hyperparameters=hyperparameters,
        state=str(detector.state),
        passes=(forward, backward),
        metrics=metrics,
        images=(len(id_scores), len(ood_scores)),
        scores=(references[0], references[1]),
        fitted_on=run.fitted_on,
        command=tuple(one.options["command"]),
        benchmark=one.sets.benchmark,
        shifted=tuple(images.name for images in shifted.values()),
        shifted_data=tuple(images.key for images in shifted.values()),
        shifted_scores=tuple(references[2:]),
        **one.fields,
    )


def _correct(one: Evaluation, images: EvaluationSet) -> Array:
    """Return whether the class of each test image was predicted (T,)."""
    label, predicted, _ = one.store.scores(predictions_reference(one.opened.key, images.key)).T
    return np.asarray(label == predicted)


def _learned(chosen: Detector, given: Detector) -> dict[str, Any]:
    """Return small buffers that tuning changed, such as the weights of Mahalanobis's layers."""
    if chosen is given:
        return {}
    before = given.state_dict()
    changed = {name: t for name, t in chosen.state_dict().items() if name in before and t.numel() <= 64}
    return {name: t.tolist() for name, t in changed.items() if not torch.equal(t, before[name])}
