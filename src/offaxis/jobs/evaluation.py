"""An evaluation by name: what it depends on as typed settings, and the function that runs it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from offaxis.errors import ArgumentError, OffaxisError
from offaxis.jobs.training import Note, single
from offaxis.progress import counting

if TYPE_CHECKING:
    from offaxis.data import ImageSet, OpenOOD
    from offaxis.deploy.evaluated_network import EvaluatedNetwork
    from offaxis.deploy.model import Model
    from offaxis.deploy.open import NetworkSource
    from offaxis.evaluation import Result, Store
    from offaxis.training import Trained

BENCHMARKS = ("openood-cifar10", "openood-cifar100", "openood-imagenet200", "openood-imagenet")
"""Values of ``--benchmark``."""
ProtocolName = Literal["one-vs-one", "less-biased", "both"]
Kind = Literal["single", "ensemble", "paired", "leave-out"]
Options = tuple[tuple[str, Any], ...]
"""Arguments of ``load_images`` that can be the key of a cache."""


@dataclass(frozen=True, kw_only=True)
class EvaluationRun:
    """What the results of an evaluation depend on.

    Attributes:
        networks: each anything that ``open_network`` takes.
        network: ``file.py:function`` that makes the network of training runs, where they cannot be opened without.
        weights: files of weights for the network, where it is one by name: seeds 0, 1, ... of it; none for its own.
        id: the ID set; None for the one that the network was trained on.
        benchmark: ``openood-cifar10`` and so on: OpenOOD's lists in place of ``id`` and ``ood``; None for none.
        partial: evaluate a benchmark on the part of its images that is there.
        ood: names of sets, folders, or pools out of ``offaxis.evaluation.POOLS``.
        near: those of the folders, by name or path, that are near-OOD; others count as far.
        detectors: names, perhaps with arguments as in ``knn:k=10``, or families such as ``native``.
        protocol: how detectors are tuned on OOD images.
        tune: report detectors that have a grid tuned too, beside their published values.
        kind: the networks each by itself (``"single"``), or combined into one.
        label: what tables call the networks; None for architecture and head.
        skip_bad: leave out files of folders that cannot be read.
        images: at most so many images of each OOD and ID test set; None for all.
        fit_images: at most so many training images to fit detectors on; None for all.
        validation: images of each set that tuning may see; None for the default.
        batch_size: images at a time; None for the default.
    """

    networks: tuple[str, ...]
    network: str | None = None
    weights: tuple[str, ...] = ()
    id: str | None = None
    benchmark: str | None = None
    partial: bool = False
    ood: tuple[str, ...] = ("here",)
    near: tuple[str, ...] = ()
    detectors: tuple[str, ...] = ("native",)
    protocol: ProtocolName = "one-vs-one"
    tune: bool = True
    kind: Kind = "single"
    label: str | None = None
    skip_bad: bool = False
    images: int | None = None
    fit_images: int | None = None
    validation: int | None = None
    batch_size: int | None = None


def evaluate_run(
    run: EvaluationRun,
    *,
    out: Path,
    device: str = "auto",
    data: Path | None = None,
    command: Sequence[str] | None = None,
    quiet: bool = False,
    note: Note = lambda _: None,
) -> "list[Result]":
    """Evaluate networks and write the results into a store; what is in it already is not computed again.

    Args:
        run: what is evaluated.
        out: the results store.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ... or ``mps``.
        data: where the catalogue's sets are kept.
        command: the words that started it, which are recorded.
        quiet: show no progress.
        note: called with what is left out, and why.

    Returns:
        The results of these networks, sets and detectors, old and new.

    Raises:
        OffaxisError: something does not fit together.
    """
    from offaxis.evaluation import Store

    store = Store(out)
    remembered = _remembered(run, store, data)
    if remembered is not None:
        results, notes = remembered
        for text in notes:
            note(text)
        return results
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        note(text)

    results, ids = _evaluate(run, store, device=device, data=data, command=command, quiet=quiet, note=tell)
    _remember(run, store, data, ids, results, told)
    return results


def _evaluate(
    run: EvaluationRun,
    store: "Store",
    *,
    device: str,
    data: Path | None,
    command: Sequence[str] | None,
    quiet: bool,
    note: Note,
) -> "tuple[list[Result], list[str]]":
    """Return the results of a run and the names of the ID sets."""
    from offaxis.data import limit_images, load_images
    from offaxis.data.catalogue import cache_folder
    from offaxis.data.image_set import list_skipped
    from offaxis.data.splits import VALIDATION_IMAGES
    from offaxis.evaluation import evaluate, sets_for

    skipping: dict[str, Any] = {"skip_bad": True} if run.skip_bad else {}

    def tell_skipped(images: "ImageSet") -> None:
        if run.skip_bad and images.skipped:
            note("\n".join(list_skipped(images.skipped)))

    @cache  # networks share the sets, and their checksums
    def id_images(name: str, split: Literal["train", "test"], options: Options) -> "ImageSet":
        most = run.images if split == "test" else run.fit_images
        with counting(quiet):
            images = load_images(name, split, root=data, **{**dict(options), **skipping})
        tell_skipped(images)
        return limit_images(images, most)

    @cache
    def ood_images(name: str, like: "ImageSet", resize: str | None) -> "ImageSet":
        with counting(quiet):
            images = load_images(name, "test", root=data, like=like, resize=resize, **skipping)
        tell_skipped(images)
        return limit_images(images, run.images)

    training_images = cache(_training_images)
    benchmark = _open_benchmark(run, data)
    networks = _open_networks(run)
    results: list[Result] = []
    ids: list[str] = []
    arguments: dict[str, Any] = {
        "store": store,
        "tune": run.tune,
        "batch_size": run.batch_size or 64,
        "features": cache_folder() / "features",
        "device": device,
        "command": command or (),
        "quiet": quiet,
        "note": note,
    }
    for opened in networks:
        if benchmark is not None:
            fitting: dict[str, Any] = {}
            if run.fit_images is not None:
                fitting["train"] = partial(limit_images, benchmark.train, run.fit_images)
                fitting["fitted_on"] = f"{run.fit_images} training images of {benchmark.name}"
            results += evaluate(opened, benchmark, detectors=run.detectors, **fitting, **arguments)
            continue
        id_name = run.id or (opened.data or {}).get("path") or opened.id
        if id_name is None:
            raise ArgumentError(f"Name the ID set of {opened.origin}: --id NAME.")
        ids.append(str(id_name))
        options = _options(opened, id_name)
        id_test = id_images(id_name, "test", options)
        names, left_out = sets_for(id_name, run.ood, data)
        for name, reason in left_out.items():
            note(f"{name} is left out: {reason}.")
        results += evaluate(
            opened,
            id_test,
            [ood_images(name, id_test, opened.resize) for name in names],
            run.detectors,
            train=partial(id_images, id_name, "train", options),
            fitted_on=training_images(run.fit_images, str(id_name), options),
            protocols=("one-vs-one", "less-biased") if run.protocol == "both" else (run.protocol,),
            near=[Path(name).expanduser().resolve().name if name in names else name for name in run.near],
            validation=VALIDATION_IMAGES if run.validation is None else run.validation,
            **arguments,
        )
    return results, list(dict.fromkeys(ids))


def _training_images(count: int | None, id_name: str, options: Options) -> str:
    """Return what detectors are fitted on, by which a store tells results apart: a set of one's own by its files too."""
    from offaxis.data.catalogue import CATALOGUE
    from offaxis.data.load import own_files
    from offaxis.files import digest

    images = f"{count or 'all'} training images of {id_name}"
    path = Path(id_name).expanduser()
    if id_name in CATALOGUE or not path.exists():
        return images
    try:
        files = [path] if path.is_file() else own_files(path, "train", True, dict(options).get("holdout"))[0].paths
    except OffaxisError:  # told where detectors need them
        return images
    found = {os.path.relpath(file, path): Path(file).stat() for file in files}
    states = {name: [state.st_size, state.st_mtime_ns] for name, state in found.items()}
    return f"{images} ({digest(states)[:12]})"


