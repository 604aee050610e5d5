"""``evaluate``: detectors x OOD sets on one network -> Results, in memory or in a store."""

import builtins
import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from offaxis.data import PUBLISHED, Normalise, OpenOOD
from offaxis.data.adapt import is_loader
from offaxis.data.splits import VALIDATION_IMAGES
from offaxis.detectors import Detector, compatible_detectors, make_detectors
from offaxis.detectors.registry import given_arguments, parse_detector
from offaxis.errors import ArgumentError, EvaluationError
from offaxis.evaluation.compute import Evaluation, Remark, network_fields
from offaxis.evaluation.protocols import PROTOCOLS, Protocol
from offaxis.evaluation.records import NetworkFields
from offaxis.evaluation.results import Results, join_results
from offaxis.evaluation.scores import DetectorRun, detector_run
from offaxis.evaluation.sets import (
    EvaluationSet,
    TrainingImages,
    from_images,
    from_loader,
    from_openood,
    named_sets,
    open_images,
)
from offaxis.evaluation.store import Store
from offaxis.evaluation.summary import differences_in_words
from offaxis.names import FAMILIES
from offaxis.networks.open import open_network
from offaxis.networks.opened import OpenedNetwork
from offaxis.networks.run import resolve_device
from offaxis.networks.weights import checksum

Note = Callable[[Remark], object]


