"""``evaluate``: detectors x OOD sets on networks -> Results, in memory or in a store; also by the options of the shell."""

import copy
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, Unpack

from offaxis.data import ImageSet, OpenOOD, limit_images, load_images, openood
from offaxis.data.catalogue import CATALOGUE, cache_folder
from offaxis.data.images import list_skipped
from offaxis.data.load import own_files
from offaxis.detectors import Detector, compatible_detectors, make_detectors
from offaxis.detectors.registry import given_arguments, parse_detector
from offaxis.errors import ArgumentError, EvaluationError, OffaxisError
from offaxis.evaluation.compute import DEFAULTS, EvaluateKeywords, Evaluation, compute_results, network_fields
from offaxis.evaluation.protocols import Protocol, TrainingImages, open_images, open_sets, sets_for
from offaxis.evaluation.records import NetworkFields, NetworkRecord, Result, SetRecord
from offaxis.evaluation.results import Results
from offaxis.evaluation.scores import DetectorRun, is_own
from offaxis.evaluation.store import Store
from offaxis.evaluation.summary import differences_in_words
from offaxis.files import digest
from offaxis.names import BENCHMARKS, FAMILIES, alike
from offaxis.networks.classifier import Classifier
from offaxis.networks.open import combine, open_network, open_runs
from offaxis.networks.opened import OpenedNetwork, make_label
from offaxis.networks.run import resolve_device
from offaxis.networks.saved import checksum
from offaxis.options import EvaluateOptions
from offaxis.progress import counting

Note = Callable[[str], None]
Rules = tuple[tuple[str, Any], ...]
"""Arguments of ``load_images`` that can be the key of a cache."""


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
        shifted: sets of the ID classes under other conditions (corrupted, another camera), labelled, as ``ood``: for
            full-spectrum evaluation, whose metrics (``full_spectrum_auroc``, ...) count their images as ID images. A
            benchmark brings its own: ``openood(root, "imagenet", full_spectrum=True)``.
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
    several = list(network) if isinstance(network, (list, tuple)) else [network]
    if not detectors or not several:
        raise ArgumentError(
            "Expected at least one network, and at least one detector such as 'two-cosines' or 'native', but got none."
        )
    if (
        len(several) > 1
        and train is None
        and any(isinstance(d, Detector) and d.needs_fit and d.fitted for d in detectors)
    ):
        raise ArgumentError(
            "Expected training images: a detector that is fitted already belongs to one of the networks. Pass them as "
            "`train`, and it is fitted to each."
        )
    networks = [open_network(one, label=options["label"], head="keep") for one in several]
    for place, opened in enumerate(networks):
        _check_label(opened, networks[:place], "in the list")
    training = _training_images(id, train, options["fitted_on"])
    named = {parse_detector(one)[0] if isinstance(one, str) else one.name for one in detectors} - set(FAMILIES)
    kept = Store(store.path if isinstance(store, Store) else store)
    for text in kept.mend():
        (options["note"] or warnings.warn)(text)
    notes: list[tuple[str, str]] = []
    results, records, wrong = list[Result](), list[NetworkRecord](), set[str]()
    about: dict[str, SetRecord] = {}
    for trained in networks:
        opened, sets = open_sets(trained, id, ood, training, options)
        one = Evaluation(
            opened=opened, sets=sets, training=training, store=kept, named=named, options=options, notes=notes
        )
        _check_label(opened, [r for r in kept.networks() if r.id == sets.id.name], f"in {kept.folder}")
        opened.network.to(resolve_device(options["device"]))
        runs = _choose_detectors(one, detectors, bool(protocols) if tune is None else tune)
        found, record = compute_results(one, runs, sets.pairs(protocols or ("one-vs-one",)))
        wrong |= _note_wrong_signs(one, runs, found)
        results += found
        records += [] if record is None else [record]
        about |= {images.key: images.record for images in sets.every()}
        kept.forget_grids()
    if options["note"] is None:
        silent = named - {result.detector for result in results}
        for detector, text in notes:
            if detector in silent | wrong:
                warnings.warn(text, stacklevel=2)
    texts = tuple(dict.fromkeys(text for _, text in notes))
    return Results(results=tuple(results), networks=tuple(records), sets=about, notes=texts, store=kept)