# a run that was finished is recognised by its files, without torch, images and networks ------------------------------

_MOST_FILES = 20_000


def _remembered(run: EvaluationRun, store: "Store", data: Path | None) -> "tuple[list[Result], list[str]] | None":
    """Return the results and notes of the same run where it is finished and none of its files has changed since."""
    from offaxis.errors import StoreError
    from offaxis.files import read_json

    path = _memory(run, store, data)
    if path is None or not path.exists():
        return None
    try:
        known = read_json(path, StoreError, "it is made again")
    except StoreError:
        return None
    if known.keys() != {"inputs", "ids", "results", "notes"} or known["inputs"] != _inputs(run, data, known["ids"]):
        return None
    by_key = {result.key: result for result in store.results()}
    if not all(key in by_key for key in known["results"]):
        return None
    return [by_key[key] for key in known["results"]], list(known["notes"])


def _remember(
    run: EvaluationRun,
    store: "Store",
    data: Path | None,
    ids: Sequence[str],
    results: "Sequence[Result]",
    notes: Sequence[str],
) -> None:
    from offaxis.files import write_json

    path, inputs = _memory(run, store, data), _inputs(run, data, ids)
    if path is not None and inputs is not None:
        keys = [result.key for result in results]
        write_json(path, {"inputs": inputs, "ids": list(ids), "results": keys, "notes": list(notes)})


