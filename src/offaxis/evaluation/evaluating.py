"""``evaluate``: detectors x OOD sets on networks -> Results, in memory or in a store."""

import copy
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Unpack

from offaxis.data import OpenOOD
from offaxis.detectors import Detector, compatible_detectors, make_detectors
from offaxis.detectors.registry import given_arguments, parse_detector
from offaxis.errors import ArgumentError, EvaluationError
from offaxis.evaluation.compute import DEFAULTS, EvaluateKeywords, Evaluation, compute_results, network_fields
from offaxis.evaluation.protocols import Protocol
from offaxis.evaluation.records import NetworkFields, NetworkRecord
from offaxis.evaluation.results import Results, join_results
from offaxis.evaluation.scores import DetectorRun, detector_run, is_own
from offaxis.evaluation.sets import TrainingImages, open_images, open_sets
from offaxis.evaluation.store import Store
from offaxis.evaluation.summary import differences_in_words
from offaxis.names import FAMILIES
from offaxis.networks.open import open_network
from offaxis.networks.opened import OpenedNetwork
from offaxis.networks.run import resolve_device
from offaxis.networks.saved import checksum


def evaluate(
    network: Any,
    id: Any,
    ood: Any = None,
    detectors: str | Detector | Iterable[str | Detector] = ("native",),
    *,
    train: Any = None,
    tune: bool | None = None,
    protocols: Sequence[Protocol] = (),
    store: Store | str | Path | None = None,
    **keywords: Unpack[EvaluateKeywords],
) -> Results:
    """Evaluate how well detectors tell a network's ID images from OOD images.

    Every detector is tested on the same images; tuning sees validation images alone.

    Args:
        network: a Classifier, or whatever else ``open_network`` takes, or a list of such, one after the other; one that is
            built, such as ``file.py:function`` or any other module, keeps its output layer. Those that share a label must
            differ by their seed, ``open_network(network, seed=1)``. It is moved to ``device``.
        id: the ID test images, with labels: an ImageSet, a torch or Hugging Face dataset, (images, labels) arrays, a
            name of the catalogue, a folder, or a DataLoader of (normalised images, labels), used unchanged. Or a whole
            benchmark, ``offaxis.data.openood(root, "cifar10")``, which brings its OOD sets, training images and splits.
        ood: the OOD test images: a dict name -> set, or a list of sets, each as ``id`` but without need of labels; names
            of ``POOLS`` too. Images of another size are matched to the ID images.
        detectors: Detector objects, names with or without arguments (``"knn:k=10"``), or ``"native"``, ``"pytorch-ood"``,
            ``"all"``. Those of the last three that cannot be used here, or fitted, are left out with a note.
        train: the ID training images, with labels, for detectors that must be fitted; as ``id``, or a function that
            returns them, called only if they are needed. Detectors that are fitted already stay as they are without it.
        tune: evaluate detectors that have a grid with tuned hyperparameters too, beside their given ones; None does so
            where protocols are named.
        protocols: which pairs of assumed and tested sets tuned detectors are evaluated on: ``"one-vs-one"``, which is what
            ``tune=True`` alone does, ``"less-biased"``, or both.
        store: a folder where results and scores are kept; nothing in it is computed again, and an interrupted evaluation
            is resumed. None keeps everything in memory.
        normalise: mean and standard deviation that the network was trained with; None takes the network's own, those
            published for the ID set, or those of the training images.
        near: names of OOD sets of one's own that are of the same kind as the ID images (near-OOD); else they count as far.
        validation: how many images of each set tuning may see, 1000 unless told; never more than a fifth.
        batch_size: images at a time, 64 unless told: so many small ones stay in a CPU's caches; a GPU is faster with more.
        features: a folder where the features of a network with a frozen backbone are kept, as ``train_frozen`` keeps them: a
            second head or seed needs no pass through the backbone, unless a detector reads images or layers. None for none.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"mps"``.
        label: what tables call the network; None takes its own label.
        fitted_on: a description of the training images, by which a store tells results apart; None makes one: of their number
            and checksum, or of the number alone for a DataLoader that shuffles or augments them.
        command: the words of the command line that this is part of, for the records.
        quiet: show no progress, unless it is False.
        note: is called with a sentence for each detector that is left out, and for one of your own whose sign seems wrong;
            ``Results.notes`` has them too. None warns of those that were named one by one.

    Returns:
        One Result for each detector and pair of sets, computed now or found in the store.

    Raises:
        ArgumentError: no labels, no normalisation, or no training images for a detector that was named.
        DetectorError: a detector that was named cannot be fitted on the training images.
        EvaluationError: no detector fits, two sets have one name, or another network of the list or in the store has this
            one's label and seed and was trained alike.
    """
    unknown = keywords.keys() - DEFAULTS.keys()
    if unknown:
        raise TypeError(f"Expected keywords out of {', '.join(DEFAULTS)} but got {', '.join(sorted(unknown))}.")
    options: EvaluateKeywords = {**DEFAULTS, **keywords}
    detectors = [detectors] if isinstance(detectors, (str, Detector)) else list(detectors)
    if not detectors:
        raise ArgumentError("Expected at least one detector, such as 'two-cosines' or 'native', but got none.")
    networks = _open_networks(network, options["label"])
    if (
        len(networks) > 1
        and train is None
        and any(isinstance(d, Detector) and d.needs_fit and d.fitted for d in detectors)
    ):
        raise ArgumentError(
            "Expected training images: a detector that is fitted already belongs to one of the networks. Pass them as "
            "`train`, and it is fitted to each."
        )
    training = _training_images(id, train, options["fitted_on"])
    named = {parse_detector(one)[0] if isinstance(one, str) else one.name for one in detectors} - set(FAMILIES)
    folder = store.path if isinstance(store, Store) else store
    notes: list[tuple[str, str]] = []

    def note(label: str, detector: str, text: str) -> None:
        notes.append((detector, f"{label}: {text}"))
        if options["note"] is not None:
            options["note"](notes[-1][1])

    every, wrong = [], list[str]()
    for trained in networks:
        opened, sets = open_sets(
            trained,
            id,
            ood,
            training,
            normalise=options["normalise"],
            validation=options["validation"],
            batch_size=options["batch_size"],
        )
        one = Evaluation(
            opened=opened,
            sets=sets,
            training=training,
            store=Store(folder),
            named=named,
            options=options,
            note=partial(note, opened.label),
        )
        _check_names(one)
        opened.network.to(resolve_device(options["device"]))
        runs = _choose_detectors(one, detectors, bool(protocols) if tune is None else tune, stored=folder is not None)
        every.append(compute_results(one, runs, sets.pairs(protocols or ("one-vs-one",))))
        for detector, text in _wrong_signs(runs, every[-1]):
            one.note(detector, text)
            wrong.append(notes[-1][1])
    results = join_results(every, [text for _, text in notes], None if folder is None else Store(folder))
    if options["note"] is None:
        absent = named - {result.detector for result in results}
        for detector, text in notes:
            if detector in absent or text in wrong:
                warnings.warn(text, stacklevel=2)
    return results


