"""An evaluation by its options, as ``offaxis evaluate`` and reproductions start it: networks and sets by name -> a store."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from offaxis.data import ImageSet, OpenOOD, limit_images, load_images, openood
from offaxis.data.catalogue import CATALOGUE, cache_folder
from offaxis.data.images import list_skipped
from offaxis.data.load import own_files
from offaxis.data.splits import VALIDATION_IMAGES
from offaxis.errors import ArgumentError, OffaxisError
from offaxis.evaluation.evaluating import evaluate
from offaxis.evaluation.protocols import sets_for
from offaxis.evaluation.records import Result
from offaxis.evaluation.store import Store
from offaxis.files import digest
from offaxis.names import BENCHMARKS, alike
from offaxis.networks.classifier import Classifier
from offaxis.networks.open import combine, open_network, open_runs
from offaxis.networks.opened import OpenedNetwork, make_label
from offaxis.options import EvaluateOptions
from offaxis.progress import counting

Note = Callable[[str], None]
Rules = tuple[tuple[str, Any], ...]
"""Arguments of ``load_images`` that can be the key of a cache."""


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
    store = Store(options.out)
    results: list[Result] = []
    common: dict[str, Any] = {
        "store": store,
        "tune": options.tune,
        "batch_size": options.batch_size,
        "features": cache_folder() / "features",
        "device": options.device,
        "command": command,
        "quiet": options.quiet,
        "note": note,
    }
    read = cache(partial(_read, options, note))  # networks share the sets, and their checksums
    for opened in _open_networks(options):
        if benchmark is not None:
            fitting: dict[str, Any] = {}
            if options.fit_images is not None:
                fitting["train"] = partial(limit_images, benchmark.train, options.fit_images)
                fitting["fitted_on"] = f"{options.fit_images} training images of {benchmark.name}"
            results += evaluate(opened, benchmark, detectors=options.detectors, **fitting, **common)
            continue
        id_name = options.id or (opened.data or {}).get("path") or opened.id
        if id_name is None:
            raise ArgumentError(f"Name the ID set of {opened.origin}: --id NAME.")
        rules = _rules(opened, id_name)
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
            near=[Path(name).expanduser().resolve().name if name in names else name for name in options.near],
            validation=options.validation,
            **common,
        )
    return results


def _read(options: EvaluateOptions, note: Note, name: str, split: Literal["train", "test"], rules: Rules) -> ImageSet:
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
    """Open the benchmark of an evaluation, where it has one."""
    if options.benchmark is None:
        if options.partial:
            raise ArgumentError("Expected --partial beside --benchmark alone.")
        return None
    if options.benchmark not in BENCHMARKS:
        raise ArgumentError(
            f"Expected --benchmark to be one of {', '.join(BENCHMARKS)} but got {options.benchmark!r}."
            + alike(options.benchmark, BENCHMARKS)
        )
    if options.ood != ("here",):
        raise ArgumentError("Expected no --ood beside --benchmark, which has its own OOD sets.")
    if options.id is not None or options.images is not None:
        raise ArgumentError(
            "Expected no --id and no --images beside --benchmark, which has its own lists; a part of its images is "
            "evaluated with --partial, where that part is all that is there."
        )
    if options.near or options.skip_bad or options.protocol != "one-vs-one" or options.validation != VALIDATION_IMAGES:
        raise ArgumentError(
            "Expected no --near, --protocol, --validation and --skip-bad beside --benchmark, whose lists say which sets are "
            "near, what detectors are tuned on and which images there are: leave them out."
        )
    if options.data is None:
        raise ArgumentError(
            f"Expected --data ROOT, the folder with OpenOOD's benchmark_imglist, for {options.benchmark}."
        )
    return openood(options.data, options.benchmark.removeprefix("openood-"), partial=options.partial)


def _rules(opened: OpenedNetwork, id_name: str) -> Rules:
    """Return how the ID images of a network are read: as those that it was trained on were, or at its size."""
    known = opened.data or {}
    same = id_name == known.get("name") or str(Path(id_name).expanduser().resolve()) == known.get("path")
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