def _memory(run: EvaluationRun, store: "Store", data: Path | None) -> Path | None:
    """Return the file that remembers a run; None for one that depends on more than files and names: Python code."""
    from importlib.metadata import entry_points

    words = (*run.networks, *run.detectors, run.network or "")
    elsewhere = {*_LIBRARIES, *(entry.name for entry in entry_points(group="offaxis.detectors"))}
    code = run.network is not None or any(".py" in word or word.split(":")[0] in elsewhere for word in words)
    whole = bool(run.weights) or all(Path(text).exists() for text in run.networks)
    if code or not whole or (run.benchmark is not None and data is None):
        return None
    from importlib.metadata import version

    from offaxis import __version__
    from offaxis.data.catalogue import data_root
    from offaxis.files import digest

    return (
        store.path / "finished" / f"{digest([asdict(run), str(data_root(data)), __version__, version('torch')])}.json"
    )


_LIBRARIES = ("timm", "torchvision", "transformers")


def _inputs(run: EvaluationRun, data: Path | None, ids: Sequence[str]) -> dict[str, Any] | None:
    """Return the sizes and times of all files that a run reads, in short; None where they are too many to look at."""
    from offaxis.data.catalogue import CATALOGUE, data_root
    from offaxis.evaluation.protocols import sets_for
    from offaxis.files import digest

    given = [Path(text).expanduser() for text in (*run.networks, *run.weights)]
    paths = [path for path in given if path.exists()]
    names = {id_name: sets_for(id_name, run.ood, data)[0] for id_name in ids}
    for name in dict.fromkeys([*ids, *(name for chosen in names.values() for name in chosen)]):
        if name not in CATALOGUE:
            paths.append(Path(name).expanduser())
            continue
        for split in CATALOGUE[name].available(data_root(data)):
            found = CATALOGUE[name].find(data_root(data), split)
            paths += [] if found is None else found[1]
    files: dict[str, list[int]] = {}
    for path in dict.fromkeys(paths):
        for file in [path] if path.is_file() else path.rglob("*"):
            with suppress(OSError):  # a link to nowhere
                state = file.stat()
                files[str(file)] = [state.st_size, state.st_mtime_ns]
            if len(files) > _MOST_FILES:
                return None
    if run.benchmark is not None and data is not None:
        files |= _benchmark_files(data, run.benchmark.partition("-")[2])
    return {"sets": names, "files": digest(files)}


def _benchmark_files(data: Path, id: str) -> dict[str, list[int]]:
    """Return the sizes and times of OpenOOD's lists for an ID set, and the times of the folders that their images are in.

    These are hundreds of thousands of files: what is added or removed is seen by its folder, what is overwritten is not.
    """
    root = data.expanduser()
    root = root if (root / "benchmark_imglist").is_dir() else root / "data"
    found: dict[str, list[int]] = {}
    folders: set[str] = set()
    for path in sorted((root / "benchmark_imglist" / id).glob("*.txt")):
        found[path.name] = [path.stat().st_size, path.stat().st_mtime_ns]
        folders.update(
            line.partition(" ")[0].rpartition("/")[0] for line in path.read_text(errors="replace").splitlines()
        )
    for name in sorted(folders):
        for base in ("images_classic", "images_largescale"):
            with suppress(OSError):
                found[f"{base}/{name}"] = [(root / base / name).stat().st_mtime_ns]
    return found


def _open_benchmark(run: EvaluationRun, data: Path | None) -> "OpenOOD | None":
    """Open the benchmark of a run, where it has one."""
    if run.benchmark is None:
        if run.partial:
            raise ArgumentError("Expected --partial beside --benchmark alone.")
        return None
    from offaxis.data import openood
    from offaxis.data.splits import VALIDATION_IMAGES

    family, _, name = run.benchmark.partition("-")
    if family != "openood":
        raise ArgumentError(f"Expected --benchmark to be one of {', '.join(BENCHMARKS)} but got {run.benchmark!r}.")
    if run.id is not None or run.images is not None:
        raise ArgumentError(
            "Expected no --id and no --images beside --benchmark, which has its own lists; a part of its images is "
            "evaluated with --partial, where that part is all that is there."
        )
    if run.near or run.skip_bad or run.protocol != "one-vs-one" or run.validation not in (None, VALIDATION_IMAGES):
        raise ArgumentError(
            "Expected no --near, --protocol, --validation and --skip-bad beside --benchmark, whose lists say which sets are "
            "near, what detectors are tuned on and which images there are: leave them out."
        )
    if data is None:
        raise ArgumentError(f"Expected --data ROOT, the folder with OpenOOD's benchmark_imglist, for {run.benchmark}.")
    return openood(data, name, partial=run.partial)