def _open_networks(network: Any, label: str | None) -> list[OpenedNetwork]:
    """Open the networks; each must have a label and seed of its own."""
    opened = [
        open_network(one, label=label, head="keep")
        for one in (network if isinstance(network, (list, tuple)) else [network])
    ]
    if not opened:
        raise ArgumentError("Expected at least one network but got an empty list.")
    for place, one in enumerate(opened):
        if any(_is_mistaken_for(one, other) for other in opened[:place]):
            raise EvaluationError(
                f"Two networks are called {one.label!r} with seed {one.seed}: tell them apart by their seed or their label, "
                "open_network(network, seed=1) or open_network(network, label='...')."
            )
    return opened


def _is_mistaken_for(one: OpenedNetwork, other: OpenedNetwork | NetworkRecord) -> bool:
    """Return whether another network has the label and seed of this one and was trained alike."""
    if (one.label, one.seed) != (other.label, other.seed) or one.weights == other.weights:
        return False
    known = other if isinstance(other, NetworkRecord) else NetworkFields(**network_fields(other))
    return not any(differences_in_words([NetworkFields(**network_fields(one)).facts, known.facts]))


def _check_names(one: Evaluation) -> None:
    """Raise where a near set is none of the OOD sets, or the store has another network of the same name."""
    unknown = [name for name in one.options["near"] if name not in one.sets.ood]
    if unknown:
        raise ArgumentError(f"Expected near sets out of {', '.join(one.sets.ood)} but got {unknown[0]!r}.")
    opened = one.opened
    for other in one.store.networks():
        if other.id == one.sets.id.name and _is_mistaken_for(opened, other):
            raise EvaluationError(
                f"Another network in {one.store.path} is called {opened.label!r} with seed {opened.seed} "
                f"({', '.join(other.origins)}): give this one a label of its own (--label), or evaluate it into another store."
            )