def _check_label(opened: OpenedNetwork, others: Iterable[OpenedNetwork | NetworkRecord], where: str) -> None:
    """Raise where another network has the label and seed of this one and was trained alike, as far as is known."""
    facts = NetworkFields(**network_fields(opened)).facts
    for other in others:
        known = other if isinstance(other, NetworkRecord) else NetworkFields(**network_fields(other))
        same = (other.label, other.seed) == (opened.label, opened.seed) and other.weights != opened.weights
        if same and not any(differences_in_words([facts, known.facts])):
            raise EvaluationError(
                f"Another network {where} is called {opened.label!r} with seed {opened.seed}: give this one a seed or label "
                "of its own (open_network(network, seed=1, label='...'), --label), or another store."
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


def _choose_detectors(one: Evaluation, detectors: Sequence[str | Detector], tune: bool) -> list[DetectorRun]:
    """Make the detectors that were asked for, each once, and leave out those that cannot be used."""
    opened, training = one.opened, one.training
    made = make_detectors(detectors, opened.network, opened.normalise.std if opened.normalise else None)
    bare = [d.name for d in made if training is None and d.needs_fit and not d.fitted]
    reasons = dict.fromkeys(bare, "it must be fitted: pass the training images as `train`")
    for name in bare:
        if name in one.named:
            raise ArgumentError(f"Expected training images for {name}: {reasons[name]}.")
    # the check clears fitted statistics, so a detector that is not fitted again is checked by a copy
    checked = {copy.deepcopy(d) if training is None and d.needs_fit else d: d for d in made if d.name not in reasons}
    able, unable = compatible_detectors(checked, opened.network, next(iter(one.sets.id.batches))[0][:2])
    reasons |= unable
    for name, reason in reasons.items():
        one.note(name, f"{name} is left out: {reason.rstrip('.')}.")
    if not able:
        raise EvaluationError(
            f"No detector fits {opened.label}: {'; '.join(f'{name}: {reason}' for name, reason in reasons.items())}."
        )
    runs = {}
    for detector in (checked[probe] for probe in able):
        learned = ""
        if detector.needs_fit and training is None:
            learned = f"before, statistics {checksum(detector, None)[:12]}"
        elif detector.needs_fit and training is not None:
            learned = training.description(one.sets.id.name, stored=one.store.folder is not None)
        run = DetectorRun(detector, tune and bool(detector.grid), learned, given_arguments(detector, opened.network))
        runs[run.name] = run
    return list(runs.values())


def _note_wrong_signs(one: Evaluation, runs: Iterable[DetectorRun], results: Sequence[Result]) -> set[str]:
    """Note detectors from outside this package that take OOD images for ID images, and return their names."""
    wrong = set()
    for name in {run.detector.name for run in runs if is_own(run.detector)}:
        mean = fmean([result.metrics["auroc"] for result in results if result.detector == name] or [1.0])
        if mean < 0.3:  # turned round, it would be a good one
            wrong.add(name)
            one.note(
                name,
                f"{name} scores ID images higher than OOD images (mean AUROC {100 * mean:.1f} %): larger must mean more "
                "out-of-distribution. Is its sign right?",
            )
    return wrong


# by the options of the shell -------------------------------------------------------------------------------------------


def evaluate_by_options(
    options: EvaluateOptions, command: Sequence[str] = (), note: Note = lambda _: None
) -> list[Result]:
    """Evaluate networks and write the results into a store; what is in it already is not computed again.

    Args:
        options: what is evaluated, and the store.
        command: the words that started it, which are recorded.
        note: called with what is left out, and why.

    Returns:
        The results of these networks, sets and detectors, old and new.

    Raises:
        OffaxisError: something does not fit together.
    """
    if options.out is None:
        raise ArgumentError("Expected a folder for the results (--out).")
    benchmark = _open_benchmark(options)
    common: dict[str, Any] = {
        "store": options.out,
        "tune": options.tune,
        "batch_size": options.batch_size,
        "features": cache_folder() / "features",
        "device": options.device,
        "command": command,
        "quiet": options.quiet,
        "note": note,
    }
    networks = _open_networks(options)
    if benchmark is not None:
        if options.fit_images is not None:
            common["train"] = partial(limit_images, benchmark.train, options.fit_images)
            common["fitted_on"] = f"{options.fit_images} training images of {benchmark.name}"
        return list(evaluate(networks, benchmark, detectors=options.detectors, **common))
    results: list[Result] = []
    read = cache(partial(_read_images, options, note))  # networks share the sets, and their checksums
    for opened in networks:
        id_name = options.id or (opened.data or {}).get("path") or opened.id
        if id_name is None:
            raise ArgumentError(f"Name the ID set of {opened.origin}: --id NAME.")
        rules = _reading_rules(opened, id_name)
        id_test = read(id_name, "test", rules)
        names, left_out = sets_for(id_name, options.ood, options.data)
        for name, reason in left_out.items():
            note(f"{name} is left out: {reason}.")
        alike_id = (("like", id_test), ("resize", opened.resize))
        results += evaluate(
            opened,
            id_test,
            [read(name, "test", alike_id) for name in names],
            options.detectors,
            train=partial(read, id_name, "train", rules),
            fitted_on=_fitted_on(options.fit_images, str(id_name), rules),
            protocols=("one-vs-one", "less-biased") if options.protocol == "both" else (options.protocol,),
            shifted=[read(name, "test", alike_id) for name in options.shifted],
            near=[Path(name).expanduser().resolve().name if name in names else name for name in options.near],
            validation=options.validation,
            **common,
        )
    return results


def _read_images(
    options: EvaluateOptions, note: Note, name: str, split: Literal["train", "test"], rules: Rules
) -> ImageSet:
    """Load a set, with as many images as are evaluated, and say which files were left out."""
    skipping: dict[str, Any] = {"skip_bad": True} if options.skip_bad else {}
    with counting(options.quiet):
        images = load_images(name, split, root=options.data, **{**dict(rules), **skipping})
    if options.skip_bad and images.skipped:
        note("\n".join(list_skipped(images.skipped)))
    return limit_images(images, options.images if split == "test" else options.fit_images)


def _fitted_on(count: int | None, id_name: str, rules: Rules) -> str:
    """Return what detectors are fitted on, by which a store tells results apart: a set of one's own by its files too."""
    images = f"{count or 'all'} training images of {id_name}"
    path = Path(id_name).expanduser()
    if id_name in CATALOGUE or not path.exists():
        return images
    try:
        files = [path] if path.is_file() else own_files(path, "train", True, dict(rules).get("holdout"))[0].paths
    except OffaxisError:  # told where detectors need them
        return images
    found = {os.path.relpath(file, path): Path(file).stat() for file in files}
    states = {name: [state.st_size, state.st_mtime_ns] for name, state in found.items()}
    return f"{images} ({digest(states)[:12]})"


def _open_benchmark(options: EvaluateOptions) -> OpenOOD | None:
    """Open the benchmark of an evaluation, where it has one; its lists say what other options say elsewhere."""
    name = options.benchmark
    if name is None:
        if options.partial or options.full_spectrum:
            raise ArgumentError(
                "Expected --partial and --full-spectrum beside --benchmark alone (--shifted names own sets)."
            )
        return None
    if name not in BENCHMARKS:
        raise ArgumentError(
            f"Expected --benchmark to be one of {', '.join(BENCHMARKS)} but got {name!r}.{alike(name, BENCHMARKS)}"
        )
    chosen = EvaluateOptions(networks=options.networks).differences(options)
    given = [f"--{word.replace('_', '-')}" for word in _LISTED if word in chosen]
    if given:
        raise ArgumentError(
            f"Expected no {', '.join(given)} beside --benchmark, whose lists say which images there are, which are near and "
            "what detectors are tuned on: leave them out. --partial evaluates the part of its images that is there."
        )
    if options.data is None:
        raise ArgumentError(f"Expected --data ROOT, the folder with OpenOOD's benchmark_imglist, for {name}.")
    return openood(
        options.data, name.removeprefix("openood-"), partial=options.partial, full_spectrum=options.full_spectrum
    )


_LISTED = ("id", "ood", "shifted", "images", "near", "protocol", "validation", "skip_bad")
"""The options whose place a benchmark's lists take."""


def _reading_rules(opened: OpenedNetwork, id_name: str) -> Rules:
    """Return how the ID images of a network are read: as those that it was trained on were, or at its size."""
    same, known = opened.was_trained_on(id_name), opened.data or {}
    options: dict[str, Any] = known.get("options", {}) if same else {"size": opened.size, "resize": opened.resize}
    return tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in options.items() if v is not None)