def _options(opened: "EvaluatedNetwork", id_name: str) -> Options:
    """Return how the ID images of a network are read: as those that it was trained on were, or at its size."""
    known = opened.data or {}
    same = id_name == known.get("name") or str(Path(id_name).expanduser().resolve()) == known.get("path")
    options: dict[str, Any] = known.get("options", {}) if same else {"size": opened.size, "resize": opened.resize}
    return tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in options.items() if v is not None)


def _open_networks(run: EvaluationRun) -> "list[EvaluatedNetwork]":
    """Open the networks, each by itself or combined into one."""
    from offaxis.deploy.open import combine, open_trained

    if run.weights:
        if len(run.networks) > 1 or run.network is not None:
            raise ArgumentError("Expected --weights beside one network by name, such as resnet18-32, and no --network.")
        named = run.networks[0]
        sources: list[NetworkSource | Model] = [
            open_trained(named, label=run.label, weights=file, seed=seed) for seed, file in enumerate(run.weights)
        ]
    else:
        sources = open_runs(run.networks, run.network)
    if run.kind == "single":
        return [_labelled(open_trained(source, label=run.label), run) for source in sources]
    return [combine(sources, run.kind, run.label)]


def _labelled(opened: "EvaluatedNetwork", run: EvaluationRun) -> "EvaluatedNetwork":
    """Return a network of a Python file with a label of its own: the file's name, the head and whether it was frozen."""
    if run.network is None or run.label is not None:
        return opened
    from dataclasses import replace

    from offaxis.deploy.evaluated_network import make_label
    from offaxis.networks.classifier import Classifier

    file = Path(run.network.partition(".py")[0]).name
    label = make_label(architecture=file, head=opened.head or {"name": "own head"}, recipe=opened.recipe)
    if isinstance(opened.network, Classifier) and opened.network.frozen:
        trained = opened.network.unfrozen_from
        label += " frozen" if trained is None else f" trained from {trained}"
    return replace(opened, label=label)


def open_runs(paths: Sequence[str], network: str | None) -> "list[NetworkSource | Model]":
    """Return networks as ``open_network`` takes them; runs and bundles of an own network with their weights.

    Args:
        paths: folders of training runs, bundles and so on.
        network: ``file.py:function`` that makes the network of the runs; None where they can be opened without.

    Raises:
        ArgumentError: the function does not make a Classifier.
    """
    if network is None:
        return list(paths)
    from offaxis.deploy.bundle import load

    return [_load_run(path, network) if (Path(path) / "run.json").exists() else load(path, network) for path in paths]


def _load_run(path: str, network: str) -> "Trained":
    """Load a run into the network that a function makes, which is told the run's classes and head."""
    from offaxis.deploy.open import open_for_weights
    from offaxis.training.run import load_run, read_run

    settings = read_run(Path(path))["settings"]
    opened = open_for_weights(network, len(settings["data"]["classes"]), settings.get("head"))
    return load_run(path, into=single(opened))


def export_published(source: Path, network: str | None, out: Path) -> None:
    """Write the weights of a run or a bundle by their published names, as a state dictionary of PyTorch.

    Args:
        source: the folder of a training run, or a bundle.
        network: ``file.py:function`` that makes the network, where it cannot be opened without.
        out: the file to write.

    Raises:
        ArgumentError: it is not a single network with published names, or its head is not linear at test.
    """
    import torch

    from offaxis.deploy.open import open_network
    from offaxis.files import replacing
    from offaxis.networks.resnet import to_published

    weights = to_published(single(open_network(open_runs([str(source)], network)[0])))
    with replacing(out) as temporary:
        torch.save({name: tensor.contiguous() for name, tensor in weights.items()}, temporary)


def evaluation_words(evaluation: EvaluationRun, ood: str) -> Iterator[str]:
    """Yield the arguments and options of ``offaxis evaluate`` that describe an evaluation on some OOD sets."""
    yield from evaluation.networks
    if evaluation.id is not None:
        yield from ("--id", evaluation.id)
    if evaluation.benchmark is not None:
        yield from ("--benchmark", evaluation.benchmark, *(["--partial"] if evaluation.partial else []))
    else:
        yield from ("--ood", ood)
    yield from ("--detectors", ",".join(evaluation.detectors), "--protocol", evaluation.protocol)
    if evaluation.near:
        yield from ("--near", ",".join(evaluation.near))
    if evaluation.skip_bad:
        yield "--skip-bad"
    if not evaluation.tune:
        yield "--no-tune"
    if evaluation.kind != "single":
        yield from ("--as", evaluation.kind)
    for file in evaluation.weights:
        yield from ("--weights", file)
    for name in ("images", "fit_images", "batch_size", "label"):
        value = getattr(evaluation, name)
        if value is not None:
            yield from (f"--{name.replace('_', '-')}", str(value))