def _training_images(id: Any, train: Any, fitted_on: str | None) -> TrainingImages | None:
    """Return the training images that are given, or those that belong to the ID images; None where there are none."""
    if train is not None:
        return TrainingImages(train, fitted_on)
    if isinstance(id, OpenOOD):
        described = f"OpenOOD's list train_{id.id}, {len(id.lists[f'train_{id.id}'].paths)} images"
        return TrainingImages(lambda: id.train, fitted_on or described)
    if isinstance(id, (str, Path)):
        return TrainingImages(lambda: open_images(id, "id", split="train"), fitted_on)
    return None


def _choose_detectors(
    one: Evaluation, detectors: Sequence[str | Detector], tune: bool, *, stored: bool
) -> list[DetectorRun]:
    """Make the detectors that were asked for, each once, and leave out those that cannot be used."""
    opened, training = one.opened, one.training
    usable = []
    for detector in make_detectors(detectors, opened.network, opened.normalise.std if opened.normalise else None):
        if training is None and detector.needs_fit and not detector.fitted:
            reason = "it must be fitted: pass the training images as `train`"
            if detector.name in one.named:
                raise ArgumentError(f"Expected training images for {detector.name}: {reason}.")
            one.note(detector.name, f"{detector.name} is left out: {reason}.")
        else:
            usable.append(detector)
    # the check clears fitted statistics, so a detector that is not fitted again is checked by a copy
    checked = {copy.deepcopy(d) if training is None and d.needs_fit else d: d for d in usable}
    sample = next(iter(one.sets.id.batches))[0][:2]
    able, unable = compatible_detectors(checked, opened.network, sample)
    for name, reason in unable.items():
        one.note(name, f"{name} is left out: {reason.rstrip('.')}.")
    if not able:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in unable.items()) or "none is left"
        raise EvaluationError(f"No detector fits {opened.label}: {reasons}.")
    runs = []
    for detector in (checked[probe] for probe in able):
        learned = ""
        if detector.needs_fit and training is None:
            learned = f"before, statistics {checksum(detector, None)[:12]}"
        elif detector.needs_fit and training is not None:
            learned = training.description(one.sets.id.name, stored=stored)
        runs.append(detector_run(detector, tune, learned, given_arguments(detector, opened.network)))
    return list({run.name: run for run in runs}.values())


def _wrong_signs(runs: Iterable[DetectorRun], results: Results) -> list[tuple[str, str]]:
    """Return the names of detectors from outside this package that take OOD images for ID images, with a sentence."""
    found = []
    for name in dict.fromkeys(run.detector.name for run in runs if is_own(run.detector)):
        mean = fmean([one.metrics["auroc"] for one in results if one.detector == name] or [1.0])
        if mean < 0.3:  # turned round, it would be a good one
            text = (
                f"{name} scores ID images higher than OOD images (mean AUROC {100 * mean:.1f} %): larger must mean more "
                "out-of-distribution. Is its sign right?"
            )
            found.append((name, text))
    return found