def _open_networks(run: EvaluateOptions) -> list[OpenedNetwork]:
    """Open the networks, each by itself or combined into one."""
    if run.weights:
        if len(run.networks) > 1 or run.network is not None:
            raise ArgumentError("Expected --weights beside one network by name, such as resnet18-32, and no --network.")
        named = run.networks[0]
        sources: list[Any] = [
            open_network(named, label=run.label, weights=file, seed=seed, head="keep")
            for seed, file in enumerate(run.weights)
        ]
    else:
        sources = open_runs(run.networks, run.network)
    if run.kind == "single":
        return [_labelled(open_network(source, label=run.label, head="keep"), run) for source in sources]
    return [combine(sources, run.kind, run.label)]


def _labelled(opened: OpenedNetwork, run: EvaluateOptions) -> OpenedNetwork:
    """Return a network of a Python file with a label of its own: the file's name, the head and whether it was frozen."""
    if run.network is None or run.label is not None:
        return opened
    file = Path(run.network.partition(".py")[0]).name
    label = make_label(architecture=file, head=opened.head or {"name": "own head"}, recipe=opened.recipe)
    if isinstance(opened.network, Classifier) and opened.network.frozen:
        trained = opened.network.unfrozen_from
        label += " frozen" if trained is None else f" trained from {trained}"
    return replace(opened, label=label)