def evaluate(
    network: Any,
    id: Any,
    ood: Any = None,
    detectors: str | Detector | Iterable[str | Detector] = ("native",),
    *,
    train: Any = None,
    normalise: Normalise | None = None,
    tune: bool = False,
    protocols: Sequence[Protocol] = ("one-vs-one",),
    near: Sequence[str] = (),
    store: Store | str | Path | None = None,
    validation: int = VALIDATION_IMAGES,
    batch_size: int = 64,
    features: str | Path | None = None,
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
        normalise: mean and standard deviation that the network was trained with; None takes the network's own, those
            published for the ID set, or those of the training images.
        tune: evaluate detectors that have a grid with tuned hyperparameters too, beside their given ones.
        protocols: which pairs of assumed and tested sets tuned detectors are evaluated on.
        near: names of OOD sets of one's own that are of the same kind as the ID images (near-OOD); else they count as far.
        store: a folder where results and scores are kept; nothing in it is computed again, and an interrupted evaluation
            is resumed. None keeps everything in memory.
        validation: how many images of each set tuning may see; never more than a fifth.
        batch_size: images at a time. 64 small ones stay in a CPU's caches; a GPU is faster with more.
        features: a folder where the features of a network with a frozen backbone are kept, as ``train_frozen`` keeps them: a
            second head or seed needs no pass through the backbone, unless a detector reads images or layers. None for none.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"mps"``.
        label: what tables call the network; None takes its own label.
        fitted_on: a description of the training images, by which a store tells results apart; None makes one: of their number
            and checksum, or of the number alone for a DataLoader that shuffles or augments them.
        command: the words of the command line that this is part of, for the records.
        quiet: show no progress.
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
    detectors = [detectors] if isinstance(detectors, (str, Detector)) else list(detectors)
    if not detectors:
        raise ArgumentError("Expected at least one detector, such as 'two-cosines' or 'native', but got none.")
    several = isinstance(network, (list, tuple))
    networks = _open_several(network, label) if several else [open_network(network, label=label, head="keep")]
    if several and train is None and any(isinstance(d, Detector) and d.needs_fit and d.fitted for d in detectors):
        raise ArgumentError(
            "Expected training images: a detector that is fitted already belongs to one of the networks. Pass them as "
            "`train`, and it is fitted to each."
        )
    told: list[Remark] = []

    def evaluate_one(opened: OpenedNetwork) -> Results:
        def tell(remark: Remark) -> None:
            told.append(remark._replace(text=f"{opened.label}: {remark.text}"))
            if note is not None:
                note(told[-1].text)

        return _evaluate_one(
            opened,
            id,
            ood,
            detectors,
            train=train,
            normalise=normalise,
            tune=tune,
            protocols=protocols,
            near=near,
            store=Store(store) if isinstance(store, (str, Path)) else store,
            validation=validation,
            batch_size=batch_size,
            features=None if features is None else Path(features),
            device=device,
            fitted_on=fitted_on,
            command=tuple(command),
            quiet=quiet,
            note=tell,
        )

    results = join_results([evaluate_one(opened) for opened in networks])
    if note is None:
        absent = _named(detectors) - {result.detector for result in results}
        for one in told:
            if one.wrong_sign or one.detector in absent:
                warnings.warn(one.text, stacklevel=2)
    return replace(results, notes=tuple(dict.fromkeys(one.text for one in told)))


def _evaluate_one(
    opened: OpenedNetwork,
    id: Any,
    ood: Any,
    detectors: Sequence[str | Detector],
    *,
    train: Any,
    normalise: Normalise | None,
    tune: bool,
    protocols: Sequence[Protocol],
    near: Sequence[str],
    store: Store | None,
    validation: int,
    batch_size: int,
    features: Path | None,
    device: str | torch.device,
    fitted_on: str | None,
    command: tuple[str, ...],
    quiet: bool,
    note: Note,
) -> Results:
    """Evaluate one network, as ``evaluate`` does; ``note`` is called with each Remark."""
    if isinstance(id, OpenOOD) != (ood is None):
        raise ArgumentError(
            "Expected OOD sets, or as `id` a benchmark, openood(root, 'cifar10'), which brings its own."
        )
    if train is None and isinstance(id, OpenOOD):
        training: TrainingImages | None = TrainingImages(lambda: id.train)
        fitted_on = fitted_on or f"OpenOOD's list train_{id.id}, {len(id.lists[f'train_{id.id}'].paths)} images"
    elif train is None and isinstance(id, (str, Path)):
        training = TrainingImages(lambda: open_images(id, "id", split="train"))
    else:
        training = None if train is None else TrainingImages(train)
    opened, id_set, ood_sets = _open_sets(
        opened, id, ood, normalise=normalise, training=training, validation=validation, batch_size=batch_size
    )
    unknown = [name for name in near if name not in ood_sets]
    if unknown:
        raise ArgumentError(f"Expected near sets out of {', '.join(ood_sets)} but got {unknown[0]!r}.")
    opened.network.to(resolve_device(device))
    runs = _choose_detectors(
        detectors, opened, id_set, training, tune=tune, fitted_on=fitted_on, stored=store is not None, note=note
    )
    evaluation = Evaluation(
        opened,
        id_set,
        ood_sets,
        training=training,
        store=store,
        near=frozenset(near),
        named=_named(detectors),
        batch_size=batch_size,
        command=command,
        benchmark=id.name if isinstance(id, OpenOOD) else "",
        features=features,
        quiet=quiet,
        note=note,
    )
    pairs = [pair for protocol in protocols for pair in PROTOCOLS[protocol](list(ood_sets))]
    if isinstance(id, OpenOOD):  # tuned on the validation list, whatever is tested
        alone = [name for name, images in ood_sets.items() if not len(images.test)]
        pairs = [(assumed, tested) for assumed in alone for tested in ood_sets if tested != assumed]
    evaluation.compute(runs, pairs)
    results = evaluation.results()
    _check_signs(runs, results, note)
    return results


def _named(detectors: Sequence[str | Detector]) -> set[str]:
    """Return the names of the detectors that were asked for one by one, not as a family."""
    return {parse_detector(one)[0] if isinstance(one, str) else one.name for one in detectors} - set(FAMILIES)


def _check_signs(runs: Iterable[DetectorRun], results: Results, note: Note) -> None:
    """Note detectors from outside this package that take OOD images for ID images."""
    own = [run.detector.name for run in runs if not type(run.detector).__module__.startswith("offaxis.")]
    for name in dict.fromkeys(own):
        mean = fmean([one.metrics["auroc"] for one in results if one.detector == name] or [1.0])
        if mean < 0.3:  # turned round, it would be a good one
            text = (
                f"{name} scores ID images higher than OOD images (mean AUROC {100 * mean:.1f} %): larger must mean more "
                "out-of-distribution. Is its sign right?"
            )
            note(Remark(name, text, wrong_sign=True))


def _open_several(networks: Sequence[Any], label: str | None) -> list[OpenedNetwork]:
    """Open networks that are evaluated side by side; each must have a label and seed of its own."""
    if not networks:
        raise ArgumentError("Expected at least one network but got an empty list.")
    opened = [open_network(network, label=label, head="keep") for network in networks]
    for place, one in enumerate(opened):
        for other in opened[:place]:
            same = (one.label, one.seed) == (other.label, other.seed) and one.weights != other.weights
            if not same or any(differences_in_words([NetworkFields(**network_fields(n)).facts for n in (one, other)])):
                continue
            raise EvaluationError(
                f"Two networks are called {one.label!r} with seed {one.seed}: tell them apart by their seed or their label, "
                "open_network(network, seed=1) or open_network(network, label='...')."
            )
    return opened


def _open_sets(
    network: OpenedNetwork,
    id: Any,
    ood: Any,
    *,
    normalise: Normalise | None,
    training: TrainingImages | None,
    validation: int,
    batch_size: int,
) -> tuple[OpenedNetwork, EvaluationSet, dict[str, EvaluationSet]]:
    """Return the network with its normalisation, the ID set and the OOD sets by name."""
    if isinstance(id, OpenOOD):
        normalise = normalise or network.normalise or id.normalise
        sets = from_openood(id, normalise, batch_size=batch_size, num_classes=network.network.num_classes)
        return replace(network, normalise=normalise), *sets
    images = None if is_loader(id) else open_images(id, network.id or "id")
    id_name = (network.id or "id") if images is None else images.name
    normalise = normalise or network.normalise or PUBLISHED.get(id_name)
    if normalise is None and images is not None and training is not None and not training.is_loader:
        normalise = Normalise.from_images(training.images)

    def opened(
        data: Any, name: str, *, like: tuple[int, int, int] | None = None, num_classes: int | None = None
    ) -> EvaluationSet:
        if is_loader(data):
            return from_loader(data, name, validation=validation, num_classes=num_classes)
        images = open_images(data, name, like=like)
        if normalise is None:
            raise ArgumentError(
                f"Expected to know how images are normalised for {network.label}: pass normalise=Normalise(mean, std), the "
                "training images, or DataLoaders of normalised images."
            )
        return from_images(images, normalise, validation=validation, batch_size=batch_size, num_classes=num_classes)

    id_set = opened(id if images is None else images, id_name, num_classes=network.network.num_classes)
    ood_sets = {
        name: replace(opened(data, name, like=id_set.shape), name=name)
        for name, data in named_sets(ood, id_set.name).items()
    }
    return replace(network, normalise=normalise), id_set, ood_sets


def _choose_detectors(
    detectors: Sequence[str | Detector],
    network: OpenedNetwork,
    id_set: EvaluationSet,
    training: TrainingImages | None,
    *,
    tune: bool,
    fitted_on: str | None,
    stored: bool,
    note: Note,
) -> list[DetectorRun]:
    """Make the detectors that were named, each once, and leave out those that cannot be used."""
    std = None if network.normalise is None else network.normalise.std
    named = _named(detectors)
    usable = []
    for detector in make_detectors(detectors, network.network, std):
        if training is None and detector.needs_fit and not detector.fitted:
            reason = "it must be fitted: pass the training images as `train`"
            if detector.name in named:
                raise ArgumentError(f"Expected training images for {detector.name}: {reason}.")
            note(Remark(detector.name, f"{detector.name} is left out: {reason}."))
        else:
            usable.append(detector)
    # the check clears fitted statistics, so a detector that is not fitted again is checked by a copy
    checked = [copy.deepcopy(d) if training is None and d.needs_fit else d for d in usable]
    originals = dict(zip(map(builtins.id, checked), usable, strict=True))
    able, unable = compatible_detectors(checked, network.network, _sample(id_set))
    for name, reason in unable.items():
        note(Remark(name, f"{name} is left out: {reason.rstrip('.')}."))
    if not able:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in unable.items()) or "none is left"
        raise EvaluationError(f"No detector fits {network.label}: {reasons}.")
    runs = []
    for detector in able:
        detector = originals[builtins.id(detector)]
        learned = ""
        if detector.needs_fit and training is None:
            learned = f"before, statistics {checksum(detector, None)[:12]}"
        elif detector.needs_fit and training is not None:
            learned = fitted_on or training.description(id_set.name, stored=stored)
        runs.append(detector_run(detector, tune, learned, given_arguments(detector, network.network)))
    return list({run.name: run for run in runs}.values())


def _sample(images: EvaluationSet) -> Tensor:
    """Return two normalised images."""
    return next(iter(images.batches))[0][:2]
